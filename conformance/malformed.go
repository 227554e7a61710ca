package conformance

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
)

// operands are what the operations of a KV codec take: x and out for the
// encoders and Unrotate, the rest for decoders.
type operands struct {
	x, out     codec.Tensor
	dstK, dstV codec.Tensor
	k, v       packed
}

// fault is a way for operands to be refused.
type fault struct {
	name string
	ops  []string
	set  func(o *operands)
}

var (
	encoderOps  = []string{"EncodeKeys", "EncodeValues"}
	tensorOps   = []string{"EncodeKeys", "EncodeValues", "Unrotate"}
	keyOps      = []string{"DecodeKeys", "Decode", "DecodeRotated"}
	valueOps    = []string{"DecodeValues", "DecodeValuesRotated", "Decode", "DecodeRotated"}
	jointOps    = []string{"Decode", "DecodeRotated"}
	kvOps       = []string{"EncodeKeys", "EncodeValues", "DecodeKeys", "DecodeValues", "DecodeValuesRotated", "Decode", "DecodeRotated", "Unrotate"}
	unrotateOps = []string{"Unrotate"}
)

var faults = []fault{
	{"none", kvOps, func(*operands) {}},
	{"dtype", tensorOps, func(o *operands) { o.x.DType = 0 }},
	{"dtype-unknown", tensorOps, func(o *operands) { o.x.DType = 77 }},
	{"scalar", tensorOps, func(o *operands) { o.x.Shape = nil }},
	{"dim", tensorOps, func(o *operands) { o.x.Shape = []int{3, o.x.Shape[1] / 2} }},
	{"dim-empty", tensorOps, func(o *operands) { o.x.Shape = []int{0, o.x.Shape[1] + 32} }},
	{"negative", tensorOps, func(o *operands) { o.x.Shape = []int{-3, o.x.Shape[1]} }},
	{"huge", tensorOps, func(o *operands) { o.x.Shape = []int{math.MaxInt / 2, 8, o.x.Shape[1]} }},
	{"short", tensorOps, func(o *operands) { o.x.Data = o.x.Data[:len(o.x.Data)-1] }},
	{"no-data", tensorOps, func(o *operands) { o.x.Data = nil }},
	{"strides", tensorOps, func(o *operands) { o.x.Stride = []int{1} }},
	{"stride-negative", tensorOps, func(o *operands) { o.x.Stride = []int{-1, 1} }},
	{"stride-far", tensorOps, func(o *operands) { o.x.Stride = []int{math.MaxInt, 1} }},
	{"out-dtype", unrotateOps, func(o *operands) { o.out.DType = codec.BF16 }},
	{"out-shape", unrotateOps, func(o *operands) { o.out.Shape = []int{1, 3, o.out.Shape[1]} }},
	{"out-short", unrotateOps, func(o *operands) { o.out.Data = o.out.Data[1:] }},
	{"out-overlap", unrotateOps, func(o *operands) { o.out.Stride = []int{1, 1} }},
	{"out-broadcast", unrotateOps, func(o *operands) { o.out.Stride = []int{0, 1} }},
	{"key-shape", keyOps, func(o *operands) { o.k.shape = []int{2, o.k.shape[1]} }},
	{"key-dim", keyOps, func(o *operands) { o.k.shape = []int{3, o.k.shape[1] * 2} }},
	{"key-negative", keyOps, func(o *operands) { o.k.shape = []int{-1, o.k.shape[1]} }},
	{"key-huge", keyOps, func(o *operands) { o.k.shape = []int{math.MaxInt, 2, o.k.shape[1]} }},
	{"key-codes", keyOps, func(o *operands) { o.k.codes = o.k.codes[1:] }},
	{"key-codes-more", keyOps, func(o *operands) { o.k.codes = append(o.k.codes, 0) }},
	{"key-scales", keyOps, func(o *operands) { o.k.scales = o.k.scales[1:] }},
	{"key-zeros", keyOps, func(o *operands) { o.k.zeros = nil }},
	{"key-dst-shape", keyOps, func(o *operands) { o.dstK.Shape = []int{o.dstK.Shape[1], 3} }},
	{"key-dst-dtype", keyOps, func(o *operands) { o.dstK.DType = 9 }},
	{"key-dst-short", keyOps, func(o *operands) { o.dstK.Data = o.dstK.Data[2:] }},
	{"key-dst-overlap", keyOps, func(o *operands) { o.dstK.Stride = []int{2, 1} }},
	{"value-shape", valueOps, func(o *operands) { o.v.shape = []int{4, o.v.shape[1]} }},
	{"value-codes", valueOps, func(o *operands) { o.v.codes = o.v.codes[:0] }},
	{"value-scales", valueOps, func(o *operands) { o.v.scales = append(o.v.scales, 1, 2) }},
	{"value-dst-shape", valueOps, func(o *operands) { o.dstV.Shape = o.dstV.Shape[1:] }},
	{"value-dst-dtype", valueOps, func(o *operands) { o.dstV.DType = 0 }},
	{"value-dst-broadcast", valueOps, func(o *operands) { o.dstV.Stride = []int{0, 1} }},
	{"dst-dtypes", jointOps, func(o *operands) { o.dstV.DType = codec.BF16 }},
	{"leading", jointOps, func(o *operands) {
		o.v.shape = []int{1, 3, o.v.shape[1]}
		o.dstV.Shape = o.v.shape
	}},
	{"both", jointOps, func(o *operands) { o.k.codes, o.v.codes = nil, nil }},
}

// malformedCase hands an operation operands that do not fit.
type malformedCase struct {
	op    string
	name  string
	fault fault
}

func (c *malformedCase) run(e *env) *Failure {
	p := codec.KVParams{HeadDim: 96, ValueHeadDim: 64, Keys: codec.Q5_0, Values: codec.Q3_0}.WithDefaults()
	kv, refKV := e.kv(p), e.refKV(p)
	s := seeded(c.name)
	mk := func(name string, d int) (codec.Tensor, *memory) {
		t, m := place(name, layouts[0], codec.F16, d, aligns[s.intn(len(aligns))], poisons[0])
		t.Data = t.Data[:3*d*2]
		return t, m
	}
	d := p.HeadDim
	if c.op == "EncodeValues" || c.op == "Unrotate" {
		d = p.ValueHeadDim
	}
	var o operands
	var m [4]*memory
	o.x, m[0] = mk("x", d)
	fill(o.x, (&encodeCase{params: p, dtype: codec.F16, layout: layouts[0], data: normalData, values: d == p.ValueHeadDim}).elements(s))
	o.out, m[1] = mk("dst values", d)
	o.dstK, m[2] = mk("dst keys", p.HeadDim)
	o.dstV, m[3] = mk("dst values", p.ValueHeadDim)
	dc := decodeCase{name: c.name, params: p, layout: layouts[0], data: normalData}
	o.k, o.v = dc.packed(e, false), dc.packed(e, true)
	c.fault.set(&o)
	for _, m := range m {
		m.freeze()
	}
	call := func(kv codec.KV, o operands) (packed, error) {
		dst := packed{[]int{1}, make([]byte, 5), make([]byte, 5), make([]byte, 5)}
		switch c.op {
		case "EncodeKeys", "EncodeValues":
			err := encode(kv, c.op == "EncodeValues", &dst, o.x)
			return dst, err
		case "Unrotate":
			return packed{}, kv.Unrotate(o.out, o.x)
		}
		return packed{}, decode(kv, c.op, o.dstK, o.dstV, o.k, o.v)
	}
	ours := o
	for _, t := range []*codec.Tensor{&ours.out, &ours.dstK, &ours.dstV} {
		t.Data = bytes.Clone(t.Data)
	}
	_, wantErr := call(refKV, ours)
	e.note(0, []byte(describe(wantErr)))
	dst, err := call(kv, o)
	if f := sameError(err, wantErr); f != nil {
		return f
	}
	if (wantErr == nil) != (c.fault.name == "none") {
		return failure(Error, "", "the reference returns %v", wantErr)
	}
	if wantErr == nil {
		return nil
	}
	if len(dst.shape)+len(dst.codes)+len(dst.scales) > 0 {
		return failure(Error, "dst", "not empty after an error: shape %v, %d bytes of codes, %d of scales", dst.shape, len(dst.codes), len(dst.scales))
	}
	if off, bad := m[0].changed(nil); bad {
		return failure(Input, "x", "byte %d of the input changed", off)
	}
	for _, m := range m[1:] {
		if off, bad := m.changed(nil); bad {
			return failure(Store, m.name, "byte %d was written before %v", off, err)
		}
	}
	return nil
}

// paramsCase asks for a codec that does not exist.
type paramsCase struct{ params codec.KVParams }

func (c *paramsCase) run(e *env) *Failure {
	_, want := e.ref.KV(c.params)
	got, err := e.backend.KV(c.params)
	if f := sameError(err, want); f != nil {
		return f
	}
	if err != nil && got != nil {
		return failure(Error, "parameters", "a codec and an error, %v", err)
	}
	return nil
}

// badParams are parameters of no codec, and a few that are at the edge.
func badParams() []codec.KVParams {
	good := codec.KVParams{HeadDim: 64, Keys: codec.Uint8, Values: codec.Q3_0}
	var all []codec.KVParams
	with := func(set func(*codec.KVParams)) {
		p := good
		set(&p)
		all = append(all, p)
	}
	with(func(*codec.KVParams) {})
	with(func(p *codec.KVParams) { *p = codec.KVParams{} })
	for _, d := range []int{-64, 0, 1, 16, 31, 33, 48, 80, 100, math.MaxInt, math.MaxInt &^ 63, math.MinInt} {
		with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = d, 64 })
		with(func(p *codec.KVParams) { p.ValueHeadDim = d })
	}
	for _, d := range []int{288, 352, 8192, 16384} {
		with(func(p *codec.KVParams) { p.ValueHeadDim = d })
	}
	for _, f := range []codec.Format{0, 77, 255} {
		with(func(p *codec.KVParams) { p.Keys = f })
		with(func(p *codec.KVParams) { p.Values = f })
	}
	with(func(p *codec.KVParams) { p.Values = codec.Uint8 })
	with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = codec.MaxHeadDim+32, 64 })
	for _, g := range []int{-32, 1, 16, 48, 96, 128} {
		with(func(p *codec.KVParams) { p.Group = g })
	}
	with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim, p.Group = 96, 64, 64 })
	with(func(p *codec.KVParams) { p.ScaleType = 4 })
	with(func(p *codec.KVParams) { p.Policy = 2 })
	with(func(p *codec.KVParams) { p.Scale = 2 })
	return all
}

// malformedCases returns the cases of this file.
func malformedCases() []Case {
	var cases []Case
	for _, f := range faults {
		for _, op := range kvOps {
			if !slices.Contains(f.ops, op) {
				continue
			}
			c := &malformedCase{op: op, name: fmt.Sprintf("%s(fault=%s)", op, f.name), fault: f}
			cases = append(cases, Case{Op: op, Name: c.name, short: true, run: c.run})
		}
	}
	for _, p := range badParams() {
		c := &paramsCase{p}
		cases = append(cases, Case{Op: "KV", short: true, run: c.run,
			Name: fmt.Sprintf("KV(d=%d,keys=%v,vd=%d,values=%v,group=%d,scale=%d,policy=%d,rule=%d)",
				p.HeadDim, p.Keys, p.ValueHeadDim, p.Values, p.Group, p.ScaleType, p.Policy, p.Scale)})
	}
	return cases
}
