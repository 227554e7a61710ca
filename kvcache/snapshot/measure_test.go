package snapshot

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// TestMeasure compares Measure with what a file that Encode wrote restores to, summed head by head.
func TestMeasure(t *testing.T) {
	shape := []int{2, 3, 21, 32}
	for _, test := range []struct {
		name string
		e    edges
		p    codec.KVParams
	}{
		{"row codes", edges{4, 2}, codec.KVParams{Keys: codec.T3, Values: codec.R2, CentreKeys: true}},
		{"groups", edges{}, codec.KVParams{Keys: codec.Q4_0, Values: codec.Q3_0}},
		{"nothing coded", edges{40, 0}, codec.KVParams{Keys: codec.R3, Values: codec.R2, CentreKeys: true}},
	} {
		src := file(t, nil, noisy("layers.7.k", codec.F32, shape, test.e), noisy("layers.7.v", codec.F32, shape, test.e), f32("other", []int{3}, wave))
		o := EncodeOptions{Backend: ref.New(), Params: test.p, RawFirst: test.e.first, RawLast: test.e.last}
		snap, err := encode(t, src, o)
		if err != nil {
			t.Fatal(err)
		}
		s, err := open(snap)
		if err != nil {
			t.Fatal(err)
		}
		keySize, valueSize, err := s.Sizes(0)
		if err != nil {
			t.Fatal(err)
		}
		out, err := decode(t, snap, DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		in, err := safetensors.NewFile(bytes.NewReader(src), int64(len(src)))
		if err != nil {
			t.Fatal(err)
		}
		for _, feed := range []int{1, 700, 6000, 1 << 20} {
			o.Backend = fed{ref.New(), feed}
			last, total := int64(-1), int64(0)
			o.Progress = func(done, of int64) { last, total = done, of }
			losses, err := Measure(t.Context(), bytes.NewReader(src), int64(len(src)), o)
			if err != nil || len(losses) != 1 || losses[0].Number != 7 || losses[0].Keys.Size != keySize || losses[0].Values.Size != valueSize {
				t.Fatalf("%s: %+v, %v", test.name, losses, err)
			}
			if want := int64(2 * product(shape) * 4); last != want || total != want {
				t.Errorf("progress ends at %d of %d, want %d", last, total, want)
			}
			for _, p := range []PartLoss{losses[0].Keys, losses[0].Values} {
				a, err1 := in.AppendTensor(nil, p.Name)
				b, err2 := out.AppendTensor(nil, p.Name)
				if err := errors.Join(err1, err2); err != nil || len(p.Heads) != shape[1] {
					t.Fatal(p.Name, len(p.Heads), err)
				}
				at := func(data []byte, batch, head, token, j int) float64 {
					return float64(codec.F32.Load(data[4*(((batch*shape[1]+head)*shape[2]+token)*shape[3]+j):]))
				}
				for head, got := range p.Heads {
					var want Loss
					for batch := range shape[0] {
						for j := range shape[3] {
							mean, n := 0.0, 0.0
							for token := min(test.e.first, shape[2]); token < shape[2]-test.e.last; token++ {
								mean, n = mean+at(a, batch, head, token, j), n+1
							}
							mean /= max(n, 1)
							for token := min(test.e.first, shape[2]); token < shape[2]-test.e.last; token++ {
								x := at(a, batch, head, token, j)
								e := at(b, batch, head, token, j) - x
								want.Elements++
								want.Noise += e * e
								want.Spread += (x - mean) * (x - mean)
								want.Worst = max(want.Worst, math.Abs(e))
							}
						}
					}
					near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*(math.Abs(y)+1e-300) }
					if got.Elements != want.Elements || got.Worst != want.Worst || !near(got.Noise, want.Noise) || !near(got.Spread, want.Spread) {
						t.Errorf("%s in pieces of %d, %s, head %d: %+v, want %+v", test.name, feed, p.Name, head, got, want)
					}
					if want.Noise > 0 && !near(got.Relative(), math.Sqrt(want.Noise/want.Spread)) || !near(got.RMS(), math.Sqrt(want.Noise/float64(max(1, want.Elements)))) {
						t.Errorf("relative %v, rms %v of %+v", got.Relative(), got.RMS(), want)
					}
				}
			}
		}
	}
	if l := (Loss{Noise: 1}); !math.IsNaN(l.Relative()) || (Loss{}).Relative() != 0 || (Loss{}).RMS() != 0 || (Size{}).Bits() != 0 {
		t.Error("of nothing")
	}
	src := file(t, nil, noisy("k", codec.F32, shape, edges{}), noisy("v", codec.F32, shape, edges{}))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := Measure(ctx, bytes.NewReader(src), int64(len(src)), options()); err != stop {
		t.Error(err)
	}
	if _, err := Measure(t.Context(), bytes.NewReader(src), int64(len(src)), EncodeOptions{}); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
}
