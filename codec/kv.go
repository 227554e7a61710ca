package codec

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/enum"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Policy says what an encoder does with data that the format cannot hold
// (docs/numerics.md §2, §6).
type Policy = trellis.Policy

const (
	// Finite, the default, never stores an infinity or NaN: a group of keys
	// whose zero point would overflow is stored as a constant, and a scale
	// that overflows is ErrScaleOverflow. Its decoders saturate to f16.
	Finite = trellis.Finite
	// Compat stores what the formula gives, infinities included, as
	// vllm-metal and mlx-bun do.
	Compat = trellis.Compat
)

// ScaleRule says how an encoder chooses the scale of a group of values. The
// format and the decoder are the same (docs/numerics.md §4).
type ScaleRule uint8

const (
	// RMS, the default, is the root mean square of the rotated group.
	RMS ScaleRule = iota
	// Search tries nine scales around it and keeps the one with the least
	// squared error, at about nine times the cost.
	Search
)

var scaleRules = []string{RMS: "rms", Search: "search"}

// String returns rms or search.
func (s ScaleRule) String() string { return enum.String("ScaleRule", scaleRules, int(s)) }

// MarshalText returns what String does, or an error for an unknown rule.
func (s ScaleRule) MarshalText() ([]byte, error) {
	return enum.Marshal("ScaleRule", "scale rule", scaleRules, int(s))
}

// UnmarshalText reads rms or search.
func (s *ScaleRule) UnmarshalText(text []byte) error {
	i, err := enum.Unmarshal("scale rule", scaleRules, text)
	if err == nil {
		*s = ScaleRule(i)
	}
	return err
}

// MaxHeadDim bounds the head dimensions. An encoder or decoder keeps a row at
// every stage in memory, at most 32 bytes per element.
const MaxHeadDim = 1 << 20

// KVParams says how a KV cache is packed. The zero value of every field but
// HeadDim, Keys and Values is the usual choice. Methods other than
// WithDefaults and Validate need valid parameters.
type KVParams struct {
	HeadDim      int       // keys' head dimension: a multiple of Group up to MaxHeadDim
	ValueHeadDim int       // values' head dimension, 2^k or m·2^k (hadamard.Supported) and a multiple of Group; 0 means HeadDim
	Keys         Format    // one of KeyFormats
	Values       Format    // one of ValueFormats
	Group        int       // elements that share a scale, 32 or 64; 0 means 32
	ScaleType    DType     // type of stored scales and zero points; 0 means F16
	Policy       Policy    // what happens to degenerate groups
	Scale        ScaleRule // how values' scales are chosen

	// CentreKeys and CentreValues code rows less a mean and divided by a gain
	// (Centre). They need a row code.
	CentreKeys, CentreValues bool
}

// WithDefaults returns p with ValueHeadDim, Group and ScaleType filled in
// where they are zero.
func (p KVParams) WithDefaults() KVParams {
	if p.ValueHeadDim == 0 {
		p.ValueHeadDim = p.HeadDim
	}
	if p.Group == 0 {
		p.Group = 32
	}
	if p.ScaleType == 0 {
		p.ScaleType = F16
	}
	return p
}

// Validate reports the first field that describes no codec, as ErrParams.
func (p KVParams) Validate() error {
	p = p.WithDefaults()
	if p.Group != 32 && p.Group != 64 {
		return paramsError("group %d: want 32 or 64", p.Group)
	}
	if !slices.Contains(KeyFormats(), p.Keys) {
		return paramsError("keys: format %v: want one of %v", p.Keys, KeyFormats())
	}
	if !slices.Contains(ValueFormats(), p.Values) {
		return paramsError("values: format %v: want one of %v", p.Values, ValueFormats())
	}
	if err := p.validateDim("key", p.Keys, p.HeadDim, p.Keys.RowCode()); err != nil {
		return err
	}
	if err := p.validateDim("value", p.Values, p.ValueHeadDim, true); err != nil {
		return err
	}
	if p.CentreKeys && !p.Keys.RowCode() {
		return paramsError("keys: format %v has no centre: want a row code", p.Keys)
	}
	if p.CentreValues && !p.Values.RowCode() {
		return paramsError("values: format %v has no centre: want a row code", p.Values)
	}
	if p.ScaleType.Size() == 0 {
		return paramsError("scale type %v: want f32, f16 or bf16", p.ScaleType)
	}
	if p.Policy > Compat {
		return paramsError("%v is not a policy", p.Policy)
	}
	if p.Scale > Search {
		return paramsError("%v is not a scale rule", p.Scale)
	}
	return nil
}

// validateDim checks a head dimension for its format, which may be rotated.
func (p KVParams) validateDim(side string, f Format, dim int, rotated bool) error {
	unit, of := p.Group, "the group, "+strconv.Itoa(p.Group)
	if f.RowCode() {
		unit, of = 32, "32"
	}
	if dim <= 0 || dim%unit != 0 {
		return paramsError("%s head dimension %d is not a positive multiple of %s", side, dim, of)
	}
	if dim > MaxHeadDim {
		return paramsError("%s head dimension %d exceeds %d", side, dim, MaxHeadDim)
	}
	if rotated && !hadamard.Supported(dim) {
		return paramsError("%s head dimension %d is not 2^k or 12, 20 or 28 times 2^k within the transform's range", side, dim)
	}
	return nil
}

// KeyFormat returns the affine format of the keys, of which row codes have none.
func (p KVParams) KeyFormat() affine.KeyFormat {
	return affine.KeyFormat{Bits: p.Keys.Bits(), Signed: p.Keys.Signed()}
}

// KeyRowLen returns the bytes of one row of packed keys: its codes, and its
// scales, which its zero points equal in size. A row code has one byte of scale
// and no zero points.
func (p KVParams) KeyRowLen() (codes, scales int) {
	p = p.WithDefaults()
	if p.Keys.RowCode() {
		return rowLen(p.HeadDim, p.Keys.Bits()), 1
	}
	return rowLen(p.HeadDim, p.Keys.Bits()), p.HeadDim / p.Group * p.ScaleType.Size()
}

// ValueRowLen returns the bytes of one row of packed values: its codes and its
// scales.
func (p KVParams) ValueRowLen() (codes, scales int) {
	p = p.WithDefaults()
	if p.Values.RowCode() {
		return rowLen(p.ValueHeadDim, p.Values.Bits()), 1
	}
	return rowLen(p.ValueHeadDim, p.Values.Bits()), p.ValueHeadDim / p.Group * p.ScaleType.Size()
}

// rowLen is exact: a row is a multiple of 32 elements.
func rowLen(dim, bits int) int { return dim / 8 * bits }

// KeyBitsPerElement returns the stored bits of a key element, scales and zero
// points included.
func (p KVParams) KeyBitsPerElement() float64 {
	p = p.WithDefaults()
	if p.Keys.RowCode() {
		return float64(p.Keys.Bits()) + 8/float64(p.HeadDim)
	}
	return float64(p.Keys.Bits()) + 2*8*float64(p.ScaleType.Size())/float64(p.Group)
}

// ValueBitsPerElement returns the stored bits of a value element, scales
// included.
func (p KVParams) ValueBitsPerElement() float64 {
	p = p.WithDefaults()
	if p.Values.RowCode() {
		return float64(p.Values.Bits()) + 8/float64(p.ValueHeadDim)
	}
	return float64(p.Values.Bits()) + 8*float64(p.ScaleType.Size())/float64(p.Group)
}

// Keys holds packed keys. Rows follow each other in row-major order of the
// leading dimensions; within a row, index i occupies b = KVParams.Keys.Bits()
// bits from bit i·b of a little-endian bit stream (8 bits: one byte an index, int8 if
// signed), and group g has one scale and one zero point.
type Keys struct {
	Shape  []int  // shape of the tensor that was packed: [..., HeadDim]
	Codes  []byte // KeyRowLen codes bytes a row
	Scales []byte // KeyRowLen scales bytes a row, ScaleType, little-endian
	Zeros  []byte // likewise; none for a row code

	// Centre is set by the caller, before it encodes and before it decodes, if
	// KVParams.CentreKeys. Encoders leave it as it is.
	Centre Centre
}

// Values holds packed values: like Keys, without zero points.
type Values struct {
	Shape  []int  // shape of the tensor that was packed: [..., ValueHeadDim]
	Codes  []byte // ValueRowLen codes bytes a row
	Scales []byte // ValueRowLen scales bytes a row, ScaleType, little-endian
	Centre Centre // as in Keys, for KVParams.CentreValues
}

// KV packs and unpacks keys and values. Its methods are safe for concurrent
// use on different destinations. Tensors have any leading shape; dst and
// source do not overlap, except that Unrotate may work in place.
//
// Encoders reuse dst's slices where they are large enough. On error dst is
// left empty: every slice has length 0. NaN or an infinity anywhere in x is
// ErrNonFinite with the first offending element; otherwise, under the Finite
// policy, a scale beyond ScaleType's range is ErrScaleOverflow with the first
// element of the first such group.
//
// Decoders write dst whole, or report ErrShape or ErrDType before writing any
// of it. Any codes decode to something; scales may be any bits. Under Finite, a
// finite result that would round to an infinity of f16 is stored as ±65504
// (docs/numerics.md §2), and Saturated counts it.
//
// Only driver.New implements KV.
type KV interface {
	// Params returns the parameters with defaults filled in.
	Params() KVParams
	// Saturated returns how many elements the decoders have so far turned into
	// ±65504, because they would otherwise have rounded to an infinity.
	Saturated() uint64

	// EncodeKeys packs x, of shape [..., HeadDim].
	EncodeKeys(dst *Keys, x Tensor) error
	// EncodeValues rotates and packs x, of shape [..., ValueHeadDim].
	EncodeValues(dst *Values, x Tensor) error

	// DecodeKeys writes (index + zero)·scale, rounded once to dst's type.
	// dst has k's shape.
	DecodeKeys(dst Tensor, k Keys) error
	// DecodeValues writes values rotated back in f32, then rounded once to
	// dst's type. dst has v's shape.
	DecodeValues(dst Tensor, v Values) error
	// DecodeValuesRotated writes centroid·scale, rounded once to dst's type;
	// the rows stay rotated. dst has v's shape.
	DecodeValuesRotated(dst Tensor, v Values) error

	// Decode is DecodeKeys and DecodeValues in one pass. The leading shapes of
	// k and v are equal, and so are the types of dstK and dstV.
	Decode(dstK, dstV Tensor, k Keys, v Values) error
	// DecodeRotated is DecodeKeys and DecodeValuesRotated in one pass, with
	// the same conditions.
	DecodeRotated(dstK, dstV Tensor, k Keys, v Values) error

	// Unrotate rotates rows of ValueHeadDim elements, made canonical as
	// encoders do, back in f32, and rounds once to dst's type, which is x's.
	// Attention is linear in the values, so un-rotating an attention output
	// equals attending to un-rotated values up to rounding.
	Unrotate(dst, x Tensor) error

	// UnrotateCentred is Unrotate for centred values: it multiplies by the
	// gain of c and adds the mean times mass, an F32 tensor of x's shape with
	// a last dimension of 1: for an attention output, the attention that went
	// to coded tokens (docs/numerics.md §10).
	UnrotateCentred(dst, x Tensor, c Centre, mass Tensor) error
}

func paramsError(format string, args ...any) error {
	return &Error{Err: ErrParams, Index: NoIndex, Reason: fmt.Sprintf(format, args...)}
}
