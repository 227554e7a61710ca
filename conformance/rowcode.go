package conformance

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// rowFormats are the row codes.
var rowFormats = []codec.Format{codec.R2, codec.R3, codec.R4, codec.R5, codec.T2, codec.T3, codec.T4}

// rowCase runs row codes through the methods of a KV codec.
type rowCase struct {
	op      string // EncodeRows, DecodeRows, UnrotateRows
	name    string
	format  codec.Format
	d       int
	side    string // keys, values, joint
	policy  codec.Policy
	centre  string // none, or a kind of centre
	rotated bool   // DecodeRows
	inPlace bool   // UnrotateRows
	dtype   codec.DType
	layout  layout
	data    string
}

func (c *rowCase) make() Case {
	c.name = fmt.Sprintf("%s(format=%v,d=%d,policy=%v,centre=%s", c.op, c.format, c.d, c.policy, c.centre)
	run := c.unrotate
	switch c.op {
	case "EncodeRows":
		c.name += ",side=" + c.side
		run = c.encode
	case "DecodeRows":
		c.name += fmt.Sprintf(",side=%s,rotated=%t", c.side, c.rotated)
		run = c.decode
	case "UnrotateRows":
		c.name += fmt.Sprintf(",inplace=%t", c.inPlace)
	}
	c.name += fmt.Sprintf(",dtype=%v,layout=%s,data=%s)", c.dtype, c.layout.name, c.data)
	return Case{Op: c.op, Name: c.name, run: run}
}

func (c *rowCase) params() codec.KVParams {
	p := codec.KVParams{HeadDim: c.d, ValueHeadDim: c.d, Keys: c.format, Values: c.format, Policy: c.policy}
	p.CentreKeys = c.centre != "none" && c.side != "values"
	p.CentreValues = c.centre != "none" && c.side != "keys"
	return p.WithDefaults()
}

// elements fills rows of a tensor.
func (c *rowCase) elements(x []float32, s *stream) {
	for i := range x {
		r, j := i/c.d, i%c.d
		x[i] = s.normal()
		switch c.data {
		case "normal":
		case "rows": // a scale for each row, from the least code to the largest; zeros
			x[i] *= pow2(r%36 - 20)
			if r%5 == 3 {
				x[i] = pick(s, 0)
			}
		case "channels": // means and spreads of their own, one channel far out, one of no spread
			x[i] = float32(j%5-2) + x[i]*pow2(-j%7)
			if j == 3 {
				x[i] = 300 + x[i]
			} else if j == 4 {
				x[i] = 0.5
			}
		case "constant":
			x[i] = 0.75
		case "quarters":
			x[i] = float32(s.intn(9)-4) * 0.25
		case "thresholds":
			if s.intn(2) == 0 {
				x[i] = pick(s, thresholds...)
			}
		case "large": // scales about the largest, and beyond
			x[i] *= pow2(13 + r%4)
		case "nonfinite":
			if i == len(x)*2/3 || i == len(x)-1 {
				x[i] = pick(s, inf, nan)
			}
		case "error-ties":
			x[i] = 0
		default:
			panic("conformance: no data " + c.data)
		}
	}
	if c.data == "error-ties" {
		for i := 0; i < len(x); i += c.d {
			x[i+s.intn(c.d)] = c.errorTie(s)
		}
	}
}

// errorTie returns the one element, not zero, of a row whose rotated elements are all ±y, with y halfway between what
// two scales give: their squared errors are equal, and less than those of the other scales that are tried. d is 64 or
// 256.
func (c *rowCase) errorTie(s *stream) float32 {
	root := map[int]float32{64: 8, 256: 16}[c.d]
	ties := errorTies(c.format.Bits())
	return ties[s.intn(len(ties))] * root
}

func errorTies(bits int) (ties []float32) {
	table, err := lloydmax.Lookup(bits)
	if err != nil {
		panic(err)
	}
	type value struct {
		x    float32
		code int
	}
	for c0 := 100; c0 < 108; c0++ { // an octave
		var values []value
		for code := c0 - 4; code <= c0+4; code++ {
			for level := table.Levels() / 2; level < table.Levels(); level++ {
				values = append(values, value{float32(table.Centroid(level) * pack.FromF16(uint16(code<<7))), code})
			}
		}
		slices.SortFunc(values, func(a, b value) int { return cmp.Compare(a.x, b.x) })
		for i := 1; i < len(values); i++ {
			lo, hi := values[i-1], values[i]
			y := float32((float64(lo.x) + float64(hi.x)) / 2)
			if lo.code != hi.code && y-lo.x == hi.x-y && (int(pack.ToF16(y))+64)>>7 == c0 {
				ties = append(ties, y)
			}
		}
	}
	return ties
}

// centreOf returns the case's centre of rows x.
func (c *rowCase) centreOf(x codec.Tensor, s *stream) codec.Centre {
	if c.centre == "none" {
		return codec.Centre{}
	}
	if c.centre == "usual" && x.Rows() > 0 && len(x.Shape) > 1 {
		if centre, err := codec.NewCentre(x); err == nil {
			return centre
		}
	}
	centre := codec.Centre{Mean: codec.NewTensor(codec.F16, c.d), Gain: codec.NewTensor(codec.F16, c.d)}
	for j := range c.d {
		mean, gain := s.normal(), 0.5+float32(s.intn(1024))/1024
		switch c.centre {
		case "tiny":
			mean, gain = pick(s, 0, 0x1p-24, 0x1p-14), pick(s, 0x1p-12, 0x1p-14)
			gain = max(gain, -gain)
		case "huge":
			mean, gain = pick(s, 0, 65504, 1000), 65504
		case "far": // one channel
			if j == 5 {
				mean, gain = -2000, 32
			}
		}
		codec.F16.Store(centre.Mean.Data[2*j:], mean)
		codec.F16.Store(centre.Gain.Data[2*j:], gain)
	}
	return centre
}

func (c *rowCase) encode(e *env) *Failure {
	p, s := c.params(), seeded(c.name)
	kv, refKV := e.kv(p), e.refKV(p)
	x, mem := place(c.side, c.layout, c.dtype, c.d, aligns[s.intn(len(aligns))], byte(s.next()))
	v := make([]float32, c.layout.rows()*c.d)
	c.elements(v, s)
	fill(x, v)
	mem.freeze()
	plain := dense(x)
	centre := c.centreOf(plain, s)
	call := func(kv codec.KV, x codec.Tensor, codes, scales []byte) ([]byte, []byte, error) {
		if c.side == "keys" {
			k := codec.Keys{Codes: codes, Scales: scales, Centre: centre}
			err := kv.EncodeKeys(&k, x)
			return k.Codes, k.Scales, err
		}
		v := codec.Values{Codes: codes, Scales: scales, Centre: centre}
		err := kv.EncodeValues(&v, x)
		return v.Codes, v.Scales, err
	}
	wantCodes, wantScales, wantErr := call(refKV, plain, nil, nil)
	e.note(0, []byte(describe(wantErr)))
	e.note(0, wantCodes)
	e.note(0, wantScales)
	rows := c.layout.rows()
	room := []*memory{newMemory("codes", rows*c.d*c.format.Bits()/8, aligns[s.intn(len(aligns))], poisons[0]), newMemory("scales", rows, aligns[s.intn(len(aligns))], poisons[0])}
	for _, m := range room {
		m.freeze()
	}
	codes, scales, err := call(kv, x, room[0].data[:0], room[1].data[:0])
	if off, bad := mem.changed(nil); bad {
		return failure(Input, c.side, "byte %d of the input changed", off)
	}
	for _, m := range room {
		if off, bad := m.changed(func(int) bool { return true }); bad {
			return failure(Bounds, m.name, "byte %d was written, beyond the %d of the output", off, len(m.data))
		}
	}
	if f := sameError(err, wantErr); f != nil || wantErr != nil {
		if f == nil && len(codes)+len(scales) != 0 {
			f = failure(Error, "dst", "output of %d and %d bytes after an error, want none", len(codes), len(scales))
		}
		return f
	}
	if len(codes) != len(wantCodes) || len(scales) != len(wantScales) {
		return failure(Bounds, "codes", "%d and %d bytes, want %d and %d", len(codes), len(scales), len(wantCodes), len(wantScales))
	}
	index := part{name: "codes", stage: Index, perElem: 1}
	if index.got, index.want = c.numbers(codes), c.numbers(wantCodes); c.format.Trellis() {
		index.name, index.stage, index.wide = "states", States, 2
	}
	return compare([]part{{name: "scales", stage: Scale, perElem: c.d, got: scales, want: wantScales}, index}, c.d, rows)
}

// numbers returns packed codes as indices, or as states of two bytes.
func (c *rowCase) numbers(codes []byte) []byte {
	if !c.format.Trellis() {
		index := make([]byte, len(codes)*8/c.format.Bits())
		if err := pack.Unpack(index, codes, c.format.Bits()); err != nil {
			panic(err)
		}
		return index
	}
	words := make([]uint32, len(codes)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(codes[4*i:])
	}
	states, err := trellis.AppendUnpackStates(nil, words, trellis.Params{L: trellis.RowL, K: c.format.Bits(), T: c.d})
	if err != nil {
		panic(err)
	}
	return bytesOf(states)
}

func (c *rowCase) decode(e *env) *Failure {
	p, s := c.params(), seeded(c.name)
	kv, refKV := e.kv(p), e.refKV(p)
	rows := c.layout.rows()
	shape := append(slices.Clone(c.layout.lead), c.d)
	codes, scales := make([]byte, rows*c.d*c.format.Bits()/8), make([]byte, rows)
	for i := range codes {
		codes[i] = byte(s.next())
	}
	for i := range scales {
		scales[i] = byte(1 + s.intn(200))
		if c.data == "ends" {
			scales[i] = []byte{0, 1, 2, 246, 247}[s.intn(5)]
		}
	}
	guarded, mems := packed{codes: codes, scales: scales}.guarded(s)
	codes, scales = guarded.codes, guarded.scales
	centre := c.centreOf(codec.NewTensor(codec.F32, 0, c.d), s)
	k := codec.Keys{Shape: shape, Codes: codes, Scales: scales, Centre: centre}
	v := codec.Values{Shape: shape, Codes: codes, Scales: scales, Centre: centre}
	call := func(kv codec.KV, dst, other codec.Tensor) error {
		switch {
		case c.side == "keys":
			return kv.DecodeKeys(dst, k)
		case c.side == "values" && c.rotated:
			return kv.DecodeValuesRotated(dst, v)
		case c.side == "values":
			return kv.DecodeValues(dst, v)
		case c.rotated:
			return kv.DecodeRotated(dst, other, k, v)
		}
		return kv.Decode(dst, other, k, v)
	}
	other := func() (t codec.Tensor) {
		if c.side == "joint" {
			t = codec.NewTensor(c.dtype, shape...)
		}
		return t
	}
	before, refBefore := kv.Saturated(), refKV.Saturated()
	want, wantOther, gotOther := codec.NewTensor(c.dtype, shape...), other(), other()
	if err := call(refKV, want, wantOther); err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	e.note(c.dtype, want.Data)
	saturated := refKV.Saturated() - refBefore
	out := output{name: "dst " + c.side, layout: c.layout, dtype: c.dtype, d: c.d, s: s}
	f := out.check(func(dst codec.Tensor) error { return call(kv, dst, gotOther) }, want, c.d)
	for _, m := range mems {
		if off, bad := m.changed(nil); bad {
			return failure(Input, m.name, "byte %d of the input changed", off)
		}
	}
	if f == nil && c.side == "joint" {
		f = compare([]part{{name: "dst values", stage: Dequantize, t: c.dtype, perElem: 1, got: gotOther.Data, want: wantOther.Data}}, c.d, rows)
	}
	if f == nil {
		f = sameSaturated(kv.Saturated()-before, saturated)
	}
	return f
}

func (c *rowCase) unrotate(e *env) *Failure {
	p, s := c.params(), seeded(c.name)
	kv, refKV := e.kv(p), e.refKV(p)
	x, mem := place("values", c.layout, c.dtype, c.d, aligns[s.intn(len(aligns))], byte(s.next()))
	v := make([]float32, c.layout.rows()*c.d)
	c.elements(v, s)
	fill(x, v)
	mem.freeze()
	plain := dense(x)
	centre := c.centreOf(codec.NewTensor(codec.F32, 0, c.d), s)
	mass := codec.NewTensor(codec.F32, append(slices.Clone(c.layout.lead), 1)...)
	for i := range mass.Len() {
		mass.DType.Store(mass.Data[i*mass.DType.Size():], float32(s.intn(257))/256)
	}
	call := func(kv codec.KV, dst, x codec.Tensor) error {
		if c.centre == "none" {
			return kv.Unrotate(dst, x)
		}
		return kv.UnrotateCentred(dst, x, centre, mass)
	}
	before, refBefore := kv.Saturated(), refKV.Saturated()
	want := codec.NewTensor(c.dtype, x.Shape...)
	if err := call(refKV, want, plain); err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	e.note(c.dtype, want.Data)
	saturated := refKV.Saturated() - refBefore
	out := output{name: "dst values", layout: c.layout, dtype: c.dtype, d: c.d, s: s}
	if c.inPlace {
		out.at, out.mem = &x, mem
	}
	f := out.check(func(dst codec.Tensor) error { return call(kv, dst, x) }, want, c.d)
	if off, bad := mem.changed(nil); bad && !c.inPlace {
		return failure(Input, "values", "byte %d of the input changed", off)
	}
	if f == nil {
		f = sameSaturated(kv.Saturated()-before, saturated)
	}
	if f != nil && f.Stage == Dequantize {
		f.Stage = Unrotate
	}
	return f
}

func rowCases() []Case {
	var cases []Case
	add := func(short uint64, c rowCase) {
		k := c.make()
		k.short = sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	dims := []int{32, 64, 96, 128, 160, 224, 256}
	dim := func() int { return dims[t.step()%len(dims)] }
	sides := []string{"keys", "values"}
	centres := []string{"none", "usual", "shared", "tiny", "huge", "far"}
	writable := slices.DeleteFunc(slices.Clone(layouts), func(l layout) bool { return l.repeat })
	for _, f := range rowFormats {
		for _, centre := range centres {
			for _, d := range []string{"normal", "rows", "channels", "constant", "quarters", "thresholds", "large", "nonfinite"} {
				add(16, rowCase{op: "EncodeRows", format: f, d: dim(), side: sides[t.step()%2], centre: centre, dtype: t.dtype(), layout: layouts[0], data: d})
			}
			for _, side := range []string{"keys", "values", "joint"} {
				for _, data := range []string{"any", "ends"} {
					add(12, rowCase{op: "DecodeRows", format: f, d: dim(), side: side, policy: t.policy(), centre: centre, rotated: side != "keys" && centre == "none" && t.step()%2 == 0,
						dtype: t.dtype(), layout: layouts[0], data: data})
				}
			}
			add(12, rowCase{op: "UnrotateRows", format: f, d: dim(), side: "values", policy: t.policy(), centre: centre, dtype: t.dtype(), layout: layouts[0], data: "normal", inPlace: t.step()%2 == 0})
		}
		for _, l := range layouts {
			add(16, rowCase{op: "EncodeRows", format: f, d: dim(), side: sides[t.step()%2], centre: centres[t.step()%2], dtype: t.dtype(), layout: l, data: "normal"})
		}
		for _, l := range writable {
			centre := centres[t.step()%2*2]
			add(16, rowCase{op: "DecodeRows", format: f, d: dim(), side: sides[t.step()%2], centre: centre, dtype: t.dtype(), layout: l, data: "any"})
			add(16, rowCase{op: "UnrotateRows", format: f, d: dim(), side: "values", centre: centre, dtype: t.dtype(), layout: l, data: "large", inPlace: t.step()%2 == 0})
		}
		// Rows that take several registers of each of a GPU's lanes.
		add(12, rowCase{op: "EncodeRows", format: f, d: 512, side: "keys", centre: "usual", dtype: codec.F16, layout: layouts[0], data: "normal"})
		add(12, rowCase{op: "DecodeRows", format: f, d: 512, side: "values", centre: "usual", dtype: codec.BF16, layout: layouts[0], data: "any"})
		add(12, rowCase{op: "UnrotateRows", format: f, d: 512, side: "values", centre: "usual", dtype: codec.F32, layout: layouts[0], data: "normal"})
		if f.Trellis() { // short rows, whose paths depend on the seam
			add(1, rowCase{op: "EncodeRows", format: f, d: 32, side: "keys", centre: "none", dtype: codec.F32, layout: layout{name: "many", lead: []int{67}}, data: "normal"})
		} else if len(errorTies(f.Bits())) > 0 {
			for _, d := range []int{64, 256} {
				add(1, rowCase{op: "EncodeRows", format: f, d: d, side: "keys", centre: "none", dtype: codec.F32, layout: layout{name: "few", lead: []int{9}}, data: "error-ties"})
			}
		}
	}
	return cases
}
