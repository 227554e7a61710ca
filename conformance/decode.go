package conformance

import (
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
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
			return c.staged(f, false, k)
		}
	}
	if has.values {
		if f := outV.written(dstV, memV, wantV, p.Group); f != nil {
			return c.staged(f, true, v)
		}
	}
	return sameSaturated(kv.Saturated()-before, saturated)
}

// sameSaturated compares how many elements a call saturated.
func sameSaturated(got, want uint64) *Failure {
	if got == want {
		return nil
	}
	return failure(Saturate, "saturated", "%d elements, want %d", got, want)
}

// staged adds to f the group at every stage of the reference's decoder.
func (c *decodeCase) staged(f *Failure, values bool, p packed) *Failure {
	if f.Group < 0 {
		return f
	}
	d, n := dim(c.params, values), c.params.Group
	r, lo := f.Group*n/d, f.Group*n%d
	hi, g := lo+n, lo/n
	if values {
		s := refStages(c.params).ValueDecodeStages(p.values(), r)
		f.Detail = fmt.Sprintf("the reference's group: index %v\nscale %v\nrotated %v\nunrotated %v", s.Index[lo:hi], s.Scale[g], s.Rotated[lo:hi], s.Unrotated[lo:hi])
	} else {
		s := refStages(c.params).KeyDecodeStages(p.keys(), r)
		f.Detail = fmt.Sprintf("the reference's group: index %v\nscale %v, zero %v\ndecoded %v", s.Index[lo:hi], s.Scale[g], s.Zero[g], s.Decoded[lo:hi])
	}
	return f
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
