package cpu

import (
	"slices"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/internal/f32"
)

var (
	_ driver.AffineBackend = (*backend)(nil)
	_ driver.Affine        = (*affineRows)(nil)
)

// affineRows implements driver.Affine.
type affineRows struct {
	b      *backend
	format affine.RowFormat
	packer bitPacker
}

func (b *backend) Affine(f affine.RowFormat) (driver.Affine, error) {
	return &affineRows{b, f, newBitPacker(f.Bits)}, nil
}

// affineCall is one call as a task: chunk i is rows i·per to (i+1)·per−1.
type affineCall struct {
	*affineRows
	a         codec.AffineRows
	x         tensor // Quantize: the input; Dequantize: the output
	dequant   bool
	rows, per int

	nonFinite, overflow atomic.Int64 // least index found, or none
}

func (c *affineRows) run(a *affineCall) {
	a.affineRows, a.rows, a.per = c, a.x.Rows(), max(1, chunkBytes/(a.x.dim*a.x.size))
	a.nonFinite.Store(none)
	a.overflow.Store(none)
	c.b.pool.run(a, (a.rows+a.per-1)/a.per)
}

func (c *affineRows) Quantize(dst codec.AffineRows, x codec.Tensor) (driver.Found, error) {
	a := &affineCall{a: dst, x: newTensor(x)}
	c.run(a)
	f := driver.Nothing
	if i := a.nonFinite.Load(); i != none {
		f.NonFinite = int(i)
	}
	if i := a.overflow.Load(); i != none {
		f.Overflow = int(i)
	}
	return f, nil
}

func (c *affineRows) Dequantize(dst codec.Tensor, rows codec.AffineRows) error {
	c.run(&affineCall{a: rows, x: newTensor(dst), dequant: true})
	return nil
}

func (a *affineCall) chunk(i int) {
	w := panelsIdle.Get().(*panel)
	defer panelsIdle.Put(w)
	n := a.x.dim * a.x.size
	w.bytes = slices.Grow(w.bytes[:0], n)[:n]
	w.part = slices.Grow(w.part[:0], a.x.dim)[:a.x.dim]
	for r := i * a.per; r < min((i+1)*a.per, a.rows); r++ {
		if a.dequant {
			a.dequantize(w.part, w, a.a, r)
			a.x.store(w.part, w.bytes, r)
		} else if !a.quantize(w, r) {
			return
		}
	}
}

// quantize packs row r (docs/numerics.md §8), or notes what it found.
func (a *affineCall) quantize(w *panel, r int) bool {
	dim, size := a.x.dim, a.x.size
	row := w.bytes
	if a.x.contiguous {
		row = a.x.Data[r*dim*size:][:dim*size]
	} else {
		gather(row, a.x.Tensor, r)
	}
	widen(w.part, row, a.x.DType)
	for i, v := range w.part {
		if !f32.IsFinite(v) {
			least(&a.nonFinite, int64(r*dim+i))
			return false
		}
	}
	for i := 0; i < dim; i += a.format.Group {
		if lo, hi := affine.MinMax(w.part[i:][:a.format.Group]); !f32.IsFinite(hi - lo) {
			least(&a.overflow, int64(r*dim+i))
			return true // a weight after this one may not be finite, which is what is reported then
		}
	}
	codes, scales := dim/8*a.format.Bits, dim/a.format.Group*size
	err := a.format.Quantize(a.a.Codes[r*codes:][:codes], a.a.Scales[r*scales:][:scales], a.a.Biases[r*scales:][:scales], row, a.x.DType)
	if err != nil {
		panic(err) // the front has checked the lengths
	}
	return true
}

// dequantize writes row r: index·scale rounded to the rows' type, then + bias rounded to it (docs/numerics.md §8).
func (c *affineRows) dequantize(dst []float32, w *panel, a codec.AffineRows, r int) {
	t, group, levels := a.DType, c.format.Group, 1<<c.format.Bits
	codes, groups := len(dst)/8*c.format.Bits, len(dst)/group
	w.index = slices.Grow(w.index[:0], len(dst))[:len(dst)]
	c.packer.unpack(w.index, a.Codes[r*codes:][:codes])
	var table [256]float32
	for g := range groups {
		at := (r*groups + g) * t.Size()
		scale, bias := t.Load(a.Scales[at:]), t.Load(a.Biases[at:])
		x, index := dst[g*group:][:group], w.index[g*group:][:group]
		if levels > group {
			for i, q := range index {
				x[i] = affineWeight(t, q, scale, bias)
			}
			continue
		}
		for q := range levels {
			table[q] = affineWeight(t, byte(q), scale, bias)
		}
		for i, q := range index {
			x[i] = table[q]
		}
	}
}

func affineWeight(t codec.DType, q byte, scale, bias float32) float32 {
	p := t.Round(float32(q) * scale)
	return t.Round(p + bias)
}

// affinePanels are affine rows as the weights of a product.
type affinePanels struct {
	c *affineRows
	a codec.AffineRows
}

// MatMul multiplies with the dequantised weights (docs/numerics.md §7, §8).
func (c *affineRows) MatMul(y, x codec.Tensor, a codec.AffineRows, _ codec.ProductOptions) error {
	c.b.multiply(y, x, &affinePanels{c, a}, max(1, chunkBytes/(4*max(1, a.Shape[1]))))
	return nil
}

func (p *affinePanels) panel(w *panel, first, n int) {
	in := p.a.Shape[1]
	for j := range n {
		p.c.dequantize(w.w[j*in:][:in], w, p.a, first+j)
	}
}
