package ref_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func TestTrellisErrors(t *testing.T) {
	p := trellis.Params{L: 8, K: 2, T: 32}
	c, err := ref.New().Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	good := codec.NewTensor(codec.F32, 3, 64)
	g := trellis.Geometry{Axis: 1, Out: 3, In: 64}
	var m trellis.Matrix
	if err := c.Encode(context.Background(), &m, codec.Tensor{}, good, g); err != nil {
		t.Fatal(err)
	}
	with := func(i int, v float32) codec.Tensor {
		x := codec.NewTensor(codec.F32, 3, 64)
		codec.F32.Store(x.Data[4*i:], v)
		return x
	}
	inf := float32(math.Inf(1))
	states := make([]uint16, 192)
	for _, test := range []struct {
		name  string
		err   error
		class error
		index int
	}{
		{"inf weight", c.Encode(context.Background(), new(trellis.Matrix), codec.Tensor{}, with(70, inf), g), codec.ErrNonFinite, 70},
		{"scale", c.Encode(context.Background(), new(trellis.Matrix), codec.Tensor{}, with(70, 1e8), g), codec.ErrScaleOverflow, 64},
		{"shape", c.Encode(context.Background(), new(trellis.Matrix), codec.Tensor{}, good, trellis.Geometry{Axis: 1, Out: 4, In: 64}), codec.ErrShape, codec.NoIndex},
		{"columns", c.Encode(context.Background(), new(trellis.Matrix), codec.Tensor{}, codec.NewTensor(codec.F32, 3, 48), trellis.Geometry{Axis: 1, Out: 3, In: 48}), codec.ErrShape, codec.NoIndex},
		{"reconstruction", c.Encode(context.Background(), new(trellis.Matrix), codec.NewTensor(codec.F32, 64, 3), good, g), codec.ErrShape, codec.NoIndex},
		{"rows", c.Decode(codec.NewTensor(codec.F32, 2, 64), &m, 2), codec.ErrShape, codec.NoIndex},
		{"negative row", c.Decode(codec.NewTensor(codec.F32, 2, 64), &m, -1), codec.ErrShape, codec.NoIndex},
		{"nil", c.Decode(good, nil, 0), codec.ErrShape, codec.NoIndex},
		{"other code", c.Decode(good, &trellis.Matrix{Params: trellis.Params{L: 8, K: 2, T: 32, Code: trellis.ThreeInst}, Geometry: g, Codes: m.Codes, Scales: m.Scales}, 0), codec.ErrParams, codec.NoIndex},
		{"short codes", c.Decode(good, &trellis.Matrix{Params: p, Geometry: g, Codes: m.Codes[1:], Scales: m.Scales}, 0), codec.ErrShape, codec.NoIndex},
		{"nan sample", c.EncodeBlocks(context.Background(), states, codec.Tensor{DType: codec.F32, Shape: []int{6, 32}, Data: with(70, inf).Data}), codec.ErrNonFinite, 70},
		{"states", c.EncodeBlocks(context.Background(), states[1:], codec.NewTensor(codec.F32, 6, 32)), codec.ErrShape, codec.NoIndex},
	} {
		var e *codec.Error
		if !errors.As(test.err, &e) || !errors.Is(test.err, test.class) || e.Index != test.index {
			t.Errorf("%s: %v", test.name, test.err)
		}
	}
	if _, err := ref.New().Trellis(trellis.Params{L: 2, K: 2, T: 32}); !errors.Is(err, codec.ErrParams) {
		t.Errorf("L = K: %v", err)
	}
}

// A reused matrix costs no allocation.
func TestTrellisAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items under the race detector")
	}
	c, err := ref.New().Trellis(trellis.Params{L: 8, K: 2, T: 32, Scale: trellis.Refit})
	if err != nil {
		t.Fatal(err)
	}
	x := gaussian(codec.F32, 3, 64)
	g := trellis.Geometry{Axis: 1, Out: 3, In: 64}
	var m trellis.Matrix
	recon, out := codec.NewTensor(codec.F32, 3, 64), codec.NewTensor(codec.F32, 3, 64)
	if err := c.Encode(t.Context(), &m, recon, x, g); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func() error{
		"Encode": func() error { return c.Encode(context.Background(), &m, recon, x, g) },
		"Decode": func() error { return c.Decode(out, &m, 0) },
	} {
		n := testing.AllocsPerRun(20, func() {
			if err := call(); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}
