package ref

import (
	"math"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
)

// KV is the reference KV cache codec, as the front end calls it: operands are
// not checked.
type KV struct {
	params codec.KVParams
	keys   affine.KeyFormat
	table  *lloydmax.Table
	rot    *hadamard.Rotation
}

var _ driver.KV = (*KV)(nil)

// NewKV returns the codec with parameters p, or ErrParams.
func NewKV(p codec.KVParams) (*KV, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p = p.WithDefaults()
	table, err := lloydmax.Lookup(p.Values.Bits())
	if err != nil {
		return nil, err
	}
	rot, err := hadamard.New(p.ValueHeadDim)
	if err != nil {
		return nil, err
	}
	return &KV{params: p, keys: p.KeyFormat(), table: table, rot: rot}, nil
}

// Params returns the parameters with defaults filled in.
func (c *KV) Params() codec.KVParams { return c.params }

// EncodeKeys packs x (docs/numerics.md §1, §2, §5).
func (c *KV) EncodeKeys(dst codec.Keys, x codec.Tensor) (driver.Found, error) {
	d := c.params.HeadDim
	w := newRow(d, c.params.Group)
	if i := firstNonFinite(x, w.canon); i >= 0 {
		return driver.Found{NonFinite: i, Overflow: driver.None}, nil
	}
	codes, scales := c.params.KeyRowLen()
	for r := range x.Rows() {
		x.LoadRow(w.canon, r)
		if g := c.encodeKeyRow(w, part(dst.Codes, r, codes), part(dst.Scales, r, scales), part(dst.Zeros, r, scales)); g >= 0 {
			return driver.Found{NonFinite: driver.None, Overflow: r*d + g*c.params.Group}, nil
		}
	}
	return driver.Nothing, nil
}

// part returns row r of packed rows of n bytes.
func part(b []byte, r, n int) []byte { return b[r*n:][:n] }

// encodeKeyRow packs the row in w.canon. It returns the first group whose
// scale overflows, or -1.
func (c *KV) encodeKeyRow(w *row, codes, scales, zeros []byte) int {
	if c.params.Policy == codec.Compat {
		canonSigned(w.canon)
	} else {
		canon(w.canon)
	}
	t, size, group := c.params.ScaleType, c.params.ScaleType.Size(), c.params.Group
	for g := range len(w.canon) / group {
		x, index := w.canon[g*group:][:group], w.index[g*group:][:group]
		scale, zero := c.keys.Quantize(index, x)
		if c.params.Policy == codec.Finite {
			if f32.IsFinite(t.Round(scale)) && !f32.IsFinite(t.Round(zero)) {
				scale, zero = affine.Midpoint(affine.MinMax(x)), 1
				clear(index)
			}
			if !f32.IsFinite(t.Round(scale)) {
				return g
			}
		}
		w.scale[g], w.zero[g] = scale, zero
		t.Store(scales[g*size:], scale)
		t.Store(zeros[g*size:], zero)
	}
	packRow(codes, w.index, c.params.Keys.Bits())
	return -1
}

// EncodeValues rotates and packs x (docs/numerics.md §1, §3, §4, §5).
func (c *KV) EncodeValues(dst codec.Values, x codec.Tensor) (driver.Found, error) {
	d := c.params.ValueHeadDim
	w := newRow(d, c.params.Group)
	if i := firstNonFinite(x, w.canon); i >= 0 {
		return driver.Found{NonFinite: i, Overflow: driver.None}, nil
	}
	codes, scales := c.params.ValueRowLen()
	for r := range x.Rows() {
		x.LoadRow(w.canon, r)
		if g := c.encodeValueRow(w, part(dst.Codes, r, codes), part(dst.Scales, r, scales)); g >= 0 {
			return driver.Found{NonFinite: driver.None, Overflow: r*d + g*c.params.Group}, nil
		}
	}
	return driver.Nothing, nil
}

// encodeValueRow packs the row in w.canon. It returns the first group whose
// scale overflows, or -1.
func (c *KV) encodeValueRow(w *row, codes, scales []byte) int {
	canon(w.canon)
	copy(w.rotated, w.canon)
	c.rot.Forward(w.rotated)
	t, size, group := c.params.ScaleType, c.params.ScaleType.Size(), c.params.Group
	for g := range len(w.canon) / group {
		y, index := w.rotated[g*group:][:group], w.index[g*group:][:group]
		scale := c.rms(y, w.square)
		if c.params.Scale == codec.Search {
			scale = c.search(scale, y, index, w)
		} else {
			c.quantizeValues(index, y, scale)
		}
		if c.params.Policy == codec.Finite && !f32.IsFinite(t.Round(scale)) {
			return g
		}
		w.scale[g] = scale
		t.Store(scales[g*size:], scale)
	}
	packRow(codes, w.index, c.params.Values.Bits())
	return -1
}

// rms returns the root mean square of a rotated group. square is scratch of
// the group's length.
func (c *KV) rms(y, square []float32) float32 {
	for i, v := range y {
		square[i] = f32.Flush(v * v)
	}
	return f32.Sqrt(f32.Flush(f32.TreeSum(square) * (1 / float32(len(y)))))
}

// quantizeValues sets each index to the level nearest to y / (scale + lloydmax.Eps).
func (c *KV) quantizeValues(index []byte, y []float32, scale float32) {
	se := scale + lloydmax.Eps
	for i, v := range y {
		index[i] = byte(c.table.Index(f32.Flush(v / se)))
	}
}

// search returns the stored scale of least squared error and sets index to go
// with it. Where no candidate is finite, it is the rms that does.
func (c *KV) search(rms float32, y []float32, index []byte, w *row) float32 {
	best, found := rms, false
	var bestErr float32
	for _, factor := range lloydmax.SearchFactors() {
		s := c.params.ScaleType.Round(float32(rms * factor))
		if !f32.IsFinite(s) {
			continue
		}
		c.quantizeValues(w.trial, y, s)
		for i, v := range y {
			e := float32(c.table.Centroid(int(w.trial[i]))*s) - v
			w.square[i] = f32.Flush(e * e)
		}
		if err := f32.TreeSum(w.square); !found || err < bestErr {
			best, bestErr, found = s, err, true
			copy(index, w.trial)
		}
	}
	if !found {
		c.quantizeValues(index, y, rms)
	}
	return best
}

// DecodeKeys unpacks k (docs/numerics.md §2).
func (c *KV) DecodeKeys(dst codec.Tensor, k codec.Keys) (saturated int, err error) {
	w := newRow(c.params.HeadDim, c.params.Group)
	for r := range dst.Rows() {
		c.decodeKeyRow(w, k, r)
		saturated += c.store(dst, r, w.decoded)
	}
	return saturated, nil
}

// DecodeValues unpacks v, and rotates it back unless rotated is set
// (docs/numerics.md §3, §4).
func (c *KV) DecodeValues(dst codec.Tensor, v codec.Values, rotated bool) (saturated int, err error) {
	w := newRow(c.params.ValueHeadDim, c.params.Group)
	for r := range dst.Rows() {
		c.decodeValueRow(w, v, r)
		if !rotated {
			c.rot.Inverse(w.decoded)
		}
		saturated += c.store(dst, r, w.decoded)
	}
	return saturated, nil
}

// Decode is DecodeKeys and DecodeValues.
func (c *KV) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, rotated bool) (saturated int, err error) {
	n, err := c.DecodeKeys(dstK, k)
	if err != nil {
		return n, err
	}
	m, err := c.DecodeValues(dstV, v, rotated)
	return n + m, err
}

// Unrotate rotates rows back (docs/numerics.md §1, §3, §4).
func (c *KV) Unrotate(dst, x codec.Tensor) (saturated int, err error) {
	w := newRow(c.params.ValueHeadDim, c.params.Group)
	for r := range x.Rows() {
		x.LoadRow(w.decoded, r)
		canon(w.decoded)
		c.rot.Inverse(w.decoded)
		saturated += c.store(dst, r, w.decoded)
	}
	return saturated, nil
}

// store rounds x into row r of dst. Under Finite, a finite element that would
// round to an infinity of f16 becomes ±65504 first; store returns how many did
// (docs/numerics.md §2).
func (c *KV) store(dst codec.Tensor, r int, x []float32) (saturated int) {
	return storeRow(dst, r, x, c.params.Policy)
}

// storeRow is the last conversion of a decoder of keys or values.
func storeRow(dst codec.Tensor, r int, x []float32, p codec.Policy) (saturated int) {
	if p == codec.Finite && dst.DType == codec.F16 {
		for i, v := range x {
			if f32.IsFinite(v) && !f32.IsFinite(codec.F16.Round(v)) {
				x[i] = float32(math.Copysign(65504, float64(v)))
				saturated++
			}
		}
	}
	dst.StoreRow(r, x)
	return saturated
}

// decodeKeyRow leaves row r of k in w.decoded.
func (c *KV) decodeKeyRow(w *row, k codec.Keys, r int) {
	t, size, group := c.params.ScaleType, c.params.ScaleType.Size(), c.params.Group
	codesLen, scalesLen := c.params.KeyRowLen()
	scales, zeros := k.Scales[r*scalesLen:][:scalesLen], k.Zeros[r*scalesLen:][:scalesLen]
	unpackRow(w.index, k.Codes[r*codesLen:][:codesLen], c.params.Keys.Bits())
	for g := range len(w.index) / group {
		scale, zero := t.Load(scales[g*size:]), t.Load(zeros[g*size:])
		index, out := w.index[g*group:][:group], w.decoded[g*group:][:group]
		for i, x := range index {
			out[i] = c.keys.Dequantize(x, scale, zero)
		}
		w.scale[g], w.zero[g] = scale, zero
	}
}

// decodeValueRow leaves row r of v, still rotated, in w.decoded.
func (c *KV) decodeValueRow(w *row, v codec.Values, r int) {
	t, size, group := c.params.ScaleType, c.params.ScaleType.Size(), c.params.Group
	codesLen, scalesLen := c.params.ValueRowLen()
	scales := v.Scales[r*scalesLen:][:scalesLen]
	unpackRow(w.index, v.Codes[r*codesLen:][:codesLen], c.params.Values.Bits())
	for g := range len(w.index) / group {
		scale := t.Load(scales[g*size:])
		index, out := w.index[g*group:][:group], w.decoded[g*group:][:group]
		for i, x := range index {
			out[i] = float32(c.table.Centroid(int(x)) * scale)
		}
		w.scale[g] = scale
	}
}

// row holds one row at every stage of an encoder or a decoder.
type row struct {
	canon   []float32 // encoders: the row, canonical
	rotated []float32 // value encoder: after signs and transform
	index   []byte
	scale   []float32 // one a group: before rounding to the scale type when encoding, as stored when decoding
	zero    []float32 // keys only: likewise
	decoded []float32 // decoders: the row in f32
	square  []float32 // scratch of one group
	trial   []byte    // scratch of one group
}

func newRow(dim, group int) *row {
	return &row{
		canon: make([]float32, dim), rotated: make([]float32, dim), index: make([]byte, dim),
		scale: make([]float32, dim/group), zero: make([]float32, dim/group), decoded: make([]float32, dim),
		square: make([]float32, group), trial: make([]byte, group),
	}
}

// canon makes every element canonical (docs/numerics.md §1).
func canon(x []float32) {
	for i, v := range x {
		x[i] = f32.Canon(v)
	}
}

// canonSigned is canon, but a zero keeps the sign of the element it stands for:
// under Compat it reaches the stored zero point.
func canonSigned(x []float32) {
	for i, v := range x {
		if x[i] = f32.Canon(v); x[i] == 0 {
			x[i] = float32(math.Copysign(0, float64(v)))
		}
	}
}

// firstNonFinite returns the index of the first element of x that is not
// finite, or -1. scratch has the length of a row.
func firstNonFinite(x codec.Tensor, scratch []float32) int {
	for r := range x.Rows() {
		x.LoadRow(scratch, r)
		for i, v := range scratch {
			if !f32.IsFinite(v) {
				return r*len(scratch) + i
			}
		}
	}
	return -1
}

// packRow and unpackRow cannot fail: a row is a multiple of 32 elements, every
// index is below 2^bits, and the lengths were computed from it.
func packRow(dst, index []byte, bits int) {
	if err := pack.Pack(dst, index, bits); err != nil {
		panic(err)
	}
}

func unpackRow(index, src []byte, bits int) {
	if err := pack.Unpack(index, src, bits); err != nil {
		panic(err)
	}
}
