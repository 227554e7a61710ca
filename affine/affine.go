// Package affine is the per-group affine arithmetic of quantised keys: a
// scale and a zero point for each group of elements, and one index an element
// (docs/numerics.md §2).
//
// A group may have any length from 1; the codecs use 32 and 64. Every
// operation is rounded once to float32, integers are rounded half to even, and
// no product or quotient is fused with the operation after it, so results have
// the same bits on every machine.
package affine

import (
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// Eps is ε of docs/numerics.md §2, which keeps the divisor of a constant group
// away from zero.
const Eps = f32.Epsilon

// KeyFormat is how the elements of a group of keys are indexed.
type KeyFormat struct {
	// Bits is the size of an index: 8 where Signed; 2, 3, 4, 5 or 8 otherwise.
	Bits int
	// Signed says that indices are int8 in [−127, 127], not unsigned from 0.
	Signed bool
}

// Validate returns an error that names a combination which is not a format.
func (f KeyFormat) Validate() error {
	switch {
	case f.Signed && f.Bits == 8:
		return nil
	case f.Signed:
		return fault.New(fault.ErrParams, "signed keys of %d bits; only 8 are defined", f.Bits)
	}
	switch f.Bits {
	case 2, 3, 4, 5, 8:
		return nil
	}
	return fault.New(fault.ErrParams, "unsigned keys of %d bits; 2, 3, 4, 5 and 8 are defined", f.Bits)
}

// MaxIndex returns the largest index: 127 for signed 8 bits, 2^Bits − 1 for
// unsigned. The format must be valid here and in the methods below.
func (f KeyFormat) MaxIndex() int {
	if f.Signed {
		return 1<<(f.Bits-1) - 1
	}
	return 1<<f.Bits - 1
}

// Quantize writes the index of each element of x, one group of canonical
// finite values, to idx: one byte an element, the bits of an int8 where Signed,
// not packed. It returns the group's scale and zero point in float32, before
// either is rounded to the dtype it is stored in. Both are used unrounded for
// the indices.
//
// With lo and hi the group's minimum and maximum, M = MaxIndex and
// se = scale + 1e-8:
//
//	signed:   scale = (hi − lo) / 2M, zero = rint((hi + lo) / (2·se)), index in [−M, M]
//	unsigned: scale = (hi − lo) / M,  zero = rint(lo / se),            index in [0, M]
//	index = clip(rint(x/se − zero))
//
// Canonical values hold no −0. Where a caller keeps the sign of zeros, as
// bit-identity with the reference implementation (the compat policy) needs, a
// group of zeros has a zero point of 0 with the sign of its first element.
//
// A range that overflows float32 gives an infinite scale and indices of 0; the
// caller decides whether that is an error, as it does for a zero point that its
// dtype cannot hold. Quantize panics where idx is shorter than x or x is empty.
func (f KeyFormat) Quantize(idx []byte, x []float32) (scale, zero float32) {
	lo, hi := MinMax(x)
	maxv := float32(f.MaxIndex())
	minv := float32(0)
	var se float32
	if f.Signed {
		minv = -maxv
		scale = float32((hi - lo) / (2 * maxv))
		se = scale + Eps
		zero = f32.Rint((hi + lo) / float32(2*se))
	} else {
		scale = float32((hi - lo) / maxv)
		se = scale + Eps
		zero = f32.Rint(lo / se)
	}
	idx = idx[:len(x)]
	for i, v := range x {
		idx[i] = index(v, se, zero, minv, maxv)
	}
	return scale, zero
}

// index returns clip(rint(v/se − zero), minv, maxv) as the low byte of an
// integer. The quotient of a constant group beyond 3.4e30 is infinite, like the
// zero point: their difference, NaN, has index 0.
func index(v, se, zero, minv, maxv float32) byte {
	q := f32.Rint(float32(v/se) - zero)
	switch {
	case q > maxv:
		q = maxv
	case q < minv:
		q = minv
	case q != q:
		q = 0
	}
	return byte(int32(q))
}

// Dequantize returns (index + zero)·scale in float32, the sum rounded first.
// zero and scale are the stored values, widened.
func (f KeyFormat) Dequantize(idx byte, scale, zero float32) float32 {
	v := float32(idx)
	if f.Signed {
		v = float32(int8(idx))
	}
	return float32(float32(v+zero) * scale)
}

// MinMax returns the least and the greatest element of x, the first of equals:
// that decides the sign of a zero. x must not be empty and holds no NaN.
func MinMax(x []float32) (lo, hi float32) {
	lo, hi = x[0], x[0]
	for _, v := range x[1:] {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	return lo, hi
}

// Midpoint returns lo + (hi − lo)·0.5, rounded after each operation: the
// constant that stands for a group whose zero point cannot be stored.
func Midpoint(lo, hi float32) float32 {
	return lo + float32(float32(hi-lo)*0.5)
}
