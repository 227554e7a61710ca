package codec

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// CheckMatrix reports whether m is a packed matrix with parameters p, as far
// as decoding is concerned: the same L, K, T and code, and slices of the exact
// lengths. Backends call it before they decode.
func CheckMatrix(m *trellis.Matrix, p trellis.Params) error {
	if m == nil {
		return &Error{Err: ErrShape, Tensor: "codes", Index: NoIndex, Reason: "no matrix"}
	}
	if q := m.Params; q.L != p.L || q.K != p.K || q.T != p.T || q.Code != p.Code {
		return &Error{Err: ErrParams, Tensor: "codes", Index: NoIndex,
			Reason: fmt.Sprintf("packed with L=%d, K=%d, T=%d, code %v, not %d, %d, %d, %v", q.L, q.K, q.T, q.Code, p.L, p.K, p.T, p.Code)}
	}
	return TrellisError("codes", m.Validate())
}

// CheckRows reports whether dst is a writable [n, In] tensor for rows first to
// first+n−1 of a valid matrix.
func CheckRows(dst Tensor, m *trellis.Matrix, first int) error {
	if err := dst.ValidateOutput("dst weights"); err != nil {
		return err
	}
	if len(dst.Shape) != 2 || dst.Shape[1] != m.Geometry.In {
		return &Error{Err: ErrShape, Tensor: "dst weights", Index: NoIndex, Reason: fmt.Sprintf("shape %v, want [rows, %d]", clone(dst.Shape), m.Geometry.In)}
	}
	if n := dst.Shape[0]; first < 0 || n > m.Geometry.Out || first > m.Geometry.Out-n {
		return &Error{Err: ErrShape, Tensor: "dst weights", Index: NoIndex, Reason: fmt.Sprintf("%d rows from row %d of %d", n, first, m.Geometry.Out)}
	}
	return nil
}

// CheckWeights reports whether x, and recon unless it is the zero Tensor, are
// matrices that g describes and p can code.
func CheckWeights(recon, x Tensor, g trellis.Geometry, p trellis.Params) error {
	if err := TrellisError("weights", g.Validate(p)); err != nil {
		return err
	}
	if p.FreeEnds {
		return paramsError("free-ended blocks have no packed form")
	}
	if err := x.Validate("weights"); err != nil {
		return err
	}
	want := []int{g.Out, g.In}
	if !slices.Equal(x.Shape, want) {
		return &Error{Err: ErrShape, Tensor: "weights", Index: NoIndex, Reason: fmt.Sprintf("shape %v, want %v", clone(x.Shape), want)}
	}
	if recon.DType == 0 && recon.Shape == nil && recon.Data == nil {
		return nil
	}
	return CheckOutput("reconstruction", recon, want)
}

// TrellisError returns an error of package trellis about the named operand as
// an *Error of the same meaning, and nil for nil.
func TrellisError(tensor string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Err: ErrShape, Tensor: tensor, Index: NoIndex, Reason: err.Error()}
	switch {
	case errors.Is(err, trellis.ErrParams):
		e.Err = ErrParams
	case errors.Is(err, trellis.ErrNonFinite):
		e.Err = ErrNonFinite
	case errors.Is(err, trellis.ErrSampleRange), errors.Is(err, trellis.ErrScaleOverflow):
		e.Err = ErrScaleOverflow
	}
	var v *trellis.ValueError
	if errors.As(err, &v) {
		e.Index, e.Reason = v.Index, fmt.Sprint(v.Value)
	}
	return e
}
