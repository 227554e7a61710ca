//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"math"
	"simd/archsimd"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// productKernelsFor returns the vector kernels of products.
func productKernelsFor(level Level) *productKernels {
	switch {
	case level >= AVX512:
		return &productKernels{lanes: 16, tile: tileAVX512, trees: treesAVX512}
	case level >= AVX2:
		return &productKernels{lanes: 8, tile: tileAVX2, trees: treesAVX2}
	}
	return nil
}

func tileAVX2(chains []float32, rows int, x []float32, xStep int, w []float32, wStep, width int) {
	for m := range rows {
		acc := (*[128]float32)(chains[m*128:])
		xm := x[m*xStep:][:width]
		for h := 0; h < 32; h += 16 {
			a0, a1 := archsimd.LoadFloat32x8((*[8]float32)(acc[h:])), archsimd.LoadFloat32x8((*[8]float32)(acc[h+8:]))
			b0, b1 := archsimd.LoadFloat32x8((*[8]float32)(acc[32+h:])), archsimd.LoadFloat32x8((*[8]float32)(acc[32+h+8:]))
			c0, c1 := archsimd.LoadFloat32x8((*[8]float32)(acc[64+h:])), archsimd.LoadFloat32x8((*[8]float32)(acc[64+h+8:]))
			d0, d1 := archsimd.LoadFloat32x8((*[8]float32)(acc[96+h:])), archsimd.LoadFloat32x8((*[8]float32)(acc[96+h+8:]))
			for c := 4 * h; c+64 <= width; c += 128 {
				p := (*[64]float32)(xm[c:])
				wa, wb, wc, wd := (*[64]float32)(w[c:]), (*[64]float32)(w[wStep+c:]), (*[64]float32)(w[2*wStep+c:]), (*[64]float32)(w[3*wStep+c:])
				for i := 0; i < 32; i += 8 {
					v := archsimd.LoadFloat32x8((*[8]float32)(p[i:]))
					a0 = a0.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wa[i:]))))
					b0 = b0.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wb[i:]))))
					c0 = c0.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wc[i:]))))
					d0 = d0.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wd[i:]))))
					v = archsimd.LoadFloat32x8((*[8]float32)(p[i+32:]))
					a1 = a1.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wa[i+32:]))))
					b1 = b1.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wb[i+32:]))))
					c1 = c1.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wc[i+32:]))))
					d1 = d1.Add(v.Mul(archsimd.LoadFloat32x8((*[8]float32)(wd[i+32:]))))
				}
			}
			a0.Store((*[8]float32)(acc[h:]))
			a1.Store((*[8]float32)(acc[h+8:]))
			b0.Store((*[8]float32)(acc[32+h:]))
			b1.Store((*[8]float32)(acc[32+h+8:]))
			c0.Store((*[8]float32)(acc[64+h:]))
			c1.Store((*[8]float32)(acc[64+h+8:]))
			d0.Store((*[8]float32)(acc[96+h:]))
			d1.Store((*[8]float32)(acc[96+h+8:]))
		}
	}
	archsimd.ClearAVXUpperBits()
}

func treesAVX2(dst, chains []float32, n int) {
	for i := range n {
		p := (*[32]float32)(chains[32*i:])
		a := archsimd.LoadFloat32x8((*[8]float32)(p[0:8])).Add(archsimd.LoadFloat32x8((*[8]float32)(p[16:24])))
		b := archsimd.LoadFloat32x8((*[8]float32)(p[8:16])).Add(archsimd.LoadFloat32x8((*[8]float32)(p[24:32])))
		dst[i] = math.Float32frombits(lanesSum(a.Add(b)))
	}
	archsimd.ClearAVXUpperBits()
}

// orderFor returns the decoder of code 1mad for products, or nil.
func orderFor(p trellis.Params, level Level) func(dst []float32, ring []byte, scale float32, bf16 bool) {
	if p.Code != trellis.OneMAD || p.T%128 != 0 || 3*p.K+p.L+7 > 32 || p.K > 4 || level < AVX2 {
		return nil
	}
	w := newChainWindows(p)
	if level >= AVX512 {
		return w.orderAVX512
	}
	return w.orderAVX2
}

// chainWindows says where in 16 bytes the windows of four chains lie, of four weights each: the last weight's first.
type chainWindows struct {
	bytes  [64]int8
	right  [16]uint32
	shifts [4][16]uint32 // by weight
	mask   uint32
	k      int
}

func newChainWindows(p trellis.Params) *chainWindows {
	w := &chainWindows{mask: 1<<p.L - 1, k: p.K}
	for l := range 16 {
		bit := (12 - 4*(l%4)) * p.K
		w.right[l] = uint32(bit % 8)
		for i := range 4 {
			w.bytes[4*l+i] = int8(bit/8 + i)
			w.shifts[i][l] = uint32((3 - i) * p.K)
		}
	}
	return w
}

func (w *chainWindows) orderAVX2(dst []float32, ring []byte, scale float32, bf16 bool) {
	bytes, right := archsimd.LoadInt8x32((*[32]int8)(w.bytes[:32])), archsimd.LoadUint32x8((*[8]uint32)(w.right[:8]))
	mask := archsimd.BroadcastUint32x8(w.mask)
	a, c := archsimd.BroadcastUint32x8(34038481), archsimd.BroadcastUint32x8(76625530)
	ones8, ones16 := archsimd.BroadcastInt8x32(1), archsimd.BroadcastInt16x16(1)
	mean := archsimd.BroadcastInt32x8(510)
	hi, lo, s := splat8(quotientHiBits), splat8(quotientLoBits), splat8(math.Float32bits(scale))
	half, one, sixteen := archsimd.BroadcastUint32x8(0x7fff), archsimd.BroadcastUint32x8(1), archsimd.BroadcastUint32x8(16)
	upper := archsimd.BroadcastUint32x8(0xffff0000)
	step := 2 * w.k // bytes of 16 weights
	at := len(dst) / 16 * step
	for len(dst) >= 32 {
		at -= 2 * step
		var v archsimd.Uint8x32
		v = v.SetLo(archsimd.LoadUint8x16((*[16]uint8)(ring[at+step:]))).SetHi(archsimd.LoadUint8x16((*[16]uint8)(ring[at:])))
		win := v.PermuteOrZeroGrouped(bytes).AsUint32x8().ShiftRight(right)
		d := (*[32]float32)(dst)
		for i := range w.shifts {
			x := win.ShiftRight(archsimd.LoadUint32x8((*[8]uint32)(w.shifts[i][:8]))).And(mask).Mul(a).Add(c)
			y := x.AsUint8x32().DotProductPairsSaturated(ones8).DotProductPairs(ones16).Sub(mean).ConvertToFloat32()
			x = y.Mul(hi).Add(y.Mul(lo)).Mul(s).AsUint32x8()
			if bf16 {
				x = x.Add(x.ShiftRight(sixteen).And(one)).Add(half).And(upper)
			}
			x.AsFloat32x8().Store((*[8]float32)(d[8*i:]))
		}
		dst = dst[32:]
	}
	archsimd.ClearAVXUpperBits()
}

var (
	quotientHiBits = math.Float32bits(quotientHi)
	quotientLoBits = math.Float32bits(quotientLo)
)
