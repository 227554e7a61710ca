package ref_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

const guard = 0xa5

// views returns tensors with the elements of contiguous x, of shape
// [B, H, T, d], laid out in other ways. All other bytes are guard.
func views(x codec.Tensor) map[string]codec.Tensor {
	b, h, n, d := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	m := map[string]codec.Tensor{}
	for name, l := range map[string]struct {
		stride []int
		skip   int // bytes before the first element
	}{
		"contiguous":         {nil, 0},
		"odd offset":         {nil, 1},
		"7 bytes in":         {[]int{h * n * d, n * d, d, 1}, 7},
		"padded rows":        {[]int{h * n * (d + 5), n * (d + 5), d + 5, 1}, 2},
		"slice of a buffer":  {[]int{h * 4 * n * d, 4 * n * d, d, 1}, 3 * x.DType.Size() * d},
		"heads after tokens": {[]int{n * h * d, d, h * d, 1}, 0},
		"reversed axes":      {[]int{1, b, b * h, b * h * n}, 0},
		"every third":        {[]int{3 * h * n * d, 3 * n * d, 3 * d, 3}, 5},
	} {
		v := codec.Tensor{DType: x.DType, Shape: x.Shape, Stride: l.stride}
		last := x.Len() - 1
		if l.stride != nil {
			last = (b-1)*l.stride[0] + (h-1)*l.stride[1] + (n-1)*l.stride[2] + (d-1)*l.stride[3]
		}
		size := x.DType.Size()
		v.Data = slices.Repeat([]byte{guard}, l.skip+(last+1)*size+11)[l.skip:]
		row := make([]float32, d)
		for r := range x.Rows() {
			x.LoadRow(row, r)
			v.StoreRow(r, row)
		}
		m[name] = v
	}
	return m
}

// Views are read and written by their strides: the same codes and the same
// elements as a contiguous copy, whatever lies between, at any alignment.
func TestFaultStridedReadAsPacked(t *testing.T) {
	for _, dtype := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		kv := newKV(t, codec.KVParams{HeadDim: 32, Keys: codec.Q5_0, Values: codec.Q3_0, Scale: codec.Search})
		x := gaussian(dtype, 2*3*4, 32)
		x.Shape = []int{2, 3, 4, 32}
		wantK, wantV := encode(t, kv, x)
		y := codec.NewTensor(dtype, x.Shape...)
		for name, v := range views(x) {
			before := bytes.Clone(v.Data)
			k, vals := encode(t, kv, v)
			sameKeys(t, name, k, wantK)
			sameValues(t, name, vals, wantV)
			if !bytes.Equal(v.Data, before) {
				t.Errorf("%s: input modified", name)
			}
			for what, decode := range decoders(kv, wantK, wantV, x) {
				if err := decode(y); err != nil {
					t.Fatal(err)
				}
				want := views(y)[name] // decoded elements in this layout, guards elsewhere
				out := views(codec.NewTensor(dtype, x.Shape...))[name]
				if err := decode(out); err != nil {
					t.Fatalf("%s, %s: %v", name, what, err)
				}
				if !bytes.Equal(out.Data, want.Data) {
					t.Errorf("%s, %s: elements differ, or bytes between them were written", name, what)
				}
			}
		}
	}
}

// decoders returns everything that writes a tensor like x.
func decoders(kv codec.KV, k codec.Keys, v codec.Values, x codec.Tensor) map[string]func(codec.Tensor) error {
	spare := codec.NewTensor(x.DType, x.Shape...)
	return map[string]func(codec.Tensor) error{
		"DecodeKeys":            func(y codec.Tensor) error { return kv.DecodeKeys(y, k) },
		"DecodeValues":          func(y codec.Tensor) error { return kv.DecodeValues(y, v) },
		"DecodeValuesRotated":   func(y codec.Tensor) error { return kv.DecodeValuesRotated(y, v) },
		"Decode, keys":          func(y codec.Tensor) error { return kv.Decode(y, spare, k, v) },
		"Decode, values":        func(y codec.Tensor) error { return kv.Decode(spare, y, k, v) },
		"DecodeRotated, values": func(y codec.Tensor) error { return kv.DecodeRotated(spare, y, k, v) },
		"Unrotate":              func(y codec.Tensor) error { return kv.Unrotate(y, x) },
	}
}

// The joint decoders write what the single ones do.
func TestDecodeJointEqualsSingle(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 96, ValueHeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	var k codec.Keys
	var v codec.Values
	if err := kv.EncodeKeys(&k, gaussian(codec.BF16, 5, 96)); err != nil {
		t.Fatal(err)
	}
	if err := kv.EncodeValues(&v, gaussian(codec.BF16, 5, 64)); err != nil {
		t.Fatal(err)
	}
	tensors := func() (a, b codec.Tensor) {
		return codec.NewTensor(codec.F16, 5, 96), codec.NewTensor(codec.F16, 5, 64)
	}
	wantK, want := tensors()
	_, wantRotated := tensors()
	gotK, got := tensors()
	gotK2, gotRotated := tensors()
	for _, err := range []error{
		kv.DecodeKeys(wantK, k), kv.DecodeValues(want, v), kv.DecodeValuesRotated(wantRotated, v),
		kv.Decode(gotK, got, k, v), kv.DecodeRotated(gotK2, gotRotated, k, v),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	diff(t, "keys", codec.F16, gotK.Data, wantK.Data)
	diff(t, "keys beside rotated values", codec.F16, gotK2.Data, wantK.Data)
	diff(t, "values", codec.F16, got.Data, want.Data)
	diff(t, "rotated values", codec.F16, gotRotated.Data, wantRotated.Data)
	if bytes.Equal(want.Data, wantRotated.Data) {
		t.Error("rotated values equal unrotated ones")
	}
}

// Unrotating in place equals unrotating to another tensor.
func TestUnrotateInPlace(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 160, Keys: codec.Q4_0, Values: codec.Q3_0})
	x := gaussian(codec.F16, 3, 160)
	y := codec.NewTensor(codec.F16, 3, 160)
	if err := kv.Unrotate(y, x); err != nil {
		t.Fatal(err)
	}
	if err := kv.Unrotate(x, x); err != nil {
		t.Fatal(err)
	}
	diff(t, "in place", codec.F16, x.Data, y.Data)
}

// A stride of 0 repeats rows, heads or a single element.
func TestBroadcast(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 32, Keys: codec.Q8_0, Values: codec.Q4_0})
	for name, stride := range map[string][]int{"heads": {0, 32, 1}, "rows": {160, 0, 1}, "element": {0, 0, 0}} {
		x := codec.Tensor{DType: codec.BF16, Shape: []int{3, 4, 32}, Stride: stride, Data: gaussian(codec.BF16, 16, 32).Data}
		copied := codec.NewTensor(codec.BF16, x.Shape...)
		row := make([]float32, 32)
		for r := range x.Rows() {
			x.LoadRow(row, r)
			copied.StoreRow(r, row)
		}
		k, v := encode(t, kv, x)
		wantK, wantV := encode(t, kv, copied)
		sameKeys(t, name, k, wantK)
		sameValues(t, name, v, wantV)
	}
}

// A ring buffer whose oldest token is not the first: its two runs, encoded one
// after the other, are the tokens in order.
func TestRingBuffer(t *testing.T) {
	const window, cursor, d = 8, 3, 32
	kv := newKV(t, codec.KVParams{HeadDim: d, Keys: codec.Q4_0, Values: codec.Q3_0})
	ring := gaussian(codec.F16, window, d)
	tokens := codec.NewTensor(codec.F16, window, d)
	at := cursor * d * 2
	copy(tokens.Data[copy(tokens.Data, ring.Data[at:]):], ring.Data[:at])
	wantK, wantV := encode(t, kv, tokens)
	k, v := encode(t, kv, codec.Tensor{DType: codec.F16, Shape: []int{window - cursor, d}, Data: ring.Data[at:]})
	k2, v2 := encode(t, kv, codec.Tensor{DType: codec.F16, Shape: []int{cursor, d}, Data: ring.Data})
	sameKeys(t, "runs", codec.Keys{Shape: wantK.Shape, Codes: append(k.Codes, k2.Codes...), Scales: append(k.Scales, k2.Scales...), Zeros: append(k.Zeros, k2.Zeros...)}, wantK)
	sameValues(t, "runs", codec.Values{Shape: wantV.Shape, Codes: append(v.Codes, v2.Codes...), Scales: append(v.Scales, v2.Scales...)}, wantV)
}

// Encoding each head alone gives the bytes of encoding all.
func TestFaultHeadsConfused(t *testing.T) {
	for _, shape := range [][]int{{1, 1, 4, 64}, {2, 2, 3, 64}, {3, 5, 2, 64}, {1, 3, 7, 64}} {
		kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.Q3_0, Values: codec.Q5_0})
		x := gaussian(codec.F32, shape[0]*shape[1]*shape[2], 64)
		x.Shape = shape
		wantK, wantV := encode(t, kv, x)
		var k codec.Keys
		var v codec.Values
		size := shape[2] * 64 * 4
		for i := 0; i < len(x.Data); i += size {
			hk, hv := encode(t, kv, codec.Tensor{DType: codec.F32, Shape: shape[2:], Data: x.Data[i : i+size]})
			k.Codes, k.Scales, k.Zeros = append(k.Codes, hk.Codes...), append(k.Scales, hk.Scales...), append(k.Zeros, hk.Zeros...)
			v.Codes, v.Scales = append(v.Codes, hv.Codes...), append(v.Scales, hv.Scales...)
		}
		k.Shape, v.Shape = shape, shape
		sameKeys(t, fmt.Sprint(shape), k, wantK)
		sameValues(t, fmt.Sprint(shape), v, wantV)
	}
}

// No rows: no bytes, no error, whichever dimension is 0.
func TestFaultEmptyTensor(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0})
	for _, shape := range [][]int{{0, 32}, {0, 2, 3, 32}, {2, 0, 3, 32}, {2, 3, 0, 32}} {
		x := codec.Tensor{DType: codec.BF16, Shape: shape}
		k, v := encode(t, kv, x)
		if !slices.Equal(k.Shape, shape) || !slices.Equal(v.Shape, shape) || len(k.Codes)+len(k.Scales)+len(k.Zeros)+len(v.Codes)+len(v.Scales) != 0 {
			t.Errorf("%v: %+v, %+v", shape, k, v)
		}
		for what, decode := range decoders(kv, k, v, x) {
			if err := decode(x); err != nil {
				t.Errorf("%v: %s: %v", shape, what, err)
			}
		}
		k.Codes = make([]byte, 1)
		wantError(t, "a code of no row", kv.DecodeKeys(x, k), codec.ErrShape, "key codes", codec.NoIndex)
	}
	row := codec.FromF32(make([]float32, 32), 32) // a single row without leading dimensions
	k, _ := encode(t, kv, row)
	if !slices.Equal(k.Shape, []int{32}) || len(k.Codes) != 16 {
		t.Errorf("one row: %+v", k)
	}
}

// Encoders write exactly the bytes they own: guards before and after dst's
// memory stay, and dst's memory is reused where it is large enough.
func TestFaultStoresPastTheEnd(t *testing.T) {
	for _, bits := range []int{2, 3, 4, 5, 8} {
		kv := newKV(t, codec.KVParams{HeadDim: 96, Keys: keyFormat(bits, false), Values: valueFormat(bits)})
		x := gaussian(codec.F32, 3, 96)
		wantK, wantV := encode(t, kv, x)
		// inside returns memory for b, with spare capacity, between guards.
		var fences [][]byte
		inside := func(b []byte) []byte {
			f := slices.Repeat([]byte{guard}, len(b)+32)
			fences = append(fences, f)
			return f[16:16]
		}
		k := codec.Keys{Codes: inside(wantK.Codes), Scales: inside(wantK.Scales), Zeros: inside(wantK.Zeros)}
		v := codec.Values{Codes: inside(wantV.Codes), Scales: inside(wantV.Scales)}
		for range 2 {
			if err := kv.EncodeKeys(&k, x); err != nil {
				t.Fatal(err)
			}
			if err := kv.EncodeValues(&v, x); err != nil {
				t.Fatal(err)
			}
			sameKeys(t, "guarded", k, wantK)
			sameValues(t, "guarded", v, wantV)
		}
		for i, b := range [][]byte{k.Codes, k.Scales, k.Zeros, v.Codes, v.Scales} {
			f := fences[i]
			if &f[16] != &b[0] {
				t.Errorf("%d bits: buffer %d was not reused", bits, i)
			}
			if !bytes.Equal(f[:16], bytes.Repeat([]byte{guard}, 16)) || !bytes.Equal(f[16+len(b):], bytes.Repeat([]byte{guard}, 16)) {
				t.Errorf("%d bits: buffer %d was written beyond its %d bytes", bits, i, len(b))
			}
		}
	}
}

// A reused dst keeps nothing of an earlier, larger or smaller result.
func TestEncodeReusesDst(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0})
	var k codec.Keys
	var v codec.Values
	for _, rows := range []int{5, 9, 2, 0, 7} {
		x := gaussian(codec.F32, rows, 32)
		wantK, wantV := encode(t, kv, x)
		if err := kv.EncodeKeys(&k, x); err != nil {
			t.Fatal(err)
		}
		if err := kv.EncodeValues(&v, x); err != nil {
			t.Fatal(err)
		}
		sameKeys(t, fmt.Sprint(rows, " rows"), k, wantK)
		sameValues(t, fmt.Sprint(rows, " rows"), v, wantV)
	}
}

// Decoders leave packed data alone.
func TestDecodeKeepsInput(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.Q3_0, Values: codec.Q3_0})
	x := gaussian(codec.F32, 4, 64)
	k, v := encode(t, kv, x)
	wantK, wantV := encode(t, kv, x)
	for what, decode := range decoders(kv, k, v, x) {
		if err := decode(codec.NewTensor(codec.F32, 4, 64)); err != nil {
			t.Fatal(what, err)
		}
	}
	sameKeys(t, "after decoding", k, wantK)
	sameValues(t, "after decoding", v, wantV)
}

// One codec serves many goroutines, and their number changes no bit.
func TestFaultSeededRotationNotReproducible(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 128, ValueHeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	x, y := gaussian(codec.F32, 8, 128), gaussian(codec.F32, 8, 64)
	var wantK codec.Keys
	var wantV codec.Values
	out := codec.NewTensor(codec.F32, 8, 64)
	for _, err := range []error{kv.EncodeKeys(&wantK, x), kv.EncodeValues(&wantV, y), kv.DecodeValues(out, wantV)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, procs := range []int{1, 16} {
		old := runtime.GOMAXPROCS(procs)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				// Another codec with the same parameters, every other time.
				kv := kv
				for i := range 4 {
					if i%2 == 1 {
						var err error
						if kv, err = ref.New().KV(kv.Params()); err != nil {
							t.Error(err)
							return
						}
					}
					var k codec.Keys
					var v codec.Values
					dst, dstK := codec.NewTensor(codec.F32, 8, 64), codec.NewTensor(codec.F32, 8, 128)
					for _, err := range []error{kv.EncodeKeys(&k, x), kv.EncodeValues(&v, y), kv.Decode(dstK, dst, k, v)} {
						if err != nil {
							t.Error(err)
							return
						}
					}
					if !bytes.Equal(k.Codes, wantK.Codes) || !bytes.Equal(k.Zeros, wantK.Zeros) || !bytes.Equal(v.Codes, wantV.Codes) || !bytes.Equal(v.Scales, wantV.Scales) || !bytes.Equal(dst.Data, out.Data) {
						t.Errorf("GOMAXPROCS=%d: bits differ", procs)
					}
				}
			})
		}
		wg.Wait()
		runtime.GOMAXPROCS(old)
	}
}

func sameKeys(t *testing.T, what string, got, want codec.Keys) {
	t.Helper()
	if !slices.Equal(got.Shape, want.Shape) {
		t.Fatalf("%s: shape %v, want %v", what, got.Shape, want.Shape)
	}
	diff(t, what+": key codes", 0, got.Codes, want.Codes)
	diff(t, what+": key scales", 0, got.Scales, want.Scales)
	diff(t, what+": key zeros", 0, got.Zeros, want.Zeros)
}

func sameValues(t *testing.T, what string, got, want codec.Values) {
	t.Helper()
	if !slices.Equal(got.Shape, want.Shape) {
		t.Fatalf("%s: shape %v, want %v", what, got.Shape, want.Shape)
	}
	diff(t, what+": value codes", 0, got.Codes, want.Codes)
	diff(t, what+": value scales", 0, got.Scales, want.Scales)
}

// TestUnrotateCanonical gives Unrotate magnitudes below 2^-64: they count as
// zeros, so that a device that flushes subnormals agrees.
func TestUnrotateCanonical(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.Uint8, Values: codec.Q3_0})
	tiny, zero := make([]float32, 64), make([]float32, 64)
	for i := range tiny {
		tiny[i] = []float32{0x1p-65, -0x1p-126, 0x1p-149, 3}[i%4]
		if i%4 == 3 {
			zero[i] = 3
		}
	}
	got, want := codec.NewTensor(codec.F32, 1, 64), codec.NewTensor(codec.F32, 1, 64)
	if err := kv.Unrotate(got, codec.FromF32(tiny, 1, 64)); err != nil {
		t.Fatal(err)
	}
	if err := kv.Unrotate(want, codec.FromF32(zero, 1, 64)); err != nil {
		t.Fatal(err)
	}
	diff(t, "unrotated", codec.F32, got.Data, want.Data)
}
