//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"encoding/binary"
	"math"
	"simd/archsimd"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// Shifts by a constant are written as shifts by a vector, and float32 outside vectors are held as bits, for the
// reasons that simd_amd64_decode.go and splat8 give.

// splat8 fills a vector with a float32 of the given bits. The compiler of Go 1.26 moves a float32 with an
// instruction of SSE, which costs hundreds of cycles between those of AVX; bits in a general register it moves without.
func splat8(bits uint32) archsimd.Float32x8 { return archsimd.BroadcastUint32x8(bits).AsFloat32x8() }

// keyKernelsFor returns the vector kernels of keys.
func keyKernelsFor(c *keyCoder, level Level) keyKernels {
	if level < AVX2 {
		return keyKernels{}
	}
	k := &keySIMD{newCodes(int(c.packer.bits)), math.Float32bits(c.rangeScale)}
	if level >= AVX512 {
		k := &key512{*k, newCodes16(int(c.packer.bits))}
		return keyKernels{encode: k.encode, decode: k.decode}
	}
	return keyKernels{encode: k.encode, decode: k.decode}
}

// valueKernelsFor returns the vector kernels of values.
func valueKernelsFor(c *valueCoder, level Level) valueKernels {
	if level < AVX2 || c.rot.m != 1 || c.dim < 64 {
		return valueKernels{}
	}
	k := &valueSIMD{codes: newCodes(c.bits), norm: math.Float32bits(c.rot.r), signs: c.rot.signs, none: make([]uint32, c.dim)}
	if c.bits <= 5 {
		for i := range 1<<c.bits - 1 {
			for range 8 {
				k.boundaries = append(k.boundaries, c.levels.table.Boundary(i))
			}
		}
		for i := range k.centroids {
			for l := range k.centroids[i] {
				k.centroids[i][l] = c.levels.centroids[(8*i+l)%(1<<c.bits)]
			}
		}
		if level >= AVX512 {
			k := newValue512(c, k)
			return valueKernels{encode: k.encode, decode: k.decode}
		}
	}
	return valueKernels{encode: k.encode, decode: k.decode}
}

// codes packs and unpacks indices of up to 8 bits, 8 lanes at a time.
type codes struct {
	bits  uint
	bytes [32]int8  // unpack: four bytes for each lane, from 16 that both halves hold
	right [8]uint32 // unpack: what is left to shift
	left  [8]uint32 // pack: places of four lanes in 4·bits bits
	mask  uint32
}

func newCodes(bits int) codes {
	c := codes{bits: uint(bits), mask: 1<<bits - 1}
	for l := range 8 {
		bit := l * bits
		for i := range 4 {
			c.bytes[4*l+i] = int8(bit/8 + i)
		}
		c.right[l] = uint32(bit % 8)
		c.left[l] = uint32(l % 4 * bits)
	}
	return c
}

// put writes 32 indices, of which the lanes have no other bits, to 4·bits bytes.
func (c *codes) put(dst []byte, i0, i1, i2, i3 archsimd.Uint32x8) {
	left := archsimd.LoadUint32x8(&c.left)
	i0, i1, i2, i3 = i0.ShiftLeft(left), i1.ShiftLeft(left), i2.ShiftLeft(left), i3.ShiftLeft(left)
	var w [8]uint32 // of vector i: lanes 0 to 3 in w[i], lanes 4 to 7 in w[4+i]
	i0.AddPairsGrouped(i1).AddPairsGrouped(i2.AddPairsGrouped(i3)).Store(&w)
	n := int(c.bits & 15)
	half := 4 * n & 63
	putWords(dst, &[4]uint64{
		uint64(w[0]) | uint64(w[4])<<half, uint64(w[1]) | uint64(w[5])<<half,
		uint64(w[2]) | uint64(w[6])<<half, uint64(w[3]) | uint64(w[7])<<half,
	}, n)
}

// putWords writes the low n bytes of each word.
func putWords(dst []byte, w *[4]uint64, n int) {
	if len(dst) >= 3*n+8 { // each word's upper bytes are written again
		binary.LittleEndian.PutUint64(dst, w[0])
		binary.LittleEndian.PutUint64(dst[n:], w[1])
		binary.LittleEndian.PutUint64(dst[2*n:], w[2])
		binary.LittleEndian.PutUint64(dst[3*n:], w[3])
		return
	}
	for i, v := range w {
		put(dst[i*n:(i+1)*n], v)
	}
}

// padded returns src, or if it is shorter than n + 16 bytes a copy that is not.
func padded(w *row, src []byte, n int) []byte {
	if len(src) >= n+16 {
		return src
	}
	copy(w.pad[:], src)
	return w.pad[:]
}

// load16 is two copies of 16 bytes.
func load16(src []byte) archsimd.Uint8x32 {
	b := archsimd.LoadUint8x16((*[16]uint8)(src))
	var v archsimd.Uint8x32
	return v.SetLo(b).SetHi(b)
}

// order64 undoes the interleaving of halves that packing two vectors does.
var order64 = [8]uint32{0, 1, 4, 5, 2, 3, 6, 7}

// rounding rounds pairs of vectors to bf16.
type rounding struct {
	half, one, sixteen, order archsimd.Uint32x8
}

func newRounding() rounding {
	return rounding{archsimd.BroadcastUint32x8(0x7fff), archsimd.BroadcastUint32x8(1), archsimd.BroadcastUint32x8(16), archsimd.LoadUint32x8(&order64)}
}

// bf16 returns 16 elements of bf16. NaN must be one that an operation made.
func (r *rounding) bf16(x, y archsimd.Uint32x8) archsimd.Uint8x32 {
	x = x.Add(x.ShiftRight(r.sixteen).And(r.one)).Add(r.half).ShiftRight(r.sixteen)
	y = y.Add(y.ShiftRight(r.sixteen).And(r.one)).Add(r.half).ShiftRight(r.sixteen)
	return x.AsInt32x8().SaturateToUint16ConcatGrouped(y.AsInt32x8()).AsUint32x8().Permute(r.order).AsUint8x32()
}

// keySIMD is keyCoder in vectors.
type keySIMD struct {
	codes      codes
	rangeScale uint32 // bits
}

func (k *keySIMD) encode(c *keyCoder, w *row, codes, scales, zeros, src []byte, t codec.DType) found {
	f := clean
	step, size := c.group*t.Size(), c.scaleType.Size()
	x := &w.batch
	for g := 0; len(src) > 0; {
		n := min(batch, len(src)/step)
		if c.compat || !k.ranges(c, w, src[:n*step], t, n) {
			// Element by element: the sign of zeros counts, or an element is not finite.
			for i := range n {
				if !c.encodeGroup(&f, g+i, &w.group, src[i*step:][:step], t, codes[i*c.codeLen:][:c.codeLen], scales[i*size:][:size], zeros[i*size:][:size]) {
					return f
				}
			}
		} else {
			k.parameters(c, w)
			for i := range n {
				if !k.group(c, x, i, codes[i*c.codeLen:], scales[i*size:], zeros[i*size:]) &&
					!c.encodeGroup(&f, g+i, &w.group, src[i*step:][:step], t, codes[i*c.codeLen:][:c.codeLen], scales[i*size:][:size], zeros[i*size:][:size]) {
					return f
				}
			}
		}
		src, codes, scales, zeros = src[n*step:], codes[n*c.codeLen:], scales[n*size:], zeros[n*size:]
		g += n
	}
	archsimd.ClearAVXUpperBits()
	return f
}

// ranges makes n groups canonical and finds their least and greatest elements. It is false where an element is
// not finite.
func (k *keySIMD) ranges(c *keyCoder, w *row, src []byte, t codec.DType, n int) bool {
	b := &w.batch
	if t != codec.F32 {
		widen(b.x[:n*c.group], src, t)
	}
	magnitudes := archsimd.BroadcastInt32x8(magnitude)
	least := archsimd.BroadcastInt32x8(canonMin - 1)
	sign := archsimd.BroadcastUint32x8(1 << 31)
	var big archsimd.Int32x8
	for g := range n {
		x := b.x[g*c.group:][:c.group]
		var lo, hi archsimd.Float32x8
		for i := 0; i+8 <= len(x); i += 8 {
			p := (*[8]float32)(x[i:])
			var v archsimd.Int32x8
			if t == codec.F32 {
				v = archsimd.LoadUint8x32((*[32]uint8)(src[4*(g*c.group+i):])).AsInt32x8()
			} else {
				v = archsimd.LoadFloat32x8(p).AsInt32x8()
			}
			m := v.And(magnitudes)
			big = big.Max(m)
			y := v.And(m.Greater(least).ToInt32x8()).AsFloat32x8()
			y.Store(p)
			if i == 0 {
				lo, hi = y, y
			} else {
				lo, hi = lo.Min(y), hi.Max(y)
			}
		}
		// The least of lo and of −hi, four lanes each.
		neg := hi.AsUint32x8().Xor(sign).AsFloat32x8()
		a := lo.Select128FromPair(0, 2, neg).Min(lo.Select128FromPair(1, 3, neg))
		a = a.Min(a.SelectFromPairGrouped(2, 3, 0, 1, a))
		a = a.Min(a.SelectFromPairGrouped(1, 0, 3, 2, a))
		e := a.AsUint32x8()
		b.lo[g%batch], b.hi[g%batch] = e.GetLo().GetElem(0), e.GetHi().GetElem(0)^1<<31
	}
	infinite := archsimd.BroadcastInt32x8(infinity - 1)
	return big.Greater(infinite).ToBits() == 0
}

// parameters computes the scales and zero points of all groups.
func (k *keySIMD) parameters(c *keyCoder, w *row) {
	b := &w.batch
	lo, hi := archsimd.LoadUint32x8(&b.lo).AsFloat32x8(), archsimd.LoadUint32x8(&b.hi).AsFloat32x8()
	s := hi.Sub(lo).Div(splat8(k.rangeScale))
	se := s.Add(splat8(epsBits))
	var z archsimd.Float32x8
	if c.format.Signed {
		z = hi.Add(lo).Div(se.Add(se)).RoundToEven()
	} else {
		z = lo.Div(se).RoundToEven()
	}
	s.AsUint32x8().Store(&b.scale)
	se.AsUint32x8().Store(&b.se)
	z.AsUint32x8().Store(&b.zero)
}

// epsBits is the bits of eps, magicBits those of magic.
const epsBits = 0x322bcc77

// group packs group g. It is false, and what it has written is of no use, where the group needs words of its own.
func (k *keySIMD) group(c *keyCoder, b *keyBatch, g int, codes, scale, zero []byte) bool {
	g %= batch
	z := b.zero[g]
	if b.se[g] >= infinity || !storeBits(c.scaleType, scale, b.scale[g]) || !storeBits(c.scaleType, zero, z) {
		return false
	}
	se, zv := splat8(b.se[g]), splat8(z)
	lo, hi := archsimd.BroadcastInt32x8(c.lo), archsimd.BroadcastInt32x8(c.hi)
	m, mask := splat8(magicBits), archsimd.BroadcastInt32x8(int32(k.codes.mask))
	for i := 0; i < c.group; i += 32 {
		x := (*[32]float32)(b.x[g*c.group+i:])
		q0 := archsimd.LoadFloat32x8((*[8]float32)(x[0:8])).Div(se).Sub(zv).Add(m).AsInt32x8().Max(lo).Min(hi).And(mask)
		q1 := archsimd.LoadFloat32x8((*[8]float32)(x[8:16])).Div(se).Sub(zv).Add(m).AsInt32x8().Max(lo).Min(hi).And(mask)
		q2 := archsimd.LoadFloat32x8((*[8]float32)(x[16:24])).Div(se).Sub(zv).Add(m).AsInt32x8().Max(lo).Min(hi).And(mask)
		q3 := archsimd.LoadFloat32x8((*[8]float32)(x[24:32])).Div(se).Sub(zv).Add(m).AsInt32x8().Max(lo).Min(hi).And(mask)
		n := 4 * int(k.codes.bits)
		k.codes.put(codes[:n], q0.AsUint32x8(), q1.AsUint32x8(), q2.AsUint32x8(), q3.AsUint32x8())
		codes = codes[n:]
	}
	return true
}

func (k *keySIMD) decode(c *keyCoder, w *row, dst, codes, scales, zeros []byte, t codec.DType) (saturated int) {
	step, size := c.group*t.Size(), c.scaleType.Size()
	x := w.group.x[:c.group]
	bytes, right := archsimd.LoadInt8x32(&k.codes.bytes), archsimd.LoadUint32x8(&k.codes.right)
	mask := archsimd.BroadcastUint32x8(k.codes.mask)
	var signed archsimd.Int32x8 // what extends a sign: the sign bit
	if c.format.Signed {
		signed = archsimd.BroadcastInt32x8(0x80)
	}
	r := newRounding()
	n := int(k.codes.bits)
	for len(dst) > 0 {
		scale, zero := loadBits(c.scaleType, scales), loadBits(c.scaleType, zeros)
		fast := t == codec.BF16 && scale&magnitude < infinity && zero&magnitude < infinity
		sv, zv := splat8(scale), splat8(zero)
		src := padded(w, codes, c.codeLen)
		for i := 0; i < c.group; i += 16 {
			a := load16(src).PermuteOrZeroGrouped(bytes).AsUint32x8().ShiftRight(right).And(mask).AsInt32x8().Xor(signed).Sub(signed)
			b := load16(src[n:]).PermuteOrZeroGrouped(bytes).AsUint32x8().ShiftRight(right).And(mask).AsInt32x8().Xor(signed).Sub(signed)
			src = src[2*n:]
			p, q := a.ConvertToFloat32().Add(zv).Mul(sv), b.ConvertToFloat32().Add(zv).Mul(sv)
			if fast {
				r.bf16(p.AsUint32x8(), q.AsUint32x8()).Store((*[32]uint8)(dst[2*i:]))
				continue
			}
			p.Store((*[8]float32)(x[i:]))
			q.Store((*[8]float32)(x[i+8:]))
		}
		if !fast {
			archsimd.ClearAVXUpperBits()
			saturated += narrow(dst[:step], x, t, !c.compat)
		}
		dst, codes, scales, zeros = dst[step:], codes[c.codeLen:], scales[size:], zeros[size:]
	}
	archsimd.ClearAVXUpperBits()
	return saturated
}

// valueSIMD is valueCoder in vectors, for rows of a power of two of at least 64.
type valueSIMD struct {
	codes      codes
	norm       uint32   // bits of 1/√d
	signs      []uint32 // of the rotation
	none       []uint32 // no signs
	boundaries []float32
	centroids  [4][8]float32
}

// odd1, odd2 and odd4 turn the lanes whose number has that bit.
var (
	odd1 = [8]uint32{1: 1 << 31, 3: 1 << 31, 5: 1 << 31, 7: 1 << 31}
	odd2 = [8]uint32{2: 1 << 31, 3: 1 << 31, 6: 1 << 31, 7: 1 << 31}
	odd4 = [8]uint32{4: 1 << 31, 5: 1 << 31, 6: 1 << 31, 7: 1 << 31}
)

// lanes holds odd1, odd2 and odd4.
type lanes struct{ m1, m2, m4 archsimd.Uint32x8 }

func newLanes() lanes {
	return lanes{archsimd.LoadUint32x8(&odd1), archsimd.LoadUint32x8(&odd2), archsimd.LoadUint32x8(&odd4)}
}

// octet applies the stages 1, 2 and 4 to the lanes.
func (o *lanes) octet(a archsimd.Float32x8) archsimd.Float32x8 {
	a = a.SelectFromPairGrouped(1, 0, 3, 2, a).Add(a.AsUint32x8().Xor(o.m1).AsFloat32x8())
	a = a.SelectFromPairGrouped(2, 3, 0, 1, a).Add(a.AsUint32x8().Xor(o.m2).AsFloat32x8())
	return a.Select128FromPair(1, 0, a).Add(a.AsUint32x8().Xor(o.m4).AsFloat32x8())
}

// columns applies the stages 8, 16 and 32 to 64 elements and multiplies by r.
func columns(p *[64]float32, r archsimd.Float32x8) {
	a, b := archsimd.LoadFloat32x8((*[8]float32)(p[0:8])), archsimd.LoadFloat32x8((*[8]float32)(p[8:16]))
	c, d := archsimd.LoadFloat32x8((*[8]float32)(p[16:24])), archsimd.LoadFloat32x8((*[8]float32)(p[24:32]))
	e, f := archsimd.LoadFloat32x8((*[8]float32)(p[32:40])), archsimd.LoadFloat32x8((*[8]float32)(p[40:48]))
	g, h := archsimd.LoadFloat32x8((*[8]float32)(p[48:56])), archsimd.LoadFloat32x8((*[8]float32)(p[56:64]))
	a, b, c, d, e, f, g, h = a.Add(b), a.Sub(b), c.Add(d), c.Sub(d), e.Add(f), e.Sub(f), g.Add(h), g.Sub(h)
	a, b, c, d, e, f, g, h = a.Add(c), b.Add(d), a.Sub(c), b.Sub(d), e.Add(g), f.Add(h), e.Sub(g), f.Sub(h)
	a.Add(e).Mul(r).Store((*[8]float32)(p[0:8]))
	b.Add(f).Mul(r).Store((*[8]float32)(p[8:16]))
	c.Add(g).Mul(r).Store((*[8]float32)(p[16:24]))
	d.Add(h).Mul(r).Store((*[8]float32)(p[24:32]))
	a.Sub(e).Mul(r).Store((*[8]float32)(p[32:40]))
	b.Sub(f).Mul(r).Store((*[8]float32)(p[40:48]))
	c.Sub(g).Mul(r).Store((*[8]float32)(p[48:56]))
	d.Sub(h).Mul(r).Store((*[8]float32)(p[56:64]))
}

// finish applies what follows octet to a row. A factor of 1 changes nothing.
func finish(x []float32, norm uint32) {
	one, r := splat8(0x3f800000), splat8(norm)
	f := one
	if len(x) == 64 {
		f = r
	}
	for i := 0; i+64 <= len(x); i += 64 {
		columns((*[64]float32)(x[i:]), f)
	}
	for h := 64; h < len(x); h *= 2 {
		if f = one; 2*h == len(x) {
			f = r
		}
		for i := 0; i < len(x); i += 2 * h {
			lo, hi := x[i:i+h], x[i+h:i+2*h]
			for len(lo) >= 8 && len(hi) >= 8 {
				p, q := (*[8]float32)(lo), (*[8]float32)(hi)
				a, b := archsimd.LoadFloat32x8(p), archsimd.LoadFloat32x8(q)
				a.Add(b).Mul(f).Store(p)
				a.Sub(b).Mul(f).Store(q)
				lo, hi = lo[8:], hi[8:]
			}
		}
	}
}

func (k *valueSIMD) encode(c *valueCoder, w *row, codes, scales, src []byte, t codec.DType) found {
	f := clean
	n, size := c.dim*t.Size(), c.scaleType.Size()
	x := w.x[:c.dim]
	for base := 0; len(src) > 0; base += c.dim {
		exact := false
		if k.load(x, src[:n], t) {
			finish(x, k.norm)
		} else {
			archsimd.ClearAVXUpperBits()
			var ok bool
			if exact, ok = c.load(x, src[:n], t); !ok {
				widen(x, src[:n], t)
				f.nonFinite = base + firstNonFinite(x)
				return f
			}
			c.rot.forward(x)
		}
		src = src[n:]
		vector := !exact && c.bits <= 5
		for g := 0; g < c.dim; g += c.group {
			y := x[g : g+c.group]
			if i := g / c.group % batch; vector && i == 0 {
				k.parameters(w, x[g:], c.group)
			}
			if !vector || !k.groupOrSearch(c, w, g/c.group%batch, codes, scales, y) {
				archsimd.ClearAVXUpperBits()
				if !c.encodeGroup(&w.group, codes[:c.codeLen], scales, y, exact) && f.overflow < 0 {
					f.overflow = base + g
				}
			}
			codes, scales = codes[c.codeLen:], scales[size:]
		}
	}
	archsimd.ClearAVXUpperBits()
	return f
}

func (k *valueSIMD) groupOrSearch(c *valueCoder, w *row, i int, codes, scale []byte, y []float32) bool {
	if c.search {
		return k.search(c, w, i, codes, scale, y)
	}
	return k.group(c, w, i, codes, scale, y)
}

// load widens a row, multiplies it by the signs and applies the first stages. It is false where an element is not
// finite, or in (0, 2^-30).
func (k *valueSIMD) load(x []float32, src []byte, t codec.DType) bool {
	if t != codec.F32 {
		widen(x, src, t)
	}
	o := newLanes()
	magnitudes := archsimd.BroadcastUint32x8(magnitude)
	up, safe, one := archsimd.BroadcastUint32x8(infinityUp), archsimd.BroadcastUint32x8(safeMin), archsimd.BroadcastUint32x8(1)
	var bad archsimd.Uint32x8
	signs := k.signs
	for len(x) >= 8 && len(signs) >= 8 {
		p := (*[8]float32)(x)
		var b archsimd.Uint32x8
		if t == codec.F32 {
			b = archsimd.LoadUint8x32((*[32]uint8)(src)).AsUint32x8()
			src = src[32:]
		} else {
			b = archsimd.LoadFloat32x8(p).AsUint32x8()
		}
		m := b.And(magnitudes)
		bad = bad.Or(m.Add(up)).Or(m.Sub(safe).AndNot(m.Sub(one)))
		o.octet(b.Xor(archsimd.LoadUint32x8((*[8]uint32)(signs))).AsFloat32x8()).Store(p)
		x, signs = x[8:], signs[8:]
	}
	var zero archsimd.Int32x8
	return zero.Greater(bad.AsInt32x8()).ToBits() == 0
}

// parameters computes the scales of the first groups of x, as many as there are up to batch.
func (k *valueSIMD) parameters(w *row, x []float32, group int) {
	b := &w.batch
	for i := 0; i < batch && len(x) > 0; i++ {
		b.lo[i%batch] = squares(x[:group])
		x = x[group:]
	}
	inverse := splat8(0x3d000000) // 1/32
	if group == 64 {
		inverse = splat8(0x3c800000)
	}
	ms := archsimd.LoadUint32x8(&b.lo).AsFloat32x8().Mul(inverse)
	normal := splat8(0x00800000)
	s := ms.AsInt32x8().And(ms.GreaterEqual(normal).Or(ms.IsNaN()).ToInt32x8()).AsFloat32x8().Sqrt()
	s.AsUint32x8().Store(&b.scale)
	s.Add(splat8(epsBits)).AsUint32x8().Store(&b.se)
}

// maxScaleBits is the bits of maxScale.
const maxScaleBits = 0x5d800000

// group packs one rotated group, number i of its batch. It is false, having written nothing of use, where the
// scale is not one for it.
func (k *valueSIMD) group(c *valueCoder, w *row, i int, codes, scale []byte, y []float32) bool {
	b := &w.batch
	if b.se[i%batch] >= maxScaleBits || !storeBits(c.scaleType, scale, b.scale[i%batch]) && !c.compat {
		return false
	}
	k.pack(c, codes, y, splat8(b.se[i%batch]))
	return true
}

// pack packs the indices of a group for the divisor sv.
func (k *valueSIMD) pack(c *valueCoder, codes []byte, y []float32, sv archsimd.Float32x8) {
	for len(y) >= 32 {
		p := (*[32]float32)(y)
		y0 := archsimd.LoadFloat32x8((*[8]float32)(p[0:8])).Div(sv)
		y1 := archsimd.LoadFloat32x8((*[8]float32)(p[8:16])).Div(sv)
		y2 := archsimd.LoadFloat32x8((*[8]float32)(p[16:24])).Div(sv)
		y3 := archsimd.LoadFloat32x8((*[8]float32)(p[24:32])).Div(sv)
		var i0, i1, i2, i3 archsimd.Int32x8
		for b := k.boundaries; len(b) >= 8; b = b[8:] {
			v := archsimd.LoadFloat32x8((*[8]float32)(b))
			i0 = i0.Sub(y0.Greater(v).ToInt32x8())
			i1 = i1.Sub(y1.Greater(v).ToInt32x8())
			i2 = i2.Sub(y2.Greater(v).ToInt32x8())
			i3 = i3.Sub(y3.Greater(v).ToInt32x8())
		}
		n := 4 * c.bits
		k.codes.put(codes[:n], i0.AsUint32x8(), i1.AsUint32x8(), i2.AsUint32x8(), i3.AsUint32x8())
		y, codes = y[32:], codes[n:]
	}
}

// factors are lloydmax.SearchFactors, as many as two vectors hold.
var factors = func() (f [16]float32) {
	for i, v := range lloydmax.SearchFactors() {
		f[i] = v
	}
	return f
}()

// minScaleBits is the bits of minScale.
const minScaleBits = 0x35800000

// search packs one rotated group with the best of nine scales. It is false, having written nothing of use, where
// a scale is not one for it.
func (k *valueSIMD) search(c *valueCoder, w *row, i int, codes, scale []byte, y []float32) bool {
	rms := splat8(w.batch.scale[i%batch])
	var candidates [16]uint32
	rms.Mul(archsimd.LoadFloat32x8((*[8]float32)(factors[:8]))).AsUint32x8().Store((*[8]uint32)(candidates[:8]))
	rms.Mul(archsimd.LoadFloat32x8((*[8]float32)(factors[8:]))).AsUint32x8().Store((*[8]uint32)(candidates[8:]))
	best, bestErr := uint32(0), uint32(0)
	for i := range lloydmax.SearchFactors() {
		if !storeBits(c.scaleType, scale, candidates[i]) {
			return false
		}
		s := loadBits(c.scaleType, scale)
		if s <= minScaleBits || s >= maxScaleBits {
			return false
		}
		// The sum of squares is not negative: its bits order as it does.
		if err := k.trial(y, s); i == 0 || err < bestErr {
			best, bestErr = s, err
		}
	}
	storeBits(c.scaleType, scale, best)
	k.pack(c, codes, y, splat8(best).Add(splat8(epsBits)))
	return true
}

// trial returns the bits of the squared error of a group quantised with the scale of bits s.
func (k *valueSIMD) trial(y []float32, s uint32) uint32 {
	sv := splat8(s)
	se := sv.Add(splat8(epsBits))
	var total archsimd.Float32x8
	if len(y) == 64 {
		p := (*[64]float32)(y)
		a, b := k.error2(p[0:8], sv, se).Add(k.error2(p[32:40], sv, se)), k.error2(p[16:24], sv, se).Add(k.error2(p[48:56], sv, se))
		c, d := k.error2(p[8:16], sv, se).Add(k.error2(p[40:48], sv, se)), k.error2(p[24:32], sv, se).Add(k.error2(p[56:64], sv, se))
		total = a.Add(b).Add(c.Add(d))
	} else {
		p := (*[32]float32)(y)
		y0, y1 := archsimd.LoadFloat32x8((*[8]float32)(p[0:8])), archsimd.LoadFloat32x8((*[8]float32)(p[8:16]))
		y2, y3 := archsimd.LoadFloat32x8((*[8]float32)(p[16:24])), archsimd.LoadFloat32x8((*[8]float32)(p[24:32]))
		n0, n1, n2, n3 := y0.Div(se), y1.Div(se), y2.Div(se), y3.Div(se)
		var i0, i1, i2, i3 archsimd.Int32x8
		for b := k.boundaries; len(b) >= 8; b = b[8:] {
			v := archsimd.LoadFloat32x8((*[8]float32)(b))
			i0 = i0.Sub(n0.Greater(v).ToInt32x8())
			i1 = i1.Sub(n1.Greater(v).ToInt32x8())
			i2 = i2.Sub(n2.Greater(v).ToInt32x8())
			i3 = i3.Sub(n3.Greater(v).ToInt32x8())
		}
		e0, e1 := k.centroid(i0).Mul(sv).Sub(y0), k.centroid(i1).Mul(sv).Sub(y1)
		e2, e3 := k.centroid(i2).Mul(sv).Sub(y2), k.centroid(i3).Mul(sv).Sub(y3)
		total = e0.Mul(e0).Add(e2.Mul(e2)).Add(e1.Mul(e1).Add(e3.Mul(e3)))
	}
	return lanesSum(total)
}

// error2 returns the squared errors of eight elements.
func (k *valueSIMD) error2(y []float32, sv, se archsimd.Float32x8) archsimd.Float32x8 {
	v := archsimd.LoadFloat32x8((*[8]float32)(y))
	n := v.Div(se)
	var i archsimd.Int32x8
	for b := k.boundaries; len(b) >= 8; b = b[8:] {
		i = i.Sub(n.Greater(archsimd.LoadFloat32x8((*[8]float32)(b))).ToInt32x8())
	}
	e := k.centroid(i).Mul(sv).Sub(v)
	return e.Mul(e)
}

// centroid looks the levels up.
func (k *valueSIMD) centroid(i archsimd.Int32x8) archsimd.Float32x8 {
	u := i.AsUint32x8()
	v := archsimd.LoadFloat32x8(&k.centroids[0]).Permute(u)
	if k.codes.bits > 3 {
		v = archsimd.LoadFloat32x8(&k.centroids[1]).Permute(u).Merge(v, i.Greater(archsimd.BroadcastInt32x8(7)))
	}
	if k.codes.bits > 4 {
		v = archsimd.LoadFloat32x8(&k.centroids[2]).Permute(u).Merge(v, i.Greater(archsimd.BroadcastInt32x8(15)))
		v = archsimd.LoadFloat32x8(&k.centroids[3]).Permute(u).Merge(v, i.Greater(archsimd.BroadcastInt32x8(23)))
	}
	return v
}

// squares returns the bits of the tree's sum of the squares of 32 or 64 elements.
func squares(y []float32) uint32 {
	var t archsimd.Float32x8
	if len(y) == 64 {
		p := (*[64]float32)(y)
		t = square2(p[0:8], p[32:40]).Add(square2(p[16:24], p[48:56])).Add(square2(p[8:16], p[40:48]).Add(square2(p[24:32], p[56:64])))
	} else {
		p := (*[32]float32)(y)
		t = square2(p[0:8], p[16:24]).Add(square2(p[8:16], p[24:32]))
	}
	return lanesSum(t)
}

// lanesSum returns the bits of the tree's sum of eight lanes.
func lanesSum(t archsimd.Float32x8) uint32 {
	t = t.Add(t.Select128FromPair(1, 0, t))
	t = t.Add(t.SelectFromPairGrouped(2, 3, 0, 1, t))
	t = t.Add(t.SelectFromPairGrouped(1, 0, 3, 2, t))
	return t.AsUint32x8().GetLo().GetElem(0)
}

func square2(a, b []float32) archsimd.Float32x8 {
	x, y := archsimd.LoadFloat32x8((*[8]float32)(a)), archsimd.LoadFloat32x8((*[8]float32)(b))
	return x.Mul(x).Add(y.Mul(y))
}

func (k *valueSIMD) decode(c *valueCoder, w *row, dst, codes, scales []byte, t codec.DType, rotated bool) (saturated int) {
	n, size := c.dim*t.Size(), c.scaleType.Size()
	x := w.x[:c.dim]
	signs := k.signs
	if rotated {
		signs = k.none
	}
	for len(dst) > 0 {
		fast := t == codec.BF16
		if c.bits > 5 {
			archsimd.ClearAVXUpperBits()
			for g := 0; g < c.dim; g += c.group {
				scale := loadBits(c.scaleType, scales[g/c.group*size:])
				fast = fast && scale&magnitude <= infinity
				c.decodeGroup(x[g:g+c.group], codes[g*c.bits/8:][:c.codeLen], math.Float32frombits(scale), rotated)
			}
		} else {
			fast = k.decodeRow(c, w, x, codes, scales, rotated) && fast
		}
		codes, scales = codes[c.dim*c.bits/8:], scales[c.dim/c.group*size:]
		if !rotated {
			finish(x, k.norm)
		}
		if fast {
			narrowSIMD(dst[:n], x, signs)
		} else {
			archsimd.ClearAVXUpperBits()
			if !rotated {
				c.rot.flip(x)
			}
			saturated += narrow(dst[:n], x, t, !c.compat)
		}
		dst = dst[n:]
	}
	archsimd.ClearAVXUpperBits()
	return saturated
}

// decodeRow writes centroid·scale of a row, and applies the first stages unless rotated is set. It is false where
// a scale is NaN.
func (k *valueSIMD) decodeRow(c *valueCoder, w *row, x []float32, codes, scales []byte, rotated bool) bool {
	bytes, right := archsimd.LoadInt8x32(&k.codes.bytes), archsimd.LoadUint32x8(&k.codes.right)
	mask := archsimd.BroadcastUint32x8(k.codes.mask)
	o := newLanes()
	c0, c1 := archsimd.LoadFloat32x8(&k.centroids[0]), archsimd.LoadFloat32x8(&k.centroids[1])
	c2, c3 := archsimd.LoadFloat32x8(&k.centroids[2]), archsimd.LoadFloat32x8(&k.centroids[3])
	seven, fifteen, twentyThree := archsimd.BroadcastInt32x8(7), archsimd.BroadcastInt32x8(15), archsimd.BroadcastInt32x8(23)
	n := k.codes.bits & 15
	size, numbers := c.scaleType.Size(), true
	for len(x) > 0 {
		scale := loadBits(c.scaleType, scales)
		numbers = numbers && scale&magnitude <= infinity
		sv := splat8(scale)
		src := padded(w, codes, c.codeLen)
		for group := x[:c.group]; len(group) >= 8; group = group[8:] {
			i := load16(src).PermuteOrZeroGrouped(bytes).AsUint32x8().ShiftRight(right).And(mask)
			v := c0.Permute(i)
			if n > 3 {
				v = c1.Permute(i).Merge(v, i.AsInt32x8().Greater(seven))
			}
			if n > 4 {
				v = c2.Permute(i).Merge(v, i.AsInt32x8().Greater(fifteen))
				v = c3.Permute(i).Merge(v, i.AsInt32x8().Greater(twentyThree))
			}
			v = v.Mul(sv)
			if !rotated {
				v = o.octet(v)
			}
			v.Store((*[8]float32)(group))
			src = src[n:]
		}
		x, codes, scales = x[c.group:], codes[c.codeLen:], scales[size:]
	}
	return numbers
}

// narrowSIMD is narrowBF16.
func narrowSIMD(dst []byte, x []float32, signs []uint32) {
	r := newRounding()
	for len(x) >= 16 && len(signs) >= 16 && len(dst) >= 32 {
		p, s := (*[16]float32)(x), (*[16]uint32)(signs)
		a := archsimd.LoadFloat32x8((*[8]float32)(p[:8])).AsUint32x8().Xor(archsimd.LoadUint32x8((*[8]uint32)(s[:8])))
		b := archsimd.LoadFloat32x8((*[8]float32)(p[8:])).AsUint32x8().Xor(archsimd.LoadUint32x8((*[8]uint32)(s[8:])))
		r.bf16(a, b).Store((*[32]uint8)(dst))
		x, signs, dst = x[16:], signs[16:], dst[32:]
	}
}

// loadBits is the bits of t.Load.
func loadBits(t codec.DType, src []byte) uint32 {
	switch t {
	case codec.F32:
		return binary.LittleEndian.Uint32(src)
	case codec.BF16:
		return uint32(binary.LittleEndian.Uint16(src)) << 16
	}
	h := uint32(binary.LittleEndian.Uint16(src))
	if h&0x7c00-0x0400 < 0x7800 { // normal
		return h&0x8000<<16 | (h&0x7fff+(127-15)<<10)<<13
	}
	archsimd.ClearAVXUpperBits()
	return math.Float32bits(t.Load(src))
}

// storeBits is t.Store of a value given by its bits. It reports whether what it stored is finite.
func storeBits(t codec.DType, dst []byte, b uint32) bool {
	m := b & magnitude
	switch t {
	case codec.F32:
		binary.LittleEndian.PutUint32(dst, b)
		return m < infinity
	case codec.F16:
		if m-0x38800000 < 0x477ff000-0x38800000 { // normal
			binary.LittleEndian.PutUint16(dst, uint16(b>>16&0x8000|(m-(127-15)<<23+0xfff+m>>13&1)>>13))
			return true
		}
		if m == 0 {
			binary.LittleEndian.PutUint16(dst, uint16(b>>16))
			return true
		}
	}
	archsimd.ClearAVXUpperBits()
	t.Store(dst, math.Float32frombits(b))
	return math.Float32bits(t.Load(dst))&magnitude < infinity
}
