//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import "simd/archsimd"

func rowStepAVX512(s *rowSearch, back []byte, next, least, x2 []float32) {
	x := archsimd.LoadFloat32x16((*[16]float32)(x2))
	shift1, shift2, shift3 := archsimd.BroadcastUint32x16(8), archsimd.BroadcastUint32x16(16), archsimd.BroadcastUint32x16(24)
	k := s.p.K & 7
	stride := 16 * s.groups
	for j := 0; j+64 <= len(next) && len(back) >= 64; j += 64 {
		f, q := (*[64]float32)(s.values[j:]), (*[64]float32)(s.squares[j:])
		g := archsimd.LoadFloat32x16((*[16]float32)(least[j>>k&^15:]))
		var a, b, c, d archsimd.Int32x16
		e0 := archsimd.LoadFloat32x16((*[16]float32)(q[0:16])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[0:16])))).Add(g)
		e1 := archsimd.LoadFloat32x16((*[16]float32)(q[16:32])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[16:32])))).Add(g)
		e2 := archsimd.LoadFloat32x16((*[16]float32)(q[32:48])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[32:48])))).Add(g)
		e3 := archsimd.LoadFloat32x16((*[16]float32)(q[48:64])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[48:64])))).Add(g)
		for m, at := 1, j+stride; at < len(s.values); m, at = m+1, at+stride {
			mark := archsimd.LoadInt32x16((*[16]int32)(marks[m&15][:]))
			f, q := (*[64]float32)(s.values[at:]), (*[64]float32)(s.squares[at:])
			g := archsimd.LoadFloat32x16((*[16]float32)(least[at>>k&^15:]))
			v := archsimd.LoadFloat32x16((*[16]float32)(q[0:16])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[0:16])))).Add(g)
			a, e0 = mark.Merge(a, v.LessEqual(e0)), e0.Min(v)
			v = archsimd.LoadFloat32x16((*[16]float32)(q[16:32])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[16:32])))).Add(g)
			b, e1 = mark.Merge(b, v.LessEqual(e1)), e1.Min(v)
			v = archsimd.LoadFloat32x16((*[16]float32)(q[32:48])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[32:48])))).Add(g)
			c, e2 = mark.Merge(c, v.LessEqual(e2)), e2.Min(v)
			v = archsimd.LoadFloat32x16((*[16]float32)(q[48:64])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[48:64])))).Add(g)
			d, e3 = mark.Merge(d, v.LessEqual(e3)), e3.Min(v)
		}
		to := (*[64]float32)(next[j:])
		e0.Store((*[16]float32)(to[0:16]))
		e1.Store((*[16]float32)(to[16:32]))
		e2.Store((*[16]float32)(to[32:48]))
		e3.Store((*[16]float32)(to[48:64]))
		a.AsUint32x16().Or(b.AsUint32x16().ShiftLeft(shift1)).Or(c.AsUint32x16().ShiftLeft(shift2).Or(d.AsUint32x16().ShiftLeft(shift3))).
			AsUint8x64().Store((*[64]uint8)(back))
		back = back[64:]
	}
	archsimd.ClearAVXUpperBits()
}

// rowStepFreeAVX512 is rowStepAVX512 without what leads back.
func rowStepFreeAVX512(s *rowSearch, next, least, x2 []float32) {
	x := archsimd.LoadFloat32x16((*[16]float32)(x2))
	k := s.p.K & 7
	stride := 16 * s.groups
	for j := 0; j+64 <= len(next); j += 64 {
		f, q := (*[64]float32)(s.values[j:]), (*[64]float32)(s.squares[j:])
		g := archsimd.LoadFloat32x16((*[16]float32)(least[j>>k&^15:]))
		e0 := archsimd.LoadFloat32x16((*[16]float32)(q[0:16])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[0:16])))).Add(g)
		e1 := archsimd.LoadFloat32x16((*[16]float32)(q[16:32])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[16:32])))).Add(g)
		e2 := archsimd.LoadFloat32x16((*[16]float32)(q[32:48])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[32:48])))).Add(g)
		e3 := archsimd.LoadFloat32x16((*[16]float32)(q[48:64])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[48:64])))).Add(g)
		for at := j + stride; at < len(s.values); at += stride {
			f, q := (*[64]float32)(s.values[at:]), (*[64]float32)(s.squares[at:])
			g := archsimd.LoadFloat32x16((*[16]float32)(least[at>>k&^15:]))
			e0 = e0.Min(archsimd.LoadFloat32x16((*[16]float32)(q[0:16])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[0:16])))).Add(g))
			e1 = e1.Min(archsimd.LoadFloat32x16((*[16]float32)(q[16:32])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[16:32])))).Add(g))
			e2 = e2.Min(archsimd.LoadFloat32x16((*[16]float32)(q[32:48])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[32:48])))).Add(g))
			e3 = e3.Min(archsimd.LoadFloat32x16((*[16]float32)(q[48:64])).Sub(x.Mul(archsimd.LoadFloat32x16((*[16]float32)(f[48:64])))).Add(g))
		}
		to := (*[64]float32)(next[j:])
		e0.Store((*[16]float32)(to[0:16]))
		e1.Store((*[16]float32)(to[16:32]))
		e2.Store((*[16]float32)(to[32:48]))
		e3.Store((*[16]float32)(to[48:64]))
	}
	archsimd.ClearAVXUpperBits()
}
