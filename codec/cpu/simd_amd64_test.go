//go:build goexperiment.simd && !go1.27

package cpu

import (
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// The two products give the quotient for every sum of four bytes.
func TestQuotient(t *testing.T) {
	values, err := trellis.AppendValues(nil, trellis.OneMAD, 16)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[float32]bool{}
	for y := -510; y <= 510; y++ {
		got := float32(float32(y)*quotientHi) + float32(float32(y)*quotientLo)
		if want := float32(y) / 147.800537109375; math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("%d: %v, want %v", y, got, want)
		}
		seen[got] = true
	}
	for s, f := range values {
		if !seen[f] {
			t.Fatalf("f(%d) = %v is none of them", s, f)
		}
	}
}
