package conformance

import (
	"bytes"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// decodeCase unpacks keys, values or both.
type decodeCase struct {
	op     string
	name   string
	params codec.KVParams // with defaults
	dtype  codec.DType    // of the outputs
	layout layout         // of the outputs
	data   data           // what was packed; "codes" is any codes and normal scales
}

// The operations that decode, by whether they have keys, values and the inverse
// rotation.
var decoders = map[string]struct{ keys, values, unrotate bool }{
	"DecodeKeys":          {keys: true},
	"DecodeValues":        {values: true, unrotate: true},
	"DecodeValuesRotated": {values: true},
	"Decode":              {keys: true, values: true, unrotate: true},
	"DecodeRotated":       {keys: true, values: true},
}

// decode calls the operation. Of k and v, and of the outputs, those that op
// does not have are ignored.
func decode(kv codec.KV, op string, dstK, dstV codec.Tensor, k, v packed) error {
	switch op {
	case "DecodeKeys":
		return kv.DecodeKeys(dstK, k.keys())
	case "DecodeValues":
		return kv.DecodeValues(dstV, v.values())
	case "DecodeValuesRotated":
		return kv.DecodeValuesRotated(dstV, v.values())
	case "Decode":
		return kv.Decode(dstK, dstV, k.keys(), v.values())
	case "DecodeRotated":
		return kv.DecodeRotated(dstK, dstV, k.keys(), v.values())
	}
	panic("conformance: no decoder " + op)
}

// anyCodes is the data of packed forms with any codes, scales that are normal
// numbers, and zero points up to the largest.
var anyCodes = data{name: "codes"}

// packed returns what the case decodes: the reference's encoding of the data,
// or any codes.
func (c *decodeCase) packed(e *env, values bool) packed {
	s := seeded(c.name + " " + operand(values))
	p := c.params
	if c.data.name != anyCodes.name {
		in := encodeCase{params: p, values: values, dtype: codec.F32, layout: c.layout, data: c.data}
		x := codec.NewTensor(codec.F32, append(slices.Clone(c.layout.lead), dim(p, values))...)
		fill(x, in.elements(s))
		var k packed
		if err := encode(e.refKV(p), values, &k, x); err != nil {
			panic("conformance: a case decodes what cannot be encoded: " + err.Error())
		}
		return k
	}
	rows := c.layout.rows()
	codesLen, scalesLen := rowLen(p, values)
	k := packed{shape: append(slices.Clone(c.layout.lead), dim(p, values)), codes: make([]byte, rows*codesLen), scales: make([]byte, rows*scalesLen)}
	for i := range k.codes {
		k.codes[i] = byte(s.next())
	}
	if !values {
		k.zeros = make([]byte, len(k.scales))
	}
	t, size := p.ScaleType, p.ScaleType.Size()
	for i := 0; i < len(k.scales); i += size {
		t.Store(k.scales[i:], (1+float32(s.intn(1024))/1024)*pow2(s.intn(16)-8))
		if !values {
			zero := float32(s.intn(513) - 256)
			if s.intn(16) == 0 {
				zero = pick(s, maxFinite(t), pow2(17))
			}
			t.Store(k.zeros[i:], zero)
		}
	}
	return k
}

// guarded returns p in guarded memory.
func (p packed) guarded(s *stream) (packed, []*memory) {
	var mems []*memory
	place := func(name string, b []byte) []byte {
		m := newMemory(name, len(b), aligns[s.intn(len(aligns))], byte(s.next()))
		copy(m.data, b)
		m.freeze()
		mems = append(mems, m)
		return m.data[:len(b):len(b)]
	}
	return packed{slices.Clone(p.shape), place("codes", p.codes), place("scales", p.scales), place("zeros", p.zeros)}, mems
}

func (c *decodeCase) run(e *env) *Failure {
	has := decoders[c.op]
	kv, p := e.kv(c.params), c.params
	s := seeded(c.name)
	var k, v packed
	var mems []*memory
	outK := output{name: "dst keys", layout: c.layout, dtype: c.dtype, d: p.HeadDim, s: s}
	outV := output{name: "dst values", layout: c.layout, dtype: c.dtype, d: p.ValueHeadDim, s: s}
	if has.keys {
		m := mems
		k, m = c.packed(e, false).guarded(s)
		mems = append(mems, m...)
	}
	if has.values {
		m := mems
		v, m = c.packed(e, true).guarded(s)
		mems = append(mems, m...)
	}
	dstK, memK := outK.make(poisons[0])
	dstV, memV := outV.make(poisons[0])
	refBefore := e.refKV(p).Saturated()
	wantK, wantV := c.want(e, c.dtype, c.op, k, v)
	saturated := e.refKV(p).Saturated() - refBefore
	e.note(c.dtype, wantK.Data)
	e.note(c.dtype, wantV.Data)
	before := kv.Saturated()
	err := decode(kv, c.op, dstK, dstV, k, v)
	for _, m := range mems {
		if off, bad := m.changed(nil); bad {
			return failure(Input, m.name, "byte %d of the input changed", off)
		}
	}
	if f := sameError(err, nil); f != nil {
		return f
	}
	if has.keys {
		if f := outK.written(dstK, memK, wantK, p.Group); f != nil {
			return c.diagnose(e, false, f, k, v)
		}
	}
	if has.values {
		if f := outV.written(dstV, memV, wantV, p.Group); f != nil {
			return c.diagnose(e, true, f, k, v)
		}
	}
	return sameSaturated(kv.Saturated()-before, saturated)
}

// sameSaturated compares how many elements a call saturated.
func sameSaturated(got, want uint64) *Failure {
	if got == want {
		return nil
	}
	return failure(Round, "saturated", "%d elements, want %d", got, want)
}

// want returns what the reference decodes, row-major, in type t.
func (c *decodeCase) want(e *env, t codec.DType, op string, k, v packed) (dstK, dstV codec.Tensor) {
	has, kv := decoders[op], e.refKV(c.params)
	var err error
	if has.keys {
		dstK = codec.NewTensor(t, k.shape...)
		err = kv.DecodeKeys(dstK, k.keys())
	}
	if has.values && err == nil {
		dstV = codec.NewTensor(t, v.shape...)
		if has.unrotate {
			err = kv.DecodeValues(dstV, v.values())
		} else {
			err = kv.DecodeValuesRotated(dstV, v.values())
		}
	}
	if err != nil {
		panic("conformance: the reference does not decode a case: " + err.Error())
	}
	return dstK, dstV
}

// again decodes to row-major memory of type t and reports whether the keys or
// values are right. got and want are what they are.
func (c *decodeCase) again(e *env, values bool, t codec.DType, op string, k, v packed) (got, want codec.Tensor, ok bool) {
	has := decoders[op]
	dstK, dstV := codec.Tensor{}, codec.Tensor{}
	if has.keys {
		dstK = codec.NewTensor(t, k.shape...)
	}
	if has.values {
		dstV = codec.NewTensor(t, v.shape...)
	}
	wantK, wantV := c.want(e, t, op, k, v)
	if decode(e.kv(c.params), op, dstK, dstV, k, v) != nil {
		return
	}
	if values {
		return dstV, wantV, sameWords(dstV, wantV)
	}
	return dstK, wantK, sameWords(dstK, wantK)
}

// diagnose sets the stage of a difference. It decodes again with one thing
// changed at a time.
func (c *decodeCase) diagnose(e *env, values bool, f *Failure, k, v packed) *Failure {
	if f.Stage != Dequantize || e.brief {
		return f
	}
	s := seeded(c.name)
	out := output{layout: c.layout, dtype: c.dtype, d: dim(c.params, values), s: s}
	other := output{layout: c.layout, dtype: c.dtype, d: dim(c.params, !values), s: s}
	if out.stale(func(dst codec.Tensor) error {
		rest, _ := other.make(poisons[0])
		if values {
			return decode(e.kv(c.params), c.op, rest, dst, k, v)
		}
		return decode(e.kv(c.params), c.op, dst, rest, k, v)
	}) {
		f.Stage = Store
		return f
	}
	if _, _, ok := c.again(e, values, c.dtype, c.op, k, v); ok {
		f.Stage = Store
		return f
	}
	if c.dtype != codec.F32 {
		if _, _, ok := c.again(e, values, codec.F32, c.op, k, v); ok {
			f.Stage = Round
			return f
		}
	}
	rotated := map[string]string{"DecodeValues": "DecodeValuesRotated", "Decode": "DecodeRotated"}[c.op]
	if rotated == "" {
		rotated = c.op
	} else if values {
		if _, _, ok := c.again(e, values, codec.F32, rotated, k, v); ok {
			f.Stage = Unrotate
			return f
		}
	}
	// The same codes with scales of 1 and zero points of 0. Where equal codes
	// do not decode to equal numbers, or all numbers are those of other codes,
	// the codes were read wrong.
	unit := func(p packed) packed {
		p.scales, p.zeros = bytes.Clone(p.scales), bytes.Clone(p.zeros)
		for i := 0; i < len(p.scales); i += c.params.ScaleType.Size() {
			c.params.ScaleType.Store(p.scales[i:], 1)
		}
		clear(p.zeros)
		return p
	}
	got, want, ok := c.again(e, values, codec.F32, rotated, unit(k), unit(v))
	if ok {
		return f
	}
	numbers := map[uint64]uint64{}
	consistent, known := true, true
	for i := 0; i+4 <= len(want.Data) && i+4 <= len(got.Data); i += 4 {
		g, w := bitsOf(got.Data[i:i+4]), bitsOf(want.Data[i:i+4])
		if before, ok := numbers[w]; ok && before != g {
			consistent = false
		}
		numbers[w] = g
		known = known && decodes(c.params, values, codec.F32.Load(got.Data[i:]))
	}
	if !consistent || known {
		f.Stage = Unpack
	}
	return f
}

// decodes reports whether a code decodes to x with a scale of 1 and a zero
// point of 0.
func decodes(p codec.KVParams, values bool, x float32) bool {
	if !values {
		n := float32(p.KeyFormat().MaxIndex())
		return f32.Rint(x) == x && x <= n && (x >= 0 || p.Keys.Signed() && x >= -n-1)
	}
	table, err := lloydmax.Lookup(p.Values.Bits())
	return err == nil && slices.Contains(table.AppendCentroids(nil), x)
}
