package gpu

import (
	"context"
	"fmt"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

var _ driver.Products = (*weights)(nil)

// maxGroups bounds the SIMD-groups of a product's dispatch, for their number to fit 32 bits.
const maxGroups = 1 << 30

// productThreads is a threadgroup of a product: small ones end at more nearly the same time.
const productThreads = 128

// factors is a matrix that is multiplied with, bound whole for all rows of x.
type factors struct {
	need        need // its kernels
	axis        int
	outputs, in int
	args        shaders.ProductArgs // the views of the matrix, and what describes it
	at          []gpu.Binding       // behind x and before y
}

// multiply writes y = x·wᵀ (docs/numerics.md §7).
func (e *engine) multiply(y, x codec.Tensor, w *factors) error {
	if w.in == 0 { // a sum of nothing, which needs no kernel but this one
		x = codec.Tensor{DType: codec.F32, Shape: append(append([]int{}, x.Shape[:len(x.Shape)-1]...), 1), Stride: make([]int, len(x.Shape)), Data: make([]byte, 4)}
	}
	ops := []*operand{e.tensor(x, false), e.tensor(y, true)}
	return e.over(context.Background(), 3, ops, func(s *slab) error {
		n := w.need
		n.rows, n.cols, n.x = s.n, w.in, x.DType
		k, err := e.kernels.pick(n)
		if err != nil {
			return err
		}
		order := codec.Exact
		if k.Launch == shaders.Matrices {
			order = codec.Fast
		}
		k.product = fmt.Sprintf("order %v, weights %v", order, n.w)
		from, err := s.input(k, x.DType, ops[0].dim)
		if err != nil {
			return err
		}
		args := w.args
		args.Y, args.N1, args.N2, args.Row0, args.Rows = s.view[1], s.n1, s.n2, s.row0, s.height
		args.Outputs, args.Cols, args.YType = uint32(w.outputs), uint32(w.in), dtypes[y.DType]
		groups := w.outputs // SIMD-groups of a tile of rows, at most
		if k.Outputs > 0 {
			groups = (w.outputs + k.Outputs - 1) / k.Outputs
		}
		tiles, most := (s.n+k.Tile-1)/k.Tile, max(1, maxGroups/groups)
		for first := 0; first < tiles; first += most {
			args.Tile0, args.Tiles = uint32(first), uint32(min(most, tiles-first))
			grid, memory := shaders.LaneGrid(groups*int(args.Tiles), min(productThreads, k.pipeline.MaxThreads())), 0
			if k.Launch == shaders.Matrices {
				grid, memory = shaders.MatrixGrid(w.outputs, int(args.Tiles)), shaders.MatrixMemory
			}
			s.add(k, s.n, grid, memory, &args, append(append([]gpu.Binding{from}, w.at...), s.at[1])...)
		}
		return s.run()
	})
}

// input adds the dispatch that makes x, operand 0, canonical f32 as kernel `by` reads it.
func (s *slab) input(by kernel, t codec.DType, dim int) (gpu.Binding, error) {
	args := shaders.ProductInputArgs{X: s.view[0], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height, Dim: uint32(dim), XType: dtypes[t], Tile: uint32(by.Tile)}
	op, rows, floats := "product_input", (s.n+by.Tile-1)/by.Tile*by.Tile, args.Floats()
	if by.Launch == shaders.Matrices {
		op, rows = "matrix_input", (s.n+63)/64*64
		floats = rows * dim
	}
	k, err := s.e.kernels.pick(need{op: op})
	if err != nil {
		return gpu.Binding{}, err
	}
	buf, err := s.buffer(4 * floats)
	if err != nil {
		return gpu.Binding{}, err
	}
	s.add(k, s.n, shaders.ElementGrid(dim, rows, k.pipeline.MaxThreads()), 0, &args, s.at[0], gpu.Binding{Buffer: buf})
	return gpu.Binding{Buffer: buf}, nil
}

// MatMul multiplies with the decoded weights (docs/numerics.md §6, §7).
func (c *weights) MatMul(y, x codec.Tensor, m *trellis.Matrix, o codec.ProductOptions) error {
	whole := c.e.newJob()
	defer whole.release()
	w, err := c.factors(whole, m, o)
	if err != nil {
		return c.e.failed(err)
	}
	return c.e.multiply(y, x, w)
}

func (c *weights) factors(whole *job, m *trellis.Matrix, o codec.ProductOptions) (*factors, error) {
	g, p := m.Geometry, c.p
	w := &factors{need: need{op: "matrix", bits: p.K, block: p.T, w: o.Weights, order: o.Order}, axis: g.Axis, outputs: g.Out, in: g.In}
	if g.Axis == 0 {
		w.need.op = "product_axis0"
	}
	codes, view, err := whole.codes(m, 0, g.Rows())
	if err != nil {
		return nil, err
	}
	scales, base, err := whole.hold(bytesOf(m.Scales), 2, false)
	if err != nil {
		return nil, err
	}
	values, err := whole.table(tableKey{codeTable, int(p.Code), p.L})
	if err != nil {
		return nil, err
	}
	w.at = []gpu.Binding{codes, scales, values}
	w.args = shaders.ProductArgs{Codes: view, Scales: shaders.View{Base: base, S2: 1}, WeightType: dtypes[o.Weights],
		Block: uint32(p.T), StateBits: uint32(p.L), Bits: uint32(p.K), Code: c.code()}
	if g.Interleaved {
		w.args.Interleaved = 1
	}
	return w, nil
}
