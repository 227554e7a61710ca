// Package f32 holds the single-precision operations that the normative
// arithmetic names and Go does not spell: canonical inputs, the exact fused
// multiply-add, rounding to an integer, the square root, and the summation
// tree (docs/numerics.md §0, §1 and §4).
//
// Every function returns the same bits on every GOARCH. Where a product feeds
// an addition, either the product is exact, so that fusing it changes nothing,
// or there is none.
package f32

import "math"

// canonMin is the bit pattern of 2^-64, the least non-zero canonical magnitude.
const canonMin = 0x1f800000

// Canon returns x, or +0 where |x| < 2^-64; so -0 becomes +0. NaN and the
// infinities are returned unchanged, payload included. Encoders apply it to
// every input element first, which keeps subnormals out of all that follows
// (docs/numerics.md §1).
func Canon(x float32) float32 {
	if math.Float32bits(x)&0x7fffffff < canonMin {
		return 0
	}
	return x
}

// Epsilon is ε of docs/numerics.md §2 and §4, which keeps a scale of zero from
// dividing.
const Epsilon float32 = 1e-8

// Flush returns x, or +0 where |x| is below 2^-126, the smallest normal number:
// no subnormal decides a bit, so that devices that flush them agree
// (docs/numerics.md §1). NaN and the infinities are returned unchanged.
func Flush(x float32) float32 {
	const smallest = 0x00800000 // bits of 2^-126
	if math.Float32bits(x)&0x7fffffff < smallest {
		return 0
	}
	return x
}

// IsFinite reports whether x is neither NaN nor an infinity.
func IsFinite(x float32) bool {
	return math.Float32bits(x)&0x7f800000 != 0x7f800000
}

// FMA returns a·b + c rounded once to nearest-even, subnormal results
// included. NaN and infinities follow IEEE 754: FMA(0, ±Inf, c) is NaN.
//
// float32(math.FMA(float64...)) would round twice: to 53 bits, then to 24. A
// sum halfway between two float32 values after the first rounding then goes
// the wrong way. Here the product is exact in float64 (48 bits) and the sum is
// rounded to odd, which 53 ≥ 24+2 bits make safe to round again.
func FMA(a, b, c float32) float32 {
	p := float64(float64(a) * float64(b))
	z := float64(c)
	s := p + z
	// Two-sum: s + e is p + z exactly, for finite operands.
	pz := s - z
	e := (p - pz) + (z - (s - pz))
	bits := math.Float64bits(s)
	if e == 0 || e != e || bits&1 != 0 {
		return float32(s)
	}
	// An even s with a remainder steps to its odd neighbour on e's side. s is
	// not zero here: a sum that cancels does so exactly.
	if (e > 0) == (s > 0) {
		bits++
	} else {
		bits--
	}
	return float32(math.Float64frombits(bits))
}

// Rint rounds x to the nearest integer, halves to even. It keeps the sign of
// zero, the infinities and NaN.
func Rint(x float32) float32 {
	return float32(math.RoundToEven(float64(x)))
}

// Sqrt returns the correctly rounded square root of x, NaN for x < 0. The
// float64 root has more than twice the bits of a float32, so the second
// rounding is harmless.
func Sqrt(x float32) float32 {
	return float32(math.Sqrt(float64(x)))
}

// TreeSum returns the sum of q by the fixed tree of docs/numerics.md §4:
//
//	for s = len(q)/2, len(q)/4 … 1: q[i] += q[i+s], i < s
//
// It overwrites q. It panics unless len(q) is a power of two; group sizes are
// checked long before they reach it.
func TreeSum(q []float32) float32 {
	n := len(q)
	if n == 0 || n&(n-1) != 0 {
		panic("f32: TreeSum needs a power of two elements")
	}
	for s := n / 2; s > 0; s /= 2 {
		lo, hi := q[:s], q[s:2*s]
		for i, v := range hi {
			lo[i] += v
		}
	}
	return q[0]
}
