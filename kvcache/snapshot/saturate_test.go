package snapshot

import (
	"bytes"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// TestSaturated restores keys whose largest level is beyond f16's range.
func TestSaturated(t *testing.T) {
	keys := func(big float32) tensor {
		x := f32("l.0.keys", []int{1, 1, 1, 32}, func(i int) float32 { return []float32{-big, big}[i%2] })
		half := make([]byte, len(x.Data)/2)
		for i := range 32 {
			codec.F16.Store(half[2*i:], codec.F32.Load(x.Data[4*i:]))
		}
		x.DType, x.Data = safetensors.F16, half
		return x
	}
	values := keys(1)
	values.Name = "l.0.values"
	for _, test := range []struct {
		big  float32
		bits int
	}{{65504, 8}, {50000, 2}} {
		o := options()
		o.Params.Keys, _ = codec.KeyFormat(test.bits, test.bits == 8)
		snap, err := encode(t, file(t, nil, keys(test.big), values), o)
		if err != nil {
			t.Fatal(err)
		}
		s, err := open(snap)
		if err != nil {
			t.Fatal(err)
		}
		var exact, dst memory
		if _, err := s.Decode(t.Context(), &exact, DecodeOptions{Backend: ref.New(), DType: codec.F32}); err != nil {
			t.Fatal(err)
		}
		sum, err := s.Decode(t.Context(), &dst, DecodeOptions{Backend: ref.New()})
		if err != nil {
			t.Fatal(err)
		}
		load := func(m memory, d codec.DType) []float32 {
			f, err := safetensors.NewFile(bytes.NewReader(m.Data), int64(len(m.Data)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := f.AppendTensor(nil, "l.0.keys")
			if err != nil {
				t.Fatal(err)
			}
			var x []float32
			for ; len(b) > 0; b = b[d.Size():] {
				x = append(x, d.Load(b))
			}
			return x
		}
		want := uint64(0)
		got := load(dst, codec.F16)
		for i, x := range load(exact, codec.F32) {
			if math.Abs(float64(x)) < 65520 { // what rounds to an infinity
				continue
			}
			want++
			if got[i] != float32(math.Copysign(65504, float64(x))) {
				t.Errorf("%v at %d bits: element %d is %v, restored as %v", test.big, test.bits, i, x, got[i])
			}
		}
		if want == 0 || sum.Saturated != want {
			t.Errorf("%v at %d bits: %d saturated, want %d", test.big, test.bits, sum.Saturated, want)
		}
	}
}
