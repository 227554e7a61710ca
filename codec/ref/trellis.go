package ref

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Trellis is the reference weight codec. All of its arithmetic is package
// trellis's.
type Trellis struct {
	params trellis.Params
	pool   sync.Pool // of *coder
}

var _ codec.Trellis = (*Trellis)(nil)

// coder is what one call needs.
type coder struct {
	enc *trellis.Encoder
	x   []float32 // the input, widened and contiguous
	out []float32 // the reconstruction, or decoded rows
}

// NewTrellis returns the codec with parameters p, or ErrParams.
func NewTrellis(p trellis.Params) (*Trellis, error) {
	if err := p.Validate(); err != nil {
		return nil, codec.TrellisError("", err)
	}
	return &Trellis{params: p}, nil
}

func (c *Trellis) get() (*coder, error) {
	if w, ok := c.pool.Get().(*coder); ok {
		return w, nil
	}
	enc, err := trellis.NewEncoder(c.params)
	return &coder{enc: enc}, codec.TrellisError("", err)
}

// Params returns the parameters.
func (c *Trellis) Params() trellis.Params { return c.params }

// EncodeBlocks writes the states of the best paths (docs/numerics.md §6).
func (c *Trellis) EncodeBlocks(states []uint16, x codec.Tensor) error {
	t := c.params.T
	if err := codec.CheckInput("samples", x, t); err != nil {
		return err
	}
	if len(states) != x.Len() {
		return &codec.Error{Err: codec.ErrShape, Tensor: "states", Index: codec.NoIndex, Reason: fmt.Sprintf("%d states for %d samples", len(states), x.Len())}
	}
	w, err := c.get()
	if err != nil {
		return err
	}
	defer c.pool.Put(w)
	w.x = load(w.x, x)
	for b := range x.Rows() {
		if err := w.enc.EncodeBlock(states[b*t:][:t], w.x[b*t:][:t]); err != nil {
			err := codec.TrellisError("samples", err)
			if e, ok := errors.AsType[*codec.Error](err); ok && e.Index != codec.NoIndex {
				e.Index += b * t
			}
			return err
		}
	}
	return nil
}

// Encode packs x (docs/numerics.md §6).
func (c *Trellis) Encode(dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error {
	*dst = trellis.Matrix{Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
	if err := codec.CheckWeights(recon, x, g, c.params); err != nil {
		return err
	}
	w, err := c.get()
	if err != nil {
		return err
	}
	defer c.pool.Put(w)
	w.x = load(w.x, x)
	var out []float32
	if recon.DType != 0 {
		w.out = slices.Grow(w.out[:0], len(w.x))[:len(w.x)]
		out = w.out
	}
	if err := w.enc.Encode(dst, out, w.x, g); err != nil {
		*dst = trellis.Matrix{Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
		return codec.TrellisError("weights", err)
	}
	if out != nil {
		store(recon, out)
	}
	return nil
}

// Decode writes rows of m (docs/numerics.md §6).
func (c *Trellis) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	if err := codec.CheckMatrix(m, c.params); err != nil {
		return err
	}
	if err := codec.CheckRows(dst, m, first); err != nil {
		return err
	}
	row := make([]float32, m.Geometry.In)
	for r := range dst.Shape[0] {
		if err := m.DecodeRows(row, first+r, first+r+1); err != nil {
			return codec.TrellisError("codes", err)
		}
		dst.StoreRow(r, row)
	}
	return nil
}

// load widens a tensor into dst, row after row.
func load(dst []float32, x codec.Tensor) []float32 {
	dst = slices.Grow(dst[:0], x.Len())[:x.Len()]
	for r := range x.Rows() {
		x.LoadRow(dst[r*x.Dim():][:x.Dim()], r)
	}
	return dst
}

// store rounds src into a tensor, row after row.
func store(x codec.Tensor, src []float32) {
	for r := range x.Rows() {
		x.StoreRow(r, src[r*x.Dim():][:x.Dim()])
	}
}
