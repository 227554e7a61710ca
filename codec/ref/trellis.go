package ref

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// weights is the reference weight codec. All of its arithmetic is package
// trellis's.
type weights struct {
	params trellis.Params
	pool   sync.Pool // of *coder
}

// coder is what one call needs.
type coder struct {
	enc *trellis.Encoder // nil for decoders
	x   []float32        // the input, widened and contiguous
	out []float32        // the reconstruction, or a decoded row
}

func (c *weights) get() *coder {
	if w, ok := c.pool.Get().(*coder); ok {
		return w
	}
	return new(coder)
}

func (c *weights) encoder() (*coder, error) {
	w := c.get()
	var err error
	if w.enc == nil {
		w.enc, err = trellis.NewEncoder(c.params)
	}
	return w, err
}

// EncodeBlocks writes the states of the best paths (docs/numerics.md §6).
func (c *weights) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) (driver.Found, error) {
	w, err := c.encoder()
	if err != nil {
		return driver.Nothing, err
	}
	defer c.pool.Put(w)
	t := c.params.T
	w.x = load(w.x, x)
	for b := range x.Rows() {
		if err := ctx.Err(); err != nil {
			return driver.Nothing, err
		}
		if err := w.enc.EncodeBlock(states[b*t:][:t], w.x[b*t:][:t]); err != nil {
			return found(err, b*t)
		}
	}
	return driver.Nothing, nil
}

// found returns what an encoder found, if that is its error. first is the index
// of the first element that it was given.
func found(err error, first int) (driver.Found, error) {
	f := driver.Nothing
	v, ok := errors.AsType[*trellis.ValueError](err)
	if !ok {
		return f, err
	}
	if v.Err == trellis.ErrNonFinite {
		f.NonFinite = first + v.Index
	} else {
		f.Overflow = first + v.Index
	}
	return f, nil
}

// Encode packs x (docs/numerics.md §6).
func (c *weights) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor) (driver.Found, error) {
	w, err := c.encoder()
	if err != nil {
		return driver.Nothing, err
	}
	defer c.pool.Put(w)
	w.x = load(w.x, x)
	var out []float32
	if recon.DType != 0 {
		w.out = slices.Grow(w.out[:0], len(w.x))[:len(w.x)]
		out = w.out
	}
	if err := w.enc.Encode(ctx, dst, out, w.x, dst.Geometry); err != nil {
		return found(err, 0)
	}
	if out != nil {
		store(recon, out)
	}
	return driver.Nothing, nil
}

// Decode writes rows of m (docs/numerics.md §6).
func (c *weights) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	w := c.get()
	defer c.pool.Put(w)
	w.out = slices.Grow(w.out[:0], m.Geometry.In)[:m.Geometry.In]
	for r := range dst.Shape[0] {
		if err := m.DecodeRows(w.out, first+r, first+r+1); err != nil {
			return err
		}
		dst.StoreRow(r, w.out)
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
