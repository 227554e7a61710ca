package affine

import (
	"math"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/fault"
	"github.com/turbotrellis/turbotrellis/pack"
)

// RowFormat is MLX's affine weight format (docs/numerics.md §8): groups of
// elements along a row, each with a scale and a bias, and one unsigned index
// an element. A row is a whole number of groups, and groups fill whole 32-bit
// words, so rows concatenate: the methods take any number of groups.
type RowFormat struct {
	// Bits is the size of an index: 2, 3, 4, 5, 6 or 8.
	Bits int
	// Group is the number of elements that share a scale: 32, 64 or 128.
	Group int
}

// maxGroup is the longest group of a RowFormat.
const maxGroup = 128

// rowEps is the least scale.
const rowEps float32 = 1e-7

// Validate returns an error that names a field which is out of range.
func (f RowFormat) Validate() error {
	switch f.Bits {
	case 2, 3, 4, 5, 6, 8:
	default:
		return fault.New(fault.ErrParams, "weights of %d bits; 2, 3, 4, 5, 6 and 8 are defined", f.Bits)
	}
	switch f.Group {
	case 32, 64, 128:
		return nil
	}
	return fault.New(fault.ErrParams, "groups of %d weights; 32, 64 and 128 are defined", f.Group)
}

// PackedLen returns the number of bytes of the indices of n elements,
// n·Bits/8: a multiple of 4. It is an error for n not to be a whole number of
// groups.
func (f RowFormat) PackedLen(n int) (int, error) {
	if err := f.Validate(); err != nil {
		return 0, err
	}
	if n < 0 || n%f.Group != 0 {
		return 0, fault.New(fault.ErrShape, "%d weights are not a whole number of groups of %d", n, f.Group)
	}
	return n / f.Group * f.groupBytes(), nil
}

// groupBytes is the number of packed bytes of a group.
func (f RowFormat) groupBytes() int { return f.Group / 8 * f.Bits }

// check returns the number of groups, or an error where the lengths in bytes
// do not fit together.
func (f RowFormat) check(packed, scales, biases, w []byte, t pack.DType) (groups int, err error) {
	if t.Size() == 0 {
		return 0, fault.New(fault.ErrParams, "weights of unknown dtype %v", t)
	}
	if len(w)%t.Size() != 0 {
		return 0, fault.New(fault.ErrShape, "%d bytes are not a whole number of %v weights", len(w), t)
	}
	n := len(w) / t.Size()
	want, err := f.PackedLen(n)
	if err != nil {
		return 0, err
	}
	groups = n / f.Group
	if len(packed) != want {
		return 0, fault.New(fault.ErrShape, "%d weights of %d bits take %d bytes of indices, not %d", n, f.Bits, want, len(packed))
	}
	if want := groups * t.Size(); len(scales) != want || len(biases) != want {
		return 0, fault.New(fault.ErrShape, "%d groups take %d bytes of %v scales and of biases, not %d and %d", groups, want, t, len(scales), len(biases))
	}
	return groups, nil
}

// Quantize quantises the weights w of dtype t, n elements in whole groups, to
// packed ([RowFormat.PackedLen] bytes of little-endian bit stream, element i at
// bit i·Bits) and one scale and one bias of dtype t a group.
//
// In float32, rounded after each operation, with N = 2^Bits − 1, lo and hi the
// group's extremes, and edge the one of greater magnitude (hi of equals):
//
//	s = max((hi − lo)/N, 1e-7), negated unless edge is lo
//	q = rint(edge/s); if q ≠ 0: s = edge/q, bias = edge; else bias = 0
//	index = clip(rint((w − bias)/s), 0, N)
//
// Indices use s and bias before they are rounded to t. These are the bits of
// MLX's quantiser for CPUs. A weight that is not finite, and a group with
// hi − lo beyond float32, is an error that names it, and nothing is written.
// Quantize does not allocate.
func (f RowFormat) Quantize(packed, scales, biases, w []byte, t pack.DType) error {
	groups, err := f.check(packed, scales, biases, w, t)
	if err != nil {
		return err
	}
	size := t.Size()
	var weights [maxGroup]float32
	var indices [maxGroup]byte
	x, idx := weights[:f.Group], indices[:f.Group]
	for g := range groups {
		if i := f.load(x, w, g, t); i >= 0 {
			return fault.New(fault.ErrNonFinite, "weight %d is %v", g*f.Group+i, x[i])
		}
		// The scale is smaller than this range, or 1e-7.
		if lo, hi := MinMax(x); !f32.IsFinite(hi - lo) {
			return fault.New(fault.ErrScaleOverflow, "the range of group %d, %v to %v, overflows", g, lo, hi)
		}
	}
	for g := range groups {
		f.load(x, w, g, t)
		scale, bias := f.quantizeGroup(idx, x)
		if err := pack.Pack(packed[g*f.groupBytes():][:f.groupBytes()], idx, f.Bits); err != nil {
			return err
		}
		t.Store(scales[g*size:], scale)
		t.Store(biases[g*size:], bias)
	}
	return nil
}

// load widens group g of w into x and returns the first index of x that is not
// finite, or −1.
func (f RowFormat) load(x []float32, w []byte, g int, t pack.DType) int {
	bad := -1
	for i := range x {
		x[i] = t.Load(w[(g*f.Group+i)*t.Size():])
		if bad < 0 && !f32.IsFinite(x[i]) {
			bad = i
		}
	}
	return bad
}

// quantizeGroup is the arithmetic of Quantize on one group.
func (f RowFormat) quantizeGroup(idx []byte, x []float32) (scale, bias float32) {
	lo, hi := MinMax(x)
	n := float32(int(1)<<f.Bits - 1)
	s := max(float32((hi-lo)/n), rowEps)
	edge := lo
	if math.Abs(float64(lo)) <= math.Abs(float64(hi)) {
		edge, s = hi, -s
	}
	if q := f32.Rint(edge / s); q != 0 {
		s = float32(edge / q)
		bias = edge
	}
	for i, w := range x {
		q := f32.Rint((w - bias) / s)
		idx[i] = byte(min(max(q, 0), n))
	}
	return s, bias
}

// Dequantize restores the weights w of dtype t from packed, scales and biases,
// sized as for [RowFormat.Quantize]: index·scale rounded to t, then + bias
// rounded to t. Dequantize does not allocate.
func (f RowFormat) Dequantize(w, packed, scales, biases []byte, t pack.DType) error {
	groups, err := f.check(packed, scales, biases, w, t)
	if err != nil {
		return err
	}
	size := t.Size()
	var indices [maxGroup]byte
	idx := indices[:f.Group]
	for g := range groups {
		if err := pack.Unpack(idx, packed[g*f.groupBytes():][:f.groupBytes()], f.Bits); err != nil {
			return err
		}
		scale, bias := t.Load(scales[g*size:]), t.Load(biases[g*size:])
		for i, q := range idx {
			// Products and sums of the narrow dtypes lose nothing to the
			// rounding to float32 on the way.
			p := t.Round(float32(float32(q) * scale))
			t.Store(w[(g*f.Group+i)*size:], p+bias)
		}
	}
	return nil
}
