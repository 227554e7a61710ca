package ref

import (
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
)

// KeyStages holds one row of keys at every stage of the encoder. Where another
// backend's bytes differ, the first stage that differs is the one at fault.
type KeyStages struct {
	Canon  []float32 // the canonical row (docs/numerics.md §1)
	Scale  []float32 // one a group, before rounding to the scale type (§2)
	Zero   []float32 // likewise
	Index  []byte    // one an element, not packed; int8 if signed
	Codes  []byte    // Index packed (§5)
	Scales []byte    // Scale in the scale type
	Zeros  []byte    // Zero in the scale type
}

// ValueStages holds one row of values at every stage of the encoder.
type ValueStages struct {
	Canon   []float32 // the canonical row (docs/numerics.md §1)
	Rotated []float32 // after signs and transform (§3)
	Scale   []float32 // one a group, before rounding to the scale type; under Search, which compares stored scales, after (§4)
	Index   []byte    // one an element, not packed
	Codes   []byte    // Index packed (§5)
	Scales  []byte    // Scale in the scale type
}

// KeyDecodeStages holds one row of keys at every stage of the decoder.
type KeyDecodeStages struct {
	Index       []byte    // one an element; int8 if signed
	Scale, Zero []float32 // one a group, widened
	Decoded     []float32 // before rounding to the output type
}

// ValueDecodeStages holds one row of values at every stage of the decoder.
type ValueDecodeStages struct {
	Index     []byte    // one an element
	Scale     []float32 // one a group, widened
	Rotated   []float32 // centroid·scale; DecodeValuesRotated rounds it to the output type
	Unrotated []float32 // rotated back; DecodeValues rounds it to the output type
}

// KeyStages encodes one row of HeadDim keys, already widened to float32. Where
// found is not driver.Nothing the stages are those up to what was found. It
// panics if x has another length.
func (c *KV) KeyStages(x []float32) (s KeyStages, found driver.Found) {
	codes, scales := c.params.KeyRowLen()
	k := codec.Keys{Codes: make([]byte, codes), Scales: make([]byte, scales), Zeros: make([]byte, scales)}
	found, _ = c.EncodeKeys(k, codec.FromF32(x, 1, c.params.HeadDim))
	w := newRow(c.params.HeadDim, c.params.Group)
	copy(w.canon, x)
	c.encodeKeyRow(w, k.Codes, k.Scales, k.Zeros)
	return KeyStages{w.canon, w.scale, w.zero, w.index, k.Codes, k.Scales, k.Zeros}, found
}

// ValueStages encodes one row of ValueHeadDim values, already widened to
// float32, as KeyStages does.
func (c *KV) ValueStages(x []float32) (s ValueStages, found driver.Found) {
	codes, scales := c.params.ValueRowLen()
	v := codec.Values{Codes: make([]byte, codes), Scales: make([]byte, scales)}
	found, _ = c.EncodeValues(v, codec.FromF32(x, 1, c.params.ValueHeadDim))
	w := newRow(c.params.ValueHeadDim, c.params.Group)
	copy(w.canon, x)
	c.encodeValueRow(w, v.Codes, v.Scales)
	return ValueStages{w.canon, w.rotated, w.scale, w.index, v.Codes, v.Scales}, found
}

// KeyDecodeStages decodes row r of k, which are keys that DecodeKeys takes. It
// panics if k has no row r.
func (c *KV) KeyDecodeStages(k codec.Keys, r int) KeyDecodeStages {
	w := newRow(c.params.HeadDim, c.params.Group)
	c.decodeKeyRow(w, k, r)
	return KeyDecodeStages{w.index, w.scale, w.zero, w.decoded}
}

// ValueDecodeStages decodes row r of v, which are values that DecodeValues
// takes. It panics if v has no row r.
func (c *KV) ValueDecodeStages(v codec.Values, r int) ValueDecodeStages {
	w := newRow(c.params.ValueHeadDim, c.params.Group)
	c.decodeValueRow(w, v, r)
	rotated := slices.Clone(w.decoded)
	c.rot.Inverse(w.decoded)
	return ValueDecodeStages{w.index, w.scale, rotated, w.decoded}
}
