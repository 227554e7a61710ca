package main

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// distortionRows gives, for N(0, 1) weights, the figure that 4096 blocks (256
// at L = 16) must not exceed: near the QTIP paper's Tables 1 and 2, and above
// what independent programs measured. rowSD is the standard deviation of the
// squared error a weight among rows of 1024 weights, as TestDistortionTable
// prints it.
var distortionRows = []struct {
	k, L  int
	code  trellis.Code
	scale trellis.ScaleRule
	limit float64
	rowSD float64
}{
	{1, 12, trellis.OneMAD, trellis.RMS, 0.286, 0.0040},
	{2, 12, trellis.OneMAD, trellis.RMS, 0.0750, 0.0016},
	{3, 12, trellis.OneMAD, trellis.RMS, 0.0199, 0.0008},
	{4, 12, trellis.OneMAD, trellis.RMS, 0.0056, 0.0006},
	{1, 12, trellis.OneMAD, trellis.Refit, 0.280, 0.0040},
	{2, 12, trellis.OneMAD, trellis.Refit, 0.0746, 0.0015},
	{3, 12, trellis.OneMAD, trellis.Refit, 0.0193, 0.0006},
	{4, 12, trellis.OneMAD, trellis.Refit, 0.0051, 0.0003},
	{2, 16, trellis.OneMAD, trellis.RMS, 0.0700, 0.0012},
	{2, 16, trellis.ThreeInst, trellis.RMS, 0.0690, 0.0008},
}

// TestDistortionTable measures the whole table. It takes minutes, so it runs
// only where TURBOTRELLIS_LONG is set.
func TestDistortionTable(t *testing.T) {
	if os.Getenv("TURBOTRELLIS_LONG") == "" {
		t.Skip("TURBOTRELLIS_LONG is not set")
	}
	for _, c := range distortionRows {
		blocks := 4096
		if c.L == 16 {
			blocks = 256
		}
		p := trellis.Params{L: c.L, K: c.k, T: 256, Code: c.code, Scale: c.scale}
		d, err := measureDistortion(context.Background(), p, blocks, 1, runtime.GOMAXPROCS(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("k = %d, L = %d, %v, %v: mse %.5f ± %.5f over %d blocks (row sd %.6f), limit %.4f",
			c.k, c.L, c.code, c.scale, d.MSE, d.StdErr, blocks, d.StdErr*math.Sqrt(float64(blocks/rowBlocks)), c.limit)
		if !(d.MSE <= c.limit) {
			t.Errorf("mse %.5f, want at most %.4f", d.MSE, c.limit)
		}
	}
}

// A small sample of the table stays within three standard errors above its
// limits, and on the same weights a refitted scale beats the other.
func TestDistortionSample(t *testing.T) {
	const blocks = 32
	rms := map[int]float64{}
	for _, c := range distortionRows {
		if c.L != 12 {
			continue
		}
		p := trellis.Params{L: c.L, K: c.k, T: 256, Code: c.code, Scale: c.scale}
		d, err := measureDistortion(context.Background(), p, blocks, 2, runtime.GOMAXPROCS(0))
		if err != nil {
			t.Fatal(err)
		}
		se := c.rowSD / math.Sqrt(blocks/rowBlocks)
		t.Logf("k = %d, %v: mse %.5f, standard error %.5f, limit %.4f", c.k, c.scale, d.MSE, se, c.limit)
		if !(d.MSE <= c.limit+3*se) || d.MSE < math.Exp2(-2*float64(c.k)) {
			t.Errorf("mse %.5f, want between the bound 2^(−2k) and %.5f", d.MSE, c.limit+3*se)
		}
		if c.scale == trellis.RMS {
			rms[c.k] = d.MSE
		} else if !(d.MSE < rms[c.k]) {
			t.Errorf("k = %d: refit %.6f, rms %.6f", c.k, d.MSE, rms[c.k])
		}
	}
}

// The result does not depend on the number of workers.
func TestMeasureDistortion(t *testing.T) {
	p := trellis.Params{L: 6, K: 2, T: 64}
	want, err := measureDistortion(context.Background(), p, 5*rowBlocks, 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, workers := range []int{2, 5, 9} {
		if got, err := measureDistortion(context.Background(), p, 5*rowBlocks, 3, workers); err != nil || got != want {
			t.Errorf("%d workers: %+v, %v; want %+v", workers, got, err, want)
		}
	}
	for _, c := range [][2]int{{0, 1}, {-4, 1}, {3, 1}, {5, 1}, {4, 0}} {
		if _, err := measureDistortion(context.Background(), p, c[0], 3, c[1]); !errors.Is(err, trellis.ErrParams) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := measureDistortion(context.Background(), trellis.Params{}, 16, 3, 1); !errors.Is(err, trellis.ErrParams) {
		t.Errorf("zero Params: %v", err)
	}
	p.FreeEnds = true
	if _, err := measureDistortion(context.Background(), p, 16, 3, 1); !errors.Is(err, trellis.ErrParams) {
		t.Errorf("free ends: %v", err)
	}
}
