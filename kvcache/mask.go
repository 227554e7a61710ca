package kvcache

import (
	"fmt"
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
)

var negativeInf = float32(math.Inf(-1))

// MaskParams say which columns each of the newest Queries columns of left-padded sequences attends to.
type MaskParams struct {
	Width   int   // columns: padding and tokens, the queries' own included
	Queries int   // the last columns, whose tokens attend
	Padding []int // columns of padding left of each sequence
	Window  int   // if not 0: a query attends to its own column and the Window − 1 before it …
	Sinks   int   // … and to the first Sinks tokens of its sequence
}

// validate reports the first field that is out of its range.
func (p MaskParams) validate() error {
	if p.Width < 0 || p.Queries < 0 || p.Queries > p.Width || p.Window < 0 || p.Sinks < 0 {
		return fmt.Errorf("%w: %d queries of %d columns, window %d, sinks %d", ErrIndex, p.Queries, p.Width, p.Window, p.Sinks)
	}
	for i, pad := range p.Padding {
		if pad < 0 || pad > p.Width {
			return fmt.Errorf("%w: sequence %d has %d columns of padding of %d", ErrIndex, i, pad, p.Width)
		}
	}
	return nil
}

// allowed reports whether the query in column q attends to column c.
func (p MaskParams) allowed(pad, q, c int) bool {
	return pad <= c && c <= q && (p.Window == 0 || q-c < p.Window || c-pad < p.Sinks)
}

// Bool returns the mask of shape [len(Padding), Queries, Width], row-major: true where a query attends. A query in a
// column of padding attends to nothing.
func (p MaskParams) Bool() ([]bool, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	mask := make([]bool, 0, len(p.Padding)*p.Queries*p.Width)
	for _, pad := range p.Padding {
		for q := p.Width - p.Queries; q < p.Width; q++ {
			for c := range p.Width {
				mask = append(mask, p.allowed(pad, q, c))
			}
		}
	}
	return mask, nil
}

// Additive returns the mask as a tensor of shape [len(Padding), 1, Queries, Width]: 0 where a query attends, −Inf
// elsewhere. It is ErrLayout if t is not a type of elements.
func (p MaskParams) Additive(t codec.DType) (codec.Tensor, error) {
	allowed, err := p.Bool()
	if err != nil {
		return codec.Tensor{}, err
	}
	if t.Size() == 0 {
		return codec.Tensor{}, fmt.Errorf("%w: a mask of %v", ErrLayout, t)
	}
	x := codec.NewTensor(t, len(p.Padding), 1, p.Queries, p.Width)
	for i, ok := range allowed {
		if !ok {
			t.Store(x.Data[i*t.Size():], negativeInf)
		}
	}
	return x, nil
}

// Mask returns the parameters of the mask for the newest n columns of b. Where a window has dropped tokens that the
// first of several new tokens attends to, they are not there to be attended to: append as many at a time as that
// allows, or one.
func (b *Batch) Mask(n int) MaskParams {
	return MaskParams{Width: b.width, Queries: n, Padding: b.Padding(), Window: b.layout.Window, Sinks: b.layout.Sinks}
}
