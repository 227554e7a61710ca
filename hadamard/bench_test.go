package hadamard

import (
	"fmt"
	"testing"
)

func BenchmarkTransform(b *testing.B) {
	for _, d := range []int{64, 80, 96, 112, 128, 256, 512, 8192} {
		b.Run(fmt.Sprint("d=", d), func(b *testing.B) {
			bench(b, d, func(x []float32) {
				if err := Transform(x); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func BenchmarkForward(b *testing.B) {
	for _, d := range []int{128, 256} {
		t, err := New(d)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint("d=", d), func(b *testing.B) { bench(b, d, t.Forward) })
	}
}

func BenchmarkInverse(b *testing.B) {
	for _, d := range []int{128, 256} {
		t, err := New(d)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint("d=", d), func(b *testing.B) { bench(b, d, t.Inverse) })
	}
}

func bench(b *testing.B, d int, f func(x []float32)) {
	x := make([]float32, d)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	b.ReportAllocs()
	b.SetBytes(int64(4 * d))
	for b.Loop() {
		f(x)
	}
	b.ReportMetric(float64(d)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}
