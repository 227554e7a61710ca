package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// wild are factors of products that are hard in one way each: about the threshold of canonical ones, and not finite
// in the last row.
func wild(rows, n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 11))
	x := make([]float32, rows*n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		switch r.IntN(8) {
		case 0:
			x[i] = []float32{0x1p-50, -0x1p-50, 0x1.fffffep-51, -0x1p-51, 0x1p-126, -0x1p-149, 0}[r.IntN(7)]
		case 1:
			x[i] *= 0x1p40
		}
		if i/n == rows-1 && rows > 2 && r.IntN(n) == 0 {
			x[i] = []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}[r.IntN(3)]
		}
	}
	return x
}

// multiply compares a product with the reference's.
func (e *exercise) multiply(what string, rows, in, out int, from, to codec.DType, l arrangement, seed uint64, got, want func(y, x codec.Tensor) error) {
	e.t.Helper()
	lead := []int{1, rows, 1}
	if rows%2 == 0 {
		lead = []int{2, 1, rows / 2}
	}
	x := tensor(from, wild(rows, in, seed), append(lead, in)...)
	wantY := codec.NewTensor(to, append(lead, out)...)
	e.must(want(wantY, x))
	y := e.place(codec.NewTensor(to, wantY.Shape...), l)
	e.must(got(y.Tensor, e.place(x, l).Tensor))
	e.wrote(fmt.Sprintf("%s, %d rows, %v→%v %s", what, rows, from, to, l.name), y, wantY)
}

// products multiplies with a matrix of any codes.
func (e *exercise) products(p trellis.Params, g trellis.Geometry, seed uint64, rows ...int) {
	e.t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
	for i := range m.Codes {
		m.Codes[i] = r.Uint32()
	}
	for i := range m.Scales {
		m.Scales[i] = []uint16{0, 1, 0x3c00, 0xbd55, 0x7bff}[r.IntN(5)] // zero, the least, 1, negative, the largest
		if i%3 > 0 {
			m.Scales[i] = uint16(0x2000 + r.IntN(0x2000))
		}
	}
	b, err := e.b.Trellis(p)
	e.must(err)
	ref, err := e.r.Trellis(p)
	e.must(err)
	for i, n := range rows {
		o := codec.ProductOptions{Weights: allTypes[(int(seed)+i)%3]}
		e.multiply(fmt.Sprintf("product %+v %+v as %v", p, g, o.Weights), n, g.In, g.Out, allTypes[(int(seed)+2*i)%3], allTypes[(int(seed)+i/2)%3], layouts[(int(seed)+i)%len(layouts)], seed+uint64(i),
			func(y, x codec.Tensor) error { return b.MatMul(y, x, m, o) }, func(y, x codec.Tensor) error { return ref.MatMul(y, x, m, o) })
	}
}

// affine quantises, dequantises and multiplies.
func (e *exercise) affine(f affine.RowFormat, in, out int, t codec.DType, l arrangement, seed uint64, rows ...int) {
	e.t.Helper()
	what := fmt.Sprintf("affine %+v [%d, %d] %v %s", f, out, in, t, l.name)
	b, err := e.b.Affine(f)
	e.must(err)
	ref, err := e.r.Affine(f)
	e.must(err)
	w := samples(out, in, seed)
	for i := range w { // no scale may be subnormal
		if i/in%9 == 2 && t != codec.F16 {
			w[i] *= 0x1p60
		}
	}
	x := tensor(t, w, 1, 1, out, in)
	var got, want codec.AffineRows
	e.must(ref.Quantize(&want, x))
	e.must(b.Quantize(&got, e.place(x, l).Tensor))
	e.same(what+" codes", 0, got.Codes, want.Codes)
	e.same(what+" scales", t, got.Scales, want.Scales)
	e.same(what+" biases", t, got.Biases, want.Biases)
	dst := codec.NewTensor(t, x.Shape...)
	e.must(ref.Dequantize(dst, want))
	to := e.place(codec.NewTensor(t, x.Shape...), l)
	e.must(b.Dequantize(to.Tensor, got))
	e.wrote(what+" weights", to, dst)
	want.Shape = []int{out, in}
	for i, n := range rows {
		e.multiply(what, n, in, out, allTypes[i%3], allTypes[(int(seed)+i)%3], l, seed+uint64(i),
			func(y, x codec.Tensor) error { return b.MatMul(y, x, want, codec.ProductOptions{}) },
			func(y, x codec.Tensor) error { return ref.MatMul(y, x, want, codec.ProductOptions{}) })
	}
}

// matrices multiplies in the order fast by data whose sums are exact: x of −1, 0 and 1, weights of eight bits. So
// the result is the reference's; the suite has the bound for other data.
func (e *exercise) matrices(seed uint64, rows ...int) {
	e.t.Helper()
	r := rand.New(rand.NewPCG(seed, 9))
	units := func(n int, least, most int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(least + r.IntN(most-least+1))
		}
		return x
	}
	run := func(what string, n, in, out int, got, want func(y, x codec.Tensor, o codec.ProductOptions) error) {
		l, to := layouts[n%len(layouts)], allTypes[n%3]
		x := tensor(codec.BF16, units(n*in, -1, 1), 1, n, 1, in)
		wantY := codec.NewTensor(to, 1, n, 1, out)
		e.must(want(wantY, x, codec.ProductOptions{}))
		y := e.place(codec.NewTensor(to, wantY.Shape...), l)
		e.must(got(y.Tensor, e.place(x, l).Tensor, codec.ProductOptions{Order: codec.Fast}))
		e.wrote(fmt.Sprintf("%s, %d rows, fast, %v %s", what, n, to, l.name), y, wantY)
	}
	for i, k := range []int{2, 3, 4, 4} {
		p := trellis.Params{L: 9, K: k, T: []int{64, 32, 32, 8}[i]} // blocks of 8 take the general kernel
		g := trellis.Geometry{Axis: 1, Out: 30 + 3*i, In: 64, Interleaved: i%2 == 1}
		m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
		for i := range m.Codes {
			m.Codes[i] = r.Uint32()
		}
		for i := range m.Scales {
			m.Scales[i] = 0x3c00
		}
		b, err := e.b.Trellis(p)
		e.must(err)
		ref, err := e.r.Trellis(p)
		e.must(err)
		for _, n := range rows {
			run(fmt.Sprintf("product %+v %+v", p, g), n, g.In, g.Out,
				func(y, x codec.Tensor, o codec.ProductOptions) error { return b.MatMul(y, x, m, o) },
				func(y, x codec.Tensor, o codec.ProductOptions) error { return ref.MatMul(y, x, m, o) })
		}
	}
	for i, bits := range []int{2, 3, 4, 5, 6, 8} {
		f := affine.RowFormat{Bits: bits, Group: 32 << (i % 3)}
		b, err := e.b.Affine(f)
		e.must(err)
		ref, err := e.r.Affine(f)
		e.must(err)
		out, in := 29+2*i, 2*f.Group
		a := codec.AffineRows{Shape: []int{out, in}, DType: codec.F16, Codes: make([]byte, out*in/8*bits),
			Scales: tensor(codec.F16, units(2*out, 1, 1), 2*out).Data, Biases: tensor(codec.F16, units(2*out, -9, 0), 2*out).Data}
		for i := range a.Codes {
			a.Codes[i] = byte(r.Uint32())
		}
		for _, n := range rows {
			run(fmt.Sprintf("product %+v", f), n, in, out,
				func(y, x codec.Tensor, o codec.ProductOptions) error { return b.MatMul(y, x, a, o) },
				func(y, x codec.Tensor, o codec.ProductOptions) error { return ref.MatMul(y, x, a, o) })
		}
	}
}

// masks masks logits, into another tensor and in place, and copies a view.
func (e *exercise) masks(lead []int, vocabulary int, t codec.DType, m codec.Bitmask, l arrangement, seed uint64) {
	e.t.Helper()
	what := fmt.Sprintf("mask of %d rows of %d words for %d %v %s", m.Rows, m.Words, vocabulary, t, l.name)
	r := rand.New(rand.NewPCG(seed, 3))
	m.Data = make([]byte, 4*m.Rows*max(m.Stride, m.Words))
	for i := range m.Data {
		if i/4/max(m.Stride, m.Words, 1)%3 != 1 { // every third row is empty
			m.Data[i] = byte(r.Uint32())
		}
	}
	v := wild(product(lead), vocabulary, seed)
	for i := range v {
		if i%5 == 0 {
			v[i] = []float32{float32(math.Copysign(0, -1)), 0, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}[i/5%5]
		}
	}
	x := tensor(t, v, append(lead, vocabulary)...)
	want := codec.NewTensor(t, x.Shape...)
	wantEmpty, err := e.r.Mask(want, x, m)
	e.must(err)
	dst, at := e.place(codec.NewTensor(t, x.Shape...), l), e.place(x, l)
	empty, err := e.b.Mask(dst.Tensor, at.Tensor, m)
	e.must(err)
	e.wrote(what, dst, want)
	inPlace, err := e.b.Mask(at.Tensor, at.Tensor, m)
	e.must(err)
	e.wrote(what+" in place", at, want)
	if w := fmt.Sprint(wantEmpty); fmt.Sprint(empty) != w || fmt.Sprint(inPlace) != w {
		e.t.Errorf("%s: rows %v and, in place, %v are empty, want %v", what, empty, inPlace, wantEmpty)
	}
	var c codec.Tensor
	e.must(e.b.Compact(&c, e.place(x, l).Tensor))
	e.same(what+" compact", t, c.Data, x.Data)
}

// rowCodes runs every method of a codec whose sides are row codes, centred and not.
func (e *exercise) rowCodes(f codec.Format, d int, in, out codec.DType, p codec.Policy, l arrangement, seed uint64) {
	e.t.Helper()
	lead := []int{2, 3, 2 + 6*int(seed%2)} // 48 rows of 256 are more than a threadgroup takes
	x := tensor(in, samples(product(lead), d, seed), append(lead, d)...)
	for _, centred := range []bool{false, true} {
		what := fmt.Sprintf("%v d=%d %v→%v %v centred=%t %s", f, d, in, out, p, centred, l.name)
		params := codec.KVParams{HeadDim: d, Keys: f, Values: f, Policy: p, CentreKeys: centred, CentreValues: centred}
		b, err := e.b.KV(params)
		e.must(err)
		r, err := e.r.KV(params)
		e.must(err)
		var got, want codec.Values
		if centred {
			c, err := codec.NewCentre(x)
			e.must(err)
			got.Centre, want.Centre = c, c
		}
		e.must(r.EncodeValues(&want, x))
		e.must(b.EncodeValues(&got, e.place(x, l).Tensor))
		e.same(what+" scales", 0, got.Scales, want.Scales)
		e.same(what+" codes", 0, got.Codes, want.Codes)
		dst := codec.NewTensor(out, x.Shape...)
		to := e.place(codec.NewTensor(out, x.Shape...), l)
		e.must(r.DecodeValues(dst, want))
		e.must(b.DecodeValues(to.Tensor, got))
		e.wrote(what+" decoded", to, dst)
		e.must(r.DecodeValuesRotated(dst, want))
		e.must(b.DecodeValuesRotated(to.Tensor, got))
		e.wrote(what+" rotated", to, dst)
		unrotate := func(kv codec.KV, dst, x codec.Tensor) error { return kv.Unrotate(dst, x) }
		if centred {
			mass := tensor(codec.F32, canonical(samples(product(lead), 1, seed+1)), append(lead, 1)...)
			unrotate = func(kv codec.KV, dst, x codec.Tensor) error { return kv.UnrotateCentred(dst, x, want.Centre, mass) }
		}
		dst = codec.NewTensor(in, x.Shape...)
		to = e.place(codec.NewTensor(in, x.Shape...), l)
		e.must(unrotate(r, dst, x))
		e.must(unrotate(b, to.Tensor, e.place(x, l).Tensor))
		e.wrote(what+" unrotated", to, dst)
		if b.Saturated() != r.Saturated() {
			e.t.Errorf("%s: %d saturated, want %d", what, b.Saturated(), r.Saturated())
		}
	}
}

// allProducts runs every kernel of the families product, matrix, affine, mask and rowcode.
func (e *exercise) allProducts() {
	e.t.Helper()
	for i, f := range []codec.Format{codec.R2, codec.R3, codec.R4, codec.R5, codec.T2, codec.T3, codec.T4} {
		for j, d := range []int{32 << (i % 4), 512 << (i % 2), []int{96, 160, 224}[i%3]} { // the three kinds of kernels
			e.rowCodes(f, d, allTypes[(i+j)%3], allTypes[(i+1)%3], codec.Policy((i+j)%2), layouts[(i+3*j)%len(layouts)], uint64(i))
		}
	}
	for k := 1; k <= 8; k++ {
		p := trellis.Params{L: 9, K: k, T: 32, Code: trellis.Code(k % 3)}
		e.products(p, trellis.Geometry{Axis: 1, Out: 5, In: 64 + 64*(k%3), Interleaved: k%2 == 0}, uint64(k), 1, 2, 3, 7, 16)
	}
	e.products(trellis.Params{L: 12, K: 3, T: 256}, trellis.Geometry{Axis: 1, Out: 3, In: 512}, 9, 37)
	e.products(trellis.Params{L: 16, K: 7, T: 32}, trellis.Geometry{Axis: 1, Out: 7, In: 96}, 10, 2)
	for i, k := range []int{2, 3, 8} {
		e.products(trellis.Params{L: 10, K: k, T: 32, Code: trellis.Code(i)}, trellis.Geometry{Axis: 0, Out: 64, In: 131 + i, Interleaved: i == 1}, uint64(20+i), 1, 3, 6, 11)
	}
	e.matrices(1, 5, 16, 21)
	for i, bits := range []int{2, 3, 4, 5, 6, 8} {
		f := affine.RowFormat{Bits: bits, Group: 32 << (i % 3)}
		e.affine(f, 128+f.Group, 13, allTypes[i%3], layouts[i], uint64(i), 1, 2, 3, 8, 19)
	}
	e.affine(affine.RowFormat{Bits: 4, Group: 64}, 64, 1, codec.BF16, layouts[6], 7, 1)
	for i, n := range []int{1, 31, 32, 33, 130} {
		m := codec.Bitmask{Rows: 6, Words: (n + 31) / 32}
		e.masks([]int{2, 1, 3}, n, allTypes[i%3], m, layouts[i], uint64(i))
		m.Words, m.Stride = 3, 5
		e.masks([]int{2, 1, 3}, n, allTypes[(i+1)%3], m, layouts[i+4], uint64(i))
		e.masks([]int{2, 1, 3}, n, allTypes[(i+2)%3], codec.Bitmask{Rows: 1, Words: i}, layouts[i+2], uint64(i))
	}
}
