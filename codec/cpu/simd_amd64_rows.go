//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"simd/archsimd"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// rowSearchFor returns the vector search of paths for rows: a row in each lane.
func rowSearchFor(c *weights, level Level) *rowSearch {
	if c.p.L != trellis.RowL || c.p.K < 2 || c.p.K > 4 || level < AVX2 {
		return nil
	}
	s := &rowSearch{p: c.p, lanes: 8, groups: len(c.values) >> c.p.K, step: rowStepAVX2, free: rowStepFreeAVX2}
	if level >= AVX512 {
		s.lanes, s.step, s.free = 16, rowStepAVX512, rowStepFreeAVX512
	}
	if c.p.T*s.groups*s.lanes > maxLeast {
		return nil
	}
	for n := range c.values {
		for range s.lanes {
			s.values, s.squares = append(s.values, c.values[n]), append(s.squares, c.squares[n])
		}
	}
	return s
}

// marks are the numbers of predecessors, in every lane.
var marks = func() (t [16][16]int32) {
	for m := range t {
		for l := range t[m] {
			t[m][l] = int32(m)
		}
	}
	return t
}()

func rowStepAVX2(s *rowSearch, back []byte, next, least, x2 []float32) {
	x := archsimd.LoadFloat32x8((*[8]float32)(x2))
	shift1, shift2, shift3 := archsimd.BroadcastUint32x8(8), archsimd.BroadcastUint32x8(16), archsimd.BroadcastUint32x8(24)
	k := s.p.K & 7
	stride := 8 * s.groups
	for j := 0; j+32 <= len(next) && len(back) >= 32; j += 32 {
		f, q := (*[32]float32)(s.values[j:]), (*[32]float32)(s.squares[j:])
		g := archsimd.LoadFloat32x8((*[8]float32)(least[j>>k&^7:]))
		var a, b, c, d archsimd.Int32x8
		e0 := archsimd.LoadFloat32x8((*[8]float32)(q[0:8])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[0:8])))).Add(g)
		e1 := archsimd.LoadFloat32x8((*[8]float32)(q[8:16])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[8:16])))).Add(g)
		e2 := archsimd.LoadFloat32x8((*[8]float32)(q[16:24])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[16:24])))).Add(g)
		e3 := archsimd.LoadFloat32x8((*[8]float32)(q[24:32])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[24:32])))).Add(g)
		for m, at := 1, j+stride; at < len(s.values); m, at = m+1, at+stride {
			mark := archsimd.LoadInt32x8((*[8]int32)(marks[m&15][:]))
			f, q := (*[32]float32)(s.values[at:]), (*[32]float32)(s.squares[at:])
			g := archsimd.LoadFloat32x8((*[8]float32)(least[at>>k&^7:]))
			v := archsimd.LoadFloat32x8((*[8]float32)(q[0:8])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[0:8])))).Add(g)
			a, e0 = mark.Merge(a, v.LessEqual(e0)), e0.Min(v)
			v = archsimd.LoadFloat32x8((*[8]float32)(q[8:16])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[8:16])))).Add(g)
			b, e1 = mark.Merge(b, v.LessEqual(e1)), e1.Min(v)
			v = archsimd.LoadFloat32x8((*[8]float32)(q[16:24])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[16:24])))).Add(g)
			c, e2 = mark.Merge(c, v.LessEqual(e2)), e2.Min(v)
			v = archsimd.LoadFloat32x8((*[8]float32)(q[24:32])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[24:32])))).Add(g)
			d, e3 = mark.Merge(d, v.LessEqual(e3)), e3.Min(v)
		}
		to := (*[32]float32)(next[j:])
		e0.Store((*[8]float32)(to[0:8]))
		e1.Store((*[8]float32)(to[8:16]))
		e2.Store((*[8]float32)(to[16:24]))
		e3.Store((*[8]float32)(to[24:32]))
		a.AsUint32x8().Or(b.AsUint32x8().ShiftLeft(shift1)).Or(c.AsUint32x8().ShiftLeft(shift2).Or(d.AsUint32x8().ShiftLeft(shift3))).
			AsUint8x32().Store((*[32]uint8)(back))
		back = back[32:]
	}
	archsimd.ClearAVXUpperBits()
}

// rowStepFreeAVX2 is rowStepAVX2 without what leads back.
func rowStepFreeAVX2(s *rowSearch, next, least, x2 []float32) {
	x := archsimd.LoadFloat32x8((*[8]float32)(x2))
	k := s.p.K & 7
	stride := 8 * s.groups
	for j := 0; j+32 <= len(next); j += 32 {
		f, q := (*[32]float32)(s.values[j:]), (*[32]float32)(s.squares[j:])
		g := archsimd.LoadFloat32x8((*[8]float32)(least[j>>k&^7:]))
		e0 := archsimd.LoadFloat32x8((*[8]float32)(q[0:8])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[0:8])))).Add(g)
		e1 := archsimd.LoadFloat32x8((*[8]float32)(q[8:16])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[8:16])))).Add(g)
		e2 := archsimd.LoadFloat32x8((*[8]float32)(q[16:24])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[16:24])))).Add(g)
		e3 := archsimd.LoadFloat32x8((*[8]float32)(q[24:32])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[24:32])))).Add(g)
		for at := j + stride; at < len(s.values); at += stride {
			f, q := (*[32]float32)(s.values[at:]), (*[32]float32)(s.squares[at:])
			g := archsimd.LoadFloat32x8((*[8]float32)(least[at>>k&^7:]))
			e0 = e0.Min(archsimd.LoadFloat32x8((*[8]float32)(q[0:8])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[0:8])))).Add(g))
			e1 = e1.Min(archsimd.LoadFloat32x8((*[8]float32)(q[8:16])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[8:16])))).Add(g))
			e2 = e2.Min(archsimd.LoadFloat32x8((*[8]float32)(q[16:24])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[16:24])))).Add(g))
			e3 = e3.Min(archsimd.LoadFloat32x8((*[8]float32)(q[24:32])).Sub(x.Mul(archsimd.LoadFloat32x8((*[8]float32)(f[24:32])))).Add(g))
		}
		to := (*[32]float32)(next[j:])
		e0.Store((*[8]float32)(to[0:8]))
		e1.Store((*[8]float32)(to[8:16]))
		e2.Store((*[8]float32)(to[16:24]))
		e3.Store((*[8]float32)(to[24:32]))
	}
	archsimd.ClearAVXUpperBits()
}
