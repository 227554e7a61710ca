package ref

import (
	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/internal/f32"
)

// affineRows is the codec of affine rows. All of its arithmetic is package affine's.
type affineRows struct{ format affine.RowFormat }

// Affine returns the codec of affine rows in format f.
func (Backend) Affine(f affine.RowFormat) (driver.Affine, error) { return &affineRows{f}, nil }

// Quantize packs x (docs/numerics.md §8).
func (c *affineRows) Quantize(dst codec.AffineRows, x codec.Tensor) (driver.Found, error) {
	dim := x.Dim()
	w := load(nil, x)
	for i, v := range w {
		if !f32.IsFinite(v) {
			return driver.Found{NonFinite: i, Overflow: driver.None}, nil
		}
	}
	for i := 0; i < len(w); i += c.format.Group {
		if lo, hi := affine.MinMax(w[i:][:c.format.Group]); !f32.IsFinite(hi - lo) {
			return driver.Found{NonFinite: driver.None, Overflow: i}, nil
		}
	}
	size := x.DType.Size()
	row := make([]byte, dim*size)
	codes, scales := dim/8*c.format.Bits, dim/c.format.Group*size
	for r := range x.Rows() {
		for i, v := range w[r*dim:][:dim] {
			x.DType.Store(row[i*size:], v)
		}
		if err := c.format.Quantize(part(dst.Codes, r, codes), part(dst.Scales, r, scales), part(dst.Biases, r, scales), row, x.DType); err != nil {
			return driver.Nothing, err
		}
	}
	return driver.Nothing, nil
}

// Dequantize unpacks a (docs/numerics.md §8).
func (c *affineRows) Dequantize(dst codec.Tensor, a codec.AffineRows) error {
	dim, size := dst.Dim(), a.DType.Size()
	row, wide := make([]byte, dim*size), make([]float32, dim)
	codes, scales := dim/8*c.format.Bits, dim/c.format.Group*size
	for r := range dst.Rows() {
		if err := c.format.Dequantize(row, part(a.Codes, r, codes), part(a.Scales, r, scales), part(a.Biases, r, scales), a.DType); err != nil {
			return err
		}
		for i := range wide {
			wide[i] = a.DType.Load(row[i*size:])
		}
		dst.StoreRow(r, wide)
	}
	return nil
}
