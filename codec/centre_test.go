package codec_test

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/pack"
)

// nearestF16 returns the binary16 nearest to x, ties to even, by trying all of them.
func nearestF16(x *big.Float) uint16 {
	best, bestErr := uint16(0), (*big.Float)(nil)
	for bits := range uint16(0x7c00) {
		for _, b := range []uint16{bits, bits | 0x8000} {
			e := new(big.Float).SetPrec(2000).Sub(x, big.NewFloat(float64(pack.FromF16(b))))
			e.Abs(e)
			if bestErr == nil || e.Cmp(bestErr) < 0 || e.Cmp(bestErr) == 0 && b&1 == 0 && b&0x7fff != 0 {
				best, bestErr = b, e
			}
		}
	}
	return best
}

// The mean of a few tokens, against all binary16 numbers: one that float32 would round twice among them.
func TestCentreRounding(t *testing.T) {
	for _, x := range [][]float32{
		{1, 2, 4}, {1, 1, 1.0009766 + 0x1p-12, 1}, {0x1p-24, 0, 0}, {65504, 65504}, {-3, 1.5}, {0x1p-25, 0x1p-25}, {1 + 0x1p-11, 1 + 0x1p-11}, {1 + 0x1p-11 + 0x1p-23, 1 + 0x1p-11, 1 + 0x1p-11, 1 + 0x1p-11},
	} {
		c, err := codec.NewCentre(codec.FromF32(x, len(x), 1))
		if err != nil {
			t.Fatal(err)
		}
		sum := new(big.Float).SetPrec(2000)
		for _, v := range x {
			sum.Add(sum, big.NewFloat(float64(v)))
		}
		want := nearestF16(sum.Quo(sum, big.NewFloat(float64(len(x)))))
		if got := codec.F16.Load(c.Mean.Data); pack.ToF16(got) != want {
			t.Errorf("%v: mean %v, want %v", x, got, pack.FromF16(want))
		}
	}
}

func TestCentreEdges(t *testing.T) {
	load := func(x codec.Tensor, i int) float32 { return codec.F16.Load(x.Data[2*i:]) }
	none, err := codec.NewCentre(codec.NewTensor(codec.F32, 3, 0, 2))
	if err != nil || load(none.Mean, 5) != 0 || load(none.Gain, 5) != 1 || none.Mean.Shape[1] != 1 {
		t.Error(none, err)
	}
	same, err := codec.NewCentre(codec.FromF32([]float32{7, -7, 7, -7}, 2, 2))
	if err != nil || load(same.Mean, 0) != 7 || load(same.Mean, 1) != -7 || load(same.Gain, 0) != 1 || load(same.Gain, 1) != 1 {
		t.Error(same, err)
	}
	// One channel far out: the others' gains are held to its 1024th.
	out, err := codec.NewCentre(codec.FromF32([]float32{1024, 0x1p-10, -1024, 0x1p-10}, 2, 2))
	if err != nil || load(out.Gain, 0) != 32 || load(out.Gain, 1) != 1 {
		t.Error(load(out.Gain, 0), load(out.Gain, 1), err)
	}
	huge, err := codec.NewCentre(codec.FromF32([]float32{3e38, 3e38}, 2, 1))
	if err != nil || load(huge.Mean, 0) != 65504 || load(huge.Gain, 0) != 65504 {
		t.Error(load(huge.Mean, 0), load(huge.Gain, 0), err)
	}
	heads, err := codec.NewCentre(codec.FromF32([]float32{1, 1, 5, 5}, 2, 2, 1))
	if err != nil || load(heads.Mean, 0) != 1 || load(heads.Mean, 1) != 5 {
		t.Error(heads, err)
	}
	var e *codec.Error
	if _, err := codec.NewCentre(codec.FromF32([]float32{0, 1, 2, float32(math.Inf(1))}, 2, 2)); !errors.As(err, &e) || e.Err != codec.ErrNonFinite || e.Index != 3 {
		t.Error(err)
	}
	if _, err := codec.NewCentre(codec.FromF32([]float32{0}, 1)); !errors.Is(err, codec.ErrShape) {
		t.Error(err)
	}
}

// CentreOf refuses rows that are not what they were, or not rows.
func TestCentreOf(t *testing.T) {
	stop := errors.New("stop")
	times := 0
	for name, test := range map[string]struct {
		rows func(yield func([]float32, error) bool)
		err  error
	}{
		"an error":    {func(yield func([]float32, error) bool) { _ = yield([]float32{1}, nil) && yield(nil, stop) }, stop},
		"a short row": {func(yield func([]float32, error) bool) { _ = yield([]float32{1}, nil) && yield(nil, nil) }, codec.ErrShape},
		"a row less":  {func(yield func([]float32, error) bool) { times++; _ = times > 1 || yield([]float32{1}, nil) }, codec.ErrShape},
		"not finite":  {func(yield func([]float32, error) bool) { yield([]float32{float32(math.NaN())}, nil) }, codec.ErrNonFinite},
		"an error, later": {func(yield func([]float32, error) bool) {
			times += 10
			_ = times < 20 && yield([]float32{1}, nil) || yield(nil, stop)
		}, stop},
	} {
		times = 0
		if _, err := codec.CentreOf(1, test.rows); !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	more := 0
	if _, err := codec.CentreOf(1, func(yield func([]float32, error) bool) {
		more++
		for range more {
			if !yield([]float32{1}, nil) {
				return
			}
		}
	}); !errors.Is(err, codec.ErrShape) {
		t.Error(err)
	}
	for _, d := range []int{0, -1, codec.MaxHeadDim + 1} {
		if _, err := codec.CentreOf(d, nil); !errors.Is(err, codec.ErrParams) {
			t.Errorf("%d elements: %v", d, err)
		}
	}
}
