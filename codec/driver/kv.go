package driver

import (
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/codec"
)

// kv is the front of a KV, and of the row codes of its sides.
type kv struct {
	*backend
	d                  KV      // nil if both sides are row codes
	keyRows, valueRows RowCode // nil if the side is not
	p                  codec.KVParams
	saturated          atomic.Uint64
}

func (f *backend) newKV(p codec.KVParams) (codec.KV, error) {
	c := &kv{backend: f, p: p}
	grouped := p
	grouped.CentreKeys, grouped.CentreValues = false, false
	var err error
	if p.Keys.RowCode() {
		if c.keyRows, err = f.rowCode(p.Keys, p.HeadDim, p.Policy); err != nil {
			return nil, err
		}
		grouped.Keys, grouped.HeadDim = codec.Q8_0, p.Group
	}
	if p.Values.RowCode() {
		if c.valueRows, err = f.rowCode(p.Values, p.ValueHeadDim, p.Policy); err != nil {
			return nil, err
		}
		grouped.Values, grouped.ValueHeadDim = codec.Q8_0, p.Group
	}
	if c.keyRows == nil || c.valueRows == nil {
		if c.d, err = f.b.KV(grouped); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (f *backend) rowCode(format codec.Format, dim int, p codec.Policy) (RowCode, error) {
	b, ok := f.b.(RowCodes)
	if !ok {
		return nil, f.unsupported("row codes")
	}
	return b.RowCode(format, dim, p)
}

func (c *kv) Params() codec.KVParams { return c.p }
func (c *kv) Saturated() uint64      { return c.saturated.Load() }

func (c *kv) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	*dst = codec.Keys{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0], Zeros: dst.Zeros[:0], Centre: dst.Centre}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkInput("keys", x, c.p.HeadDim); err != nil {
		return err
	}
	centre, err := checkCentre("key", dst.Centre, c.p.CentreKeys, x.Shape)
	if err != nil {
		return err
	}
	rows := x.Rows()
	codes, scales := c.p.KeyRowLen()
	k := codec.Keys{
		Shape:  append(dst.Shape, x.Shape...),
		Codes:  sized(dst.Codes, rows*codes),
		Scales: sized(dst.Scales, rows*scales),
		Zeros:  dst.Zeros,
		Centre: dst.Centre,
	}
	if c.keyRows == nil {
		k.Zeros = sized(dst.Zeros, rows*scales)
	}
	if rows > 0 {
		var found Found
		if c.keyRows != nil {
			found, err = c.keyRows.Encode(k.Codes, k.Scales, x, centre)
		} else {
			found, err = c.d.EncodeKeys(k, x)
		}
		if err := c.encoded("keys", x, found, err, c.keyRows != nil); err != nil {
			return err
		}
	}
	*dst = k
	return nil
}

func (c *kv) EncodeValues(dst *codec.Values, x codec.Tensor) error {
	*dst = codec.Values{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0], Centre: dst.Centre}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkInput("values", x, c.p.ValueHeadDim); err != nil {
		return err
	}
	centre, err := checkCentre("value", dst.Centre, c.p.CentreValues, x.Shape)
	if err != nil {
		return err
	}
	rows := x.Rows()
	codes, scales := c.p.ValueRowLen()
	v := codec.Values{
		Shape:  append(dst.Shape, x.Shape...),
		Codes:  sized(dst.Codes, rows*codes),
		Scales: sized(dst.Scales, rows*scales),
		Centre: dst.Centre,
	}
	if rows > 0 {
		var found Found
		if c.valueRows != nil {
			found, err = c.valueRows.Encode(v.Codes, v.Scales, x, centre)
		} else {
			found, err = c.d.EncodeValues(v, x)
		}
		if err := c.encoded("values", x, found, err, c.valueRows != nil); err != nil {
			return err
		}
	}
	*dst = v
	return nil
}

// encoded returns the error of an encoder that found something in x, or failed.
func (c *kv) encoded(name string, x codec.Tensor, found Found, err error, rows bool) error {
	switch {
	case err != nil:
		return err
	case found.NonFinite != None:
		return nonFinite(name, x, found.NonFinite)
	case found.Overflow != None && rows:
		return scaleOverflow(name, found.Overflow, "the scale of the row that starts here exceeds f16")
	case found.Overflow != None:
		return scaleOverflow(name, found.Overflow, "the scale of the group that starts here exceeds %v", c.p.ScaleType)
	}
	return nil
}

// decoded counts what a decoder saturated.
func (c *kv) decoded(saturated int, err error) error {
	if err == nil && saturated > 0 {
		c.saturated.Add(uint64(saturated))
	}
	return err
}

func (c *kv) DecodeKeys(dst codec.Tensor, k codec.Keys) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	centre, err := checkDecodeKeys(c.p, dst, k)
	if err != nil || dst.Len() == 0 {
		return err
	}
	return c.decoded(c.decodeKeys(dst, k, centre, false))
}

func (c *kv) decodeKeys(dst codec.Tensor, k codec.Keys, centre codec.Centre, rotated bool) (saturated int, err error) {
	if c.keyRows != nil {
		return c.keyRows.Decode(dst, k.Codes, k.Scales, centre, rotated)
	}
	return c.d.DecodeKeys(dst, k)
}

func (c *kv) DecodeValues(dst codec.Tensor, v codec.Values) error {
	return c.decodeValues(dst, v, false)
}

func (c *kv) DecodeValuesRotated(dst codec.Tensor, v codec.Values) error {
	return c.decodeValues(dst, v, true)
}

func (c *kv) decodeValues(dst codec.Tensor, v codec.Values, rotated bool) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	centre, err := checkDecodeValues(c.p, dst, v)
	if err != nil || dst.Len() == 0 {
		return err
	}
	if c.valueRows != nil {
		return c.decoded(c.valueRows.Decode(dst, v.Codes, v.Scales, centre, rotated))
	}
	return c.decoded(c.d.DecodeValues(dst, v, rotated))
}

func (c *kv) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	return c.decode(dstK, dstV, k, v, false)
}

func (c *kv) DecodeRotated(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	return c.decode(dstK, dstV, k, v, true)
}

func (c *kv) decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, rotated bool) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	keyCentre, valueCentre, err := checkDecode(c.p, dstK, dstV, k, v)
	if err != nil || dstK.Len() == 0 {
		return err
	}
	if c.keyRows == nil && c.valueRows == nil {
		return c.decoded(c.d.Decode(dstK, dstV, k, v, rotated))
	}
	if err := c.decoded(c.decodeKeys(dstK, k, keyCentre, rotated)); err != nil {
		return err
	}
	if c.valueRows != nil {
		return c.decoded(c.valueRows.Decode(dstV, v.Codes, v.Scales, valueCentre, rotated))
	}
	return c.decoded(c.d.DecodeValues(dstV, v, rotated))
}

func (c *kv) Unrotate(dst, x codec.Tensor) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkUnrotate(c.p, dst, x); err != nil || dst.Len() == 0 {
		return err
	}
	if c.valueRows != nil {
		return c.decoded(c.valueRows.Unrotate(dst, x, codec.Centre{}, codec.Tensor{}))
	}
	return c.decoded(c.d.Unrotate(dst, x))
}

func (c *kv) UnrotateCentred(dst, x codec.Tensor, centre codec.Centre, mass codec.Tensor) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if !c.p.CentreValues {
		return &codec.Error{Err: codec.ErrParams, Index: codec.NoIndex, Reason: "the values are not centred"}
	}
	if err := checkUnrotate(c.p, dst, x); err != nil {
		return err
	}
	centre, err := checkCentre("value", centre, true, x.Shape)
	if err != nil {
		return err
	}
	if err := checkMass(mass, x.Shape); err != nil || dst.Len() == 0 {
		return err
	}
	return c.decoded(c.valueRows.Unrotate(dst, x, centre, mass))
}
