package gpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

// saturation decodes what f16 does not hold, by every method, and compares the outputs and how many elements
// each call limited with the reference.
func (e *exercise) saturation(p codec.KVParams, rows int) (limited uint64) {
	e.t.Helper()
	p = p.WithDefaults()
	m := newCodec(e.t, e.b, p)
	r, err := e.r.KV(p)
	e.must(err)
	input := func(d int, keys bool) codec.Tensor {
		x, random := codec.NewTensor(codec.F32, rows, d), rand.New(rand.NewPCG(5, 5))
		for i := range x.Len() {
			v := (random.Float32()*2 - 1) * 65504
			switch row := i / d % 3; {
			case row == 1: // beyond
				v *= 1.2
			case row == 2 && keys: // 4-bit keys of f32 scales decode to these, the last of them halfway to 2^16
				v = float32(i%16) * (65520 / 15)
			}
			codec.F32.Store(x.Data[4*i:], v)
		}
		return x
	}
	var k codec.Keys
	var v codec.Values
	e.must(r.EncodeKeys(&k, input(p.HeadDim, true)))
	e.must(r.EncodeValues(&v, input(p.ValueHeadDim, false)))
	for _, out := range allTypes {
		calls := map[string]func(kv codec.KV, x, y codec.Tensor) error{
			"DecodeKeys":          func(kv codec.KV, x, _ codec.Tensor) error { return kv.DecodeKeys(x, k) },
			"DecodeValues":        func(kv codec.KV, _, y codec.Tensor) error { return kv.DecodeValues(y, v) },
			"DecodeValuesRotated": func(kv codec.KV, _, y codec.Tensor) error { return kv.DecodeValuesRotated(y, v) },
			"Decode":              func(kv codec.KV, x, y codec.Tensor) error { return kv.Decode(x, y, k, v) },
			"DecodeRotated":       func(kv codec.KV, x, y codec.Tensor) error { return kv.DecodeRotated(x, y, k, v) },
			"Unrotate": func(kv codec.KV, _, y codec.Tensor) error {
				in := input(p.ValueHeadDim, false)
				x := codec.NewTensor(out, rows, p.ValueHeadDim)
				for i := range x.Len() {
					out.Store(x.Data[i*out.Size():], codec.F32.Load(in.Data[4*i:])/4)
				}
				return kv.Unrotate(y, x)
			},
		}
		for name, call := range calls {
			what := fmt.Sprintf("%+v %s to %v", p, name, out)
			x, y := codec.NewTensor(out, rows, p.HeadDim), codec.NewTensor(out, rows, p.ValueHeadDim)
			wantX, wantY := codec.NewTensor(out, rows, p.HeadDim), codec.NewTensor(out, rows, p.ValueHeadDim)
			before, wantBefore := m.Saturated(), r.Saturated()
			e.must(call(m, x, y))
			e.must(call(r, wantX, wantY))
			e.same(what, out, x.Data, wantX.Data)
			e.same(what, out, y.Data, wantY.Data)
			got, want := m.Saturated()-before, r.Saturated()-wantBefore
			if got != want {
				e.t.Errorf("%s: %d saturated, want %d", what, got, want)
			}
			limited += got
		}
	}
	return limited
}

// Decoders under Finite limit results to what f16 holds and count them; under Compat, and to other types, they
// do not. In slabs they count all the same.
func TestSaturation(t *testing.T) {
	for _, o := range []Options{{}, {stage: 4 * 160 * 4}} {
		b := open(t, o)
		e := newExercise(t, b)
		for _, p := range []codec.KVParams{
			{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q3_0},
			{HeadDim: 96, Keys: codec.Q2_0, Values: codec.Q2_0, ScaleType: codec.F32},
			{HeadDim: 64, Keys: codec.Q4_0, ValueHeadDim: 160, Values: codec.Q4_0, ScaleType: codec.F32},
		} {
			if e.saturation(p, 9) == 0 {
				t.Errorf("%+v: nothing saturated", p)
			}
			p.Policy = codec.Compat
			if n := e.saturation(p, 9); n != 0 {
				t.Errorf("%+v: %d saturated", p, n)
			}
		}
	}
}
