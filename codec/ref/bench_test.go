package ref_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

// gaussian returns a [rows, dim] tensor of N(0,1) elements.
func gaussian(d codec.DType, rows, dim int) codec.Tensor {
	rng := rand.New(rand.NewPCG(1, 1))
	x := codec.NewTensor(d, rows, dim)
	for i := 0; i < len(x.Data); i += d.Size() {
		d.Store(x.Data[i:], float32(rng.NormFloat64()))
	}
	return x
}

// bench runs f, which handles n elements, and reports Melem/s.
func bench(b *testing.B, n int, f func() error) {
	b.ReportAllocs()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}

func BenchmarkKV(b *testing.B) {
	const rows = 1024
	for _, dim := range []int{64, 128, 256} {
		x := gaussian(codec.F32, rows, dim)
		out := codec.NewTensor(codec.BF16, rows, dim)
		for _, bits := range []int{2, 3, 4, 5, 8} {
			for _, rule := range []codec.ScaleRule{codec.RMS, codec.Search} {
				kv := newKV(b, codec.KVParams{HeadDim: dim, Keys: keyFormat(bits, false), Values: valueFormat(bits), Scale: rule})
				var v codec.Values
				b.Run(fmt.Sprintf("EncodeValues/d=%d/bits=%d/scale=%v", dim, bits, rule), func(b *testing.B) {
					bench(b, rows*dim, func() error { return kv.EncodeValues(&v, x) })
				})
				if rule == codec.Search {
					continue
				}
				if err := kv.EncodeValues(&v, x); err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("DecodeValues/d=%d/bits=%d", dim, bits), func(b *testing.B) {
					bench(b, rows*dim, func() error { return kv.DecodeValues(out, v) })
				})
				var k codec.Keys
				b.Run(fmt.Sprintf("EncodeKeys/d=%d/bits=%d", dim, bits), func(b *testing.B) {
					bench(b, rows*dim, func() error { return kv.EncodeKeys(&k, x) })
				})
				if err := kv.EncodeKeys(&k, x); err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("DecodeKeys/d=%d/bits=%d", dim, bits), func(b *testing.B) {
					bench(b, rows*dim, func() error { return kv.DecodeKeys(out, k) })
				})
			}
		}
	}
}
