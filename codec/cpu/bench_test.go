package cpu_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// normal returns N(0, 1) samples.
func normal(d codec.DType, shape ...int) codec.Tensor {
	r := rand.New(rand.NewPCG(7, 8))
	x := codec.NewTensor(d, shape...)
	for i := range x.Len() {
		d.Store(x.Data[i*d.Size():], float32(r.NormFloat64()))
	}
	return x
}

// measure runs f, which handles n elements, at each level on one worker.
func measure(b *testing.B, n int, f func(b codec.Backend) func() error) {
	for _, l := range cpu.Levels() {
		b.Run("level="+l.String(), func(b *testing.B) {
			back := cpu.New(cpu.Options{Workers: 1, Level: l})
			defer back.Close()
			call := f(back)
			if err := call(); err != nil { // touches all memory
				b.Fatal(err)
			}
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/(cpuTime()-start).Seconds()/1e6, "M/s") // per second of CPU time
		})
	}
}

const benchRows = 1 << 13 // of 128 elements: 4 MiB of float32

func kvBench(b *testing.B, p codec.KVParams, op func(c codec.KV, k *codec.Keys, v *codec.Values, x, y codec.Tensor) error) {
	dim := p.HeadDim
	x := normal(codec.F32, benchRows*128/dim, dim)
	y := codec.NewTensor(codec.BF16, x.Shape...)
	measure(b, x.Len(), func(back codec.Backend) func() error {
		c, err := back.KV(p)
		if err != nil {
			b.Fatal(err)
		}
		var k codec.Keys
		var v codec.Values
		if err := c.EncodeKeys(&k, x); err != nil {
			b.Fatal(err)
		}
		if err := c.EncodeValues(&v, x); err != nil {
			b.Fatal(err)
		}
		return func() error { return op(c, &k, &v, x, y) }
	})
}

func keyFormat(b *testing.B, bits int) codec.Format {
	f, err := codec.KeyFormat(bits, bits == 8)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func valueFormat(b *testing.B, bits int) codec.Format {
	f, err := codec.ValueFormat(bits)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func BenchmarkEncodeKeys(b *testing.B) {
	for _, bits := range []int{2, 3, 4, 5, 8} {
		b.Run(fmt.Sprintf("bits=%d", bits), func(b *testing.B) {
			kvBench(b, codec.KVParams{HeadDim: 128, Keys: keyFormat(b, bits), Values: codec.Q3_0},
				func(c codec.KV, k *codec.Keys, _ *codec.Values, x, _ codec.Tensor) error { return c.EncodeKeys(k, x) })
		})
	}
}

func BenchmarkDecodeKeys(b *testing.B) {
	for _, bits := range []int{2, 3, 4, 5, 8} {
		b.Run(fmt.Sprintf("bits=%d", bits), func(b *testing.B) {
			kvBench(b, codec.KVParams{HeadDim: 128, Keys: keyFormat(b, bits), Values: codec.Q3_0},
				func(c codec.KV, k *codec.Keys, _ *codec.Values, _, y codec.Tensor) error { return c.DecodeKeys(y, *k) })
		})
	}
}

func BenchmarkEncodeValues(b *testing.B) {
	for _, dim := range []int{64, 128, 256} {
		for _, bits := range []int{2, 3, 4, 5, 8} {
			if dim != 128 && bits != 3 {
				continue
			}
			for _, scale := range []codec.ScaleRule{codec.RMS, codec.Search} {
				b.Run(fmt.Sprintf("dim=%d/bits=%d/scale=%v", dim, bits, scale), func(b *testing.B) {
					kvBench(b, codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: valueFormat(b, bits), Scale: scale},
						func(c codec.KV, _ *codec.Keys, v *codec.Values, x, _ codec.Tensor) error { return c.EncodeValues(v, x) })
				})
			}
		}
	}
}

func BenchmarkDecodeValues(b *testing.B) {
	for _, dim := range []int{64, 128, 256} {
		for _, bits := range []int{2, 3, 4, 5, 8} {
			if dim != 128 && bits != 3 {
				continue
			}
			b.Run(fmt.Sprintf("dim=%d/bits=%d", dim, bits), func(b *testing.B) {
				kvBench(b, codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: valueFormat(b, bits)},
					func(c codec.KV, _ *codec.Keys, v *codec.Values, _, y codec.Tensor) error {
						return c.DecodeValues(y, *v)
					})
			})
		}
	}
}

func BenchmarkDecodeTrellis(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, k := range []int{1, 2, 3, 4} {
		p := trellis.DefaultParams(k)
		g := trellis.Geometry{Axis: 1, Out: 1024, In: 4096}
		m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
		for i := range m.Codes {
			m.Codes[i] = r.Uint32()
		}
		for i := range m.Scales {
			m.Scales[i] = 0x3800 + uint16(r.IntN(1024))
		}
		y := codec.NewTensor(codec.BF16, g.Out, g.In)
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			measure(b, y.Len(), func(back codec.Backend) func() error {
				c, err := back.Trellis(p)
				if err != nil {
					b.Fatal(err)
				}
				return func() error { return c.Decode(y, m, 0) }
			})
		})
	}
}

func BenchmarkEncodeBlocks(b *testing.B) {
	for _, k := range []int{1, 2, 3, 4} {
		x := normal(codec.F32, 16, 256)
		states := make([]uint16, x.Len())
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			measure(b, x.Len(), func(back codec.Backend) func() error {
				c, err := back.Trellis(trellis.DefaultParams(k))
				if err != nil {
					b.Fatal(err)
				}
				return func() error { return c.EncodeBlocks(context.Background(), states, x) }
			})
		})
	}
}

// rowFormats are the row codes that are measured, as values.
func rowFormats(b *testing.B, f func(b *testing.B, p codec.KVParams, name string)) {
	for _, v := range []codec.Format{codec.T3, codec.T4, codec.R4} {
		for _, centred := range []bool{false, true} {
			p := codec.KVParams{HeadDim: 128, Keys: codec.Q8_0, Values: v, CentreValues: centred}
			f(b, p, fmt.Sprintf("code=%v/centred=%v", v, centred))
		}
	}
}

func rowBench(b *testing.B, p codec.KVParams, rows int, op func(c codec.KV, v *codec.Values, x, y codec.Tensor) error) {
	x := normal(codec.F32, 1, rows, p.HeadDim)
	y := codec.NewTensor(codec.BF16, x.Shape...)
	measure(b, x.Len(), func(back codec.Backend) func() error {
		c, err := back.KV(p)
		if err != nil {
			b.Fatal(err)
		}
		var v codec.Values
		if p.CentreValues {
			if v.Centre, err = codec.NewCentre(x); err != nil {
				b.Fatal(err)
			}
		}
		if err := c.EncodeValues(&v, x); err != nil {
			b.Fatal(err)
		}
		return func() error { return op(c, &v, x, y) }
	})
}

func BenchmarkEncodeRows(b *testing.B) {
	rowFormats(b, func(b *testing.B, p codec.KVParams, name string) {
		rows := 128
		if !p.Values.Trellis() {
			rows = benchRows
		}
		b.Run(name, func(b *testing.B) {
			rowBench(b, p, rows, func(c codec.KV, v *codec.Values, x, _ codec.Tensor) error { return c.EncodeValues(v, x) })
		})
	})
}

func BenchmarkDecodeRows(b *testing.B) {
	rowFormats(b, func(b *testing.B, p codec.KVParams, name string) {
		b.Run(name, func(b *testing.B) {
			rowBench(b, p, 512, func(c codec.KV, v *codec.Values, _, y codec.Tensor) error { return c.DecodeValues(y, *v) })
		})
	})
}

// BenchmarkProduct counts weights, once for all rows of x.
func BenchmarkProduct(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	const out, in = 4096, 4096
	p := trellis.DefaultParams(3)
	g := trellis.Geometry{Axis: 1, Out: out, In: in}
	m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
	for i := range m.Codes {
		m.Codes[i] = r.Uint32()
	}
	for i := range m.Scales {
		m.Scales[i] = 0x3000 + uint16(r.IntN(1024))
	}
	var rows codec.AffineRows
	w := normal(codec.BF16, out, in)
	f := affine.RowFormat{Bits: 4, Group: 64}
	for _, n := range []int{1, 4, 16} {
		x, y := normal(codec.BF16, n, in), codec.NewTensor(codec.F32, n, out)
		b.Run(fmt.Sprintf("weights=trellis3/M=%d", n), func(b *testing.B) {
			measure(b, out*in, func(back codec.Backend) func() error {
				c, err := back.Trellis(p)
				if err != nil {
					b.Fatal(err)
				}
				return func() error { return c.MatMul(y, x, m, codec.ProductOptions{}) }
			})
		})
		b.Run(fmt.Sprintf("weights=affine4/M=%d", n), func(b *testing.B) {
			measure(b, out*in, func(back codec.Backend) func() error {
				c, err := back.Affine(f)
				if err != nil {
					b.Fatal(err)
				}
				if rows.Codes == nil {
					if err := c.Quantize(&rows, w); err != nil {
						b.Fatal(err)
					}
				}
				return func() error { return c.MatMul(y, x, rows, codec.ProductOptions{}) }
			})
		})
	}
}

// BenchmarkMemcpy is what the others are compared with.
func BenchmarkMemcpy(b *testing.B) {
	src, dst := make([]byte, 64<<20), make([]byte, 64<<20)
	for i := range src {
		src[i] = byte(i)
	}
	for b.Loop() {
		copy(dst, src)
	}
	b.ReportMetric(float64(len(src))/4*float64(b.N)/b.Elapsed().Seconds()/1e6, "M/s")
}
