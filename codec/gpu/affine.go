package gpu

import (
	"context"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

var (
	_ driver.AffineBackend = (*engine)(nil)
	_ driver.Affine        = (*affineRows)(nil)
)

// affineRows is the codec of affine rows of an engine.
type affineRows struct {
	e *engine
	f affine.RowFormat
}

func (e *engine) Affine(f affine.RowFormat) (driver.Affine, error) { return &affineRows{e, f}, nil }

// operands describes packed rows: codes, scales, biases.
func (c *affineRows) operands(a codec.AffineRows, output bool) []*operand {
	last := len(a.Shape) - 1
	dim, lead, size := a.Shape[last], a.Shape[:last], a.DType.Size()
	return []*operand{c.e.packed(a.Codes, 1, dim/8*c.f.Bits, lead, output), c.e.packed(a.Scales, size, dim/c.f.Group, lead, output),
		c.e.packed(a.Biases, size, dim/c.f.Group, lead, output)}
}

// args are the arguments of a slab whose operands are the packed rows from number packed on, and the tensor x.
func (c *affineRows) args(s *slab, x, packed, dim int, t codec.DType) shaders.AffineArgs {
	return shaders.AffineArgs{
		X: s.view[x], Codes: s.view[packed], Scales: s.view[packed+1], Biases: s.view[packed+2], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
		Dim: uint32(dim), Group: uint32(c.f.Group), Bits: uint32(c.f.Bits), Type: dtypes[t],
	}
}

// Quantize packs x (docs/numerics.md §5, §8).
func (c *affineRows) Quantize(dst codec.AffineRows, x codec.Tensor) (driver.Found, error) {
	found := driver.Nothing
	k, err := c.e.kernels.pick(need{op: "affine_quantize"})
	if err != nil {
		return found, c.e.failed(err)
	}
	dim := x.Dim()
	ops := append([]*operand{c.e.tensor(x, false)}, c.operands(dst, true)...)
	err = c.e.over(context.Background(), 3, ops, func(s *slab) error {
		status, err := s.status()
		if err != nil {
			return err
		}
		args := c.args(s, 0, 1, dim, x.DType)
		groups := s.n * (dim / c.f.Group)
		s.add(k, groups, shaders.LaneGrid(groups, k.pipeline.MaxThreads()), 0, &args, append(s.at, gpu.Binding{Buffer: status})...)
		if err := s.run(); err != nil {
			return err
		}
		return collect(&found, status, s.row*dim, c.f.Group)
	})
	return found, err
}

// Dequantize unpacks a (docs/numerics.md §5, §8).
func (c *affineRows) Dequantize(dst codec.Tensor, a codec.AffineRows) error {
	k, err := c.e.kernels.pick(need{op: "affine_dequantize"})
	if err != nil {
		return c.e.failed(err)
	}
	dim := dst.Dim()
	ops := append(c.operands(a, false), c.e.tensor(dst, true))
	return c.e.over(context.Background(), 3, ops, func(s *slab) error {
		args := c.args(s, 3, 0, dim, a.DType)
		args.Wide = wide(args.X)
		s.add(k, s.n, shaders.ElementGrid(dim/8, s.n, k.pipeline.MaxThreads()), 0, &args, s.at...)
		return s.run()
	})
}

// MatMul multiplies with the dequantised weights (docs/numerics.md §7, §8).
func (c *affineRows) MatMul(y, x codec.Tensor, a codec.AffineRows, o codec.ProductOptions) error {
	whole := c.e.newJob()
	defer whole.release()
	w, err := c.factors(whole, a, o.Order)
	if err != nil {
		return c.e.failed(err)
	}
	return c.e.multiply(y, x, w)
}

func (c *affineRows) factors(whole *job, a codec.AffineRows, order codec.Order) (*factors, error) {
	out, in := a.Shape[0], a.Shape[1]
	w := &factors{need: need{op: "matrix_affine", w: a.DType, order: order}, axis: 1, outputs: out, in: in}
	w.args = shaders.ProductArgs{Group: uint32(c.f.Group), Bits: uint32(c.f.Bits), WeightType: dtypes[a.DType]}
	groups, size := int64(in/c.f.Group), a.DType.Size()
	for _, part := range []struct {
		data []byte
		size int
		row  int64
		view *shaders.View
	}{
		{a.Codes, 4, int64(in / 32 * c.f.Bits), &w.args.Codes},
		{a.Scales, size, groups, &w.args.Scales},
		{a.Biases, size, groups, &w.args.Biases},
	} {
		at, base, err := whole.hold(part.data, part.size, false)
		if err != nil {
			return nil, err
		}
		*part.view = shaders.View{Base: base, S2: part.row, S3: 1}
		w.at = append(w.at, at)
	}
	return w, nil
}
