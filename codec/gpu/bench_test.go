package gpu

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func normals(n int) []float32 {
	r := rand.New(rand.NewPCG(1, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// BenchmarkKV runs each method on 4096 rows of 128 half-precision elements: in the
// device's memory, and (go) in Go memory, copies included.
func BenchmarkKV(b *testing.B) {
	m := open(b, Options{})
	const rows, d = 4096, 128
	p := codec.KVParams{HeadDim: d, Keys: codec.Q8_0, Values: codec.Q3_0}
	kv := newCodec(b, m, p)
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, place := range []string{"device", "go"} {
		alloc := func(n int) []byte {
			if place == "go" {
				return make([]byte, n)
			}
			data, err := m.Alloc(n)
			must(err)
			return data
		}
		host := tensor(codec.F16, normals(rows*d), rows, d)
		x := codec.Tensor{DType: codec.F16, Shape: []int{rows, d}, Data: alloc(2 * rows * d)}
		copy(x.Data, host.Data)
		y := codec.Tensor{DType: codec.BF16, Shape: x.Shape, Data: alloc(2 * rows * d)}
		z := codec.Tensor{DType: codec.BF16, Shape: x.Shape, Data: alloc(2 * rows * d)}
		kc, ks := p.KeyRowLen()
		vc, vs := p.ValueRowLen()
		k := codec.Keys{Codes: alloc(rows * kc), Scales: alloc(rows * ks), Zeros: alloc(rows * ks)}
		v := codec.Values{Codes: alloc(rows * vc), Scales: alloc(rows * vs)}
		must(kv.EncodeKeys(&k, x))
		must(kv.EncodeValues(&v, x))
		for _, op := range []struct {
			name string
			n    int
			call func() error
		}{
			{"EncodeKeys", rows * d, func() error { return kv.EncodeKeys(&k, x) }},
			{"EncodeValues", rows * d, func() error { return kv.EncodeValues(&v, x) }},
			{"DecodeKeys", rows * d, func() error { return kv.DecodeKeys(y, k) }},
			{"DecodeValues", rows * d, func() error { return kv.DecodeValues(y, v) }},
			{"DecodeValuesRotated", rows * d, func() error { return kv.DecodeValuesRotated(y, v) }},
			{"Decode", 2 * rows * d, func() error { return kv.Decode(y, z, k, v) }},
			{"DecodeRotated", 2 * rows * d, func() error { return kv.DecodeRotated(y, z, k, v) }},
			{"Unrotate", rows * d, func() error { return kv.Unrotate(x, x) }},
		} {
			b.Run(op.name+"/"+place, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					must(op.call())
				}
				b.ReportMetric(float64(op.n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
			})
		}
	}
}

// BenchmarkTrellis codes and decodes a matrix at 2 bits a weight, L = 12, T = 256.
func BenchmarkTrellis(b *testing.B) {
	m := open(b, Options{})
	c := newWeights(b, m, trellis.DefaultParams(2))
	g := trellis.Geometry{Axis: 1, Out: 16, In: 512, Interleaved: true}
	x, err := m.NewTensor(codec.F32, g.Out, g.In)
	if err != nil {
		b.Fatal(err)
	}
	copy(x.Data, tensor(codec.F32, normals(g.Out*g.In), g.Out, g.In).Data)
	y, err := m.NewTensor(codec.BF16, g.Out, g.In)
	if err != nil {
		b.Fatal(err)
	}
	var w trellis.Matrix
	for name, call := range map[string]func() error{
		"Encode": func() error { return c.Encode(context.Background(), &w, codec.Tensor{}, x, g) },
		"Decode": func() error { return c.Decode(y, &w, 0) },
	} {
		if err := c.Encode(context.Background(), &w, codec.Tensor{}, x, g); err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(g.Out*g.In)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}
