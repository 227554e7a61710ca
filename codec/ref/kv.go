package ref

import (
	"math"
	"sync"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
)

// eps keeps a scale of zero from dividing (docs/numerics.md §2, §4).
const eps float32 = 1e-8

// KV is the reference KV cache codec.
type KV struct {
	params codec.KVParams
	keys   affine.KeyFormat
	table  *lloydmax.Table
	rot    *hadamard.Rotation
	rows   sync.Pool // of *row
}

var _ codec.KV = (*KV)(nil)

// NewKV returns the codec with parameters p, or ErrParams.
func NewKV(p codec.KVParams) (*KV, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p = p.WithDefaults()
	table, err := lloydmax.Lookup(p.ValueBits)
	if err != nil {
		return nil, err
	}
	rot, err := hadamard.New(p.ValueHeadDim)
	if err != nil {
		return nil, err
	}
	kv := &KV{params: p, keys: p.KeyFormat(), table: table, rot: rot}
	kv.rows.New = func() any { return newRow(max(p.HeadDim, p.ValueHeadDim), p.Group) }
	return kv, nil
}

// Params returns the parameters with defaults filled in.
func (c *KV) Params() codec.KVParams { return c.params }

// EncodeKeys packs x (docs/numerics.md §1, §2, §5).
func (c *KV) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	*dst = codec.Keys{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0], Zeros: dst.Zeros[:0]}
	d := c.params.HeadDim
	w := c.rows.Get().(*row)
	defer c.rows.Put(w)
	w.resize(d)
	if err := c.params.CheckEncodeKeys(x); err != nil {
		return err
	}
	if err := checkFinite("keys", x, w.canon); err != nil {
		return err
	}
	rows := x.Rows()
	codesLen, scalesLen := c.params.KeyRowLen()
	codes := sized(dst.Codes, rows*codesLen)
	scales := sized(dst.Scales, rows*scalesLen)
	zeros := sized(dst.Zeros, rows*scalesLen)
	for r := range rows {
		x.LoadRow(w.canon, r)
		if g := c.encodeKeyRow(w, codes[r*codesLen:][:codesLen], scales[r*scalesLen:][:scalesLen], zeros[r*scalesLen:][:scalesLen]); g >= 0 {
			return codec.ScaleOverflow("keys", r*d+g*c.params.Group, c.params.ScaleType)
		}
	}
	*dst = codec.Keys{Shape: append(dst.Shape, x.Shape...), Codes: codes, Scales: scales, Zeros: zeros}
	return nil
}

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
	packRow(codes, w.index, c.params.KeyBits)
	return -1
}

// EncodeValues rotates and packs x (docs/numerics.md §1, §3, §4, §5).
func (c *KV) EncodeValues(dst *codec.Values, x codec.Tensor) error {
	*dst = codec.Values{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
	d := c.params.ValueHeadDim
	w := c.rows.Get().(*row)
	defer c.rows.Put(w)
	w.resize(d)
	if err := c.params.CheckEncodeValues(x); err != nil {
		return err
	}
	if err := checkFinite("values", x, w.canon); err != nil {
		return err
	}
	rows := x.Rows()
	codesLen, scalesLen := c.params.ValueRowLen()
	codes := sized(dst.Codes, rows*codesLen)
	scales := sized(dst.Scales, rows*scalesLen)
	for r := range rows {
		x.LoadRow(w.canon, r)
		if g := c.encodeValueRow(w, codes[r*codesLen:][:codesLen], scales[r*scalesLen:][:scalesLen]); g >= 0 {
			return codec.ScaleOverflow("values", r*d+g*c.params.Group, c.params.ScaleType)
		}
	}
	*dst = codec.Values{Shape: append(dst.Shape, x.Shape...), Codes: codes, Scales: scales}
	return nil
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
	packRow(codes, w.index, c.params.ValueBits)
	return -1
}

// rms returns the root mean square of a rotated group. square is scratch of
// the group's length.
func (c *KV) rms(y, square []float32) float32 {
	for i, v := range y {
		square[i] = flush(v * v)
	}
	return f32.Sqrt(flush(f32.TreeSum(square) * (1 / float32(len(y)))))
}

// quantizeValues sets each index to the level nearest to y / (scale + eps).
func (c *KV) quantizeValues(index []byte, y []float32, scale float32) {
	se := scale + eps
	for i, v := range y {
		index[i] = byte(c.table.Index(flush(v / se)))
	}
}

// searchSteps are the multiples of the rms, in sixteenths, that Search tries,
// in this order.
var searchSteps = [...]float32{16, 15, 17, 14, 18, 13, 19, 12, 20}

// search returns the stored scale of least squared error and sets index to go
// with it. Where no candidate is finite, it is the rms that does.
func (c *KV) search(rms float32, y []float32, index []byte, w *row) float32 {
	best, found := rms, false
	var bestErr float32
	for _, step := range searchSteps {
		s := c.params.ScaleType.Round(float32(rms * (step / 16)))
		if !f32.IsFinite(s) {
			continue
		}
		c.quantizeValues(w.trial, y, s)
		for i, v := range y {
			e := float32(c.table.Centroid(int(w.trial[i]))*s) - v
			w.square[i] = flush(e * e)
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
func (c *KV) DecodeKeys(dst codec.Tensor, k codec.Keys) error {
	if err := c.params.CheckDecodeKeys(dst, k); err != nil {
		return err
	}
	c.decodeKeys(dst, k)
	return nil
}

// DecodeValues unpacks v and rotates it back (docs/numerics.md §3, §4).
func (c *KV) DecodeValues(dst codec.Tensor, v codec.Values) error {
	if err := c.params.CheckDecodeValues(dst, v); err != nil {
		return err
	}
	c.decodeValues(dst, v, true)
	return nil
}

// DecodeValuesRotated unpacks v and leaves it rotated (docs/numerics.md §4).
func (c *KV) DecodeValuesRotated(dst codec.Tensor, v codec.Values) error {
	if err := c.params.CheckDecodeValues(dst, v); err != nil {
		return err
	}
	c.decodeValues(dst, v, false)
	return nil
}

// Decode is DecodeKeys and DecodeValues.
func (c *KV) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	if err := c.params.CheckDecode(dstK, dstV, k, v); err != nil {
		return err
	}
	c.decodeKeys(dstK, k)
	c.decodeValues(dstV, v, true)
	return nil
}

// DecodeRotated is DecodeKeys and DecodeValuesRotated.
func (c *KV) DecodeRotated(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	if err := c.params.CheckDecode(dstK, dstV, k, v); err != nil {
		return err
	}
	c.decodeKeys(dstK, k)
	c.decodeValues(dstV, v, false)
	return nil
}

func (c *KV) decodeKeys(dst codec.Tensor, k codec.Keys) {
	w := c.rows.Get().(*row)
	defer c.rows.Put(w)
	w.resize(c.params.HeadDim)
	for r := range dst.Rows() {
		c.decodeKeyRow(w, k, r)
		dst.StoreRow(r, w.decoded)
	}
}

// decodeKeyRow leaves row r of k in w.decoded.
func (c *KV) decodeKeyRow(w *row, k codec.Keys, r int) {
	t, size, group := c.params.ScaleType, c.params.ScaleType.Size(), c.params.Group
	codesLen, scalesLen := c.params.KeyRowLen()
	scales, zeros := k.Scales[r*scalesLen:][:scalesLen], k.Zeros[r*scalesLen:][:scalesLen]
	unpackRow(w.index, k.Codes[r*codesLen:][:codesLen], c.params.KeyBits)
	for g := range len(w.index) / group {
		scale, zero := t.Load(scales[g*size:]), t.Load(zeros[g*size:])
		index, out := w.index[g*group:][:group], w.decoded[g*group:][:group]
		for i, x := range index {
			out[i] = c.keys.Dequantize(x, scale, zero)
		}
		w.scale[g], w.zero[g] = scale, zero
	}
}

func (c *KV) decodeValues(dst codec.Tensor, v codec.Values, unrotate bool) {
	w := c.rows.Get().(*row)
	defer c.rows.Put(w)
	w.resize(c.params.ValueHeadDim)
	for r := range dst.Rows() {
		c.decodeValueRow(w, v, r)
		if unrotate {
			c.rot.Inverse(w.decoded)
		}
		dst.StoreRow(r, w.decoded)
	}
}

// decodeValueRow leaves row r of v, still rotated, in w.decoded.
func (c *KV) decodeValueRow(w *row, v codec.Values, r int) {
	t, size, group := c.params.ScaleType, c.params.ScaleType.Size(), c.params.Group
	codesLen, scalesLen := c.params.ValueRowLen()
	scales := v.Scales[r*scalesLen:][:scalesLen]
	unpackRow(w.index, v.Codes[r*codesLen:][:codesLen], c.params.ValueBits)
	for g := range len(w.index) / group {
		scale := t.Load(scales[g*size:])
		index, out := w.index[g*group:][:group], w.decoded[g*group:][:group]
		for i, x := range index {
			out[i] = float32(c.table.Centroid(int(x)) * scale)
		}
		w.scale[g] = scale
	}
}

// Unrotate rotates rows back (docs/numerics.md §1, §3, §4).
func (c *KV) Unrotate(dst, x codec.Tensor) error {
	if err := c.params.CheckUnrotate(dst, x); err != nil {
		return err
	}
	w := c.rows.Get().(*row)
	defer c.rows.Put(w)
	w.resize(c.params.ValueHeadDim)
	for r := range x.Rows() {
		x.LoadRow(w.decoded, r)
		canon(w.decoded)
		c.rot.Inverse(w.decoded)
		dst.StoreRow(r, w.decoded)
	}
	return nil
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

// resize sets the number of elements.
func (w *row) resize(dim int) {
	groups := dim / len(w.square)
	w.canon, w.rotated, w.index, w.decoded = w.canon[:dim], w.rotated[:dim], w.index[:dim], w.decoded[:dim]
	w.scale, w.zero = w.scale[:groups], w.zero[:groups]
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

// flush returns +0 for a magnitude below the smallest normal f32: a device
// that flushes subnormals must not decide a bit (docs/numerics.md §1).
func flush(x float32) float32 {
	const smallest = 0x00800000 // bits of 2^-126
	if math.Float32bits(x)&0x7fffffff < smallest {
		return 0
	}
	return x
}

// checkFinite reports the first element of x that is not finite. scratch has
// the length of a row.
func checkFinite(name string, x codec.Tensor, scratch []float32) error {
	for r := range x.Rows() {
		x.LoadRow(scratch, r)
		for i, v := range scratch {
			if !f32.IsFinite(v) {
				return codec.NonFinite(name, r*len(scratch)+i, v)
			}
		}
	}
	return nil
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

// sized returns b with length n, in the same memory if it is large enough.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
