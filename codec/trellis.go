package codec

import (
	"context"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// Trellis packs and unpacks weight matrices (docs/numerics.md §6). Its methods
// are safe for concurrent use on different destinations; operands do not
// overlap.
//
// A weight that is NaN or an infinity is ErrNonFinite with the first offending
// element in the order of coded rows; a row whose scale overflows f16 is
// ErrScaleOverflow with its first element. Every row is checked before
// anything is written.
//
// Encoders return ctx.Err() soon after ctx ends. Only driver.New implements
// Trellis.
type Trellis interface {
	// Params returns the parameters.
	Params() trellis.Params

	// EncodeBlocks writes the states of the best path for each block of T
	// samples, of any type: x has shape [..., T], and states as many elements
	// as x. The samples are already divided by their row's scale; they lie
	// within ±2^60. On error the contents of states are not defined. It is the
	// one method that free-ended parameters allow.
	EncodeBlocks(ctx context.Context, states []uint16, x Tensor) error

	// Encode packs x, of shape [Out, In] of g. It reuses dst's slices where
	// they are large enough. Where recon is not the zero Tensor it has x's
	// shape and receives the weights that Decode gives, from the same pass.
	// On error dst is left empty.
	Encode(ctx context.Context, dst *trellis.Matrix, recon, x Tensor, g trellis.Geometry) error

	// Decode writes f(state)·scale, rounded once to dst's type: rows first to
	// first+n−1 of m, where dst has shape [n, In].
	Decode(dst Tensor, m *trellis.Matrix, first int) error

	// MatMul writes y = x·Wᵀ for x of shape [..., In] and y of shape
	// [..., Out] of m, in the order of docs/numerics.md §7: it equals the
	// product with the weights that Decode writes in the type of
	// o.Weights. Any types go together. NaN and infinities propagate as
	// IEEE 754 says.
	MatMul(y, x Tensor, m *trellis.Matrix, o ProductOptions) error
}
