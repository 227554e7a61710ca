package conformance

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/internal/f32"
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
		var twin packed
		if x.Stride != nil && sameError(encode(kv, c.values, &twin, plain), wantErr) == nil {
			f.Stage = Load
		}
		return f
	}
	if wantErr != nil {
		if len(dst.codes)+len(dst.scales)+len(dst.zeros) != 0 {
			return failure(Error, "dst", "output of %d, %d and %d bytes after an error, want none", len(dst.codes), len(dst.scales), len(dst.zeros))
		}
		return nil
	}
	f := c.compare(dst, want)
	if f == nil {
		return nil
	}
	if f.Stage != Bounds && !e.brief {
		f.Stage = c.diagnose(e, plain, dst, want, f)
	}
	return f
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

// passes encodes plain once more, with fresh memory of the given poison, and
// reports whether it gives what the reference gives for the same tensor.
func (c *encodeCase) passes(e *env, plain codec.Tensor) bool {
	var got, want packed
	gotErr, wantErr := encode(e.kv(c.params), c.values, &got, plain), encode(e.refKV(c.params), c.values, &want, plain)
	if gotErr != nil || wantErr != nil {
		return sameError(gotErr, wantErr) == nil
	}
	return c.compare(got, want) == nil
}

// diagnose returns the stage at fault. It encodes the same elements again with
// one thing changed at a time.
func (c *encodeCase) diagnose(e *env, plain codec.Tensor, got, want packed, f *Failure) Stage {
	kv, p := e.kv(c.params), c.params
	// The elements as they were, twice: into memory with one poison and another.
	var again [2]packed
	codesLen, scalesLen := rowLen(p, c.values)
	for i, seed := range poisons {
		part := func(n int) []byte { return newMemory("", plain.Rows()*n, 0, seed).data[:0] }
		again[i] = packed{codes: part(codesLen), scales: part(scalesLen), zeros: part(scalesLen)}
		if err := encode(kv, c.values, &again[i], plain); err != nil {
			return Unstable
		}
	}
	if c.compare(again[0], again[1]) != nil {
		return Store // what is not written keeps the poison
	}
	if c.compare(again[0], want) == nil {
		x, _ := c.tensor()
		var retry packed
		if err := encode(kv, c.values, &retry, x); err != nil || c.compare(retry, want) == nil {
			return Unstable
		}
		return Load
	}
	probe := c.probe(e)
	if c.zeroTail(got, want) || c.zeroTail(probe.got, probe.want) {
		return Store
	}
	if canonical, changed := canonTensor(plain, p.Policy == codec.Compat && !c.values); changed {
		wide := *c
		wide.dtype = codec.F32
		if wide.passes(e, canonical) {
			return Canon
		}
	}
	usual := c.compare(probe.got, probe.want) != nil // ordinary data is enough to fail
	if f.Stage == Index && (!usual && c.misplaced(got, want) || c.misplaced(probe.got, probe.want)) {
		return Pack
	}
	if c.values && !(c.ordered(plain, got) && c.ordered(probe.x, probe.got) && c.unrotates(e)) {
		return Rotate
	}
	return f.Stage
}

// probed is an encoding of plain data, which shows what special data may hide.
type probed struct {
	x         codec.Tensor
	got, want packed
}

// probe encodes rows of ordinary elements with the case's parameters.
func (c *encodeCase) probe(e *env) probed {
	plain := encodeCase{name: "probe", params: c.params, values: c.values, dtype: codec.F32, layout: layoutNamed("heads"), data: normalData}
	in, _ := plain.tensor()
	p := probed{x: dense(in)}
	if encode(e.refKV(c.params), c.values, &p.want, p.x) != nil || encode(e.kv(c.params), c.values, &p.got, p.x) != nil || len(p.got.codes) != len(p.want.codes) {
		p.got = p.want
	}
	return p
}

// zeroTail reports whether got differs from want only in bytes that are zero, a
// tail of the codes that fresh memory would leave so.
func (c *encodeCase) zeroTail(got, want packed) bool {
	start := len(want.codes)
	for start > 0 && got.codes[start-1] == 0 {
		start--
	}
	lost := 0
	for _, b := range want.codes[start:] {
		if b != 0 {
			lost++
		}
	}
	return lost >= 4 && bytes.Equal(got.codes[:start], want.codes[:start])
}

// canonTensor returns x in canonical form as f32, and whether that changes an
// element.
func canonTensor(x codec.Tensor, signed bool) (codec.Tensor, bool) {
	y := codec.NewTensor(codec.F32, x.Shape...)
	row := make([]float32, x.Dim())
	changed := false
	for r := range x.Rows() {
		x.LoadRow(row, r)
		for i, v := range row {
			c := f32.Canon(v)
			if signed && c == 0 {
				c = float32(math.Copysign(0, float64(v)))
			}
			changed = changed || math.Float32bits(c) != math.Float32bits(v)
			row[i] = c
		}
		y.StoreRow(r, row)
	}
	return y, changed
}

// ordered reports whether, in every group, indices rise with the rotated
// elements of x. They do whatever the scale and the boundaries are, unless the
// elements that were quantised are others.
func (c *encodeCase) ordered(x codec.Tensor, p packed) bool {
	row := make([]float32, x.Dim())
	index := unpacked(c.params, true, p.codes)
	order := make([]int, c.params.Group)
	stages := refStages(c.params)
	for r := range x.Rows() {
		x.LoadRow(row, r)
		st, found := stages.ValueStages(row)
		if found != driver.Nothing {
			return true
		}
		for g := 0; g < len(row); g += c.params.Group {
			y, got := st.Rotated[g:], index[r*len(row)+g:]
			for i := range order {
				order[i] = i
			}
			slices.SortFunc(order, func(a, b int) int { return cmp.Compare(y[a], y[b]) })
			for i := 1; i < len(order); i++ {
				if a, b := order[i-1], order[i]; got[a] > got[b] && y[a] < y[b] {
					return false
				}
			}
		}
	}
	return true
}

// unrotates reports whether the backend's inverse rotation is right.
func (c *encodeCase) unrotates(e *env) bool {
	u := unrotateCase{name: c.name, params: c.params, dtype: codec.F32, layout: layouts[0], data: normalData}
	return u.run(e) == nil
}

// misplaced reports whether each row that differs has the right indices, or the
// right bits, in the wrong places, and not just some a rounding away.
func (c *encodeCase) misplaced(got, want packed) bool {
	n, _ := rowLen(c.params, c.values)
	far := false
	for r := 0; r < len(want.codes); r += n {
		a, b := got.codes[r:r+n], want.codes[r:r+n]
		if bytes.Equal(a, b) {
			continue
		}
		x, y := unpacked(c.params, c.values, a), unpacked(c.params, c.values, b)
		for i := range x {
			far = far || distance(int64(x[i]), int64(y[i])) > 1
		}
		slices.Sort(x)
		slices.Sort(y)
		if ones(a) != ones(b) && !bytes.Equal(x, y) {
			return false
		}
	}
	return far
}

func ones(b []byte) (n int) {
	for _, v := range b {
		n += bits.OnesCount8(v)
	}
	return n
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
	if f == nil || f.Stage != Dequantize || e.brief {
		return f
	}
	if !c.inPlace && out.stale(call) {
		f.Stage = Store
		return f
	}
	// The same elements in plain memory, then in f32.
	kv := e.kv(c.params)
	if got := codec.NewTensor(c.dtype, x.Shape...); kv.Unrotate(got, plain) == nil && sameWords(got, want) {
		f.Stage = Load
		return f
	}
	f.Stage = Unrotate
	if c.dtype != codec.F32 {
		wide, _ := canonTensor(plain, false)
		got, want := codec.NewTensor(codec.F32, x.Shape...), codec.NewTensor(codec.F32, x.Shape...)
		if e.refKV(c.params).Unrotate(want, wide) == nil && kv.Unrotate(got, wide) == nil && sameWords(got, want) {
			f.Stage = Round
		}
	}
	return f
}

// sameWords reports whether two row-major tensors hold the same bits, NaN equal
// to NaN.
func sameWords(got, want codec.Tensor) bool {
	return compare([]part{{stage: Dequantize, t: want.DType, perElem: 1, got: got.Data, want: want.Data}}, 1, want.Len()) == nil
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

// stale reports whether a decoder leaves elements as they were: whether what
// they are after it depends on what they were before.
func (o *output) stale(call func(codec.Tensor) error) bool {
	var got [2][]byte
	for i, seed := range poisons {
		dst, _ := o.make(seed)
		if call(dst) != nil {
			return false
		}
		got[i] = elements(dst)
	}
	return compare([]part{{name: o.name, stage: Store, t: o.dtype, perElem: 1, got: got[0], want: got[1]}}, 1, len(got[0])/o.dtype.Size()) != nil
}
