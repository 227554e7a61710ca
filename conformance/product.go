package conformance

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// productCase multiplies with packed weights: a trellis matrix, or affine rows where format is set.
type productCase struct {
	name    string
	params  trellis.Params
	geo     trellis.Geometry
	format  affine.RowFormat
	rows    codec.DType // affine: the type of the rows
	m       int
	x, y    codec.DType
	weights codec.DType // trellis: ProductOptions.Weights
	layout  string
	data    string
	// "reference"; "decoded": with the weights that the backend decodes; "alone": each row of x alone; with codec.Fast
	// "bound": within its bound, y f32; "exact": the reference's bits, of data whose products and sums are exact.
	check string
}

func (c *productCase) order() codec.Order {
	if c.check == "bound" || c.check == "exact" {
		return codec.Fast
	}
	return codec.Exact
}

func (c *productCase) make() Case {
	op := "MatMul"
	if c.format.Bits == 0 {
		p, g := c.params, c.geo
		c.name = fmt.Sprintf("L=%d,K=%d,T=%d,code=%v,axis=%d,out=%d,in=%d,interleaved=%t,weights=%v", p.L, p.K, p.T, p.Code, g.Axis, g.Out, g.In, g.Interleaved, recon(c.weights))
	} else {
		op = "AffineMatMul"
		c.name = fmt.Sprintf("bits=%d,group=%d,out=%d,in=%d,rows=%v", c.format.Bits, c.format.Group, c.geo.Out, c.geo.In, c.rows)
	}
	c.name = fmt.Sprintf("%s(%s,m=%d,dtype=%v,y=%v,layout=%s,data=%s,check=%s)", op, c.name, c.m, c.x, c.y, c.layout, c.data, c.check)
	return Case{Op: op, Name: c.name, run: c.run}
}

// factors fills x, rows of n.
func (c *productCase) factors(x []float32, n int, s *stream) {
	for i := range x {
		x[i] = s.normal()
		switch c.data {
		case "normal", "zero-scales":
		case "units": // −1, 0 or 1: sums of few weights of 8 bits are exact
			x[i] = float32(s.intn(3) - 1)
		case "tiny": // about 2^-50, below which a factor is +0
			if i/n%2 == 0 || s.intn(2) == 0 { // every second row has no others, so that they show
				x[i] = pick(s, 0x1p-49, 0x1p-50, down(0x1p-50), 0x1p-51, 0x1p-126, 0x1p-149, 0)
			}
		case "wide":
			x[i] *= pow2(s.intn(24) - 12)
		case "overflow": // sums beyond f32, and beyond f16
			x[i] *= pow2(pickInt(s, 10, 16, 120))
		case "nonfinite": // in every second row
			if i/n%2 == 1 && s.intn(n) < 2 {
				x[i] = pick(s, float32(math.Inf(1)), float32(math.NaN()))
			}
		default:
			panic("conformance: no data " + c.data)
		}
	}
}

func pickInt(s *stream, from ...int) int { return from[s.intn(len(from))] }

// packedWeights is the matrix of a product, with what a backend does with it.
type packedWeights struct {
	planes   func() [][]byte // copies of what a call must not change
	multiply func(y, x codec.Tensor) error
	ref      func(y, x codec.Tensor) error

	// In the type of the weights, by the backend and by the reference.
	decode, refDecode func() (codec.Tensor, error)
}

func (c *productCase) matrix(e *env, s *stream) packedWeights {
	if c.format.Bits != 0 {
		return c.affineMatrix(e, s)
	}
	p, g := c.params, c.geo
	m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
	for i := range m.Codes {
		m.Codes[i] = uint32(s.next())
	}
	for i := range m.Scales {
		m.Scales[i] = uint16(12+s.intn(6))<<10 | uint16(s.intn(1024)) // 2^-3 to 2^3
		if c.data == "units" {
			m.Scales[i] = 0x3c00 // 1
		}
		if c.data == "zero-scales" {
			m.Scales[i] = pick16(s, 0, 0x8000, 1, 0x03ff, 0x3c00)
		}
		if c.data == "nonfinite" && i%5 == 4 {
			m.Scales[i] = pick16(s, 0x7c00, 0xfc00, 0x7e00)
		}
	}
	o := codec.ProductOptions{Weights: c.weights, Order: c.order()}
	t := c.weights
	if t == 0 {
		t = c.x
	}
	b, r := e.trellis(p), e.refTrellis(p)
	by := func(c codec.Trellis) func() (codec.Tensor, error) {
		return func() (codec.Tensor, error) {
			w := codec.NewTensor(t, g.Out, g.In)
			return w, c.Decode(w, m, 0)
		}
	}
	return packedWeights{
		planes:   func() [][]byte { return [][]byte{bytesOf(m.Codes), bytesOf(m.Scales)} },
		multiply: func(y, x codec.Tensor) error { return b.MatMul(y, x, m, o) },
		ref:      func(y, x codec.Tensor) error { return r.MatMul(y, x, m, o) },
		decode:   by(b), refDecode: by(r),
	}
}

func pick16(s *stream, from ...uint16) uint16 { return from[s.intn(len(from))] }

func (c *productCase) affineMatrix(e *env, s *stream) packedWeights {
	a := anyAffine(c.format, c.rows, []int{c.geo.Out, c.geo.In}, s)
	if c.data == "units" { // integers below 2^8
		for g := range len(a.Scales) / c.rows.Size() {
			c.rows.Store(a.Scales[g*c.rows.Size():], 1)
			c.rows.Store(a.Biases[g*c.rows.Size():], float32(s.intn(9)-8))
		}
	}
	if c.data == "zero-scales" {
		clear(a.Scales[:len(a.Scales)/2/c.rows.Size()*c.rows.Size()])
	}
	if c.data == "tiny" && c.rows != codec.F16 { // weights on both sides of 2^-50 in every second row
		row, size := c.geo.In/c.format.Group, c.rows.Size()
		for g := range len(a.Scales) / size {
			if g/row%2 == 0 {
				c.rows.Store(a.Scales[g*size:], 0x1p-54)
				c.rows.Store(a.Biases[g*size:], 0x1p-51)
			}
		}
	}
	b, r := e.affine(c.format), e.refAffine(c.format)
	by := func(q codec.Affine) func() (codec.Tensor, error) {
		return func() (codec.Tensor, error) {
			w := codec.NewTensor(c.rows, a.Shape...)
			return w, q.Dequantize(w, a)
		}
	}
	return packedWeights{
		planes:   func() [][]byte { return [][]byte{bytes.Clone(a.Codes), bytes.Clone(a.Scales), bytes.Clone(a.Biases)} },
		multiply: func(y, x codec.Tensor) error { return b.MatMul(y, x, a, codec.ProductOptions{Order: c.order()}) },
		ref:      func(y, x codec.Tensor) error { return r.MatMul(y, x, a, codec.ProductOptions{}) },
		decode:   by(b), refDecode: by(r),
	}
}

func (c *productCase) run(e *env) *Failure {
	s := seeded(c.name)
	w := c.matrix(e, s)
	x, mem := matrix("x", c.layout, c.x, c.m, c.geo.In, s, byte(s.next()))
	v := make([]float32, c.m*c.geo.In)
	c.factors(v, c.geo.In, s)
	fill(x, v)
	mem.freeze()
	plain := dense(x)
	want := codec.NewTensor(c.y, c.m, c.geo.Out)
	if err := w.ref(want, plain); err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	e.note(c.y, want.Data)
	switch c.check {
	case "decoded":
		weights, err := w.decode()
		if err != nil {
			e.refuse(err, "weights")
		}
		want = multiplied(c.y, plain, weights)
	case "alone":
		want = codec.NewTensor(c.y, c.m, c.geo.Out)
		in, out := c.geo.In*c.x.Size(), c.geo.Out*c.y.Size()
		for r := range c.m {
			one := codec.Tensor{DType: c.y, Shape: []int{1, c.geo.Out}, Data: want.Data[r*out:][:out]}
			if err := w.multiply(one, codec.Tensor{DType: c.x, Shape: []int{1, c.geo.In}, Data: plain.Data[r*in:][:in]}); err != nil {
				e.refuse(err, "x")
			}
		}
	}
	y, yMem := matrix("y", c.layout, c.y, c.m, c.geo.Out, s, poisons[0])
	yMem.freeze()
	before := w.planes()
	err := w.multiply(y, x)
	if !slices.EqualFunc(before, w.planes(), bytes.Equal) {
		return failure(Input, "weights", "the matrix changed")
	}
	if off, bad := mem.changed(nil); bad {
		return failure(Input, "x", "byte %d of the input changed", off)
	}
	if f := sameError(err, nil); f != nil {
		return f
	}
	if c.check == "bound" {
		weights, err := w.refDecode()
		if err != nil {
			return failure(Error, "", "the reference: %v", err)
		}
		// What lies within the bound stands for the reference.
		if f := bounded(dense(y), want, plain, weights); f != nil {
			return f
		}
		want = dense(y)
	}
	o := output{name: "y", dtype: c.y}
	f := o.written(y, yMem, want, max(c.geo.Out, 1))
	if f != nil && f.Stage == Dequantize {
		f.Stage = Product
	}
	return f
}

// bounded checks f32 sums of any order: within 2·(C + 2)·2^-24·Σ|x·w| of the exact one, and NaN or infinite as want is.
func bounded(y, want, x, w codec.Tensor) *Failure {
	in := x.Dim()
	a, b := make([]float32, in), make([]float32, in)
	for m := range x.Shape[0] {
		x.LoadRow(a, m)
		for n := range w.Shape[0] {
			w.LoadRow(b, n)
			var sum, magnitude float64
			for c := range a {
				p := float64(factor(a[c])) * float64(factor(b[c])) // exact
				sum += p
				magnitude += math.Abs(p)
			}
			i := m*w.Shape[0] + n
			got, exact := codec.F32.Load(y.Data[4*i:]), codec.F32.Load(want.Data[4*i:])
			bound := magnitude * 2 * float64(in+2) * 0x1p-24
			switch wild := !f32.IsFinite(exact); {
			case wild && (got == exact || got != got && exact != exact), !wild && math.Abs(float64(got)-sum) <= bound:
			default:
				return &Failure{Stage: Product, Operand: "y", Index: i, Group: -1, Want: fmt.Sprint(sum), Got: fmt.Sprint(got),
					Detail: fmt.Sprintf("%g from the sum, %g are allowed", math.Abs(float64(got)-sum), bound)}
			}
		}
	}
	return nil
}

// multiplied returns x·wᵀ in the order of docs/numerics.md §7.
func multiplied(t codec.DType, x, w codec.Tensor) codec.Tensor {
	y := codec.NewTensor(t, x.Shape[0], w.Shape[0])
	a, b, out := make([]float32, x.Dim()), make([]float32, x.Dim()), make([]float32, w.Shape[0])
	for m := range x.Shape[0] {
		x.LoadRow(a, m)
		for n := range out {
			w.LoadRow(b, n)
			out[n] = sumProducts(a, b)
		}
		y.StoreRow(m, out)
	}
	return y
}

func sumProducts(x, w []float32) float32 {
	var chains [32]float32
	for first := 0; first < len(x); first += 128 {
		for i := first; i < min(first+128, len(x)); i++ {
			l := (i - first) / 4
			chains[l] += float32(factor(x[i]) * factor(w[i]))
		}
	}
	return f32.TreeSum(chains[:])
}

func factor(x float32) float32 {
	if x > -0x1p-50 && x < 0x1p-50 {
		return 0
	}
	return x
}

func productCases() []Case {
	var cases []Case
	add := func(short uint64, form Form, c productCase) {
		if c.check == "" {
			c.check = "reference"
		}
		k := c.make()
		k.form = form
		k.short = form == Normal && sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	inputs := []string{"dense", "padded", "stepped", "columns"}
	data := []string{"normal", "tiny", "wide", "overflow", "nonfinite", "zero-scales"}
	weights := []codec.DType{0, codec.F32, codec.F16, codec.BF16}
	outs := []int{1, 2, 3, 7, 31, 33, 65}
	heights := []int{1, 2, 3, 4, 5, 8, 16, 17, 33}
	along := func(k, out int) productCase { // coded along the columns
		p := trellis.Params{L: max(k+1, []int{6, 9, 12}[t.step()%3]), K: k, T: blockLens(k)[t.step()%2], Code: trellisCodes[t.step()%3]}
		blocks := 1 + t.step()%5
		inter := t.step()%2 == 0
		if inter {
			blocks += blocks % 2
		}
		return productCase{params: p, geo: trellis.Geometry{Axis: 1, Out: out, In: blocks * p.T, Interleaved: inter}}
	}
	across := func(k, in int) productCase { // coded along the outputs
		p := trellis.Params{L: max(k+1, []int{6, 9, 12}[t.step()%3]), K: k, T: blockLens(k)[t.step()%2], Code: trellisCodes[t.step()%3]}
		inter := t.step()%2 == 0
		blocks := 1
		if inter {
			blocks = 2
		}
		return productCase{params: p, geo: trellis.Geometry{Axis: 0, Out: blocks * p.T, In: in, Interleaved: inter}}
	}
	rows := func(f affine.RowFormat, out, groups int) productCase {
		return productCase{format: f, rows: t.dtype(), geo: trellis.Geometry{Out: out, In: groups * f.Group}}
	}
	with := func(c productCase, m int, data, check string) productCase {
		c.m, c.x, c.y, c.layout, c.data, c.check = m, t.dtype(), t.dtype(), inputs[t.step()%4], data, check
		if c.format.Bits == 0 {
			c.weights = weights[t.step()%4]
		}
		return c
	}
	formats := []affine.RowFormat{}
	for _, bits := range []int{2, 3, 4, 5, 6, 8} {
		for _, group := range []int{32, 64, 128} {
			formats = append(formats, affine.RowFormat{Bits: bits, Group: group})
		}
	}
	for _, m := range heights {
		for _, out := range outs {
			add(12, Normal, with(along([]int{2, 3, 4}[t.step()%3], out), m, data[t.step()%6], ""))
			add(12, Normal, with(rows(formats[t.step()%len(formats)], out, 1+t.step()%3), m, data[t.step()%6], ""))
		}
		for _, in := range []int{1, 3, 4, 130, 161} {
			add(12, Normal, with(across([]int{2, 3, 4}[t.step()%3], in), m, data[t.step()%6], ""))
		}
	}
	for _, k := range []int{1, 2, 3, 4, 5, 6, 7, 8} {
		for _, m := range []int{1, 2, 3, 5, 9} { // a kernel's tile of rows each
			add(4, Normal, with(along(k, 7), m, data[t.step()%6], ""))
			add(4, Normal, with(across(k, 37), m, data[t.step()%6], ""))
		}
	}
	for _, l := range []int{13, 14, 15, 16} { // no four states in a window
		add(4, Normal, with(productCase{params: trellis.Params{L: l, K: 7, T: 32}, geo: trellis.Geometry{Axis: 1, Out: 3, In: 160}}, 3, "normal", ""))
		add(4, Normal, with(productCase{params: trellis.Params{L: l, K: 7, T: 32}, geo: trellis.Geometry{Axis: 0, Out: 32, In: 131}}, 3, "normal", ""))
	}
	add(1, Normal, with(productCase{params: trellis.DefaultParams(3), geo: trellis.Geometry{Axis: 1, Out: 5, In: 768}}, 2, "normal", ""))
	for _, f := range formats {
		add(4, Normal, with(rows(f, 5, 2), 3, data[t.step()%6], ""))
	}
	for i, check := range []string{"decoded", "alone"} {
		for _, d := range data {
			for j, m := range []int{1, 4, 17} {
				add(4, Normal, with(along(2+(i+j)%3, 33), m, d, check))
				add(4, Normal, with(across(2+(i+j)%3, 131), m, d, check))
				add(4, Normal, with(rows(formats[t.step()%len(formats)], 33, 2), m, d, check))
			}
		}
	}
	// The order that a caller has to allow: heights about the tiles, outputs about 32, and columns that no matrix unit takes.
	fast := func(c productCase, m int, x, y codec.DType, data, check string) productCase {
		c.m, c.x, c.y, c.layout, c.data, c.check = m, x, y, inputs[t.step()%4], data, check
		return c
	}
	narrow := []codec.DType{codec.BF16, codec.F16}
	for i, m := range []int{1, 4, 5, 16, 17, 64, 65} {
		for j, out := range []int{1, 31, 33} {
			x := narrow[(i+j)%2]
			c := along([]int{2, 3, 4, 5}[t.step()%4], out)
			c.weights = narrow[t.step()%2]
			add(6, Normal, fast(c, m, x, codec.F32, []string{"normal", "wide", "tiny", "nonfinite"}[t.step()%4], "bound"))
			c = rows(formats[t.step()%len(formats)], out, 1+t.step()%3)
			c.rows = narrow[t.step()%2]
			add(6, Normal, fast(c, m, x, codec.F32, []string{"normal", "wide", "tiny", "nonfinite"}[t.step()%4], "bound"))
		}
		c := productCase{params: trellis.Params{L: 9, K: []int{2, 3, 4, 8}[i%4], T: 32}, geo: trellis.Geometry{Axis: 1, Out: 37, In: 64, Interleaved: i%2 == 1}, weights: codec.BF16}
		add(1, Normal, fast(c, m, narrow[i%2], t.dtype(), "units", "exact"))
		c = productCase{format: formats[5*i%len(formats)], rows: narrow[i%2], geo: trellis.Geometry{Out: 37, In: 384}}
		add(1, Normal, fast(c, m, narrow[t.step()%2], t.dtype(), "units", "exact"))
	}
	for _, k := range []int{2, 3, 4, 5} { // each of the tiles by each of the kernels
		for _, m := range []int{9, 40} {
			c := productCase{params: trellis.Params{L: 12, K: k, T: 64}, geo: trellis.Geometry{Axis: 1, Out: 40, In: 320}, weights: codec.BF16}
			add(6, Normal, fast(c, m, codec.BF16, codec.F32, "wide", "bound"))
		}
	}
	add(1, Normal, fast(productCase{params: trellis.Params{L: 9, K: 8, T: 4}, geo: trellis.Geometry{Axis: 1, Out: 3, In: 12}, weights: codec.BF16}, 9, codec.BF16, codec.F32, "normal", "bound"))
	for _, k := range []int{2, 3, 4, 5} {
		for _, m := range []int{9, 33} { // a kernel's tile of rows each
			c := along(k, 33)
			c.weights = codec.F16
			add(6, Normal, fast(c, m, codec.BF16, codec.F32, "normal", "bound"))
		}
	}
	add(1, Normal, fast(across(2, 131), 9, codec.BF16, codec.F32, "normal", "bound"))
	add(1, Normal, fast(along(3, 33), 9, codec.F32, codec.F32, "wide", "bound"))
	for _, g := range []trellis.Geometry{{Axis: 1, Out: 3, In: 0}, {Axis: 0, Out: 64, In: 0}, {Axis: 1, Out: 0, In: 64}} {
		c := productCase{params: trellis.Params{L: 6, K: 2, T: 32}, geo: g, m: 2, x: codec.F32, y: codec.F16, layout: "dense", data: "normal"}
		add(1, Normal, c)
	}
	add(1, Normal, productCase{format: formats[0], rows: codec.F16, geo: trellis.Geometry{Out: 3}, m: 2, x: codec.F32, y: codec.F16, layout: "dense", data: "normal"})
	add(1, Normal, productCase{params: trellis.Params{L: 6, K: 2, T: 32}, geo: trellis.Geometry{Axis: 1, Out: 3, In: 64}, x: codec.F32, y: codec.F16, layout: "dense", data: "normal"})
	for m := 1; m <= 64; m++ { // every height up to 33, and two tiles of many
		if m > 33 && m != 48 && m != 64 {
			continue
		}
		add(1, Long, with(along(3, 65), m, "wide", ""))
		add(1, Long, with(across(3, 161), m, "wide", ""))
		add(1, Long, with(rows(affine.RowFormat{Bits: 4, Group: 32}, 65, 5), m, "wide", ""))
	}
	return append(cases, badProductCases()...)
}

// badProductCases are operands that do not fit.
func badProductCases() []Case {
	var cases []Case
	p := trellis.Params{L: 8, K: 2, T: 32}
	g := trellis.Geometry{Axis: 1, Out: 3, In: 64}
	f := affine.RowFormat{Bits: 4, Group: 32}
	for _, fault := range []struct {
		name string
		set  func(y, x *codec.Tensor, o *codec.ProductOptions)
	}{
		{"x-dim", func(_, x *codec.Tensor, _ *codec.ProductOptions) { x.Shape = []int{2, 32} }},
		{"x-dtype", func(_, x *codec.Tensor, _ *codec.ProductOptions) { x.DType = 9 }},
		{"x-short", func(_, x *codec.Tensor, _ *codec.ProductOptions) { x.Data = x.Data[1:] }},
		{"x-scalar", func(_, x *codec.Tensor, _ *codec.ProductOptions) { x.Shape = nil }},
		{"y-dim", func(y, _ *codec.Tensor, _ *codec.ProductOptions) { y.Shape = []int{2, 2} }},
		{"y-rows", func(y, _ *codec.Tensor, _ *codec.ProductOptions) { y.Shape = []int{1, 3} }},
		{"y-overlap", func(y, _ *codec.Tensor, _ *codec.ProductOptions) { y.Stride = []int{1, 1} }},
		{"y-dtype", func(y, _ *codec.Tensor, _ *codec.ProductOptions) { y.DType = 0 }},
		{"order", func(_, _ *codec.Tensor, o *codec.ProductOptions) { o.Order = 7 }},
		{"weights", func(_, _ *codec.Tensor, o *codec.ProductOptions) { o.Weights = 7 }},
	} {
		operands := func() (y, x codec.Tensor, o codec.ProductOptions) {
			y, x = codec.NewTensor(codec.F32, 2, 3), codec.NewTensor(codec.F16, 2, 64)
			fault.set(&y, &x, &o)
			return y, x, o
		}
		m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, 3)}
		a := codec.AffineRows{Shape: []int{3, 64}, DType: codec.F16, Codes: make([]byte, 96), Scales: make([]byte, 12), Biases: make([]byte, 12)}
		cases = append(cases, Case{Op: "MatMul", Name: fmt.Sprintf("MatMul(fault=%s)", fault.name), short: true, run: func(e *env) *Failure {
			y, x, o := operands()
			return sameError(e.trellis(p).MatMul(y, x, m, o), e.refTrellis(p).MatMul(y, x, m, o))
		}}, Case{Op: "AffineMatMul", Name: fmt.Sprintf("AffineMatMul(fault=%s)", fault.name), short: true, run: func(e *env) *Failure {
			y, x, o := operands()
			return sameError(e.affine(f).MatMul(y, x, a, o), e.refAffine(f).MatMul(y, x, a, o))
		}})
	}
	return cases
}
