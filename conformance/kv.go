package conformance

import (
	"errors"
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/pack"
)

// packed is what an encoder of keys or of values writes. Values have no zeros.
type packed struct {
	shape                []int
	codes, scales, zeros []byte
}

func (p packed) keys() codec.Keys {
	return codec.Keys{Shape: p.shape, Codes: p.codes, Scales: p.scales, Zeros: p.zeros}
}

func (p packed) values() codec.Values {
	return codec.Values{Shape: p.shape, Codes: p.codes, Scales: p.scales}
}

// encode packs x as keys or values into dst.
func encode(kv codec.KV, values bool, dst *packed, x codec.Tensor) error {
	if values {
		v := dst.values()
		err := kv.EncodeValues(&v, x)
		*dst = packed{v.Shape, v.Codes, v.Scales, nil}
		return err
	}
	k := dst.keys()
	err := kv.EncodeKeys(&k, x)
	*dst = packed{k.Shape, k.Codes, k.Scales, k.Zeros}
	return err
}

// operand is the name of the tensor in errors.
func operand(values bool) string {
	if values {
		return "values"
	}
	return "keys"
}

func dim(p codec.KVParams, values bool) int {
	if values {
		return p.ValueHeadDim
	}
	return p.HeadDim
}

func bitsOfIndex(p codec.KVParams, values bool) int {
	if values {
		return p.Values.Bits()
	}
	return p.Keys.Bits()
}

func rowLen(p codec.KVParams, values bool) (codes, scales int) {
	if values {
		return p.ValueRowLen()
	}
	return p.KeyRowLen()
}

// unpacked returns one index a byte, or nil if codes is no whole number of
// rows.
func unpacked(p codec.KVParams, values bool, codes []byte) []byte {
	b := bitsOfIndex(p, values)
	index := make([]byte, len(codes)*8/b)
	if err := pack.Unpack(index, codes, b); err != nil {
		return nil
	}
	return index
}

// encodeCase packs a tensor.
type encodeCase struct {
	name   string
	params codec.KVParams // with defaults
	values bool
	dtype  codec.DType
	layout layout
	data   data
}

// tensor returns the case's input in guarded memory.
func (c *encodeCase) tensor() (codec.Tensor, *memory) {
	s := seeded(c.name)
	d := dim(c.params, c.values)
	x, m := place(operand(c.values), c.layout, c.dtype, d, aligns[s.intn(len(aligns))], byte(s.next()))
	fill(x, c.elements(s))
	m.freeze()
	return x, m
}

func (c *encodeCase) elements(s *stream) []float32 {
	d := dim(c.params, c.values)
	in := &input{params: c.params, values: c.values, dtype: c.dtype, rows: c.layout.rows(), d: d, s: s}
	v := make([]float32, in.rows*d)
	c.data.fill(v, in)
	return v
}

// poisons are two ways to fill an output before a call: a byte that was not
// written shows as a difference between them.
var poisons = [2]byte{0xa5, 0x3c}

func (c *encodeCase) run(e *env) *Failure {
	kv, refKV := e.kv(c.params), e.refKV(c.params)
	x, m := c.tensor()
	plain := dense(x)
	var want packed
	wantErr := encode(refKV, c.values, &want, plain)
	e.note(0, []byte(describe(wantErr)))
	e.note(0, want.codes)
	e.note(c.params.ScaleType, want.scales)
	e.note(c.params.ScaleType, want.zeros)

	codesLen, scalesLen := rowLen(c.params, c.values)
	rows := x.Rows()
	s := seeded(c.name + " dst")
	reuse := s.intn(4) // 0: nothing to reuse; 1: too little; 2, 3: exact memory with guards behind
	var dst packed
	var mems []*memory
	if reuse > 0 {
		n := rows
		if reuse == 1 && rows > 0 {
			n = rows - 1
		}
		part := func(name string, rowLen int) []byte {
			m := newMemory(name, n*rowLen, aligns[s.intn(len(aligns))], poisons[0])
			m.freeze()
			mems = append(mems, m)
			if reuse == 1 {
				return m.data[:0:len(m.data)]
			}
			return m.data[:min(3, len(m.data))]
		}
		dst = packed{[]int{7, 7}[:s.intn(3)], part("codes", codesLen), part("scales", scalesLen), part("zeros", scalesLen)}
	}
	err := encode(kv, c.values, &dst, x)
	if off, bad := m.changed(nil); bad {
		return failure(Input, operand(c.values), "byte %d of the input changed", off)
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
		if len(dst.codes)+len(dst.scales)+len(dst.zeros) != 0 {
			return failure(Error, "dst", "output of %d, %d and %d bytes after an error, want none", len(dst.codes), len(dst.scales), len(dst.zeros))
		}
		return nil
	}
	f := c.compare(dst, want)
	if f != nil && f.Stage != Bounds && !e.brief {
		f.Detail = c.stages(plain, f.Group)
	}
	return f
}

// stages returns a group of the input at every stage of the reference's encoder.
func (c *encodeCase) stages(x codec.Tensor, group int) string {
	d, n := x.Dim(), c.params.Group
	row := make([]float32, d)
	x.LoadRow(row, group*n/d)
	lo := group * n % d
	hi, g := lo+n, lo/n
	if c.values {
		s, _ := refStages(c.params).ValueStages(row)
		return fmt.Sprintf("the reference's group: canon %v\nrotated %v\nscale %v\nindex %v", s.Canon[lo:hi], s.Rotated[lo:hi], s.Scale[g], s.Index[lo:hi])
	}
	s, _ := refStages(c.params).KeyStages(row)
	return fmt.Sprintf("the reference's group: canon %v\nscale %v, zero %v\nindex %v", s.Canon[lo:hi], s.Scale[g], s.Zero[g], s.Index[lo:hi])
}

// compare returns the first difference of two packed forms.
func (c *encodeCase) compare(got, want packed) *Failure {
	if !slices.Equal(got.shape, want.shape) {
		return failure(Bounds, "shape", "%v, want %v", got.shape, want.shape)
	}
	if len(got.codes) != len(want.codes) {
		return failure(Bounds, "codes", "%d bytes, want %d", len(got.codes), len(want.codes))
	}
	p := c.params
	parts := []part{
		{name: "scales", stage: Scale, t: p.ScaleType, perElem: p.Group, got: got.scales, want: want.scales},
		{name: "zeros", stage: Zero, t: p.ScaleType, perElem: p.Group, got: got.zeros, want: want.zeros},
		{name: "codes", stage: Index, perElem: 1, got: unpacked(p, c.values, got.codes), want: unpacked(p, c.values, want.codes)},
	}
	return compare(parts, p.Group, len(want.scales)/p.ScaleType.Size())
}

// sameError compares what matters of two errors: the class, the operand and
// the index.
func sameError(got, want error) *Failure {
	if got == nil && want == nil {
		return nil
	}
	if want == nil && errors.Is(got, codec.ErrUnsupported) {
		panic(errDeclined)
	}
	g, w := describe(got), describe(want)
	if g == w {
		return nil
	}
	f := failure(Error, "", "")
	f.Got, f.Want = g, w
	return f
}

// describe returns what a backend's error must say, as text.
func describe(err error) string {
	var e *codec.Error
	switch {
	case err == nil:
		return "no error"
	case !errors.As(err, &e):
		return fmt.Sprintf("an error that is no *codec.Error: %v", err)
	}
	return fmt.Sprintf("%q of %q at %d", e.Err, e.Tensor, e.Index)
}

// unrotateCase rotates a tensor back.
type unrotateCase struct {
	name    string
	params  codec.KVParams
	dtype   codec.DType
	layout  layout
	data    data
	inPlace bool
}

func (c *unrotateCase) run(e *env) *Failure {
	in := encodeCase{name: c.name, params: c.params, values: true, dtype: c.dtype, layout: c.layout, data: c.data}
	x, m := in.tensor()
	plain := dense(x)
	want := codec.NewTensor(c.dtype, x.Shape...)
	refBefore, before := e.refKV(c.params).Saturated(), e.kv(c.params).Saturated()
	if err := e.refKV(c.params).Unrotate(want, plain); err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	saturated := e.refKV(c.params).Saturated() - refBefore
	e.note(c.dtype, want.Data)
	out := output{name: "dst values", layout: c.layout, dtype: c.dtype, d: c.params.ValueHeadDim, s: seeded(c.name + " dst")}
	call := func(dst codec.Tensor) error { return e.kv(c.params).Unrotate(dst, x) }
	var f *Failure
	if c.inPlace {
		dst := out
		dst.at, dst.mem = &x, m
		f = dst.check(call, want, c.params.Group)
	} else {
		f = out.check(call, want, c.params.Group)
		if off, bad := m.changed(nil); bad {
			return failure(Input, "values", "byte %d of the input changed", off)
		}
	}
	if f == nil {
		f = sameSaturated(e.kv(c.params).Saturated()-before, saturated)
	}
	if f != nil && f.Stage == Dequantize {
		f.Stage = Unrotate
	}
	return f
}

// output is the destination of a decoder.
type output struct {
	name   string
	layout layout
	dtype  codec.DType
	d      int
	s      *stream
	at     *codec.Tensor // where set, the destination, in mem
	mem    *memory
}

// make returns the destination in poisoned memory.
func (o *output) make(seed byte) (codec.Tensor, *memory) {
	if o.at != nil {
		return *o.at, o.mem
	}
	dst, m := place(o.name, o.layout, o.dtype, o.d, aligns[o.s.intn(len(aligns))], seed)
	m.freeze()
	return dst, m
}

// check calls a decoder with one destination and compares what it wrote with
// want. A difference between elements has the stage Dequantize.
func (o *output) check(call func(codec.Tensor) error, want codec.Tensor, group int) *Failure {
	dst, m := o.make(poisons[0])
	if f := sameError(call(dst), nil); f != nil {
		return f
	}
	return o.written(dst, m, want, group)
}

// written compares the elements of dst, and the bytes around them.
func (o *output) written(dst codec.Tensor, m *memory, want codec.Tensor, group int) *Failure {
	if off, bad := m.changed(within(dst, m)); bad {
		return failure(Bounds, o.name, "byte %d was written, which no element owns", off)
	}
	got := elements(dst)
	return compare([]part{{name: o.name, stage: Dequantize, t: o.dtype, perElem: 1, got: got, want: want.Data}}, group, (want.Len()+group-1)/group)
}
