package trellis

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func gauss(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 0))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func reportMW(b *testing.B, weights int) {
	b.ReportMetric(float64(weights)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mw/s")
	b.ReportAllocs()
}

func BenchmarkEncodeBlock(b *testing.B) {
	for k := 1; k <= 4; k++ {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			e, err := NewEncoder(DefaultParams(k))
			if err != nil {
				b.Fatal(err)
			}
			x, states := gauss(e.p.T, 1), make([]uint16, e.p.T)
			for b.Loop() {
				if err := e.EncodeBlock(states, x); err != nil {
					b.Fatal(err)
				}
			}
			reportMW(b, e.p.T)
		})
	}
}

func BenchmarkDecodeRows(b *testing.B) {
	p := DefaultParams(2)
	for c := OneMAD; c <= Rand; c++ {
		b.Run(c.String(), func(b *testing.B) {
			p.Code = c
			g := Geometry{Axis: 1, Out: 16, In: 1024}
			m := Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
			r := rand.New(rand.NewPCG(2, 0))
			for i := range m.Codes {
				m.Codes[i] = r.Uint32()
			}
			dst := make([]float32, g.Out*g.In)
			for b.Loop() {
				if err := m.DecodeRows(dst, 0, g.Out); err != nil {
					b.Fatal(err)
				}
			}
			reportMW(b, len(dst))
		})
	}
}
