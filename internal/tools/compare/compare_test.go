// Package compare holds benchmarks of codec/cpu beside another Go module of the same kind, on one core and in one
// run. It is a module of its own, so that turbotrellis does not depend on the other.
//
// The other stores one norm per vector and returns unit vectors in float32; turbotrellis stores a scale for each
// 32 elements and returns bf16.
package compare

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/odvcencio/turboquant"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
)

const (
	dim  = 128
	rows = 4096
)

func samples() []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, rows*dim)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// measure runs f, which handles all samples.
func measure(b *testing.B, f func() error) {
	b.ReportAllocs()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(rows*dim)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}

func BenchmarkEncodeValues(b *testing.B) { bench(b, true) }

func BenchmarkDecodeValues(b *testing.B) { bench(b, false) }

func bench(b *testing.B, encode bool) {
	x := samples()
	for _, bits := range []int{2, 3, 4} {
		format, err := codec.ValueFormat(bits)
		if err != nil {
			b.Fatal(err)
		}
		for _, level := range cpu.Levels() {
			b.Run(fmt.Sprintf("bits=%d/turbotrellis-%v", bits, level), func(b *testing.B) {
				back := cpu.New(cpu.Options{Workers: 1, Level: level})
				defer back.Close()
				c, err := back.KV(codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: format})
				if err != nil {
					b.Fatal(err)
				}
				src, dst := codec.FromF32(x, rows, dim), codec.NewTensor(codec.BF16, rows, dim)
				var v codec.Values
				if err := c.EncodeValues(&v, src); err != nil {
					b.Fatal(err)
				}
				measure(b, func() error {
					if encode {
						return c.EncodeValues(&v, src)
					}
					return c.DecodeValues(dst, v)
				})
			})
		}
		b.Run(fmt.Sprintf("bits=%d/odvcencio-turboquant", bits), func(b *testing.B) {
			q := turboquant.NewHadamardWithSeed(dim, bits, 1)
			size := dim * bits / 8
			packed := make([]byte, rows*size)
			out := make([]float32, dim)
			for r := range rows {
				q.QuantizeTo(packed[r*size:][:size], x[r*dim:][:dim])
			}
			measure(b, func() error {
				for r := range rows {
					if encode {
						q.QuantizeTo(packed[r*size:][:size], x[r*dim:][:dim])
					} else {
						q.DequantizeTo(out, packed[r*size:][:size])
					}
				}
				return nil
			})
		})
	}
}
