//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"simd/archsimd"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// trellisKernelsFor returns the vector decoder of code 1mad: 16 weights at a time, whose windows lie in 16 bytes.
func trellisKernelsFor(c *weights, level Level) trellisKernels {
	if level < AVX2 || c.p.Code != trellis.OneMAD || c.p.T%16 != 0 || 15*c.p.K+c.p.L+7 > 128 {
		return trellisKernels{}
	}
	w := newWindows(c.p)
	if level >= AVX512 {
		return trellisKernels{decode: w.decodeAVX512, order: orderFor(c.p, level)}
	}
	return trellisKernels{decode: w.decodeAVX2, order: orderFor(c.p, level)}
}

// windows says where in 16 bytes the windows of 16 weights start. Weight t of them starts at bit (15−t)·K: the
// four bytes from the one that holds it, shifted by what is left, begin with it.
type windows struct {
	bytes [4][16]int8 // for four weights each: a shuffle of the bytes
	shift [16]uint32
	mask  uint32
	k, t  int
}

func newWindows(p trellis.Params) *windows {
	w := &windows{mask: 1<<p.L - 1, k: p.K, t: p.T}
	for t := range 16 {
		bit := (15 - t) * p.K
		w.shift[t] = uint32(bit % 8)
		for i := range 4 {
			w.bytes[t/4][t%4*4+i] = int8(bit/8 + i)
		}
	}
	return w
}

// The quotient y/147.80… of an integer within ±510 is y·quotientHi + y·quotientLo, each operation rounded:
// quotientHi has 12 bits, so that the first product is exact. TestQuotient holds it for all of them.
const (
	quotientHi float32 = 0x1.bb6p-08
	quotientLo float32 = 0x1.11a17p-21
)

// Shifts by a constant are written as shifts by a vector: the compiler of Go 1.26 loads the count of the others
// with an instruction of SSE, which costs hundreds of cycles between those of AVX.

// decodeAVX2 decodes blocks.
func (w *windows) decodeAVX2(dst, rings []byte, scale float32, t codec.DType) bool {
	if t != codec.BF16 || scale != scale {
		return false
	}
	// The low halves of the two vectors hold weights 0–3 and 4–7, the high ones 8–11 and 12–15: packing pairs halves.
	var s8 [4][8]uint32
	copy(s8[0][:4], w.shift[0:4])
	copy(s8[0][4:], w.shift[8:12])
	copy(s8[1][:4], w.shift[4:8])
	copy(s8[1][4:], w.shift[12:16])
	var i0, i1 archsimd.Int8x32
	i0 = i0.SetLo(archsimd.LoadInt8x16(&w.bytes[0])).SetHi(archsimd.LoadInt8x16(&w.bytes[2]))
	i1 = i1.SetLo(archsimd.LoadInt8x16(&w.bytes[1])).SetHi(archsimd.LoadInt8x16(&w.bytes[3]))
	h0, h1 := archsimd.LoadUint32x8(&s8[0]), archsimd.LoadUint32x8(&s8[1])
	mask := archsimd.BroadcastUint32x8(w.mask)
	a, c := archsimd.BroadcastUint32x8(34038481), archsimd.BroadcastUint32x8(76625530)
	ones8, ones16 := archsimd.BroadcastInt8x32(1), archsimd.BroadcastInt16x16(1)
	mean := archsimd.BroadcastInt32x8(510)
	hi, lo, sc := archsimd.BroadcastFloat32x8(quotientHi), archsimd.BroadcastFloat32x8(quotientLo), archsimd.BroadcastFloat32x8(scale)
	half, one := archsimd.BroadcastUint32x8(0x7fff), archsimd.BroadcastUint32x8(1)
	sixteen := archsimd.BroadcastUint32x8(16)
	for ; len(dst) > 0; dst, rings = dst[2*w.t:], rings[w.t*w.k/8+after:] {
		for dst, ring := dst[:2*w.t], rings; len(dst) >= 32 && len(ring) >= 16; dst, ring = dst[:len(dst)-32], ring[2*w.k:] {
			b := archsimd.LoadUint8x16((*[16]uint8)(ring))
			var v archsimd.Uint8x32
			v = v.SetLo(b).SetHi(b)
			x := v.PermuteOrZeroGrouped(i0).AsUint32x8().ShiftRight(h0).And(mask).Mul(a).Add(c)
			y := v.PermuteOrZeroGrouped(i1).AsUint32x8().ShiftRight(h1).And(mask).Mul(a).Add(c)
			p := x.AsUint8x32().DotProductPairsSaturated(ones8).DotProductPairs(ones16).Sub(mean).ConvertToFloat32()
			q := y.AsUint8x32().DotProductPairsSaturated(ones8).DotProductPairs(ones16).Sub(mean).ConvertToFloat32()
			x = p.Mul(hi).Add(p.Mul(lo)).Mul(sc).AsUint32x8()
			y = q.Mul(hi).Add(q.Mul(lo)).Mul(sc).AsUint32x8()
			x = x.Add(x.ShiftRight(sixteen).And(one)).Add(half).ShiftRight(sixteen)
			y = y.Add(y.ShiftRight(sixteen).And(one)).Add(half).ShiftRight(sixteen)
			x.AsInt32x8().SaturateToUint16ConcatGrouped(y.AsInt32x8()).AsUint8x32().Store((*[32]uint8)(dst[len(dst)-32:]))
		}
	}
	archsimd.ClearAVXUpperBits()
	return true
}

// decodeAVX512 decodes blocks.
func (w *windows) decodeAVX512(dst, rings []byte, scale float32, t codec.DType) bool {
	if t != codec.BF16 || scale != scale {
		return false
	}
	var lo8, hi8 archsimd.Int8x32
	lo8 = lo8.SetLo(archsimd.LoadInt8x16(&w.bytes[0])).SetHi(archsimd.LoadInt8x16(&w.bytes[1]))
	hi8 = hi8.SetLo(archsimd.LoadInt8x16(&w.bytes[2])).SetHi(archsimd.LoadInt8x16(&w.bytes[3]))
	var i archsimd.Int8x64
	i = i.SetLo(lo8).SetHi(hi8)
	h := archsimd.LoadUint32x16(&w.shift)
	mask := archsimd.BroadcastUint32x16(w.mask)
	a, c := archsimd.BroadcastUint32x16(34038481), archsimd.BroadcastUint32x16(76625530)
	ones8, ones16 := archsimd.BroadcastInt8x64(1), archsimd.BroadcastInt16x32(1)
	mean := archsimd.BroadcastInt32x16(510)
	hi, lo, sc := archsimd.BroadcastFloat32x16(quotientHi), archsimd.BroadcastFloat32x16(quotientLo), archsimd.BroadcastFloat32x16(scale)
	half, one := archsimd.BroadcastUint32x16(0x7fff), archsimd.BroadcastUint32x16(1)
	sixteen := archsimd.BroadcastUint32x16(16)
	for ; len(dst) > 0; dst, rings = dst[2*w.t:], rings[w.t*w.k/8+after:] {
		for dst, ring := dst[:2*w.t], rings; len(dst) >= 32 && len(ring) >= 16; dst, ring = dst[:len(dst)-32], ring[2*w.k:] {
			b := archsimd.LoadUint8x16((*[16]uint8)(ring))
			var v archsimd.Uint8x32
			v = v.SetLo(b).SetHi(b)
			var u archsimd.Uint8x64
			u = u.SetLo(v).SetHi(v)
			x := u.PermuteOrZeroGrouped(i).AsUint32x16().ShiftRight(h).And(mask).Mul(a).Add(c)
			p := x.AsUint8x64().DotProductPairsSaturated(ones8).DotProductPairs(ones16).Sub(mean).ConvertToFloat32()
			x = p.Mul(hi).Add(p.Mul(lo)).Mul(sc).AsUint32x16()
			x = x.Add(x.ShiftRight(sixteen).And(one)).Add(half).ShiftRight(sixteen)
			x.TruncateToUint16().AsUint8x32().Store((*[32]uint8)(dst[len(dst)-32:]))
		}
	}
	archsimd.ClearAVXUpperBits()
	return true
}
