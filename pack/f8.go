package pack

import "math"

// FromE4M3 returns the value of the 8-bit float b of OCP's type E4M3 (no infinities; 0x7f and 0xff are NaN), exactly:
// every value is one of binary16 too.
func FromE4M3(b byte) float32 {
	e, m := int(b>>3&15), int(b&7)
	var x float64
	switch {
	case e == 15 && m == 7:
		return float32(math.NaN())
	case e == 0:
		x = math.Ldexp(float64(m), -9)
	default:
		x = math.Ldexp(float64(8+m), e-10)
	}
	if b&0x80 != 0 {
		x = -x
	}
	return float32(x)
}

// FromE5M2 returns the value of the 8-bit float b of OCP's type E5M2, the upper half of a binary16, exactly.
func FromE5M2(b byte) float32 { return FromF16(uint16(b) << 8) }
