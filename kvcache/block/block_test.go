package block_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

// wave fills a tensor with numbers that differ from element to element.
func wave(t codec.DType, seed float64, shape ...int) codec.Tensor {
	x := codec.NewTensor(t, shape...)
	for i := range x.Len() {
		t.Store(x.Data[i*t.Size():], float32(math.Sin(seed+float64(i)*0.37)))
	}
	return x
}

var layers = []block.Layer{
	{Heads: 2, Params: codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q3_0}},
	{Heads: 1, Params: codec.KVParams{HeadDim: 96, ValueHeadDim: 64, Keys: codec.Q4_0, Values: codec.Q4_0, Scale: codec.Search, ScaleType: codec.BF16}},
	{Heads: 3, Params: codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q4_0}, RawKeys: codec.BF16},
	{Heads: 3, Params: codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q4_0}, RawValues: codec.F16},
	{Heads: 1, Params: codec.KVParams{HeadDim: 7, ValueHeadDim: 5}, RawKeys: codec.F32, RawValues: codec.BF16},
	{Heads: 2, Params: codec.KVParams{HeadDim: 64, ValueHeadDim: 32, Keys: codec.R4, Values: codec.T2}},
	{Heads: 3, Params: codec.KVParams{HeadDim: 32, ValueHeadDim: 64, Keys: codec.T4, Values: codec.R3, CentreKeys: true, CentreValues: true}},
	{Heads: 2, Params: codec.KVParams{HeadDim: 32, Keys: codec.R5, Values: codec.Q4_0, CentreKeys: true}},
	{Heads: 1, Params: codec.KVParams{HeadDim: 32, Keys: codec.R5, Values: codec.R3, CentreKeys: true, CentreValues: true}, RawKeys: codec.BF16},
}

func newCodec(t testing.TB, l []block.Layer) *block.Codec {
	t.Helper()
	c, err := block.New(ref.New(), l)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func types(l block.Layer) (k, v codec.DType) {
	k, v = l.RawKeys, l.RawValues
	if k == 0 {
		k = codec.F32
	}
	if v == 0 {
		v = codec.F32
	}
	return k, v
}

func source(l []block.Layer, n int) (k, v []codec.Tensor) {
	for i, l := range l {
		kt, vt := types(l)
		p := l.Params.WithDefaults()
		k = append(k, wave(kt, float64(i), l.Heads, n, p.HeadDim))
		v = append(v, wave(vt, -float64(i), l.Heads, n, p.ValueHeadDim))
	}
	return k, v
}

var id = block.ID{Fingerprint: block.Hash{1}, Key: block.Hash{2}, Parent: block.Hash{3}, First: 512, Tokens: 5}

func encode(t testing.TB, c *block.Codec, id block.ID, k, v []codec.Tensor) []byte {
	t.Helper()
	size, err := c.Size(id.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	frame := bytes.Repeat([]byte{0xa5}, size+16)
	n, err := c.Encode(frame, id, func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil })
	if err != nil || n != size || !bytes.Equal(frame[n:], bytes.Repeat([]byte{0xa5}, 16)) {
		t.Fatalf("%d bytes of %d: %v", n, size, err)
	}
	return frame[:n]
}

// A block holds what its layers' codecs and raw rows give, for any number of tokens, and says so itself.
func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 5, 64} {
		c := newCodec(t, layers)
		k, v := source(layers, n)
		id := id
		id.Tokens = n
		frame := encode(t, c, id, k, v)
		got, saw, err := block.Inspect(frame)
		if err != nil || got != id || len(saw) != len(layers) {
			t.Fatal(got, saw, err)
		}
		again := newCodec(t, saw) // a reader that has the frame alone
		outK, outV := source(layers, n)
		for i := range outK {
			clear(outK[i].Data)
			clear(outV[i].Data)
		}
		if _, err := again.Decode(frame, id, func(i int) (codec.Tensor, codec.Tensor, error) { return outK[i], outV[i], nil }); err != nil {
			t.Fatal(err)
		}
		for i, l := range layers {
			wantK, wantV := k[i], v[i]
			if l.RawKeys == 0 || l.RawValues == 0 {
				p := l.Params
				p.CentreKeys = p.CentreKeys && l.RawKeys == 0
				if l.RawKeys != 0 {
					p.Keys, p.ValueHeadDim, p.HeadDim = codec.Q8_0, p.WithDefaults().ValueHeadDim, 64
				}
				kv, err := ref.New().KV(p)
				if err != nil {
					t.Fatal(err)
				}
				if l.RawKeys == 0 {
					var p codec.Keys
					if l.Params.CentreKeys {
						p.Centre = centre(t, k[i])
					}
					wantK = codec.NewTensor(codec.F32, k[i].Shape...)
					if err := errors.Join(kv.EncodeKeys(&p, k[i]), kv.DecodeKeys(wantK, p)); err != nil {
						t.Fatal(err)
					}
				}
				if l.RawValues == 0 {
					var p codec.Values
					if l.Params.CentreValues {
						p.Centre = centre(t, v[i])
					}
					wantV = codec.NewTensor(codec.F32, v[i].Shape...)
					if err := errors.Join(kv.EncodeValues(&p, v[i]), kv.DecodeValues(wantV, p)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !bytes.Equal(outK[i].Data, wantK.Data) || !bytes.Equal(outV[i].Data, wantV.Data) {
				t.Errorf("%d tokens, layer %d: other rows", n, i)
			}
		}
	}
}

func centre(t testing.TB, x codec.Tensor) codec.Centre {
	t.Helper()
	c, err := codec.NewCentre(x)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A centre that is given is in every block, and decoding takes the block's.
func TestGivenCentre(t *testing.T) {
	p := codec.KVParams{HeadDim: 32, Keys: codec.R4, Values: codec.R4, CentreKeys: true, CentreValues: true}
	before, n := wave(codec.F32, 7, 2, 40, 32), 5
	keys, values := centre(t, before), centre(t, wave(codec.F32, 9, 2, 40, 32))
	given := []block.Layer{{Heads: 2, Params: p, KeyCentre: &keys, ValueCentre: &values}}
	k, v := source(given, n)
	frame := encode(t, newCodec(t, given), id, k, v)
	if usual := encode(t, newCodec(t, []block.Layer{{Heads: 2, Params: p}}), id, k, v); bytes.Equal(usual, frame) || len(usual) != len(frame) {
		t.Error("the centre that is given has no effect")
	}
	_, saw, err := block.Inspect(frame)
	if err != nil {
		t.Fatal(err)
	}
	outK, outV := source(given, n)
	if _, err := newCodec(t, saw).Decode(frame, id, func(int) (codec.Tensor, codec.Tensor, error) { return outK[0], outV[0], nil }); err != nil {
		t.Fatal(err)
	}
	kv, err := ref.New().KV(p)
	if err != nil {
		t.Fatal(err)
	}
	packedK, packedV := codec.Keys{Centre: keys}, codec.Values{Centre: values}
	wantK, wantV := codec.NewTensor(codec.F32, 2, n, 32), codec.NewTensor(codec.F32, 2, n, 32)
	if err := errors.Join(kv.EncodeKeys(&packedK, k[0]), kv.EncodeValues(&packedV, v[0]), kv.Decode(wantK, wantV, packedK, packedV)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(outK[0].Data, wantK.Data) || !bytes.Equal(outV[0].Data, wantV.Data) {
		t.Error("other rows")
	}
	for _, bad := range []codec.Centre{{}, {Mean: keys.Mean}, {Mean: codec.NewTensor(codec.F16, 1, 32), Gain: keys.Gain}, {Mean: codec.NewTensor(codec.F32, 2, 1, 32), Gain: keys.Gain}} {
		if _, err := block.New(ref.New(), []block.Layer{{Heads: 2, Params: p, KeyCentre: &bad}}); !errors.Is(err, block.ErrSpec) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Strided tensors give the frame that compact ones give, and are written in place.
func TestStrided(t *testing.T) {
	c := newCodec(t, layers)
	k, v := source(layers, 5)
	frame := encode(t, c, id, k, v)
	spread := func(list []codec.Tensor) (out []codec.Tensor) {
		for _, x := range list {
			size, d := x.DType.Size(), x.Dim()
			y := codec.Tensor{DType: x.DType, Shape: x.Shape, Stride: []int{2*d + 1, x.Shape[0] * (2*d + 1), 2}, Data: make([]byte, x.Rows()*(2*d+1)*size)}
			for r := range x.Rows() {
				at, step := y.RowOffset(r)
				for e := range d {
					copy(y.Data[(at+e*step)*size:][:size], x.Data[(r*d+e)*size:])
				}
			}
			out = append(out, y)
		}
		return out
	}
	sk, sv := spread(k), spread(v)
	if !bytes.Equal(encode(t, c, id, sk, sv), frame) {
		t.Error("strided tensors give another frame")
	}
	wantK, wantV := source(layers, 5)
	if _, err := c.Decode(frame, id, func(i int) (codec.Tensor, codec.Tensor, error) { return wantK[i], wantV[i], nil }); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]codec.Tensor{sk, sv} {
		for i := range list {
			clear(list[i].Data)
		}
	}
	if _, err := c.Decode(frame, id, func(i int) (codec.Tensor, codec.Tensor, error) { return sk[i], sv[i], nil }); err != nil {
		t.Fatal(err)
	}
	for i := range layers {
		if !bytes.Equal(sk[i].Data, spread(wantK)[i].Data) || !bytes.Equal(sv[i].Data, spread(wantV)[i].Data) {
			t.Errorf("layer %d: other rows", i)
		}
	}
}

// Every single flipped bit and every truncation is refused, and named.
func TestDamage(t *testing.T) {
	small := []block.Layer{{Heads: 1, Params: codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q4_0}}}
	c := newCodec(t, small)
	k, v := source(small, 5)
	frame := encode(t, c, id, k, v)
	into := func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil }
	for bit := range 8 * len(frame) {
		bad := bytes.Clone(frame)
		bad[bit/8] ^= 1 << (bit % 8)
		_, err := c.Decode(bad, block.ID{}, into)
		if !errors.Is(err, block.ErrDamaged) && !errors.Is(err, block.ErrFormat) {
			t.Fatalf("bit %d: %v", bit, err)
		}
	}
	for n := range len(frame) {
		if _, err := c.Decode(frame[:n], block.ID{}, into); !errors.Is(err, block.ErrDamaged) && !errors.Is(err, block.ErrFormat) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if _, err := c.Decode(append(bytes.Clone(frame), 0), block.ID{}, into); !errors.Is(err, block.ErrDamaged) {
		t.Error(err)
	}
}

// A sound frame of something else is refused with the reason, and a version that is not known is ErrFormat.
func TestForeign(t *testing.T) {
	c := newCodec(t, layers)
	k, v := source(layers, 5)
	frame := encode(t, c, id, k, v)
	into := func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil }
	for reason, change := range map[string]func(*block.ID){
		"model":  func(id *block.ID) { id.Fingerprint[5]++ },
		"tokens": func(id *block.ID) { id.Key[5]++ },
		"behind": func(id *block.ID) { id.Parent[5]++ },
		"other":  func(id *block.ID) { id.First++ },
		"want 6": func(id *block.ID) { id.Tokens++ },
	} {
		want := id
		change(&want)
		if _, err := c.Decode(frame, want, into); !errors.Is(err, block.ErrForeign) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", reason, err)
		}
	}
	other := newCodec(t, layers[:4])
	if _, err := other.Decode(frame, id, into); !errors.Is(err, block.ErrForeign) {
		t.Error(err)
	}
	newer := bytes.Clone(frame)
	binary.LittleEndian.PutUint32(newer[8:], 2)
	if _, err := c.Decode(newer, id, into); !errors.Is(err, block.ErrFormat) || !strings.Contains(err.Error(), "version 2") {
		t.Error(err)
	}
	if _, _, err := block.Inspect([]byte("{}")); !errors.Is(err, block.ErrFormat) {
		t.Error(err)
	}
}

// Operands that do not fit are refused by layer and name.
func TestOperands(t *testing.T) {
	c := newCodec(t, layers)
	size, err := c.Size(5)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(k, v []codec.Tensor){
		"layer 0: keys: shape":   func(k, _ []codec.Tensor) { k[0].Shape = []int{2, 5, 32} },
		"layer 1: values: shape": func(_, v []codec.Tensor) { v[1].Shape = []int{5, 64} },
		"layer 2: keys: f32":     func(k, _ []codec.Tensor) { k[2] = wave(codec.F32, 0, 3, 5, 64) },
		"layer 4: keys":          func(k, _ []codec.Tensor) { k[4].Data = k[4].Data[:3] },
		"layer 3: keys: element": func(k, _ []codec.Tensor) { codec.F32.Store(k[3].Data, float32(math.NaN())) },
	} {
		k, v := source(layers, 5)
		change(k, v)
		_, err := c.Encode(make([]byte, size), id, func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil })
		if err == nil || !strings.Contains(err.Error(), strings.Fields(name)[0]+" "+strings.Fields(name)[1]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	k, v := source(layers, 5)
	if _, err := c.Encode(make([]byte, size-1), id, func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil }); !errors.Is(err, block.ErrSpec) {
		t.Error(err)
	}
	for _, n := range []int{-1, 1<<24 + 1} {
		if _, err := c.Size(n); !errors.Is(err, block.ErrSpec) {
			t.Errorf("Size(%d): %v", n, err)
		}
	}
	for _, l := range []block.Layer{{}, {Heads: -1}, {Heads: 1 << 16}, {Heads: 1, RawKeys: 99, RawValues: codec.F32, Params: codec.KVParams{HeadDim: 1}}, {Heads: 1, RawKeys: codec.F32, RawValues: codec.F32}} {
		if _, err := block.New(ref.New(), []block.Layer{l}); err == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
	if _, err := block.New(nil, nil); !errors.Is(err, block.ErrSpec) {
		t.Error(err)
	}
}

// Encode and Decode allocate nothing after the first call, where the backend does not: groups and raw rows on codec/cpu.
func TestAllocs(t *testing.T) {
	layers := layers[:5]
	c, err := block.New(cpu.New(cpu.Options{Workers: 1}), layers)
	if err != nil {
		t.Fatal(err)
	}
	k, v := source(layers, 5)
	frame := encode(t, c, id, k, v)
	both := func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil }
	for name, call := range map[string]func() error{
		"Encode": func() error { _, err := c.Encode(frame, id, both); return err },
		"Decode": func() error { _, err := c.Decode(frame, id, both); return err },
	} {
		if n := testing.AllocsPerRun(20, func() {
			if err := call(); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzFrame: no bytes make a reader panic or write.
func FuzzFrame(f *testing.F) {
	c := newCodec(f, layers)
	k, v := source(layers, 2)
	two := id
	two.Tokens = 2
	f.Add(encode(f, c, two, k, v))
	f.Add([]byte("TTKBLOCK"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) >= 192 { // so that some get past the checksum
			sum := bytes.Clone(frame)
			block.Seal(sum)
			try(t, c, sum, k, v)
		}
		try(t, c, frame, k, v)
	})
}

func try(t *testing.T, c *block.Codec, frame []byte, k, v []codec.Tensor) {
	if _, l, err := block.Inspect(frame); err == nil {
		if d, err := block.New(ref.New(), l); err == nil {
			if _, err := d.Size(1 << 24); err == nil && len(l) == 0 && len(frame) < 192 {
				t.Error("a frame shorter than a header")
			}
		}
	}
	_, _ = c.Decode(frame, block.ID{}, func(i int) (codec.Tensor, codec.Tensor, error) { return k[i], v[i], nil })
}
