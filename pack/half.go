package pack

import "math"

// ToF16 converts x to IEEE binary16 bits, rounding to nearest-even. From
// |x| ≥ 65520 on, the midpoint above the largest finite value, the result is
// an infinity; subnormals are kept, and |x| ≤ 2^-25 gives a signed zero. NaN
// stays NaN, with its sign and the top of its payload, made quiet.
func ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	switch b &= 0x7fffffff; {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // 65520 and above
		return sign | 0x7c00
	case b >= 0x38800000: // 2^-14 and above: rebias, then drop 13 bits; a carry may reach the exponent
		return sign | uint16((b-(127-15)<<23+0xfff+b>>13&1)>>13)
	case b <= 0x33000000: // 2^-25 and below; the tie goes to zero
		return sign
	default: // subnormal: a count of 2^-24
		// The value is m·2^(exp-150), so m·2^(exp-126) units of 2^-24.
		shift := 126 - b>>23 // 14 to 24
		m := b&0x7fffff | 0x800000
		return sign | uint16((m+1<<(shift-1)-1+m>>shift&1)>>shift)
	}
}

// FromF16 converts IEEE binary16 bits to float32, exactly. A signalling NaN
// becomes quiet, keeping its payload.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h >> 10 & 0x1f)
	m := uint32(h & 0x3ff)
	switch {
	case exp == 0x1f && m != 0:
		return math.Float32frombits(sign | 0x7fc00000 | m<<13)
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000)
	case exp == 0 && m == 0:
		return math.Float32frombits(sign)
	case exp == 0: // subnormal: normalise
		exp = 1
		for m&0x400 == 0 {
			m <<= 1
			exp--
		}
		m &= 0x3ff
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | m<<13)
}

// ToBF16 converts x to bfloat16 bits, rounding to nearest-even. From the
// midpoint above the largest finite value on, the result is an infinity;
// subnormals are kept. NaN stays NaN, with its sign and the top of its
// payload, made quiet.
func ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16 | 0x40)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 converts bfloat16 bits to float32, exactly.
func FromBF16(h uint16) float32 {
	return math.Float32frombits(uint32(h) << 16)
}
