package cpu

import (
	"encoding/binary"
	"math"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
)

// eps keeps a scale of zero from dividing (docs/numerics.md §2, §4).
const eps = affine.Eps

// canonMin is the bits of 2^-64, the least canonical magnitude but 0 (docs/numerics.md §1).
const canonMin = 0x1f800000

// infinity is the bits of +Inf: those of a finite magnitude are less.
const infinity = 0x7f800000

// magic is 1.5·2^23. A float32 sum of it and a value below 2^22 holds the value, rounded half to even, in its low
// bits; beyond that the bits, as an int32, still order as the values do.
const magic = 12582912

// magicBits is the bits of magic.
const magicBits = 0x4b400000

// keyCoder is the arithmetic of keys (docs/numerics.md §2). Groups do not depend on each other and fill whole
// bytes, so it takes any number of them.
type keyCoder struct {
	format    affine.KeyFormat
	packer    bitPacker
	group     int
	scaleType codec.DType
	compat    bool

	maxIndex   float32
	lo, hi     int32   // bits of magic plus the least and greatest index
	sum        float32 // 1 where the zero point is of lo + hi, else 0
	rangeScale float32 // what hi − lo is divided by
	codeLen    int     // bytes of a group's codes

	simd keyKernels
}

// batch is the number of groups whose scales vector kernels compute at once.
const batch = 8

// keyBatch is what the steps of a vector kernel hand on.
type keyBatch struct {
	x               [batch * maxGroup]float32 // canonical
	lo, hi          [batch]uint32             // bits
	scale, se, zero [batch]uint32
}

// batch512 is the number of groups that the kernels of AVX-512 take at once, candidates that of the scales of a search.
const batch512, candidates = 16, 9

// wideBatch is what the steps of those kernels hand on.
type wideBatch struct {
	x              []float32                    // rotated rows: a row, or those of batch512 groups
	bytes          []byte                       // float32 elements of as many
	a, b           [batch512][16]float32        // a vector for each group
	scale, zero    [batch512]uint32             // bits, as all that follows
	tried          [candidates][batch512]uint32 // scales of a search
	minus, inverse [candidates][batch512]uint32 // −1 times a divisor, and its reciprocal
	best           [batch512]uint8              // the candidate of a group
}

func newWideBatch(dim int) *wideBatch {
	n := max(dim, batch512*maxGroup)
	return &wideBatch{x: make([]float32, n), bytes: make([]byte, 4*n)}
}

// keyKernels are vector kernels: nil, or for every group but those they say they cannot do.
type keyKernels struct {
	encode func(c *keyCoder, w *row, codes, scales, zeros, src []byte, t codec.DType) found
	decode func(c *keyCoder, w *row, dst, codes, scales, zeros []byte, t codec.DType) int
}

func newKeyCoder(p codec.KVParams, level Level) keyCoder {
	f := p.KeyFormat()
	m := f.MaxIndex()
	c := keyCoder{
		format: f, packer: newBitPacker(p.Keys.Bits()), group: p.Group, scaleType: p.ScaleType, compat: p.Policy == codec.Compat,
		maxIndex: float32(m), lo: magicBits, hi: magicBits + int32(m), rangeScale: float32(m), codeLen: p.Group / 8 * p.Keys.Bits(),
	}
	if f.Signed {
		c.lo, c.rangeScale, c.sum = magicBits-int32(m), 2*c.maxIndex, 1
	}
	c.simd = keyKernelsFor(&c, level)
	return c
}

// encode packs the groups of src, elements of type t without gaps.
func (c *keyCoder) encode(w *row, codes, scales, zeros, src []byte, t codec.DType) found {
	if c.simd.encode != nil {
		return c.simd.encode(c, w, codes, scales, zeros, src, t)
	}
	f := clean
	step, size := c.group*t.Size(), c.scaleType.Size()
	for g := 0; len(src) > 0; g++ {
		if !c.encodeGroup(&f, g, &w.group, src[:step], t, codes[g*c.codeLen:][:c.codeLen], scales[g*size:][:size], zeros[g*size:][:size]) {
			return f
		}
		src = src[step:]
	}
	return f
}

// encodeGroup packs the group src, number g of its run. It notes the first overflow in f. It is false after
// an element that is not finite, which it notes.
func (c *keyCoder) encodeGroup(f *found, g int, w *group, src []byte, t codec.DType, codes, scale, zero []byte) bool {
	x := w.x[:c.group]
	lo, hi, ok := c.canonRange(x, src, t)
	if !ok {
		widen(x, src, t)
		for i, v := range x {
			if !f32.IsFinite(v) {
				f.nonFinite = g*c.group + i
				break
			}
		}
		return false
	}
	s := (hi - lo) / c.rangeScale
	se := s + eps
	var z float32
	if c.format.Signed {
		z = f32.Rint((hi + lo) / float32(2*se))
	} else {
		z = f32.Rint(lo / se)
	}
	index := w.index[:c.group]
	if c.packer.bits == 8 {
		index = codes[:c.group]
	}
	if f32.IsFinite(z) && se <= math.MaxFloat32 {
		c.indices(index, x, se, z)
	} else {
		s, z = c.format.Quantize(index, x)
	}
	st := c.scaleType
	st.Store(scale, s)
	st.Store(zero, z)
	if !c.compat {
		if f32.IsFinite(st.Load(scale)) && !f32.IsFinite(st.Load(zero)) {
			st.Store(scale, affine.Midpoint(lo, hi))
			st.Store(zero, 1)
			clear(index)
		}
		if !f32.IsFinite(st.Load(scale)) && f.overflow < 0 {
			f.overflow = g * c.group
		}
	}
	if c.packer.bits < 8 {
		c.packer.pack(codes, index)
	}
	return true
}

// canonRange makes x the canonical elements of src and returns the least and greatest, or false where an element
// is not finite.
//
// Bits order as values do once those of negative values are turned over, and the minimum of two integers takes
// no branch.
func (c *keyCoder) canonRange(x []float32, src []byte, t codec.DType) (lo, hi float32, ok bool) {
	var lo0, hi0 int32
	switch {
	case c.compat:
		widen(x, src, t)
		lo0, hi0 = rangeSigned(x)
	case t == codec.F32:
		lo0, hi0 = range32(x, src)
	default:
		widen(x, src, t)
		lo0, hi0 = rangeWide(x)
	}
	if hi0 >= infinity || lo0 <= ^int32(infinity) {
		return 0, 0, false
	}
	lo, hi = unorder(lo0), unorder(hi0)
	if c.compat && (lo == 0 || hi == 0) {
		lo, hi = affine.MinMax(x) // of zeros of both signs, the first counts
	}
	return lo, hi, true
}

// range32 is rangeWide of float32 elements, which it puts in x.
func range32(x []float32, src []byte) (lo, hi int32) {
	lo, hi = math.MaxInt32, math.MinInt32
	lo1, hi1 := lo, hi
	for len(x) >= 4 && len(src) >= 16 {
		p, d := (*[16]byte)(src), (*[4]float32)(x)
		a := canonBits(binary.LittleEndian.Uint32(p[0:]))
		b := canonBits(binary.LittleEndian.Uint32(p[4:]))
		d[0], d[1] = math.Float32frombits(a), math.Float32frombits(b)
		ka, kb := order(a), order(b)
		lo, hi = min(lo, ka), max(hi, ka)
		lo1, hi1 = min(lo1, kb), max(hi1, kb)
		a = canonBits(binary.LittleEndian.Uint32(p[8:]))
		b = canonBits(binary.LittleEndian.Uint32(p[12:]))
		d[2], d[3] = math.Float32frombits(a), math.Float32frombits(b)
		ka, kb = order(a), order(b)
		lo, hi = min(lo, ka), max(hi, ka)
		lo1, hi1 = min(lo1, kb), max(hi1, kb)
		x, src = x[4:], src[16:]
	}
	return min(lo, lo1), max(hi, hi1)
}

// rangeWide makes x canonical and returns its least and greatest element as order has them.
func rangeWide(x []float32) (lo, hi int32) {
	lo, hi = math.MaxInt32, math.MinInt32
	lo1, hi1 := lo, hi
	for len(x) >= 2 {
		d := (*[2]float32)(x)
		a, b := canonBits(math.Float32bits(d[0])), canonBits(math.Float32bits(d[1]))
		d[0], d[1] = math.Float32frombits(a), math.Float32frombits(b)
		ka, kb := order(a), order(b)
		lo, hi = min(lo, ka), max(hi, ka)
		lo1, hi1 = min(lo1, kb), max(hi1, kb)
		x = x[2:]
	}
	return min(lo, lo1), max(hi, hi1)
}

// rangeSigned is rangeWide, but zeros keep their sign.
func rangeSigned(x []float32) (lo, hi int32) {
	lo, hi = math.MaxInt32, math.MinInt32
	for i, v := range x {
		b := math.Float32bits(v)
		if b&magnitude < canonMin {
			b &^= magnitude
			x[i] = math.Float32frombits(b)
		}
		k := order(b)
		lo, hi = min(lo, k), max(hi, k)
	}
	return lo, hi
}

// canonBits returns the bits b, or 0 for a magnitude below 2^-64.
func canonBits(b uint32) uint32 {
	return b & uint32(int32(canonMin-1-b&0x7fffffff)>>31)
}

// order maps the bits of a float32 to an integer that orders as the value does, −0 below +0.
func order(b uint32) int32 { return int32(b) ^ int32(uint32(int32(b)>>31)>>1) }

func unorder(k int32) float32 {
	return math.Float32frombits(uint32(k ^ int32(uint32(k>>31)>>1)))
}

// indices writes clip(rint(x/se − zero)), with se and zero finite.
//
// The quotient is the product with a float64 reciprocal, rounded to float32: both roundings of float64 together
// move it by less than 2^-51 of itself, and no quotient of two float32 that is not subnormal lies within 2^-49
// of a midpoint between two float32. A subnormal quotient does not reach the index.
func (c *keyCoder) indices(index []byte, x []float32, se, zero float32) {
	r := 1 / float64(se)
	lo, hi := c.lo, c.hi
	for len(x) >= 4 && len(index) >= 4 {
		d, s := (*[4]byte)(index), (*[4]float32)(x)
		d[0] = index1(s[0], zero, r, lo, hi)
		d[1] = index1(s[1], zero, r, lo, hi)
		d[2] = index1(s[2], zero, r, lo, hi)
		d[3] = index1(s[3], zero, r, lo, hi)
		x, index = x[4:], index[4:]
	}
}

func index1(x, zero float32, r float64, lo, hi int32) byte {
	q := float32(float64(x)*r) - zero
	return byte(min(max(int32(math.Float32bits(q+magic)), lo), hi))
}

// decode unpacks groups into dst, elements of type t without gaps, and returns how many it saturated.
func (c *keyCoder) decode(w *row, dst, codes, scales, zeros []byte, t codec.DType) (saturated int) {
	if c.simd.decode != nil {
		return c.simd.decode(c, w, dst, codes, scales, zeros, t)
	}
	step, size := c.group*t.Size(), c.scaleType.Size()
	x, index := w.group.x[:c.group], w.group.index[:c.group]
	for g := 0; len(dst) > 0; g++ {
		scale, zero := c.scaleType.Load(scales[g*size:]), c.scaleType.Load(zeros[g*size:])
		if c.packer.bits == 8 {
			index = codes[g*c.group:][:c.group]
		} else {
			c.packer.unpack(index, codes[g*c.codeLen:][:c.codeLen])
		}
		switch {
		case t != codec.BF16 || !f32.IsFinite(scale) || !f32.IsFinite(zero):
			c.dequantize(x, index, scale, zero)
			saturated += narrow(dst[:step], x, t, !c.compat)
		case c.format.Signed: // a finite scale and zero point give no NaN
			for d, q := dst, index; len(q) >= 4 && len(d) >= 8; d, q = d[8:], q[4:] {
				d, q := (*[8]byte)(d), (*[4]byte)(q)
				binary.LittleEndian.PutUint16(d[0:], roundBF16((float32(int32(int8(q[0])))+zero)*scale))
				binary.LittleEndian.PutUint16(d[2:], roundBF16((float32(int32(int8(q[1])))+zero)*scale))
				binary.LittleEndian.PutUint16(d[4:], roundBF16((float32(int32(int8(q[2])))+zero)*scale))
				binary.LittleEndian.PutUint16(d[6:], roundBF16((float32(int32(int8(q[3])))+zero)*scale))
			}
		default:
			for d, q := dst, index; len(q) >= 4 && len(d) >= 8; d, q = d[8:], q[4:] {
				d, q := (*[8]byte)(d), (*[4]byte)(q)
				binary.LittleEndian.PutUint16(d[0:], roundBF16((float32(int32(q[0]))+zero)*scale))
				binary.LittleEndian.PutUint16(d[2:], roundBF16((float32(int32(q[1]))+zero)*scale))
				binary.LittleEndian.PutUint16(d[4:], roundBF16((float32(int32(q[2]))+zero)*scale))
				binary.LittleEndian.PutUint16(d[6:], roundBF16((float32(int32(q[3]))+zero)*scale))
			}
		}
		dst = dst[step:]
	}
	return saturated
}

func (c *keyCoder) dequantize(x []float32, index []byte, scale, zero float32) {
	if c.format.Signed {
		for i, v := range index {
			x[i] = (float32(int32(int8(v))) + zero) * scale
		}
		return
	}
	for i, v := range index {
		x[i] = (float32(int32(v)) + zero) * scale
	}
}
