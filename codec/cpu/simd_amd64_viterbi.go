//go:build goexperiment.simd && amd64 && !go1.27

package cpu

import (
	"simd/archsimd"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// stepsSIMD returns the vector steps for p at a level, or nil where there are none.
//
// Lanes are neighbouring groups j of the next step. For each m their predecessors j + m·2^(L−K) lie in a row,
// and those are successors of groups of which 2^K lanes share one: a permutation of one load spreads its cost.
// Squares are computed again: a
// multiplication costs less than a load of a table that does not fit the first cache.
func stepsSIMD(p trellis.Params, level Level) steps {
	groups := 1 << (p.L - p.K)
	switch {
	case 2*p.K > p.L || p.K > 4:
		return nil
	case level >= AVX512 && groups >= 16<<p.K:
		return [...]steps{1: steps1AVX512, 2: steps2AVX512, 3: stepsAVX512, 4: stepsAVX512}[p.K]
	case level >= AVX2 && groups >= 8<<p.K:
		return [...]steps{1: steps1AVX2, 2: steps2AVX2, 3: stepsAVX2, 4: stepsAVX2}[p.K]
	}
	return nil
}

// spread8[K] and spread16[K] hold, for each of 2^K vectors, the lanes of one load that its lanes share.
var (
	spread8  [5][16][8]uint32
	spread16 [5][16][16]uint32
)

func init() {
	for k := range spread8 {
		for v := range spread8[k] {
			for l := range spread8[k][v] {
				spread8[k][v][l] = uint32((v*8 + l) >> k & 7)
			}
		}
	}
	for k := range spread16 {
		for v := range spread16[k] {
			for l := range spread16[k][v] {
				spread16[k][v][l] = uint32((v*16 + l) >> k & 15)
			}
		}
	}
}

func steps1AVX2(c *weights, next, least []float32, x2 float32) {
	x := archsimd.BroadcastFloat32x8(x2)
	n, half := len(least), len(least)/2
	i0, i1 := archsimd.LoadUint32x8(&spread8[1][0]), archsimd.LoadUint32x8(&spread8[1][1])
	f0, f1 := c.values[:n], c.values[n:][:n]
	for j := 0; j+16 <= n; j += 16 {
		a := archsimd.LoadFloat32x8((*[8]float32)(least[j/2:]))
		b := archsimd.LoadFloat32x8((*[8]float32)(least[half+j/2:]))
		p, q, d := (*[16]float32)(f0[j:]), (*[16]float32)(f1[j:]), (*[16]float32)(next[j:])
		f, g := archsimd.LoadFloat32x8((*[8]float32)(p[:8])), archsimd.LoadFloat32x8((*[8]float32)(q[:8]))
		f.Mul(f).Sub(x.Mul(f)).Add(a.Permute(i0)).Min(g.Mul(g).Sub(x.Mul(g)).Add(b.Permute(i0))).Store((*[8]float32)(d[:8]))
		f, g = archsimd.LoadFloat32x8((*[8]float32)(p[8:])), archsimd.LoadFloat32x8((*[8]float32)(q[8:]))
		f.Mul(f).Sub(x.Mul(f)).Add(a.Permute(i1)).Min(g.Mul(g).Sub(x.Mul(g)).Add(b.Permute(i1))).Store((*[8]float32)(d[8:]))
	}
	archsimd.ClearAVXUpperBits()
}

func steps2AVX2(c *weights, next, least []float32, x2 float32) {
	x := archsimd.BroadcastFloat32x8(x2)
	n, quarter := len(least), len(least)/4
	i0, i1 := archsimd.LoadUint32x8(&spread8[2][0]), archsimd.LoadUint32x8(&spread8[2][1])
	i2, i3 := archsimd.LoadUint32x8(&spread8[2][2]), archsimd.LoadUint32x8(&spread8[2][3])
	f0, f1, f2, f3 := c.values[:n], c.values[n:][:n], c.values[2*n:][:n], c.values[3*n:][:n]
	for j := 0; j+32 <= n; j += 32 {
		d := (*[32]float32)(next[j:])
		g := archsimd.LoadFloat32x8((*[8]float32)(least[j/4:]))
		p := (*[32]float32)(f0[j:])
		f := archsimd.LoadFloat32x8((*[8]float32)(p[0:8]))
		d0 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[8:16]))
		d1 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[16:24]))
		d2 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[24:32]))
		d3 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3))

		g = archsimd.LoadFloat32x8((*[8]float32)(least[quarter+j/4:]))
		p = (*[32]float32)(f1[j:])
		f = archsimd.LoadFloat32x8((*[8]float32)(p[0:8]))
		d0 = d0.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0)))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[8:16]))
		d1 = d1.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1)))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[16:24]))
		d2 = d2.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2)))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[24:32]))
		d3 = d3.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3)))

		g = archsimd.LoadFloat32x8((*[8]float32)(least[2*quarter+j/4:]))
		p = (*[32]float32)(f2[j:])
		f = archsimd.LoadFloat32x8((*[8]float32)(p[0:8]))
		d0 = d0.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0)))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[8:16]))
		d1 = d1.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1)))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[16:24]))
		d2 = d2.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2)))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[24:32]))
		d3 = d3.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3)))

		g = archsimd.LoadFloat32x8((*[8]float32)(least[3*quarter+j/4:]))
		p = (*[32]float32)(f3[j:])
		f = archsimd.LoadFloat32x8((*[8]float32)(p[0:8]))
		d0.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0))).Store((*[8]float32)(d[0:8]))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[8:16]))
		d1.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1))).Store((*[8]float32)(d[8:16]))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[16:24]))
		d2.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2))).Store((*[8]float32)(d[16:24]))
		f = archsimd.LoadFloat32x8((*[8]float32)(p[24:32]))
		d3.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3))).Store((*[8]float32)(d[24:32]))
	}
	archsimd.ClearAVXUpperBits()
}

// stepsAVX2 is for K of 3 and 4.
func stepsAVX2(c *weights, next, least []float32, x2 float32) {
	x := archsimd.BroadcastFloat32x8(x2)
	k := c.p.K & 7
	n := len(least)
	for j := 0; j+8<<k <= n; j += 8 << k {
		for v := range 1 << k {
			i := archsimd.LoadUint32x8(&spread8[k%5][v&15])
			at, from := j+8*v, j>>k
			f := archsimd.LoadFloat32x8((*[8]float32)(c.values[at:]))
			d := f.Mul(f).Sub(x.Mul(f)).Add(archsimd.LoadFloat32x8((*[8]float32)(least[from:])).Permute(i))
			for at, from = at+n, from+n>>k; at < len(c.values); at, from = at+n, from+n>>k {
				f = archsimd.LoadFloat32x8((*[8]float32)(c.values[at:]))
				d = d.Min(f.Mul(f).Sub(x.Mul(f)).Add(archsimd.LoadFloat32x8((*[8]float32)(least[from:])).Permute(i)))
			}
			d.Store((*[8]float32)(next[j+8*v:]))
		}
	}
	archsimd.ClearAVXUpperBits()
}

func steps1AVX512(c *weights, next, least []float32, x2 float32) {
	x := archsimd.BroadcastFloat32x16(x2)
	n, half := len(least), len(least)/2
	i0, i1 := archsimd.LoadUint32x16(&spread16[1][0]), archsimd.LoadUint32x16(&spread16[1][1])
	f0, f1 := c.values[:n], c.values[n:][:n]
	for j := 0; j+32 <= n; j += 32 {
		a := archsimd.LoadFloat32x16((*[16]float32)(least[j/2:]))
		b := archsimd.LoadFloat32x16((*[16]float32)(least[half+j/2:]))
		p, q, d := (*[32]float32)(f0[j:]), (*[32]float32)(f1[j:]), (*[32]float32)(next[j:])
		f, g := archsimd.LoadFloat32x16((*[16]float32)(p[:16])), archsimd.LoadFloat32x16((*[16]float32)(q[:16]))
		f.Mul(f).Sub(x.Mul(f)).Add(a.Permute(i0)).Min(g.Mul(g).Sub(x.Mul(g)).Add(b.Permute(i0))).Store((*[16]float32)(d[:16]))
		f, g = archsimd.LoadFloat32x16((*[16]float32)(p[16:])), archsimd.LoadFloat32x16((*[16]float32)(q[16:]))
		f.Mul(f).Sub(x.Mul(f)).Add(a.Permute(i1)).Min(g.Mul(g).Sub(x.Mul(g)).Add(b.Permute(i1))).Store((*[16]float32)(d[16:]))
	}
	archsimd.ClearAVXUpperBits()
}

func steps2AVX512(c *weights, next, least []float32, x2 float32) {
	x := archsimd.BroadcastFloat32x16(x2)
	n, quarter := len(least), len(least)/4
	i0, i1 := archsimd.LoadUint32x16(&spread16[2][0]), archsimd.LoadUint32x16(&spread16[2][1])
	i2, i3 := archsimd.LoadUint32x16(&spread16[2][2]), archsimd.LoadUint32x16(&spread16[2][3])
	f0, f1, f2, f3 := c.values[:n], c.values[n:][:n], c.values[2*n:][:n], c.values[3*n:][:n]
	for j := 0; j+64 <= n; j += 64 {
		d := (*[64]float32)(next[j:])
		g := archsimd.LoadFloat32x16((*[16]float32)(least[j/4:]))
		p := (*[64]float32)(f0[j:])
		f := archsimd.LoadFloat32x16((*[16]float32)(p[0:16]))
		d0 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[16:32]))
		d1 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[32:48]))
		d2 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[48:64]))
		d3 := f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3))

		g = archsimd.LoadFloat32x16((*[16]float32)(least[quarter+j/4:]))
		p = (*[64]float32)(f1[j:])
		f = archsimd.LoadFloat32x16((*[16]float32)(p[0:16]))
		d0 = d0.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0)))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[16:32]))
		d1 = d1.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1)))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[32:48]))
		d2 = d2.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2)))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[48:64]))
		d3 = d3.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3)))

		g = archsimd.LoadFloat32x16((*[16]float32)(least[2*quarter+j/4:]))
		p = (*[64]float32)(f2[j:])
		f = archsimd.LoadFloat32x16((*[16]float32)(p[0:16]))
		d0 = d0.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0)))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[16:32]))
		d1 = d1.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1)))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[32:48]))
		d2 = d2.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2)))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[48:64]))
		d3 = d3.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3)))

		g = archsimd.LoadFloat32x16((*[16]float32)(least[3*quarter+j/4:]))
		p = (*[64]float32)(f3[j:])
		f = archsimd.LoadFloat32x16((*[16]float32)(p[0:16]))
		d0.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i0))).Store((*[16]float32)(d[0:16]))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[16:32]))
		d1.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i1))).Store((*[16]float32)(d[16:32]))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[32:48]))
		d2.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i2))).Store((*[16]float32)(d[32:48]))
		f = archsimd.LoadFloat32x16((*[16]float32)(p[48:64]))
		d3.Min(f.Mul(f).Sub(x.Mul(f)).Add(g.Permute(i3))).Store((*[16]float32)(d[48:64]))
	}
	archsimd.ClearAVXUpperBits()
}

// stepsAVX512 is for K of 3 and 4.
func stepsAVX512(c *weights, next, least []float32, x2 float32) {
	x := archsimd.BroadcastFloat32x16(x2)
	k := c.p.K & 7
	n := len(least)
	for j := 0; j+16<<k <= n; j += 16 << k {
		for v := range 1 << k {
			i := archsimd.LoadUint32x16(&spread16[k%5][v&15])
			at, from := j+16*v, j>>k
			f := archsimd.LoadFloat32x16((*[16]float32)(c.values[at:]))
			d := f.Mul(f).Sub(x.Mul(f)).Add(archsimd.LoadFloat32x16((*[16]float32)(least[from:])).Permute(i))
			for at, from = at+n, from+n>>k; at < len(c.values); at, from = at+n, from+n>>k {
				f = archsimd.LoadFloat32x16((*[16]float32)(c.values[at:]))
				d = d.Min(f.Mul(f).Sub(x.Mul(f)).Add(archsimd.LoadFloat32x16((*[16]float32)(least[from:])).Permute(i)))
			}
			d.Store((*[16]float32)(next[j+16*v:]))
		}
	}
	archsimd.ClearAVXUpperBits()
}
