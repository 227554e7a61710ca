package conformance

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// maskCase masks logits.
type maskCase struct {
	name    string
	dtype   codec.DType
	layout  layout
	tokens  int
	words   int
	stride  int
	shared  bool
	inPlace bool
	data    string // of the words: any, ones, zeros; every third row of any is empty
}

func (c *maskCase) make() Case {
	c.name = fmt.Sprintf("Mask(tokens=%d,words=%d,stride=%d,shared=%t,inplace=%t,dtype=%v,layout=%s,data=%s)", c.tokens, c.words, c.stride, c.shared, c.inPlace, c.dtype, c.layout.name, c.data)
	return Case{Op: "Mask", Name: c.name, run: c.run}
}

func (c *maskCase) bitmask(s *stream) (codec.Bitmask, *memory) {
	m := codec.Bitmask{Rows: c.layout.rows(), Words: c.words, Stride: c.stride}
	if c.shared {
		m.Rows = 1
	}
	stride := max(c.words, c.stride)
	mem := newMemory("mask", 4*max(m.Rows*stride-(stride-c.words), 0), aligns[s.intn(len(aligns))], byte(s.next()))
	for i := range mem.data {
		row := i / 4 / max(stride, 1)
		switch {
		case c.data == "ones":
			mem.data[i] = 0xff
		case c.data == "zeros", row%3 == 1:
			mem.data[i] = 0
		default:
			mem.data[i] = byte(s.next())
		}
	}
	mem.freeze()
	m.Data = mem.data
	return m, mem
}

func (c *maskCase) run(e *env) *Failure {
	s := seeded(c.name)
	x, mem := place("logits", c.layout, c.dtype, c.tokens, aligns[s.intn(len(aligns))], byte(s.next()))
	v := make([]float32, c.layout.rows()*c.tokens)
	for i := range v {
		if v[i] = s.normal(); s.intn(2) == 0 {
			v[i] = pick(s, 0, inf, nan, maxFinite(c.dtype), smallest(c.dtype))
		}
	}
	fill(x, v)
	mem.freeze()
	m, words := c.bitmask(s)
	plain := dense(x)
	want := codec.NewTensor(c.dtype, x.Shape...)
	wantEmpty, err := e.ref.Mask(want, plain, m)
	if err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	e.note(c.dtype, want.Data)
	e.note(0, fmt.Append(nil, wantEmpty))
	to := c.layout
	if to.repeat {
		to = layout{lead: to.lead}
	}
	out := output{name: "dst logits", layout: to, dtype: c.dtype, d: c.tokens, s: s}
	if c.inPlace {
		out.at, out.mem = &x, mem
	}
	var empty []int
	call := func(dst codec.Tensor) (err error) {
		empty, err = e.backend.Mask(dst, x, m)
		return err
	}
	f := out.check(call, want, max(c.tokens, 1))
	if off, bad := words.changed(nil); bad {
		return failure(Input, "mask", "byte %d of the input changed", off)
	}
	if off, bad := mem.changed(nil); bad && !c.inPlace {
		return failure(Input, "logits", "byte %d of the input changed", off)
	}
	if f == nil && !slices.Equal(empty, wantEmpty) {
		return failure(Mask, "empty", "rows %v, want %v", empty, wantEmpty)
	}
	if f != nil && f.Stage == Dequantize {
		f.Stage = Mask
	}
	return f
}

// compactCase copies a view.
type compactCase struct {
	name   string
	dtype  codec.DType
	layout layout
	d      int
}

func (c *compactCase) make() Case {
	c.name = fmt.Sprintf("Compact(d=%d,dtype=%v,layout=%s)", c.d, c.dtype, c.layout.name)
	return Case{Op: "Compact", Name: c.name, run: c.run}
}

func (c *compactCase) run(e *env) *Failure {
	s := seeded(c.name)
	x, mem := place("tensor", c.layout, c.dtype, c.d, aligns[s.intn(len(aligns))], byte(s.next()))
	eachElement(x, func(_, at int) { // any bits
		for i := range c.dtype.Size() {
			x.Data[at+i] = byte(s.next())
		}
	})
	mem.freeze()
	want := elements(x)
	e.note(0, want)
	var dst codec.Tensor
	var room *memory
	if s.intn(3) > 0 {
		room = newMemory("copy", len(want), aligns[s.intn(len(aligns))], poisons[0])
		room.freeze()
		dst = codec.Tensor{Shape: []int{5}, Data: room.data[:0]}
	}
	err := e.backend.Compact(&dst, x)
	if off, bad := mem.changed(nil); bad {
		return failure(Input, "tensor", "byte %d of the input changed", off)
	}
	if room != nil {
		if off, bad := room.changed(func(int) bool { return true }); bad {
			return failure(Bounds, "copy", "byte %d was written, beyond the %d of the output", off, len(room.data))
		}
	}
	if f := sameError(err, nil); f != nil {
		return f
	}
	if !slices.Equal(dst.Shape, x.Shape) || dst.DType != c.dtype || dst.Stride != nil || len(dst.Data) != len(want) {
		return failure(Bounds, "copy", "%v %v of strides %v and %d bytes, want %v %v of %d", dst.DType, dst.Shape, dst.Stride, len(dst.Data), c.dtype, x.Shape, len(want))
	}
	return compare([]part{{name: "copy", stage: Copy, wide: c.dtype.Size(), perElem: 1, got: dst.Data, want: want}}, max(c.d, 1), x.Rows())
}

func maskCases() []Case {
	var cases []Case
	add := func(short uint64, k Case) {
		k.short = sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	writable := slices.DeleteFunc(slices.Clone(layouts), func(l layout) bool { return l.repeat })
	for _, tokens := range []int{1, 2, 31, 32, 33, 63, 64, 65, 100, 127, 128, 130} {
		exact := (tokens + 31) / 32
		for _, words := range []int{0, exact - 1, exact, exact + 2} {
			for _, dt := range dtypes {
				c := maskCase{dtype: dt, layout: writable[t.step()%len(writable)], tokens: tokens, words: max(words, 0), shared: t.step()%3 == 0, inPlace: t.step()%3 == 0, data: "any"}
				if t.step()%3 == 0 {
					c.stride = c.words + 1 + t.step()%3
				}
				add(8, c.make())
			}
		}
	}
	for tokens := 1; tokens <= 130; tokens++ {
		c := maskCase{dtype: t.dtype(), layout: writable[t.step()%len(writable)], tokens: tokens, words: (tokens + 31) / 32, data: []string{"any", "ones", "zeros"}[t.step()%3]}
		add(64, c.make())
	}
	for i, dt := range dtypes { // a large vocabulary, and masks narrower and wider
		c := maskCase{dtype: dt, layout: writable[i%len(writable)], tokens: 151936, words: 4748 + 7*(i-1), shared: i == 2, data: "any"}
		add(64, c.make())
	}
	for _, l := range writable {
		for _, inPlace := range []bool{false, true} {
			c := maskCase{dtype: t.dtype(), layout: l, tokens: 70, words: 3, inPlace: inPlace, data: []string{"any", "ones", "zeros"}[t.step()%3]}
			add(4, c.make())
		}
	}
	for _, l := range layouts {
		if l.repeat {
			c := maskCase{dtype: t.dtype(), layout: l, tokens: 64, words: 2, data: "any"}
			add(4, c.make())
		}
		for _, dt := range dtypes {
			for _, d := range []int{2, 64, 97} {
				c := compactCase{dtype: dt, layout: l, d: d}
				add(8, c.make())
			}
		}
	}
	for _, fault := range []struct {
		name string
		set  func(dst, x *codec.Tensor, m *codec.Bitmask)
	}{
		{"rows", func(_, _ *codec.Tensor, m *codec.Bitmask) { m.Rows = 2 }},
		{"words", func(_, _ *codec.Tensor, m *codec.Bitmask) { m.Words = -1 }},
		{"stride", func(_, _ *codec.Tensor, m *codec.Bitmask) { m.Stride = 1 }},
		{"short", func(_, _ *codec.Tensor, m *codec.Bitmask) { m.Data = m.Data[1:] }},
		{"logits", func(_, x *codec.Tensor, _ *codec.Bitmask) { x.Data = x.Data[1:] }},
		{"scalar", func(_, x *codec.Tensor, _ *codec.Bitmask) { x.Shape = nil }},
		{"dst-dtype", func(dst, _ *codec.Tensor, _ *codec.Bitmask) { dst.DType = codec.BF16 }},
		{"dst-shape", func(dst, _ *codec.Tensor, _ *codec.Bitmask) { dst.Shape = []int{40, 3} }},
		{"dst-overlap", func(dst, _ *codec.Tensor, _ *codec.Bitmask) { dst.Stride = []int{1, 1} }},
	} {
		cases = append(cases, Case{Op: "Mask", Name: fmt.Sprintf("Mask(fault=%s)", fault.name), short: true, run: func(e *env) *Failure {
			dst, x := codec.NewTensor(codec.F16, 3, 40), codec.NewTensor(codec.F16, 3, 40)
			m := codec.Bitmask{Rows: 3, Words: 2, Data: make([]byte, 24)}
			fault.set(&dst, &x, &m)
			_, err := e.backend.Mask(dst, x, m)
			_, want := e.ref.Mask(dst, x, m)
			return sameError(err, want)
		}})
	}
	cases = append(cases, Case{Op: "Compact", Name: "Compact(fault=short)", short: true, run: func(e *env) *Failure {
		x := codec.Tensor{DType: codec.F32, Shape: []int{3, 2}, Stride: []int{4, 1}, Data: make([]byte, 39)}
		var a, b codec.Tensor
		return sameError(e.backend.Compact(&a, x), e.ref.Compact(&b, x))
	}}, Case{Op: "Compact", Name: "Compact(layout=scalar)", short: true, run: func(e *env) *Failure {
		x := codec.Tensor{DType: codec.F16, Shape: []int{}, Data: []byte{1, 2}}
		var a codec.Tensor
		if f := sameError(e.backend.Compact(&a, x), nil); f != nil {
			return f
		}
		if !bytes.Equal(a.Data, x.Data) || len(a.Shape) != 0 {
			return failure(Copy, "copy", "%v of shape %v, want %v of shape []", a.Data, a.Shape, x.Data)
		}
		return nil
	}})
	return cases
}
