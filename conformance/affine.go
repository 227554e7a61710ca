package conformance

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/pack"
)

func (e *env) affine(f affine.RowFormat) codec.Affine {
	a, ok := e.affines[f]
	if !ok {
		var err error
		if a, err = e.backend.Affine(f); err != nil {
			e.refuse(err, "format")
		}
		if a == nil {
			panic(failure(Error, "format", "neither a codec nor an error"))
		}
		e.affines[f] = a
	}
	return a
}

func (e *env) refAffine(f affine.RowFormat) codec.Affine {
	a, ok := e.refAffines[f]
	if !ok {
		var err error
		if a, err = e.ref.Affine(f); err != nil {
			panic(fmt.Sprintf("conformance: a case has a format that the reference refuses: %v", err))
		}
		e.refAffines[f] = a
	}
	return a
}

// anyAffine returns rows of any codes, with scales and biases that are normal numbers of type t.
func anyAffine(f affine.RowFormat, t codec.DType, shape []int, s *stream) codec.AffineRows {
	n := product(shape)
	a := codec.AffineRows{Shape: shape, DType: t, Codes: make([]byte, n/8*f.Bits), Scales: make([]byte, n/f.Group*t.Size()), Biases: make([]byte, n/f.Group*t.Size())}
	for i := range a.Codes {
		a.Codes[i] = byte(s.next())
	}
	for i := 0; i < len(a.Scales); i += t.Size() {
		t.Store(a.Scales[i:], pick(s, 1+float32(s.intn(1024))/1024)*pow2(s.intn(12)-8))
		t.Store(a.Biases[i:], pick(s, 1+float32(s.intn(1024))/1024)*pow2(s.intn(12)-6))
	}
	return a
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// affineCase quantises a tensor, or dequantises rows.
type affineCase struct {
	op     string // Quantize, Dequantize
	name   string
	format affine.RowFormat
	dtype  codec.DType
	dim    int
	layout layout
	data   string
}

func (c *affineCase) make() Case {
	c.name = fmt.Sprintf("%s(bits=%d,group=%d,d=%d,dtype=%v,layout=%s,data=%s)", c.op, c.format.Bits, c.format.Group, c.dim, c.dtype, c.layout.name, c.data)
	run := c.quantize
	if c.op == "Dequantize" {
		run = c.dequantize
	}
	return Case{Op: c.op, Name: c.name, run: run}
}

func (c *affineCase) weights(x []float32, s *stream) {
	n := float32(int(1)<<c.format.Bits - 1)
	for i := range x {
		g := i / c.format.Group
		x[i] = s.normal()
		switch c.data {
		case "normal":
		case "groups": // a range for each group; constants and zeros among them
			x[i] *= pow2(g%21 - 14)
			if g%4 == 1 {
				x[i] = 0.75
			} else if g%4 == 2 {
				x[i] = pick(s, 0)
			}
		case "positive":
			x[i] = 3 + x[i]/8
		case "negative":
			x[i] = -3 + x[i]/8
		case "even": // |lo| = |hi|
			if x[i] /= 8; i%c.format.Group < 2 {
				x[i] = []float32{-2, 2}[(i+g)%2]
			}
		case "ties": // indices on a half
			x[i] = (float32(s.intn(int(n))) + 0.5) * 0.25
			if i%c.format.Group < 2 {
				x[i] = []float32{0, n * 0.25}[i%2]
			}
		case "small": // ranges about the least scale
			x[i] *= pow2(-26 + g%6)
		case "range": // a range beyond f32, in one group of three
			if c.dtype != codec.F16 && g%3 == 1 {
				x[i] = pick(s, maxFinite(c.dtype))
			}
		case "nan":
			if i == len(x)/2 || i == len(x)-1 {
				x[i] = nan
			}
		case "inf-last":
			if i == len(x)-1 {
				x[i] = -inf
			}
		default:
			panic("conformance: no data " + c.data)
		}
	}
}

func (c *affineCase) quantize(e *env) *Failure {
	s := seeded(c.name)
	x, mem := place("weights", c.layout, c.dtype, c.dim, aligns[s.intn(len(aligns))], byte(s.next()))
	v := make([]float32, c.layout.rows()*c.dim)
	c.weights(v, s)
	fill(x, v)
	mem.freeze()
	plain := dense(x)
	var want codec.AffineRows
	wantErr := e.refAffine(c.format).Quantize(&want, plain)
	e.note(0, []byte(describe(wantErr)))
	e.note(0, want.Codes)
	e.note(c.dtype, want.Scales)
	e.note(c.dtype, want.Biases)
	var dst codec.AffineRows
	var mems []*memory
	if s.intn(3) > 0 { // memory of the right size, with guards behind
		room := func(name string, n int) []byte {
			m := newMemory(name, n, aligns[s.intn(len(aligns))], poisons[0])
			m.freeze()
			mems = append(mems, m)
			return m.data[:0]
		}
		scales := len(v) / c.format.Group * c.dtype.Size()
		dst = codec.AffineRows{Shape: []int{9}, Codes: room("codes", len(v)/8*c.format.Bits), Scales: room("scales", scales), Biases: room("biases", scales)}
	}
	b := e.affine(c.format)
	err := b.Quantize(&dst, x)
	if off, bad := mem.changed(nil); bad {
		return failure(Input, "weights", "byte %d of the input changed", off)
	}
	for _, m := range mems {
		if off, bad := m.changed(func(int) bool { return true }); bad {
			return failure(Bounds, m.name, "byte %d was written, beyond the %d of the output", off, len(m.data))
		}
	}
	if f := sameError(err, wantErr); f != nil {
		return f
	}
	if wantErr != nil {
		if len(dst.Codes)+len(dst.Scales)+len(dst.Biases) != 0 {
			return failure(Error, "dst", "output of %d, %d and %d bytes after an error, want none", len(dst.Codes), len(dst.Scales), len(dst.Biases))
		}
		return nil
	}
	if !slices.Equal(dst.Shape, want.Shape) || dst.DType != want.DType {
		return failure(Bounds, "shape", "%v of %v, want %v of %v", dst.Shape, dst.DType, want.Shape, want.DType)
	}
	return c.compare(dst, want)
}

func (c *affineCase) compare(got, want codec.AffineRows) *Failure {
	if len(got.Codes) != len(want.Codes) {
		return failure(Bounds, "codes", "%d bytes, want %d", len(got.Codes), len(want.Codes))
	}
	n := product(want.Shape)
	index := func(codes []byte) []byte {
		index := make([]byte, n)
		if err := pack.Unpack(index, codes, c.format.Bits); err != nil {
			panic(err)
		}
		return index
	}
	return compare([]part{
		{name: "scales", stage: Scale, t: c.dtype, perElem: c.format.Group, got: got.Scales, want: want.Scales},
		{name: "biases", stage: Zero, t: c.dtype, perElem: c.format.Group, got: got.Biases, want: want.Biases},
		{name: "codes", stage: Index, perElem: 1, got: index(got.Codes), want: index(want.Codes)},
	}, c.format.Group, n/c.format.Group)
}

func (c *affineCase) dequantize(e *env) *Failure {
	s := seeded(c.name)
	shape := append(slices.Clone(c.layout.lead), c.dim)
	a := anyAffine(c.format, c.dtype, shape, s)
	if c.data == "any-scale" {
		for i := 0; i < len(a.Scales); i += c.dtype.Size() {
			c.dtype.Store(a.Scales[i:], pick(s, 0, 1, maxFinite(c.dtype), inf, nan))
			c.dtype.Store(a.Biases[i:], pick(s, 0, 1, maxFinite(c.dtype), inf))
		}
	}
	var mems []*memory
	guarded := func(name string, b []byte) []byte {
		m := newMemory(name, len(b), aligns[s.intn(len(aligns))], byte(s.next()))
		copy(m.data, b)
		m.freeze()
		mems = append(mems, m)
		return m.data[:len(b):len(b)]
	}
	a.Codes, a.Scales, a.Biases = guarded("codes", a.Codes), guarded("scales", a.Scales), guarded("biases", a.Biases)
	want := codec.NewTensor(c.dtype, shape...)
	if err := e.refAffine(c.format).Dequantize(want, a); err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	e.note(c.dtype, want.Data)
	out := output{name: "dst weights", layout: c.layout, dtype: c.dtype, d: c.dim, s: s}
	call := func(dst codec.Tensor) error { return e.affine(c.format).Dequantize(dst, a) }
	f := out.check(call, want, c.format.Group)
	for _, m := range mems {
		if off, bad := m.changed(nil); bad {
			return failure(Input, m.name, "byte %d of the input changed", off)
		}
	}
	return f
}

func affineCases() []Case {
	var cases []Case
	add := func(short uint64, c affineCase) {
		k := c.make()
		k.short = sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	data := []string{"normal", "groups", "positive", "negative", "even", "ties", "small", "range", "nan", "inf-last"}
	writable := slices.DeleteFunc(slices.Clone(layouts), func(l layout) bool { return l.repeat })
	for _, bits := range []int{2, 3, 4, 5, 6, 8} {
		for _, group := range []int{32, 64, 128} {
			f := affine.RowFormat{Bits: bits, Group: group}
			for _, dt := range dtypes {
				for _, d := range data {
					add(16, affineCase{op: "Quantize", format: f, dtype: dt, dim: group * (1 + t.step()%3), layout: layouts[0], data: d})
				}
				for _, d := range []string{"codes", "any-scale"} {
					add(8, affineCase{op: "Dequantize", format: f, dtype: dt, dim: group * (1 + t.step()%3), layout: layouts[0], data: d})
				}
			}
		}
		for _, l := range layouts {
			f := affine.RowFormat{Bits: bits, Group: 32 << (t.step() % 3)}
			add(8, affineCase{op: "Quantize", format: f, dtype: t.dtype(), dim: f.Group * (1 + t.step()%2), layout: l, data: "normal"})
		}
		for _, l := range writable {
			f := affine.RowFormat{Bits: bits, Group: 32 << (t.step() % 3)}
			add(8, affineCase{op: "Dequantize", format: f, dtype: t.dtype(), dim: f.Group * (1 + t.step()%2), layout: l, data: "codes"})
		}
	}
	for _, op := range []string{"Quantize", "Dequantize"} {
		add(1, affineCase{op: op, format: affine.RowFormat{Bits: 4, Group: 32}, dtype: codec.F16, dim: 64, layout: shuffled, data: map[string]string{"Quantize": "normal", "Dequantize": "codes"}[op]})
	}
	for _, f := range []affine.RowFormat{{}, {Bits: 4}, {Bits: 7, Group: 64}, {Bits: 1, Group: 64}, {Bits: 4, Group: 16}, {Bits: 4, Group: 256}, {Bits: -4, Group: -64}, {Bits: 6, Group: 128}} {
		cases = append(cases, Case{Op: "Affine", Name: fmt.Sprintf("Affine(bits=%d,group=%d)", f.Bits, f.Group), short: true, run: func(e *env) *Failure {
			_, want := e.ref.Affine(f)
			got, err := e.backend.Affine(f)
			if f := sameError(err, want); f != nil {
				return f
			}
			if err != nil && got != nil {
				return failure(Error, "format", "a codec and an error, %v", err)
			}
			return nil
		}})
	}
	f := affine.RowFormat{Bits: 4, Group: 32}
	for _, fault := range []struct {
		name string
		set  func(dst *codec.Tensor, a *codec.AffineRows)
	}{
		{"codes", func(_ *codec.Tensor, a *codec.AffineRows) { a.Codes = a.Codes[1:] }},
		{"scales", func(_ *codec.Tensor, a *codec.AffineRows) { a.Scales = nil }},
		{"biases", func(_ *codec.Tensor, a *codec.AffineRows) { a.Biases = append(a.Biases, 0) }},
		{"dtype", func(_ *codec.Tensor, a *codec.AffineRows) { a.DType = 0 }},
		{"groups", func(_ *codec.Tensor, a *codec.AffineRows) { a.Shape = []int{6, 32} }},
		{"scalar", func(_ *codec.Tensor, a *codec.AffineRows) { a.Shape = nil }},
		{"dst-dtype", func(dst *codec.Tensor, _ *codec.AffineRows) { dst.DType = codec.BF16 }},
		{"dst-shape", func(dst *codec.Tensor, _ *codec.AffineRows) { dst.Shape = []int{2, 96} }},
		{"dst-overlap", func(dst *codec.Tensor, _ *codec.AffineRows) { dst.Stride = []int{0, 1} }},
	} {
		cases = append(cases, Case{Op: "Dequantize", Name: fmt.Sprintf("Dequantize(fault=%s)", fault.name), short: true, run: func(e *env) *Failure {
			dst := codec.NewTensor(codec.F16, 3, 64)
			a := codec.AffineRows{Shape: []int{3, 64}, DType: codec.F16, Codes: make([]byte, 96), Scales: make([]byte, 12), Biases: make([]byte, 12)}
			fault.set(&dst, &a)
			return sameError(e.affine(f).Dequantize(dst, a), e.refAffine(f).Dequantize(dst, a))
		}})
	}
	for name, x := range map[string]codec.Tensor{"groups": codec.NewTensor(codec.F16, 3, 48), "dtype": {Shape: []int{32}, Data: make([]byte, 128)}, "short": {DType: codec.F32, Shape: []int{32}, Data: make([]byte, 127)}, "scalar": codec.NewTensor(codec.F32)} {
		cases = append(cases, Case{Op: "Quantize", Name: fmt.Sprintf("Quantize(fault=%s)", name), short: true, run: func(e *env) *Failure {
			var a, b codec.AffineRows
			return sameError(e.affine(f).Quantize(&a, x), e.refAffine(f).Quantize(&b, x))
		}})
	}
	slices.SortStableFunc(cases[len(cases)-4:], func(a, b Case) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return cases
}
