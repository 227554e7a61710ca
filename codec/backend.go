package codec

import (
	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Backend is one implementation of every codec. A Backend is safe for
// concurrent use. Only driver.New implements it; new backends implement the
// interfaces of package driver.
type Backend interface {
	// Name returns the backend's name, as auto.OpenName and --backend take it.
	Name() string
	// Feed says how long work should be cut up for this backend.
	Feed() Feed
	// KV returns the KV cache codec with parameters p. It returns ErrParams if
	// p is invalid, and ErrUnsupported if this backend does not serve it.
	KV(p KVParams) (KV, error)
	// Trellis returns the weight codec with parameters p, with the same errors.
	Trellis(p trellis.Params) (Trellis, error)
	// Affine returns the codec of affine rows in format f, with the same errors.
	Affine(f affine.RowFormat) (Affine, error)
	// Mask writes logits + (0 | −Inf): rejected tokens become −Inf, or NaN
	// where they were NaN or +Inf; allowed ones stay, but that −0 becomes +0.
	// logits have shape [..., vocabulary]; dst has their shape and type and
	// may be the same tensor. empty lists, in ascending order, the rows in
	// which no token is allowed, which is not an error. docs/numerics.md §9.
	Mask(dst, logits Tensor, m Bitmask) (empty []int, err error)
	// Compact copies any view bit for bit into a row-major tensor without
	// gaps: it sets dst's type and shape and reuses dst.Data where that is
	// large enough. On error dst is left as it was.
	Compact(dst *Tensor, x Tensor) error
	// Close waits for the calls in progress and releases what the backend
	// holds. The backend and the codecs obtained from it return ErrClosed
	// afterwards.
	Close() error
}

// Feed says how a backend likes long work cut up.
type Feed struct {
	Bytes int // of input per call
	Calls int // calls at once
}
