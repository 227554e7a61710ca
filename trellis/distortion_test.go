package trellis

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"testing"
)

// distortionRows gives, for N(0, 1) weights, the figure that 4096 blocks (256
// at L = 16) must not exceed, from the QTIP paper's Tables 1 and 2 and
// measurements with independent programs, and the standard deviation of the
// squared error a weight from row to row of 4096 weights, as measured here.
var distortionRows = []struct {
	k, L  int
	code  Code
	scale ScaleRule
	limit float64
	rowSD float64
}{
	{1, 12, OneMAD, RMS, 0.286, 0},
	{2, 12, OneMAD, RMS, 0.0750, 0},
	{3, 12, OneMAD, RMS, 0.0199, 0},
	{4, 12, OneMAD, RMS, 0.0056, 0},
	{1, 12, OneMAD, Refit, 0.280, 0},
	{2, 12, OneMAD, Refit, 0.0746, 0},
	{3, 12, OneMAD, Refit, 0.0193, 0},
	{4, 12, OneMAD, Refit, 0.0051, 0},
	{2, 16, OneMAD, RMS, 0.0700, 0},
	{2, 16, ThreeInst, RMS, 0.0690, 0},
}

// TestDistortionTable measures the whole table. It takes minutes, so it runs
// only where TURBOTRELLIS_TABLE is set.
func TestDistortionTable(t *testing.T) {
	if os.Getenv("TURBOTRELLIS_TABLE") == "" {
		t.Skip("TURBOTRELLIS_TABLE is not set")
	}
	for _, c := range distortionRows {
		blocks := 4096
		if c.L == 16 {
			blocks = 256
		}
		p := Params{L: c.L, K: c.k, T: 256, Code: c.code, Scale: c.scale}
		d, err := MeasureDistortion(p, blocks, 1, runtime.GOMAXPROCS(0))
		if err != nil {
			t.Fatal(err)
		}
		rows := float64(blocks / RowBlocks)
		t.Logf("k = %d, L = %d, %v, %v: mse %.5f ± %.5f (row sd %.6f) over %d blocks; at most %.4f",
			c.k, c.L, c.code, c.scale, d.MSE, d.StdErr, d.StdErr*math.Sqrt(rows), blocks, c.limit)
		fmt.Printf("k = %d, L = %d, %v, %v: mse %.5f ± %.5f (row sd %.6f) over %d blocks; at most %.4f\n",
			c.k, c.L, c.code, c.scale, d.MSE, d.StdErr, d.StdErr*math.Sqrt(rows), blocks, c.limit)
		if !(d.MSE <= c.limit) {
			t.Errorf("mse %.5f, want at most %.4f", d.MSE, c.limit)
		}
	}
}
