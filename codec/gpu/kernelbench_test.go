package gpu

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// stopwatch adds up what a device says of its own time.
type stopwatch struct {
	gpu.Device
	ns atomic.Int64
}

func (s *stopwatch) wrap(d gpu.Device) (gpu.Device, error) {
	s.Device = d
	return s, nil
}

func (s *stopwatch) Run(list ...gpu.Dispatch) (time.Duration, error) {
	d, err := s.Device.Run(list...)
	s.ns.Add(int64(d))
	return d, err
}

// BenchmarkKernels measures the kernels alone, by the device's own clock, on operands that are staged in its memory:
// rows of 128 elements (TURBOTRELLIS_LONG makes it 2^19 of them), from f16, to bf16. GB/s counts operands read and
// written once.
func BenchmarkKernels(b *testing.B) {
	var s stopwatch
	m := open(b, Options{}, s.wrap)
	rows := 1 << 10
	out, in := 64, 512
	if os.Getenv("TURBOTRELLIS_LONG") != "" { // 16 matrices of 14336 outputs, for caches to be of no use
		rows, out, in = 1<<19, 16*14336, 4096
	}
	run := func(name string, elements, bytes int, call func() error) {
		b.Run(name, func(b *testing.B) {
			if err := call(); err != nil { // compiles
				b.Fatal(err)
			}
			b.ResetTimer()
			s.ns.Store(0)
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
			ns := float64(s.ns.Load()) / float64(b.N)
			b.ReportMetric(ns/1e3, "device-µs")
			b.ReportMetric(float64(bytes)/ns, "GB/s")
			b.ReportMetric(float64(elements)/ns*1e3, "Melem/s")
		})
	}
	x := tensor(codec.F16, normals(rows*128), rows, 128)
	y, z := codec.NewTensor(codec.BF16, rows, 128), codec.NewTensor(codec.BF16, rows, 128)
	w := codec.NewTensor(codec.F16, rows, 128)
	kv := func(p codec.KVParams, suffix string) {
		benchmarkKV(b, m, p, rows*128/p.HeadDim, suffix, [4]codec.Tensor{x, y, z, w}, run)
	}
	for _, p := range []codec.KVParams{
		{HeadDim: 128, Keys: codec.Q8_0, Values: codec.Q3_0},
		{HeadDim: 128, Keys: codec.Q4_0, Values: codec.Q4_0},
		{HeadDim: 128, Keys: codec.Q8_0, Values: codec.Q4_0, Scale: codec.Search},
		{HeadDim: 128, Keys: codec.R4, Values: codec.R4, CentreKeys: true},
		{HeadDim: 128, Keys: codec.T3, Values: codec.T4, CentreKeys: true},
		{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q3_0},
		{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q4_0},
		{HeadDim: 256, Keys: codec.Q8_0, Values: codec.Q3_0},
		{HeadDim: 256, Keys: codec.Q4_0, Values: codec.Q4_0},
		{HeadDim: 512, Keys: codec.Q4_0, Values: codec.Q4_0},
		{HeadDim: 96, Keys: codec.Q4_0, Values: codec.Q4_0},
		{HeadDim: 160, Keys: codec.Q4_0, Values: codec.Q4_0},
		{HeadDim: 128, Keys: codec.Q4_0, Values: codec.Q4_0, Policy: codec.Compat, Group: 64},
	} {
		kv(p, "")
	}
	// Heads in another order than their codes, as in a cache with room for more tokens, and the heads of a token side by
	// side.
	p := codec.KVParams{HeadDim: 128, Keys: codec.Q4_0, Values: codec.Q4_0}
	kv(p, ",runs")
	kv(p, ",tokens")
	for _, L := range []int{9, 10, 11} {
		p := trellis.DefaultParams(2)
		p.L = L
		c := newWeights(b, m, p)
		g := trellis.Geometry{Axis: 1, Out: min(512, out), In: in}
		weights := tensor(codec.F32, normals(g.Out*g.In), g.Out, g.In)
		var small trellis.Matrix
		run(fmt.Sprintf("EncodeWeights/k=2,L=%d", L), g.Out*g.In, 4*g.Out*g.In, func() error {
			return c.Encode(context.Background(), &small, codec.Tensor{}, weights, g)
		})
	}
	for _, k := range []int{1, 2, 3, 4, 8} {
		c := newWeights(b, m, trellis.DefaultParams(k))
		p := c.Params()
		few := trellis.Geometry{Axis: 1, Out: min(512, out), In: in}
		weights := tensor(codec.F32, normals(few.Out*few.In), few.Out, few.In)
		var small, big trellis.Matrix
		run(fmt.Sprintf("EncodeWeights/k=%d", k), few.Out*few.In, 4*few.Out*few.In, func() error {
			return c.Encode(context.Background(), &small, codec.Tensor{}, weights, few)
		})
		if len(small.Codes) == 0 {
			continue // -bench did not ask for weights
		}
		for _, interleaved := range []bool{false, true} {
			big = trellis.Matrix{Params: p, Geometry: trellis.Geometry{Axis: 1, Out: out, In: in, Interleaved: interleaved}}
			big.Codes, big.Scales = make([]uint32, big.Geometry.CodesLen(p)), make([]uint16, out)
			for i := range big.Codes {
				big.Codes[i] = uint32(i) * 0x9e3779b9
			}
			for i := range big.Scales {
				big.Scales[i] = 0x3c00
			}
			decoded := codec.NewTensor(codec.BF16, out, in)
			run(fmt.Sprintf("DecodeWeights/k=%d,interleaved=%t", k, interleaved), out*in, 2*out*in+4*len(big.Codes), func() error { return c.Decode(decoded, &big, 0) })
		}
		big.Geometry.Interleaved = false
		for _, M := range []int{1, 4, 16} {
			xs, ys := tensor(codec.BF16, normals(M*in), M, in), codec.NewTensor(codec.BF16, M, out)
			run(fmt.Sprintf("MatMul/k=%d,M=%d", k, M), M*out*in, 4*len(big.Codes), func() error { return c.MatMul(ys, xs, &big, codec.ProductOptions{}) })
		}
		for _, M := range []int{16, 64} {
			xs, ys := tensor(codec.BF16, normals(M*in), M, in), codec.NewTensor(codec.BF16, M, out)
			run(fmt.Sprintf("MatMul/k=%d,M=%d,fast", k, M), M*out*in, 4*len(big.Codes), func() error { return c.MatMul(ys, xs, &big, codec.ProductOptions{Order: codec.Fast}) })
		}
	}
	c, err := m.Affine(affine.RowFormat{Bits: 4, Group: 64})
	if err != nil {
		b.Fatal(err)
	}
	weights := codec.NewTensor(codec.BF16, out, in)
	some := tensor(codec.BF16, normals(1<<15), 1<<15).Data
	for i := 0; i < len(weights.Data); i += len(some) {
		copy(weights.Data[i:], some)
	}
	var a codec.AffineRows
	bytes := out * in * 9 / 16
	run("Quantize/4,64", out*in, 2*out*in+bytes, func() error { return c.Quantize(&a, weights) })
	run("Dequantize/4,64", out*in, 2*out*in+bytes, func() error { return c.Dequantize(weights, a) })
	for _, M := range []int{1, 16} {
		xs, ys := tensor(codec.BF16, normals(M*in), M, in), codec.NewTensor(codec.BF16, M, out)
		run(fmt.Sprintf("AffineMatMul/4,64,M=%d", M), M*out*in, bytes, func() error { return c.MatMul(ys, xs, a, codec.ProductOptions{}) })
	}
	for _, M := range []int{16, 64} {
		xs, ys := tensor(codec.BF16, normals(M*in), M, in), codec.NewTensor(codec.BF16, M, out)
		run(fmt.Sprintf("AffineMatMul/4,64,M=%d,fast", M), M*out*in, bytes, func() error { return c.MatMul(ys, xs, a, codec.ProductOptions{Order: codec.Fast}) })
	}
}

// benchmarkKV measures the operations of a KV codec over rows rows, in the layout that suffix names, and in the memory of
// an input and three outputs.
func benchmarkKV(b *testing.B, m *Backend, p codec.KVParams, rows int, suffix string, memory [4]codec.Tensor, run func(name string, elements, bytes int, call func() error)) {
	total := func(planes []codec.Plane) (n int) {
		for _, p := range planes {
			n += rows * p.RowLen
		}
		return n
	}
	d := p.HeadDim
	place := func(t codec.Tensor) codec.Tensor {
		const n = 8
		t.Shape = []int{rows, d}
		switch suffix {
		case ",runs":
			run := rows / n / n * d
			t.Shape, t.Stride = []int{n, n, rows / n / n, d}, []int{run, n * run, d, 1}
		case ",tokens":
			t.Shape, t.Stride = []int{n, rows / n, d}, []int{d, n * d, 1}
		}
		return t
	}
	x, y, z, w := place(memory[0]), place(memory[1]), place(memory[2]), place(memory[3])
	kv := newCodec(b, m, p)
	var k codec.Keys
	var v codec.Values
	if p.CentreKeys {
		c, err := codec.NewCentre(codec.Tensor{DType: x.DType, Shape: []int{256, d}, Data: x.Data})
		if err != nil {
			b.Fatal(err)
		}
		k.Centre = c
	}
	kp, vp, half := total(k.Planes(p)), total(v.Planes(p)), 2*rows*d
	name := fmt.Sprintf("d=%d,%v+%v,%v%s", d, p.Keys, p.Values, p.Scale, suffix)
	if p.Policy == codec.Compat {
		name += ",compat"
	}
	run("EncodeKeys/"+name, rows*d, half+kp, func() error { return kv.EncodeKeys(&k, x) })
	run("EncodeValues/"+name, rows*d, half+vp, func() error { return kv.EncodeValues(&v, x) })
	run("DecodeRotated/"+name, 2*rows*d, 2*half+kp+vp, func() error { return kv.DecodeRotated(y, z, k, v) })
	run("Decode/"+name, 2*rows*d, 2*half+kp+vp, func() error { return kv.Decode(y, z, k, v) })
	run("Unrotate/"+name, rows*d, 2*half, func() error { return kv.Unrotate(w, x) })
}
