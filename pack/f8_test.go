package pack_test

import (
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/pack"
)

// The values that OCP's specification of 8-bit floats lists for E4M3 and E5M2, and that every number is exact in
// binary16 and in ascending order.
func TestF8(t *testing.T) {
	for b, want := range map[byte]float32{0x00: 0, 0x01: 0x1p-9, 0x07: 0.875 * 0x1p-6, 0x08: 0x1p-6, 0x38: 1, 0x39: 1.125, 0x7e: 448, 0xb8: -1, 0xfe: -448} {
		if got := pack.FromE4M3(b); got != want {
			t.Errorf("E4M3 %#02x: %v, want %v", b, got, want)
		}
	}
	for b, want := range map[byte]float32{0x00: 0, 0x01: 0x1p-16, 0x03: 0.75 * 0x1p-14, 0x04: 0x1p-14, 0x3c: 1, 0x3d: 1.25, 0x7b: 57344, 0x7c: float32(math.Inf(1)), 0xfc: float32(math.Inf(-1))} {
		if got := pack.FromE5M2(b); got != want {
			t.Errorf("E5M2 %#02x: %v, want %v", b, got, want)
		}
	}
	if x := pack.FromE4M3(0x80); x != 0 || !math.Signbit(float64(x)) {
		t.Errorf("E4M3 0x80: %v", x)
	}
	for _, f := range []struct {
		name string
		from func(byte) float32
		nans int
	}{{"E4M3", pack.FromE4M3, 2}, {"E5M2", pack.FromE5M2, 6}} {
		nans := 0
		for i := range 256 {
			x := f.from(byte(i))
			if x != x {
				nans++
				continue
			}
			if y := pack.FromF16(pack.ToF16(x)); y != x {
				t.Errorf("%s %#02x: %v is not a binary16", f.name, i, x)
			}
			if i > 0 && i < 128 {
				if before := f.from(byte(i - 1)); before >= x {
					t.Errorf("%s %#02x: %v after %v", f.name, i, x, before)
				}
				if minus := f.from(byte(i + 128)); minus != -x {
					t.Errorf("%s %#02x: %v, want %v", f.name, i+128, minus, -x)
				}
			}
		}
		if nans != f.nans {
			t.Errorf("%s: %d NaNs", f.name, nans)
		}
	}
}
