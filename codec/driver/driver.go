// Package driver is for authors of backends. It defines what a backend implements, and New, which puts the
// front end that all backends share before an implementation and returns the codec.Backend that programs use.
//
// The front end checks every operand, sizes and empties destinations, passes over empty tensors, refuses calls
// after Close, and turns what an encoder found into the typed errors of package codec. So an implementation sees
// only operands that fit its parameters and each other, of at least one element, and reports what it found in
// the data as Found. An error that it returns means that it could not do the work: a lost device, no memory, a
// context that ended. docs/numerics.md defines the bytes.
package driver

import (
	"context"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Backend is what an implementation provides. It is safe for concurrent use.
type Backend interface {
	// Name returns the backend's name.
	Name() string
	// Feed says how long work should be cut up for this backend.
	Feed() codec.Feed
	// KV returns the KV cache codec with parameters p, which are valid and have their defaults filled in.
	// It returns an error that wraps codec.ErrUnsupported if the backend does not serve p.
	KV(p codec.KVParams) (KV, error)
	// Trellis returns the weight codec with parameters p, which are valid, with the same error.
	Trellis(p trellis.Params) (Trellis, error)
	// Close releases what the backend holds. It is called once, when no other call is in progress.
	Close() error
}

// A Renewer is a Backend whose device a failure can end. Before each call the front end looks whether the device
// is lost, and if it is calls Renew, with no other call in progress.
type Renewer interface {
	// Lost reports whether Renew could help. It is safe for concurrent use.
	Lost() bool
	// Renew brings the device back, or lets the calls that follow fail.
	Renew()
}

// None is the index in a Found of what was not found.
const None = -1

// Found is what an encoder found in its input: flat row-major element indices, or None. When either is set the
// contents of the destination are not used.
type Found struct {
	// NonFinite is the first element that is NaN or an infinity: the first in row-major order for KV and
	// EncodeBlocks, the first in the order of coded rows for Trellis.Encode.
	NonFinite int
	// Overflow is the first element of the first group (KV under codec.Finite) or coded row (Trellis.Encode)
	// whose scale overflows its type, and for EncodeBlocks the first sample beyond ±2^60. It may be None where
	// NonFinite is set and comes first: always for KV, in an earlier or the same coded row for Trellis.Encode,
	// at an earlier sample for EncodeBlocks.
	Overflow int
}

// Nothing is a Found with nothing in it.
var Nothing = Found{NonFinite: None, Overflow: None}

// KV packs and unpacks keys and values. Destinations have the exact lengths and the shape of the source; they
// hold any contents before the call. Decoders return how many finite f32 results they saturated to ±65504 on
// the last conversion to f16 (docs/numerics.md §2, under codec.Finite).
type KV interface {
	EncodeKeys(dst codec.Keys, x codec.Tensor) (Found, error)
	EncodeValues(dst codec.Values, x codec.Tensor) (Found, error)
	DecodeKeys(dst codec.Tensor, k codec.Keys) (saturated int, err error)
	// DecodeValues leaves the rows rotated if rotated is set.
	DecodeValues(dst codec.Tensor, v codec.Values, rotated bool) (saturated int, err error)
	// Decode is DecodeKeys and DecodeValues, in one pass where the backend has one.
	Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, rotated bool) (saturated int, err error)
	// Unrotate may work in place.
	Unrotate(dst, x codec.Tensor) (saturated int, err error)
}

// Trellis packs and unpacks weight matrices. Long calls return ctx.Err() soon after ctx ends.
type Trellis interface {
	// EncodeBlocks writes as many states as x has elements; x has shape [..., T].
	EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) (Found, error)
	// Encode packs x, of shape [Out, In] of dst.Geometry, into dst, whose Codes and Scales have their lengths.
	// Unless recon is the zero Tensor it has x's shape and receives the decoded weights.
	Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor) (Found, error)
	// Decode writes rows first to first+n−1 of m to dst, of shape [n, In].
	Decode(dst codec.Tensor, m *trellis.Matrix, first int) error
}

// The interfaces below are optional: what a backend does not implement is codec.ErrUnsupported.

// Products is implemented by a Trellis that multiplies.
type Products interface {
	// MatMul writes y = x·Wᵀ. o.Weights is set. y has at least one element; x may have none, where In is 0.
	MatMul(y, x codec.Tensor, m *trellis.Matrix, o codec.ProductOptions) error
}

// AffineBackend is implemented by a Backend that has the codec of affine rows.
type AffineBackend interface {
	// Affine returns the codec of a valid format, or an error that wraps codec.ErrUnsupported.
	Affine(f affine.RowFormat) (Affine, error)
}

// Affine quantises rows. Found.Overflow is the first element of a group whose range is not finite.
type Affine interface {
	Quantize(dst codec.AffineRows, x codec.Tensor) (Found, error)
	Dequantize(dst codec.Tensor, a codec.AffineRows) error
	// MatMul is as Products has it.
	MatMul(y, x codec.Tensor, a codec.AffineRows, o codec.ProductOptions) error
}

// Masks is implemented by a Backend that applies token masks.
type Masks interface {
	// Mask returns the rows in which no token is allowed, ascending. m.Stride is set.
	Mask(dst, logits codec.Tensor, m codec.Bitmask) (empty []int, err error)
}

// Copies is implemented by a Backend that copies views.
type Copies interface {
	// Compact copies x to dst, which is row-major without gaps and has x's type and shape.
	Compact(dst, x codec.Tensor) error
}

// RowCodes is implemented by a Backend that has row codes. The front end asks it for the sides of a KV whose format
// is one, and Backend.KV for the others only: a side that is a row code is then Q8_0 of one group in the parameters.
type RowCodes interface {
	// RowCode returns the code f for rows of dim elements, or an error that wraps codec.ErrUnsupported.
	RowCode(f codec.Format, dim int, p codec.Policy) (RowCode, error)
}

// RowCode packs and unpacks rows (docs/numerics.md §10). A centre, where there is one, has tensors of the rows' rank,
// which broadcast by strides of 0; where there is none it is the zero Centre.
type RowCode interface {
	// Encode writes codes and one scale byte per row. Found.Overflow is the first element of a row.
	Encode(codes, scales []byte, x codec.Tensor, c codec.Centre) (Found, error)
	// Decode leaves the rows rotated if rotated is set.
	Decode(dst codec.Tensor, codes, scales []byte, c codec.Centre, rotated bool) (saturated int, err error)
	// Unrotate may work in place. mass has x's shape, but a last dimension of 1; it goes with a centre.
	Unrotate(dst, x codec.Tensor, c codec.Centre, mass codec.Tensor) (saturated int, err error)
}
