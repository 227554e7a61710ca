package ref_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// wantError fails the test unless err is a *codec.Error of that class, tensor
// and index with a reason.
func wantError(t *testing.T, what string, err, class error, tensor string, index int) {
	t.Helper()
	var e *codec.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: error %v, want %v", what, err, class)
	}
	if !errors.Is(err, class) || e.Tensor != tensor || e.Index != index {
		t.Fatalf("%s: %v: tensor %q, index %d; want %v, %q, %d", what, err, e.Tensor, e.Index, class, tensor, index)
	}
	if e.Reason == "" {
		t.Fatalf("%s: %v", what, err)
	}
}

// dirtyKeys and dirtyValues are destinations that hold an earlier result.
func dirtyKeys() codec.Keys {
	return codec.Keys{Shape: []int{7, 7}, Codes: []byte("codes"), Scales: []byte("scales"), Zeros: []byte("zeros")}
}

func dirtyValues() codec.Values {
	return codec.Values{Shape: []int{7, 7}, Codes: []byte("codes"), Scales: []byte("scales")}
}

// wantEncodeError encodes x as keys and as values into used destinations, and
// wants the same error from both with nothing left in dst.
func wantEncodeError(t *testing.T, kv codec.KV, what string, x codec.Tensor, class error, index int) {
	t.Helper()
	before := bytes.Clone(x.Data)
	k, v := dirtyKeys(), dirtyValues()
	wantError(t, what, kv.EncodeKeys(&k, x), class, "keys", index)
	wantError(t, what, kv.EncodeValues(&v, x), class, "values", index)
	if len(k.Shape)+len(k.Codes)+len(k.Scales)+len(k.Zeros)+len(v.Shape)+len(v.Codes)+len(v.Scales) != 0 {
		t.Fatalf("%s: dst after an error: %+v, %+v", what, k, v)
	}
	if !bytes.Equal(before, x.Data) {
		t.Fatalf("%s: input modified", what)
	}
}

// NaN and infinities, anywhere, in any element type, under either policy: the
// first one is named and nothing is written. A GPU's min and max drop NaN.
func TestFaultNaNDropped(t *testing.T) {
	const d = 64
	nan, inf := math.NaN(), math.Inf(1)
	for _, dtype := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		for _, policy := range []codec.Policy{codec.Finite, codec.Compat} {
			kv := newKV(t, codec.KVParams{HeadDim: d, Keys: codec.Q4_0, Values: codec.Q3_0, Policy: policy})
			for _, bad := range []float64{nan, inf, -inf} {
				for _, at := range []int{0, 15, 31, 32, d - 1, d, 3*d - 1} {
					x := gaussian(dtype, 3, d)
					dtype.Store(x.Data[at*dtype.Size():], float32(bad))
					dtype.Store(x.Data[(3*d-1)*dtype.Size():], float32(nan)) // a later one
					wantEncodeError(t, kv, fmt.Sprintf("%v, %v, %v at %d", dtype, policy, bad, at), x, codec.ErrNonFinite, at)
				}
				all := codec.NewTensor(dtype, 1, d)
				for i := range d {
					dtype.Store(all.Data[i*dtype.Size():], float32(bad))
				}
				wantEncodeError(t, kv, fmt.Sprintf("%v, %v, all %v", dtype, policy, bad), all, codec.ErrNonFinite, 0)
			}
		}
	}
}

// ErrNonFinite comes before ErrScaleOverflow, wherever the overflow is.
func TestNonFiniteBeforeOverflow(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.Q2_0, Values: codec.Q3_0})
	x := gaussian(codec.F32, 2, 64)
	codec.F32.Store(x.Data, 1e30)
	wantEncodeError(t, kv, "overflow alone", x, codec.ErrScaleOverflow, 0)
	codec.F32.Store(x.Data[4*127:], float32(math.NaN()))
	wantEncodeError(t, kv, "overflow, then NaN", x, codec.ErrNonFinite, 127)
}

// Inputs that are no tensor of rows of the head dimension.
func TestEncodeRefusesTensor(t *testing.T) {
	const d = 64
	kv := newKV(t, codec.KVParams{HeadDim: d, Keys: codec.Q4_0, Values: codec.Q3_0})
	data := make([]byte, 4*2*d)
	for _, c := range []struct {
		what  string
		x     codec.Tensor
		class error
	}{
		{"scalar", codec.Tensor{DType: codec.F32, Data: data}, codec.ErrShape},
		{"zero tensor", codec.Tensor{}, codec.ErrDType},
		{"wrong head dimension", codec.Tensor{DType: codec.F32, Shape: []int{4, 32}, Data: data}, codec.ErrShape},
		{"empty, wrong head dimension", codec.Tensor{DType: codec.F32, Shape: []int{0, 32}}, codec.ErrShape},
		{"no head dimension", codec.Tensor{DType: codec.F32, Shape: []int{2, 0}}, codec.ErrShape},
		{"too little data", codec.Tensor{DType: codec.F32, Shape: []int{2, d}, Data: data[:len(data)-1]}, codec.ErrShape},
		{"unknown type", codec.Tensor{DType: 4, Shape: []int{2, d}, Data: data}, codec.ErrDType},
		{"negative stride", codec.Tensor{DType: codec.F32, Shape: []int{2, d}, Stride: []int{-d, 1}, Data: data}, codec.ErrShape},
		{"product wraps", codec.Tensor{DType: codec.F32, Shape: []int{math.MaxInt, math.MaxInt, d}, Data: data}, codec.ErrShape},
	} {
		wantEncodeError(t, kv, c.what, c.x, c.class, codec.NoIndex)
	}
}

// Code, scale and zero buffers of every length but the right one are refused,
// and the destination stays as it was.
func TestDecodeRefusesLength(t *testing.T) {
	const d, rows = 32, 2
	for _, bits := range []int{2, 3, 4, 5, 8} {
		for _, scaleType := range []codec.DType{codec.F16, codec.BF16, codec.F32} {
			kv := newKV(t, codec.KVParams{HeadDim: d, Keys: keyFormat(bits, false), Values: valueFormat(bits), ScaleType: scaleType})
			k, v := encode(t, kv, gaussian(codec.F32, rows, d))
			dst := codec.NewTensor(codec.F32, rows, d)
			for i := range dst.Data {
				dst.Data[i] = 0xa5
			}
			untouched := bytes.Clone(dst.Data)
			// every tries f with the buffer at each wrong length.
			every := func(b *[]byte, tensor string, f func() error) {
				right := *b
				for n := range len(right) + 9 {
					if n == len(right) {
						continue
					}
					*b = append(slices.Clone(right), make([]byte, 9)...)[:n:n]
					wantError(t, fmt.Sprintf("%d bits, %d bytes of %d", bits, n, len(right)), f(), codec.ErrShape, tensor, codec.NoIndex)
				}
				*b = nil
				wantError(t, "nil buffer", f(), codec.ErrShape, tensor, codec.NoIndex)
				*b = right
			}
			keys := func() error { return kv.DecodeKeys(dst, k) }
			every(&k.Codes, "key codes", keys)
			every(&k.Scales, "key scales", keys)
			every(&k.Zeros, "key zeros", keys)
			for _, f := range []func() error{
				func() error { return kv.DecodeValues(dst, v) },
				func() error { return kv.DecodeValuesRotated(dst, v) },
				func() error { return kv.Decode(dst, dst, k, v) },
				func() error { return kv.DecodeRotated(dst, dst, k, v) },
			} {
				every(&v.Codes, "value codes", f)
				every(&v.Scales, "value scales", f)
			}
			if !bytes.Equal(dst.Data, untouched) {
				t.Errorf("%d bits: dst written on an error", bits)
			}
			if err := kv.Decode(dst, dst, k, v); err != nil {
				t.Error(err)
			}
		}
	}
}

// Shapes and types of packed keys, packed values and destinations that do not
// go together.
func TestDecodeRefusesMismatch(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 64, ValueHeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0})
	var k codec.Keys
	var v, v3 codec.Values
	for _, err := range []error{
		kv.EncodeKeys(&k, gaussian(codec.F32, 2, 64)),
		kv.EncodeValues(&v, gaussian(codec.F32, 2, 32)),
		kv.EncodeValues(&v3, gaussian(codec.F32, 3, 32)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dstK, dstV := codec.NewTensor(codec.BF16, 2, 64), codec.NewTensor(codec.BF16, 2, 32)
	reshaped := func(shape ...int) (codec.Keys, codec.Values) {
		k, v := k, v
		k.Shape, v.Shape = shape, shape
		return k, v
	}
	for _, f := range []func(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error{kv.Decode, kv.DecodeRotated} {
		other := codec.NewTensor(codec.F32, 2, 32)
		wantError(t, "types differ", f(dstK, other, k, v), codec.ErrDType, "dst values", codec.NoIndex)
		wantError(t, "rows differ", f(dstK, codec.NewTensor(codec.BF16, 3, 32), k, v3), codec.ErrShape, "values", codec.NoIndex)
		wantError(t, "dst has other rows", f(dstK, dstV, k, v3), codec.ErrShape, "dst values", codec.NoIndex)
		wantError(t, "dst keys flat", f(codec.NewTensor(codec.BF16, 128), dstV, k, v), codec.ErrShape, "dst keys", codec.NoIndex)
		wantError(t, "dst values of key dimension", f(dstK, codec.NewTensor(codec.BF16, 2, 64), k, v), codec.ErrShape, "dst values", codec.NoIndex)
		wantError(t, "dst keys unknown type", f(codec.Tensor{DType: 9, Shape: []int{2, 64}, Data: dstK.Data}, dstV, k, v), codec.ErrDType, "dst keys", codec.NoIndex)
		wantError(t, "dst values too short", f(dstK, codec.Tensor{DType: codec.BF16, Shape: []int{2, 32}, Data: dstV.Data[1:]}, k, v), codec.ErrShape, "dst values", codec.NoIndex)
		wantError(t, "dst keys repeat", f(codec.Tensor{DType: codec.BF16, Shape: []int{2, 64}, Stride: []int{0, 1}, Data: dstK.Data}, dstV, k, v), codec.ErrShape, "dst keys", codec.NoIndex)
		for _, shape := range [][]int{nil, {}, {64}, {2}, {2, 128}, {-2, 64}, {math.MaxInt/2 + 1, 64}, {1, 2, 32}} {
			k, _ := reshaped(shape...)
			wantError(t, fmt.Sprint("keys of shape ", shape), f(dstK, dstV, k, v), codec.ErrShape, firstOf(shape, 64, "key codes", "keys"), codec.NoIndex)
		}
		for _, shape := range [][]int{nil, {32}, {2, 64}, {-2, 32}, {math.MaxInt/2 + 1, 32}} {
			_, v := reshaped(shape...)
			wantError(t, fmt.Sprint("values of shape ", shape), f(dstK, dstV, k, v), codec.ErrShape, firstOf(shape, 32, "value codes", "values"), codec.NoIndex)
		}
	}
	x := codec.NewTensor(codec.BF16, 2, 32)
	wantError(t, "unrotate: types differ", kv.Unrotate(codec.NewTensor(codec.F32, 2, 32), x), codec.ErrDType, "dst values", codec.NoIndex)
	wantError(t, "unrotate: shapes differ", kv.Unrotate(codec.NewTensor(codec.BF16, 3, 32), x), codec.ErrShape, "dst values", codec.NoIndex)
	wantError(t, "unrotate: key dimension", kv.Unrotate(dstK, dstK), codec.ErrShape, "values", codec.NoIndex)
}

// firstOf returns a if shape is that of countable rows of dim, else b.
func firstOf(shape []int, dim int, a, b string) string {
	if n := len(shape); n > 0 && shape[n-1] == dim && !slices.ContainsFunc(shape, func(d int) bool { return d < 0 || d > math.MaxInt>>3 }) {
		return a
	}
	return b
}

func TestNewKVRefusesParams(t *testing.T) {
	for _, p := range []codec.KVParams{{}, {HeadDim: 100, Keys: codec.Q4_0, Values: codec.Q3_0}, {HeadDim: 64, Keys: codec.Q4_0, Values: valueFormat(7)}} {
		kv, err := ref.New().KV(p)
		wantError(t, fmt.Sprintf("%+v", p), err, codec.ErrParams, "", codec.NoIndex)
		if kv != nil {
			t.Errorf("%+v: a codec beside an error", p)
		}
	}
}

// Stages find what the encoders find.
func TestStagesFound(t *testing.T) {
	kv := stages(t, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	row := make([]float32, 64)
	row[33] = float32(math.Inf(-1))
	want := driver.Found{NonFinite: 33, Overflow: driver.None}
	if _, got := kv.KeyStages(row); got != want {
		t.Errorf("keys: %+v", got)
	}
	if _, got := kv.ValueStages(row); got != want {
		t.Errorf("values: %+v", got)
	}
}

func encode(t testing.TB, kv codec.KV, x codec.Tensor) (k codec.Keys, v codec.Values) {
	t.Helper()
	if err := kv.EncodeKeys(&k, x); err != nil {
		t.Fatal(err)
	}
	if err := kv.EncodeValues(&v, x); err != nil {
		t.Fatal(err)
	}
	return k, v
}
