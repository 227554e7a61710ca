//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"math"
	"simd/archsimd"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// The kernels of AVX-512 take batch512 groups at once: first what each group needs alone, a vector per group, then the
// parameters of all groups, a lane per group. Where a group needs words of its own (an element or a scale that
// is not finite; for values, an element below safeMin) the kernels of AVX2 do all of them.

var _ [candidates]float32 = lloydmax.SearchFactors()

// splat16 is splat8.
func splat16(bits uint32) archsimd.Float32x16 {
	return archsimd.BroadcastUint32x16(bits).AsFloat32x16()
}

// halves holds, for each level of a tree over 16 lanes, the lanes of two vectors that are the lower and the upper
// half of what is left of each group.
var halves = func() (t [4][2][16]uint32) {
	for l := range t {
		h := 8 >> l
		for i := range 16 {
			at := uint32(i/h*2*h + i%h)
			t[l][0][i], t[l][1][i] = at, at+uint32(h)
		}
	}
	return t
}()

// sums returns the tree's sum of each of 16 vectors, a lane for each. It overwrites v.
func sums(v *[batch512][16]float32) archsimd.Float32x16 {
	for l := range halves {
		lower, upper := archsimd.LoadUint32x16(&halves[l][0]), archsimd.LoadUint32x16(&halves[l][1])
		for i := range batch512 >> (l + 1) {
			a, b := archsimd.LoadFloat32x16(&v[2*i%batch512]), archsimd.LoadFloat32x16(&v[(2*i+1)%batch512])
			a.ConcatPermute(b, lower).Add(a.ConcatPermute(b, upper)).Store(&v[i%batch512])
		}
	}
	return archsimd.LoadFloat32x16(&v[0])
}

// leasts returns the least lane of each of 16 vectors, a lane for each. It overwrites v.
func leasts(v *[batch512][16]float32) archsimd.Float32x16 {
	for l := range halves {
		lower, upper := archsimd.LoadUint32x16(&halves[l][0]), archsimd.LoadUint32x16(&halves[l][1])
		for i := range batch512 >> (l + 1) {
			a, b := archsimd.LoadFloat32x16(&v[2*i%batch512]), archsimd.LoadFloat32x16(&v[(2*i+1)%batch512])
			a.ConcatPermute(b, lower).Min(a.ConcatPermute(b, upper)).Store(&v[i%batch512])
		}
	}
	return archsimd.LoadFloat32x16(&v[0])
}

// quotient returns x divided by s, rounded once, given minus = −s and inverse = 1/s, rounded: the second correction
// of a quotient that is one of the two floats next to the exact one gives the rounded one (Markstein, "Computation of
// Elementary Functions on the IBM RISC System/6000 Processor", 1990). Nothing that counts may be subnormal: |x| is 0 or in
// [2^-64, 2^64], s in [2^-27, 2^60]. For a smaller |x| the result is smaller than 2^-37.
func quotient(x, minus, inverse archsimd.Float32x16) archsimd.Float32x16 {
	q := x.Mul(inverse)
	q = q.MulAdd(minus, x).MulAdd(inverse, q)
	return q.MulAdd(minus, x).MulAdd(inverse, q)
}

// storeScales writes n scales of type t, given by their bits. It returns the lanes whose scale is then not finite.
func storeScales(t codec.DType, dst []byte, b archsimd.Uint32x16, n int) uint16 {
	m := b.And(archsimd.BroadcastUint32x16(magnitude))
	one := archsimd.BroadcastUint32x16(1)
	sixteen := archsimd.BroadcastUint32x16(16)
	if t == codec.F32 {
		var out [64]byte
		b.AsUint8x64().Store(&out)
		copy(dst[:4*n], out[:])
		return m.GreaterEqual(archsimd.BroadcastUint32x16(infinity)).ToBits()
	}
	var h archsimd.Uint32x16
	var bad uint16
	if t == codec.F16 {
		thirteen := archsimd.BroadcastUint32x16(13)
		normal := m.Add(m.ShiftRight(thirteen).And(one)).Sub(archsimd.BroadcastUint32x16((127-15)<<23 - 0xfff)).ShiftRight(thirteen)
		// Below 2^-14 the unit of binary16 is that of a float32 in [1/2, 1).
		small := m.AsFloat32x16().Add(splat16(0x3f000000)).AsUint32x16().Sub(archsimd.BroadcastUint32x16(0x3f000000))
		h = small.Merge(normal, m.Less(archsimd.BroadcastUint32x16(0x38800000)))
		h = h.Or(b.ShiftRight(sixteen).And(archsimd.BroadcastUint32x16(0x8000)))
		bad = m.GreaterEqual(archsimd.BroadcastUint32x16(0x477ff000)).ToBits()
	} else {
		h = b.Add(b.ShiftRight(sixteen).And(one)).Add(archsimd.BroadcastUint32x16(0x7fff)).ShiftRight(sixteen)
		bad = m.GreaterEqual(archsimd.BroadcastUint32x16(0x7f7f8000)).ToBits()
	}
	out := h.TruncateToUint16().AsUint8x32()
	if n == batch512 {
		out.Store((*[32]uint8)(dst))
		return bad
	}
	var part [32]byte
	out.Store(&part)
	copy(dst[:2*n], part[:])
	return bad
}

// widen16 returns the float32 bits of 16 elements of a 2-byte type.
func widen16(h archsimd.Uint32x16, t codec.DType) archsimd.Uint32x16 {
	if t == codec.BF16 {
		return h.ShiftLeft(archsimd.BroadcastUint32x16(16))
	}
	m := h.And(archsimd.BroadcastUint32x16(0x7fff))
	sign := h.Xor(m).ShiftLeft(archsimd.BroadcastUint32x16(16))
	b := m.ShiftLeft(archsimd.BroadcastUint32x16(13))
	v := b.AsFloat32x16().Mul(splat16(0x77800000)).AsUint32x16() // 2^112
	special := b.Or(archsimd.BroadcastUint32x16(infinity))
	return special.Merge(v, m.GreaterEqual(archsimd.BroadcastUint32x16(0x7c00))).Or(sign)
}

// loadScales reads n scales of type t as bits.
func loadScales(t codec.DType, src []byte, n int) archsimd.Uint32x16 {
	if t == codec.F32 {
		var in [64]byte
		copy(in[:], src[:4*n])
		return archsimd.LoadUint8x64(&in).AsUint32x16()
	}
	if len(src) >= 32 {
		return widen16(archsimd.LoadUint8x32((*[32]uint8)(src)).AsUint16x16().ExtendToUint32(), t)
	}
	var in [32]byte
	copy(in[:], src)
	return widen16(archsimd.LoadUint8x32(&in).AsUint16x16().ExtendToUint32(), t)
}

// floats returns the elements of src, of type t, as float32: src itself, or what it leaves in buf. Their number is a
// multiple of 16.
func floats(buf, src []byte, t codec.DType) []byte {
	if t == codec.F32 {
		return src
	}
	out := buf[:2*len(src)]
	for d := out; len(d) >= 64 && len(src) >= 32; d, src = d[64:], src[32:] {
		h := archsimd.LoadUint8x32((*[32]uint8)(src)).AsUint16x16().ExtendToUint32()
		widen16(h, t).AsUint8x64().Store((*[64]uint8)(d))
	}
	return out
}

// codes16 packs and unpacks indices of up to 5 bits, 16 lanes at a time.
type codes16 struct {
	bits    int
	weights [32]int16  // pack: of an index and its neighbour
	quads   [8]uint64  // pack: four indices each, of the first vector, then of the second
	bytes   [64]int8   // unpack: four bytes for each lane, from 16 that every quarter holds
	right   [16]uint32 // unpack: what is left to shift
}

func newCodes16(bits int) codes16 {
	c := codes16{bits: bits, quads: [8]uint64{0, 4, 1, 5, 2, 6, 3, 7}}
	for i := range c.weights {
		c.weights[i] = 1 << (i % 2 * bits)
	}
	for l := range 16 {
		bit := l * bits
		for i := range 4 {
			c.bytes[4*l+i] = int8(bit/8 + i)
		}
		c.right[l] = uint32(bit % 8)
	}
	return c
}

// put writes 32 indices, of which the lanes have no other bits, to 4·bits bytes.
func (c *codes16) put(dst []byte, i0, i1 archsimd.Uint32x16) {
	n := c.bits & 7
	// Quarter j holds indices 4j to 4j+3 of i0, then of i1: as pairs, then as quads.
	pairs := i0.AsInt32x16().SaturateToInt16ConcatGrouped(i1.AsInt32x16()).DotProductPairs(archsimd.LoadInt16x32(&c.weights)).AsUint64x8()
	quads := pairs.Or(pairs.ShiftRight(archsimd.BroadcastUint64x8(uint64(32 - 2*n)))).And(archsimd.BroadcastUint64x8(1<<(4*n) - 1))
	quads = quads.Permute(archsimd.LoadUint64x8(&c.quads)) // even ones of both vectors, then odd ones
	var w [4]uint64
	quads.GetLo().Or(quads.GetHi().ShiftLeft(archsimd.BroadcastUint64x4(uint64(4 * n)))).Store(&w)
	putWords(dst, &w, n)
}

// load spreads 16 indices in src over the lanes. It reads 16 bytes.
func (c *codes16) load(src []byte) archsimd.Uint32x16 {
	var v archsimd.Uint8x64
	b := load16(src)
	return v.SetLo(b).SetHi(b).PermuteOrZeroGrouped(archsimd.LoadInt8x64(&c.bytes)).AsUint32x16().
		ShiftRight(archsimd.LoadUint32x16(&c.right)).And(archsimd.BroadcastUint32x16(1<<(c.bits&7) - 1))
}

// rounding16 rounds pairs of vectors to bf16.
type rounding16 struct {
	half, one, sixteen archsimd.Uint32x16
	order              archsimd.Uint64x8
}

var orderQuads = [8]uint64{0, 2, 4, 6, 1, 3, 5, 7}

func newRounding16() rounding16 {
	return rounding16{archsimd.BroadcastUint32x16(0x7fff), archsimd.BroadcastUint32x16(1), archsimd.BroadcastUint32x16(16), archsimd.LoadUint64x8(&orderQuads)}
}

// bf16 returns 32 elements of bf16. NaN must be one that an operation made.
func (r *rounding16) bf16(x, y archsimd.Uint32x16) archsimd.Uint8x64 {
	x = x.Add(x.ShiftRight(r.sixteen).And(r.one)).Add(r.half).ShiftRight(r.sixteen)
	y = y.Add(y.ShiftRight(r.sixteen).And(r.one)).Add(r.half).ShiftRight(r.sixteen)
	return x.AsInt32x16().SaturateToUint16ConcatGrouped(y.AsInt32x16()).AsUint64x8().Permute(r.order).AsUint8x64()
}

// key512 is keySIMD with AVX-512.
type key512 struct {
	keySIMD
	codes16 codes16
}

func (k *key512) encode(c *keyCoder, w *row, codes, scales, zeros, src []byte, t codec.DType) found {
	if c.compat { // the sign of zeros counts
		return k.keySIMD.encode(c, w, codes, scales, zeros, src, t)
	}
	f := clean
	step, size := c.group*t.Size(), c.scaleType.Size()
	for g := 0; len(src) > 0; {
		n := min(batch512, len(src)/step)
		x := floats(w.wide.bytes[:], src[:n*step], t)
		if k.parameters(c, w.wide, scales, zeros, x, n) {
			k.pack(c, w.wide, codes, x, n)
		} else {
			archsimd.ClearAVXUpperBits()
			e := k.keySIMD.encode(c, w, codes[:n*c.codeLen], scales[:n*size], zeros[:n*size], src[:n*step], t)
			if e.overflow >= 0 && f.overflow < 0 {
				f.overflow = g*c.group + e.overflow
			}
			if e.nonFinite >= 0 {
				f.nonFinite = g*c.group + e.nonFinite
				return f
			}
		}
		src, codes, scales, zeros = src[n*step:], codes[n*c.codeLen:], scales[n*size:], zeros[n*size:]
		g += n
	}
	archsimd.ClearAVXUpperBits()
	return f
}

// parameters writes the scales and zero points of n groups, and leaves in w what pack needs. It is false, and what
// it has written is of no use, where a group is not one for it.
func (k *key512) parameters(c *keyCoder, w *wideBatch, scales, zeros, x []byte, n int) bool {
	magnitudes, sign := archsimd.BroadcastInt32x16(magnitude), archsimd.BroadcastUint32x16(1<<31)
	var big archsimd.Int32x16
	for g := range n {
		// Elements count by the least and the greatest, and canon keeps their order.
		p := (*[128]byte)(x)
		a, b := archsimd.LoadUint8x64((*[64]uint8)(p[:64])), archsimd.LoadUint8x64((*[64]uint8)(p[64:]))
		big = big.Max(a.AsInt32x16().And(magnitudes)).Max(b.AsInt32x16().And(magnitudes))
		lo, hi := a.AsFloat32x16().Min(b.AsFloat32x16()), a.AsFloat32x16().Max(b.AsFloat32x16())
		if c.group == 64 {
			p := (*[256]byte)(x)
			a, b := archsimd.LoadUint8x64((*[64]uint8)(p[128:192])), archsimd.LoadUint8x64((*[64]uint8)(p[192:]))
			big = big.Max(a.AsInt32x16().And(magnitudes)).Max(b.AsInt32x16().And(magnitudes))
			lo, hi = lo.Min(a.AsFloat32x16()).Min(b.AsFloat32x16()), hi.Max(a.AsFloat32x16()).Max(b.AsFloat32x16())
		}
		lo.Store(&w.a[g%batch512])
		hi.AsUint32x16().Xor(sign).AsFloat32x16().Store(&w.b[g%batch512])
		x = x[4*c.group:]
	}
	if big.GreaterEqual(archsimd.BroadcastInt32x16(infinity)).ToBits() != 0 {
		return false
	}
	lo, hi := leasts(&w.a).AsUint32x16(), leasts(&w.b).AsUint32x16().Xor(sign)
	canon := archsimd.BroadcastInt32x16(canonMin)
	l := lo.Masked(lo.AsInt32x16().And(magnitudes).GreaterEqual(canon)).AsFloat32x16()
	h := hi.Masked(hi.AsInt32x16().And(magnitudes).GreaterEqual(canon)).AsFloat32x16()
	s := h.Sub(l).Div(splat16(k.rangeScale))
	se := s.Add(splat16(epsBits))
	var z archsimd.Float32x16
	if c.format.Signed {
		z = h.Add(l).Div(se.Add(se)).RoundToEvenScaled(0)
	} else {
		z = l.Div(se).RoundToEvenScaled(0)
	}
	limit := archsimd.BroadcastUint32x16(maxScaleBits)
	bad := se.AsUint32x16().GreaterEqual(limit).ToBits() | z.AsUint32x16().And(magnitudes.AsUint32x16()).GreaterEqual(limit).ToBits()
	bad |= storeScales(c.scaleType, scales, s.AsUint32x16(), n) | storeScales(c.scaleType, zeros, z.AsUint32x16(), n)
	z.AsUint32x16().Store(&w.zero)
	se.AsUint32x16().Xor(sign).Store(&w.minus[0])
	splat16(0x3f800000).Div(se).AsUint32x16().Store(&w.inverse[0])
	return bad<<(batch512-n) == 0
}

// pack writes the codes of n groups.
func (k *key512) pack(c *keyCoder, w *wideBatch, codes, x []byte, n int) {
	lo, hi := archsimd.BroadcastInt32x16(c.lo), archsimd.BroadcastInt32x16(c.hi)
	m, mask := splat16(magicBits), archsimd.BroadcastUint32x16(k.codes.mask)
	for g := range n {
		minus, inverse, z := splat16(w.minus[0][g%batch512]), splat16(w.inverse[0][g%batch512]), splat16(w.zero[g%batch512])
		for range c.group / 32 {
			p := (*[128]byte)(x)
			a := quotient(archsimd.LoadUint8x64((*[64]uint8)(p[:64])).AsFloat32x16(), minus, inverse)
			b := quotient(archsimd.LoadUint8x64((*[64]uint8)(p[64:])).AsFloat32x16(), minus, inverse)
			i := a.Sub(z).Add(m).AsInt32x16().Max(lo).Min(hi).AsUint32x16()
			j := b.Sub(z).Add(m).AsInt32x16().Max(lo).Min(hi).AsUint32x16()
			if k.codes.bits == 8 {
				d := (*[32]uint8)(codes)
				i.TruncateToUint8().Store((*[16]uint8)(d[:16]))
				j.TruncateToUint8().Store((*[16]uint8)(d[16:]))
				codes = codes[32:]
			} else {
				k.codes16.put(codes[:4*k.codes.bits], i.And(mask), j.And(mask))
				codes = codes[4*k.codes.bits:]
			}
			x = x[128:]
		}
	}
}

func (k *key512) decode(c *keyCoder, w *row, dst, codes, scales, zeros []byte, t codec.DType) (saturated int) {
	if t != codec.BF16 {
		return k.keySIMD.decode(c, w, dst, codes, scales, zeros, t)
	}
	step, size := c.group*2, c.scaleType.Size()
	r := newRounding16()
	infinite := archsimd.BroadcastUint32x16(infinity)
	magnitudes := archsimd.BroadcastUint32x16(magnitude)
	for len(dst) > 0 {
		n := min(batch512, len(dst)/step)
		s, z := loadScales(c.scaleType, scales, n), loadScales(c.scaleType, zeros, n)
		if bad := s.And(magnitudes).Max(z.And(magnitudes)).GreaterEqual(infinite).ToBits(); bad<<(batch512-n) != 0 {
			archsimd.ClearAVXUpperBits()
			saturated += k.keySIMD.decode(c, w, dst[:n*step], codes[:n*c.codeLen], scales[:n*size], zeros[:n*size], t)
		} else {
			s.Store(&w.wide.scale)
			z.Store(&w.wide.zero)
			k.decodeGroups(c, w, dst[:n*step], codes[:n*c.codeLen], &r)
		}
		dst, codes, scales, zeros = dst[n*step:], codes[n*c.codeLen:], scales[n*size:], zeros[n*size:]
	}
	archsimd.ClearAVXUpperBits()
	return saturated
}

// decodeGroups decodes groups, of which w holds the scales and the zero points.
func (k *key512) decodeGroups(c *keyCoder, w *row, dst, codes []byte, r *rounding16) {
	n := int(k.codes.bits)
	for g := 0; len(dst) > 0; g++ {
		s, z := splat16(w.wide.scale[g%batch512]), splat16(w.wide.zero[g%batch512])
		for range c.group / 32 {
			var a, b archsimd.Int32x16
			switch {
			case c.format.Signed:
				p := (*[32]uint8)(codes)
				a = archsimd.LoadUint8x16((*[16]uint8)(p[:16])).AsInt8x16().ExtendToInt32()
				b = archsimd.LoadUint8x16((*[16]uint8)(p[16:])).AsInt8x16().ExtendToInt32()
			case n == 8:
				p := (*[32]uint8)(codes)
				a = archsimd.LoadUint8x16((*[16]uint8)(p[:16])).ExtendToUint32().AsInt32x16()
				b = archsimd.LoadUint8x16((*[16]uint8)(p[16:])).ExtendToUint32().AsInt32x16()
			default:
				p := padded(w, codes, 4*n)
				a, b = k.codes16.load(p).AsInt32x16(), k.codes16.load(p[2*n:]).AsInt32x16()
			}
			x, y := a.ConvertToFloat32().Add(z).Mul(s), b.ConvertToFloat32().Add(z).Mul(s)
			r.bf16(x.AsUint32x16(), y.AsUint32x16()).Store((*[64]uint8)(dst))
			codes, dst = codes[4*n:], dst[64:]
		}
	}
}

// value512 is valueSIMD with AVX-512, for up to 5 bits.
type value512 struct {
	valueSIMD
	codes16 codes16
	signs   []uint32       // of the rotation, of 128 elements at least
	levels  [5][16]float32 // the boundaries that halve what is left, by the index so far
	values  [2][16]float32 // centroids
}

func newValue512(c *valueCoder, k *valueSIMD) *value512 {
	v := &value512{valueSIMD: *k, codes16: newCodes16(c.bits), signs: k.signs}
	if c.dim < 128 {
		v.signs = append(append([]uint32(nil), k.signs...), k.signs...)
	}
	for l := range c.bits {
		for i := range v.levels[l] {
			v.levels[l][i] = c.levels.table.Boundary((2*(i%(1<<l))+1)<<(c.bits-1-l) - 1)
		}
	}
	for i := range 32 {
		v.values[i/16][i%16] = c.levels.centroids[i%(1<<c.bits)]
	}
	return v
}

// rows returns how many of m rows to take at once: those of batch512 groups, in whole vectors of 128 elements. It is 0 for a
// last row that fills none.
func (k *value512) rows(c *valueCoder, m int) int {
	m = min(m, max(1, batch512*c.group/c.dim))
	if c.dim < 128 {
		m &^= 1
	}
	return m
}

func (k *value512) encode(c *valueCoder, w *row, codes, scales, src []byte, t codec.DType) found {
	f := clean
	n, size := c.dim*t.Size(), c.dim/c.group*c.scaleType.Size()
	for base := 0; len(src) > 0; {
		m := k.rows(c, len(src)/n)
		if m == 0 || !k.encodeRows(c, w, codes, scales, src[:m*n], t) {
			m = max(m, 1)
			archsimd.ClearAVXUpperBits()
			e := k.valueSIMD.encode(c, w, codes[:m*c.dim/8*c.bits], scales[:m*size], src[:m*n], t)
			if e.overflow >= 0 && f.overflow < 0 {
				f.overflow = base + e.overflow
			}
			if e.nonFinite >= 0 {
				f.nonFinite = base + e.nonFinite
				return f
			}
		}
		src, codes, scales = src[m*n:], codes[m*c.dim/8*c.bits:], scales[m*size:]
		base += m * c.dim
	}
	archsimd.ClearAVXUpperBits()
	return f
}

// encodeRows packs rows. It is false, and what it has written is of no use, where a row is not one for it.
func (k *value512) encodeRows(c *valueCoder, w *row, codes, scales, src []byte, t codec.DType) bool {
	src = floats(w.wide.bytes[:], src, t)
	x := w.wide.x[:len(src)/4]
	if !k.load(x, src) {
		return false
	}
	k.transform(x, c.dim)
	size := c.scaleType.Size()
	for len(x) > 0 {
		n := min(batch512, len(x)/c.group)
		y := x[:n*c.group]
		s := rootMeans(w.wide, y, c.group)
		if c.search {
			if !k.candidates(c, w.wide, s, n) {
				return false
			}
			k.searchGroups(c, w.wide, y)
		} else {
			se := s.Add(splat16(epsBits))
			if se.AsUint32x16().GreaterEqual(archsimd.BroadcastUint32x16(maxScaleBits)).ToBits()<<(batch512-n) != 0 {
				return false
			}
			w.wide.divide(0, se)
			s.AsUint32x16().Store(&w.wide.scale)
			clear(w.wide.best[:])
		}
		bad := storeScales(c.scaleType, scales, archsimd.LoadUint32x16(&w.wide.scale), n)
		if bad<<(batch512-n) != 0 { // also under Compat: storeScales makes no infinities
			return false
		}
		k.pack(c, w.wide, codes, y)
		x, codes, scales = x[n*c.group:], codes[n*c.codeLen:], scales[n*size:]
	}
	return true
}

// divide notes the divisors of candidate i.
func (w *wideBatch) divide(i int, se archsimd.Float32x16) {
	se.AsUint32x16().Xor(archsimd.BroadcastUint32x16(1 << 31)).Store(&w.minus[i])
	splat16(0x3f800000).Div(se).AsUint32x16().Store(&w.inverse[i])
}

// load multiplies elements by the signs. It is false where an element is not finite, or in (0, 2^-30).
func (k *value512) load(x []float32, src []byte) bool {
	magnitudes, one := archsimd.BroadcastUint32x16(magnitude), archsimd.BroadcastUint32x16(1)
	var big archsimd.Uint32x16
	small := archsimd.BroadcastUint32x16(1<<32 - 1) // what is left of 1 less than a magnitude, 0 wrapping around
	for len(x) > 0 {
		for s := k.signs; len(s) >= 16 && len(x) >= 16 && len(src) >= 64; x, s, src = x[16:], s[16:], src[64:] {
			b := archsimd.LoadUint8x64((*[64]uint8)(src)).AsUint32x16()
			m := b.And(magnitudes)
			big, small = big.Max(m), small.Min(m.Sub(one))
			b.Xor(archsimd.LoadUint32x16((*[16]uint32)(s))).AsFloat32x16().Store((*[16]float32)(x))
		}
	}
	return big.GreaterEqual(archsimd.BroadcastUint32x16(infinity)).ToBits()|small.Less(archsimd.BroadcastUint32x16(safeMin-1)).ToBits() == 0
}

// lanes16 holds, for the stages 1, 2, 4 and 8, the signs of the lanes, and for the last two also their partners.
type lanes16 struct {
	f1, f2, f4, f8 archsimd.Float32x16
	p4, p8         archsimd.Uint32x16
}

var (
	stageSigns = func() (t [4][16]float32) {
		for s := range t {
			for l := range t[s] {
				t[s][l] = 1 - 2*float32(l>>s&1)
			}
		}
		return t
	}()
	stagePartners = func() (t [2][16]uint32) {
		for s := range t {
			for l := range t[s] {
				t[s][l] = uint32(l ^ 4<<s)
			}
		}
		return t
	}()
)

func newLanes16() lanes16 {
	return lanes16{
		archsimd.LoadFloat32x16(&stageSigns[0]), archsimd.LoadFloat32x16(&stageSigns[1]),
		archsimd.LoadFloat32x16(&stageSigns[2]), archsimd.LoadFloat32x16(&stageSigns[3]),
		archsimd.LoadUint32x16(&stagePartners[0]), archsimd.LoadUint32x16(&stagePartners[1]),
	}
}

// stages applies the stages 1 to 8 to the lanes. The product with ±1 is exact.
func (o *lanes16) stages(p []float32) archsimd.Float32x16 {
	a := archsimd.LoadFloat32x16((*[16]float32)(p))
	a = a.MulAdd(o.f1, a.SelectFromPairGrouped(1, 0, 3, 2, a))
	a = a.MulAdd(o.f2, a.SelectFromPairGrouped(2, 3, 0, 1, a))
	a = a.MulAdd(o.f4, a.Permute(o.p4))
	return a.MulAdd(o.f8, a.Permute(o.p8))
}

// transform applies the transform to rows of d elements, 64 or more.
func (k *value512) transform(x []float32, d int) {
	o := newLanes16()
	one, r := splat16(0x3f800000), splat16(k.norm)
	factor := one
	if d <= 128 {
		factor = r
	}
	for i := 0; i+128 <= len(x); i += 128 {
		p := (*[128]float32)(x[i:])
		a, b, c, e := o.stages(p[0:16]), o.stages(p[16:32]), o.stages(p[32:48]), o.stages(p[48:64])
		f, g, h, l := o.stages(p[64:80]), o.stages(p[80:96]), o.stages(p[96:112]), o.stages(p[112:128])
		a, b, c, e, f, g, h, l = a.Add(b), a.Sub(b), c.Add(e), c.Sub(e), f.Add(g), f.Sub(g), h.Add(l), h.Sub(l)
		a, b, c, e, f, g, h, l = a.Add(c), b.Add(e), a.Sub(c), b.Sub(e), f.Add(h), g.Add(l), f.Sub(h), g.Sub(l)
		if d > 64 {
			a, b, c, e, f, g, h, l = a.Add(f), b.Add(g), c.Add(h), e.Add(l), a.Sub(f), b.Sub(g), c.Sub(h), e.Sub(l)
		}
		a.Mul(factor).Store((*[16]float32)(p[0:16]))
		b.Mul(factor).Store((*[16]float32)(p[16:32]))
		c.Mul(factor).Store((*[16]float32)(p[32:48]))
		e.Mul(factor).Store((*[16]float32)(p[48:64]))
		f.Mul(factor).Store((*[16]float32)(p[64:80]))
		g.Mul(factor).Store((*[16]float32)(p[80:96]))
		h.Mul(factor).Store((*[16]float32)(p[96:112]))
		l.Mul(factor).Store((*[16]float32)(p[112:128]))
	}
	for h := 128; h < d; h *= 2 {
		if factor = one; 2*h == d {
			factor = r
		}
		for i := 0; i < len(x); i += 2 * h {
			for lo, hi := x[i:i+h], x[i+h:i+2*h]; len(lo) >= 16 && len(hi) >= 16; lo, hi = lo[16:], hi[16:] {
				p, q := (*[16]float32)(lo), (*[16]float32)(hi)
				a, b := archsimd.LoadFloat32x16(p), archsimd.LoadFloat32x16(q)
				a.Add(b).Mul(factor).Store(p)
				a.Sub(b).Mul(factor).Store(q)
			}
		}
	}
}

// rootMeans returns the root mean squares of the groups of x.
func rootMeans(w *wideBatch, x []float32, group int) archsimd.Float32x16 {
	mean := splat16(0x3d000000) // 1/32
	for g := 0; len(x) >= group; g++ {
		p := (*[32]float32)(x)
		a, b := archsimd.LoadFloat32x16((*[16]float32)(p[:16])), archsimd.LoadFloat32x16((*[16]float32)(p[16:]))
		if group == 64 {
			mean = splat16(0x3c800000)
			p := (*[64]float32)(x)
			c, d := archsimd.LoadFloat32x16((*[16]float32)(p[32:48])), archsimd.LoadFloat32x16((*[16]float32)(p[48:]))
			a.Mul(a).Add(c.Mul(c)).Add(b.Mul(b).Add(d.Mul(d))).Store(&w.a[g%batch512])
		} else {
			a.Mul(a).Add(b.Mul(b)).Store(&w.a[g%batch512])
		}
		x = x[group:]
	}
	ms := sums(&w.a).Mul(mean)
	normal := splat16(0x00800000)
	return ms.Masked(ms.GreaterEqual(normal).Or(ms.IsNaN())).Sqrt()
}

// index returns the indices of two vectors, given minus the divisor and its inverse.
func (k *value512) index(x, y, minus, inverse archsimd.Float32x16) (i, j archsimd.Int32x16) {
	x, y = quotient(x, minus, inverse), quotient(y, minus, inverse)
	for l := range k.codes16.bits {
		t := archsimd.LoadFloat32x16(&k.levels[l%5])
		i = i.Add(i).Sub(x.Greater(t.Permute(i.AsUint32x16())).ToInt32x16())
		j = j.Add(j).Sub(y.Greater(t.Permute(j.AsUint32x16())).ToInt32x16())
	}
	return i, j
}

// pack writes the codes of the groups of x, each for its best divisor.
func (k *value512) pack(c *valueCoder, w *wideBatch, codes []byte, x []float32) {
	for g := 0; len(x) > 0; g++ {
		best := w.best[g%batch512] % candidates
		minus, inverse := splat16(w.minus[best][g%batch512]), splat16(w.inverse[best][g%batch512])
		for range c.group / 32 {
			p := (*[32]float32)(x)
			i, j := k.index(archsimd.LoadFloat32x16((*[16]float32)(p[:16])), archsimd.LoadFloat32x16((*[16]float32)(p[16:])), minus, inverse)
			k.codes16.put(codes[:4*c.bits], i.AsUint32x16(), j.AsUint32x16())
			x, codes = x[32:], codes[4*c.bits:]
		}
	}
}

// candidates notes the scales that a search tries for n groups of root mean squares s. It is false where one is not for
// searchGroups.
func (k *value512) candidates(c *valueCoder, w *wideBatch, s archsimd.Float32x16, n int) bool {
	var bad uint16
	var stored [64]byte
	for i, factor := range lloydmax.SearchFactors() {
		r := s.Mul(splat16(math.Float32bits(factor)))
		bad |= storeScales(c.scaleType, stored[:], r.AsUint32x16(), batch512)
		r = loadScales(c.scaleType, stored[:], batch512).AsFloat32x16()
		b := r.AsUint32x16()
		bad |= b.LessEqual(archsimd.BroadcastUint32x16(minScaleBits)).ToBits() | b.GreaterEqual(archsimd.BroadcastUint32x16(maxScaleBits)).ToBits()
		b.Store(&w.tried[i%candidates])
		w.divide(i%candidates, r.Add(splat16(epsBits)))
	}
	return bad<<(batch512-n) == 0
}

// searchGroups finds the best candidate of each group of x.
func (k *value512) searchGroups(c *valueCoder, w *wideBatch, x []float32) {
	for g := 0; len(x) > 0; g++ {
		for i := range candidates {
			minus, inverse, s := splat16(w.minus[i][g%batch512]), splat16(w.inverse[i][g%batch512]), splat16(w.tried[i][g%batch512])
			p := (*[32]float32)(x)
			e, f := k.errors((*[16]float32)(p[:16]), (*[16]float32)(p[16:]), minus, inverse, s)
			if c.group == 64 {
				p := (*[64]float32)(x)
				e1, f1 := k.errors((*[16]float32)(p[32:48]), (*[16]float32)(p[48:]), minus, inverse, s)
				e, f = e.Add(e1), f.Add(f1)
			}
			e.Add(f).Store(&w.a[i])
		}
		var total [16]uint32
		sums(&w.a).AsUint32x16().Store(&total)
		// A sum of squares is not negative: its bits order as it does.
		best := uint64(total[0]) << 8
		for i := 1; i < candidates; i++ {
			best = min(best, uint64(total[i])<<8|uint64(i))
		}
		w.best[g%batch512] = uint8(best)
		w.scale[g%batch512] = w.tried[uint8(best)%candidates][g%batch512]
		x = x[c.group:]
	}
}

// errors returns the squared errors of two vectors with a scale.
func (k *value512) errors(p, q *[16]float32, minus, inverse, s archsimd.Float32x16) (_, _ archsimd.Float32x16) {
	x, y := archsimd.LoadFloat32x16(p), archsimd.LoadFloat32x16(q)
	i, j := k.index(x, y, minus, inverse)
	e, f := k.centroid16(i.AsUint32x16()).Mul(s).Sub(x), k.centroid16(j.AsUint32x16()).Mul(s).Sub(y)
	return e.Mul(e), f.Mul(f)
}

// centroid16 looks the levels up.
func (k *value512) centroid16(i archsimd.Uint32x16) archsimd.Float32x16 {
	return archsimd.LoadFloat32x16(&k.values[0]).ConcatPermute(archsimd.LoadFloat32x16(&k.values[1]), i)
}

func (k *value512) decode(c *valueCoder, w *row, dst, codes, scales []byte, t codec.DType, rotated bool) (saturated int) {
	if t != codec.BF16 {
		return k.valueSIMD.decode(c, w, dst, codes, scales, t, rotated)
	}
	n, size, packed := 2*c.dim, c.dim/c.group*c.scaleType.Size(), c.dim/8*c.bits
	for len(dst) > 0 {
		m := k.rows(c, len(dst)/n)
		if m == 0 || !k.decodeRows(c, w, dst[:m*n], codes[:m*packed], scales, rotated) {
			m = max(m, 1)
			archsimd.ClearAVXUpperBits()
			saturated += k.valueSIMD.decode(c, w, dst[:m*n], codes[:m*packed], scales[:m*size], t, rotated)
		}
		dst, codes, scales = dst[m*n:], codes[m*packed:], scales[m*size:]
	}
	archsimd.ClearAVXUpperBits()
	return saturated
}

// decodeRows decodes rows to bf16. It is false where a scale is NaN.
func (k *value512) decodeRows(c *valueCoder, w *row, dst, codes, scales []byte, rotated bool) bool {
	x := w.wide.x[:len(dst)/2]
	infinite := archsimd.BroadcastUint32x16(infinity)
	magnitudes := archsimd.BroadcastUint32x16(magnitude)
	for y := x; len(y) > 0; {
		n := min(batch512, len(y)/c.group)
		s := loadScales(c.scaleType, scales, n)
		if s.And(magnitudes).Greater(infinite).ToBits()<<(batch512-n) != 0 {
			return false
		}
		s.Store(&w.wide.scale)
		k.lookUp(c, w, y[:n*c.group], codes[:n*c.codeLen])
		y, codes, scales = y[n*c.group:], codes[n*c.codeLen:], scales[n*c.scaleType.Size():]
	}
	if !rotated {
		k.transform(x, c.dim)
	}
	r := newRounding16()
	for len(x) > 0 {
		for s := k.signs; len(s) >= 32 && len(x) >= 32 && len(dst) >= 64; x, s, dst = x[32:], s[32:], dst[64:] {
			p, q := (*[32]float32)(x), (*[32]uint32)(s)
			a, b := archsimd.LoadFloat32x16((*[16]float32)(p[:16])).AsUint32x16(), archsimd.LoadFloat32x16((*[16]float32)(p[16:])).AsUint32x16()
			if !rotated {
				a, b = a.Xor(archsimd.LoadUint32x16((*[16]uint32)(q[:16]))), b.Xor(archsimd.LoadUint32x16((*[16]uint32)(q[16:])))
			}
			r.bf16(a, b).Store((*[64]uint8)(dst))
		}
	}
	return true
}

// lookUp writes centroid·scale of the groups of x, of which w holds the scales.
func (k *value512) lookUp(c *valueCoder, w *row, x []float32, codes []byte) {
	v0, v1 := archsimd.LoadFloat32x16(&k.values[0]), archsimd.LoadFloat32x16(&k.values[1])
	n := c.bits & 7
	for g := 0; len(x) > 0; g++ {
		s := splat16(w.wide.scale[g%batch512])
		for range c.group / 32 {
			p, src := (*[32]float32)(x), padded(w, codes, 4*n)
			v0.ConcatPermute(v1, k.codes16.load(src)).Mul(s).Store((*[16]float32)(p[:16]))
			v0.ConcatPermute(v1, k.codes16.load(src[2*n:])).Mul(s).Store((*[16]float32)(p[16:]))
			x, codes = x[32:], codes[4*n:]
		}
	}
}
