//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"math"
	"simd/archsimd"
)

func tileAVX512(chains []float32, rows int, x []float32, xStep int, w []float32, wStep, width int) {
	if rows == 4 {
		for h := 0; h < 32; h += 16 {
			tile4AVX512(chains, h, x, xStep, w, wStep, width)
		}
		archsimd.ClearAVXUpperBits()
		return
	}
	for m := range rows {
		acc := (*[128]float32)(chains[m*128:])
		xm := x[m*xStep:][:width]
		a0, a1 := archsimd.LoadFloat32x16((*[16]float32)(acc[0:])), archsimd.LoadFloat32x16((*[16]float32)(acc[16:]))
		b0, b1 := archsimd.LoadFloat32x16((*[16]float32)(acc[32:])), archsimd.LoadFloat32x16((*[16]float32)(acc[48:]))
		c0, c1 := archsimd.LoadFloat32x16((*[16]float32)(acc[64:])), archsimd.LoadFloat32x16((*[16]float32)(acc[80:]))
		d0, d1 := archsimd.LoadFloat32x16((*[16]float32)(acc[96:])), archsimd.LoadFloat32x16((*[16]float32)(acc[112:]))
		for c := 0; c+128 <= width; c += 128 {
			p := (*[128]float32)(xm[c:])
			wa, wb, wc, wd := (*[128]float32)(w[c:]), (*[128]float32)(w[wStep+c:]), (*[128]float32)(w[2*wStep+c:]), (*[128]float32)(w[3*wStep+c:])
			for i := 0; i < 64; i += 16 {
				v := archsimd.LoadFloat32x16((*[16]float32)(p[i:]))
				a0 = a0.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wa[i:]))))
				b0 = b0.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wb[i:]))))
				c0 = c0.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wc[i:]))))
				d0 = d0.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wd[i:]))))
				v = archsimd.LoadFloat32x16((*[16]float32)(p[i+64:]))
				a1 = a1.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wa[i+64:]))))
				b1 = b1.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wb[i+64:]))))
				c1 = c1.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wc[i+64:]))))
				d1 = d1.Add(v.Mul(archsimd.LoadFloat32x16((*[16]float32)(wd[i+64:]))))
			}
		}
		a0.Store((*[16]float32)(acc[0:]))
		a1.Store((*[16]float32)(acc[16:]))
		b0.Store((*[16]float32)(acc[32:]))
		b1.Store((*[16]float32)(acc[48:]))
		c0.Store((*[16]float32)(acc[64:]))
		c1.Store((*[16]float32)(acc[80:]))
		d0.Store((*[16]float32)(acc[96:]))
		d1.Store((*[16]float32)(acc[112:]))
	}
	archsimd.ClearAVXUpperBits()
}

// tile4AVX512 is a tile of four rows of x, for the chains h to h+15.
func tile4AVX512(chains []float32, h int, x []float32, xStep int, w []float32, wStep, width int) {
	acc := (*[512]float32)(chains)
	a0, a1 := archsimd.LoadFloat32x16((*[16]float32)(acc[h:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+128:]))
	a2, a3 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+256:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+384:]))
	b0, b1 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+32:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+160:]))
	b2, b3 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+288:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+416:]))
	c0, c1 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+64:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+192:]))
	c2, c3 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+320:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+448:]))
	d0, d1 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+96:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+224:]))
	d2, d3 := archsimd.LoadFloat32x16((*[16]float32)(acc[h+352:])), archsimd.LoadFloat32x16((*[16]float32)(acc[h+480:]))
	for c := 4 * h; c+64 <= width; c += 128 {
		p0, p1, p2, p3 := (*[64]float32)(x[c:]), (*[64]float32)(x[xStep+c:]), (*[64]float32)(x[2*xStep+c:]), (*[64]float32)(x[3*xStep+c:])
		wa, wb, wc, wd := (*[64]float32)(w[c:]), (*[64]float32)(w[wStep+c:]), (*[64]float32)(w[2*wStep+c:]), (*[64]float32)(w[3*wStep+c:])
		for i := 0; i < 64; i += 16 {
			x0, x1 := archsimd.LoadFloat32x16((*[16]float32)(p0[i:])), archsimd.LoadFloat32x16((*[16]float32)(p1[i:]))
			x2, x3 := archsimd.LoadFloat32x16((*[16]float32)(p2[i:])), archsimd.LoadFloat32x16((*[16]float32)(p3[i:]))
			v := archsimd.LoadFloat32x16((*[16]float32)(wa[i:]))
			a0, a1, a2, a3 = a0.Add(x0.Mul(v)), a1.Add(x1.Mul(v)), a2.Add(x2.Mul(v)), a3.Add(x3.Mul(v))
			v = archsimd.LoadFloat32x16((*[16]float32)(wb[i:]))
			b0, b1, b2, b3 = b0.Add(x0.Mul(v)), b1.Add(x1.Mul(v)), b2.Add(x2.Mul(v)), b3.Add(x3.Mul(v))
			v = archsimd.LoadFloat32x16((*[16]float32)(wc[i:]))
			c0, c1, c2, c3 = c0.Add(x0.Mul(v)), c1.Add(x1.Mul(v)), c2.Add(x2.Mul(v)), c3.Add(x3.Mul(v))
			v = archsimd.LoadFloat32x16((*[16]float32)(wd[i:]))
			d0, d1, d2, d3 = d0.Add(x0.Mul(v)), d1.Add(x1.Mul(v)), d2.Add(x2.Mul(v)), d3.Add(x3.Mul(v))
		}
	}
	a0.Store((*[16]float32)(acc[h:]))
	a1.Store((*[16]float32)(acc[h+128:]))
	a2.Store((*[16]float32)(acc[h+256:]))
	a3.Store((*[16]float32)(acc[h+384:]))
	b0.Store((*[16]float32)(acc[h+32:]))
	b1.Store((*[16]float32)(acc[h+160:]))
	b2.Store((*[16]float32)(acc[h+288:]))
	b3.Store((*[16]float32)(acc[h+416:]))
	c0.Store((*[16]float32)(acc[h+64:]))
	c1.Store((*[16]float32)(acc[h+192:]))
	c2.Store((*[16]float32)(acc[h+320:]))
	c3.Store((*[16]float32)(acc[h+448:]))
	d0.Store((*[16]float32)(acc[h+96:]))
	d1.Store((*[16]float32)(acc[h+224:]))
	d2.Store((*[16]float32)(acc[h+352:]))
	d3.Store((*[16]float32)(acc[h+480:]))
}

// treesAVX512 is for n up to 4.
func treesAVX512(dst, chains []float32, n int) {
	var v [batch512][16]float32
	for i := range n {
		p := (*[32]float32)(chains[32*i:])
		archsimd.LoadFloat32x16((*[16]float32)(p[:16])).Add(archsimd.LoadFloat32x16((*[16]float32)(p[16:]))).Store(&v[i%batch512])
	}
	sums(&v).Store((*[16]float32)(dst))
	archsimd.ClearAVXUpperBits()
}

func (w *chainWindows) orderAVX512(dst []float32, ring []byte, scale float32, bf16 bool) {
	bytes, right := archsimd.LoadInt8x64(&w.bytes), archsimd.LoadUint32x16(&w.right)
	mask := archsimd.BroadcastUint32x16(w.mask)
	a, c := archsimd.BroadcastUint32x16(34038481), archsimd.BroadcastUint32x16(76625530)
	ones8, ones16 := archsimd.BroadcastInt8x64(1), archsimd.BroadcastInt16x32(1)
	mean := archsimd.BroadcastInt32x16(510)
	hi, lo, s := splat16(quotientHiBits), splat16(quotientLoBits), splat16(math.Float32bits(scale))
	half, one, sixteen := archsimd.BroadcastUint32x16(0x7fff), archsimd.BroadcastUint32x16(1), archsimd.BroadcastUint32x16(16)
	upper := archsimd.BroadcastUint32x16(0xffff0000)
	step := 2 * w.k // bytes of 16 weights
	at := len(dst) / 16 * step
	for len(dst) >= 64 {
		at -= 4 * step
		var u, v archsimd.Uint8x32
		u = u.SetLo(archsimd.LoadUint8x16((*[16]uint8)(ring[at+3*step:]))).SetHi(archsimd.LoadUint8x16((*[16]uint8)(ring[at+2*step:])))
		v = v.SetLo(archsimd.LoadUint8x16((*[16]uint8)(ring[at+step:]))).SetHi(archsimd.LoadUint8x16((*[16]uint8)(ring[at:])))
		var z archsimd.Uint8x64
		win := z.SetLo(u).SetHi(v).PermuteOrZeroGrouped(bytes).AsUint32x16().ShiftRight(right)
		d := (*[64]float32)(dst)
		for i := range w.shifts {
			x := win.ShiftRight(archsimd.LoadUint32x16(&w.shifts[i])).And(mask).Mul(a).Add(c)
			y := x.AsUint8x64().DotProductPairsSaturated(ones8).DotProductPairs(ones16).Sub(mean).ConvertToFloat32()
			x = y.Mul(hi).Add(y.Mul(lo)).Mul(s).AsUint32x16()
			if bf16 {
				x = x.Add(x.ShiftRight(sixteen).And(one)).Add(half).And(upper)
			}
			x.AsFloat32x16().Store((*[16]float32)(d[16*i:]))
		}
		dst = dst[64:]
	}
	archsimd.ClearAVXUpperBits()
}
