package ref

import (
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// MatMul multiplies with the decoded weights (docs/numerics.md §7).
func (c *weights) MatMul(y, x codec.Tensor, m *trellis.Matrix, o codec.ProductOptions) error {
	g := m.Geometry
	w := make([]float32, g.Out*g.In)
	if err := m.DecodeRows(w, 0, g.Out); err != nil {
		return err
	}
	for i, v := range w {
		w[i] = o.Weights.Round(v)
	}
	matMul(y, x, w)
	return nil
}

// MatMul multiplies with the dequantised weights (docs/numerics.md §7, §8).
func (c *affineRows) MatMul(y, x codec.Tensor, a codec.AffineRows, _ codec.ProductOptions) error {
	w := codec.NewTensor(a.DType, a.Shape...)
	if err := c.Dequantize(w, a); err != nil {
		return err
	}
	matMul(y, x, load(nil, w))
	return nil
}

// matMul writes y = x·wᵀ for w of shape [Out, In], row-major.
func matMul(y, x codec.Tensor, w []float32) {
	row, out := make([]float32, x.Dim()), make([]float32, y.Dim())
	for r := range y.Rows() {
		x.LoadRow(row, r)
		for n := range out {
			out[n] = dot(row, w[n*len(row):][:len(row)])
		}
		y.StoreRow(r, out)
	}
}

// dot returns Σ x[c]·w[c] in the order of docs/numerics.md §7: 32 chains, of which chain l takes the columns c with
// ⌊c/4⌋ mod 32 = l in ascending order, each product rounded before its sum, and the tree of §4 over the chains.
func dot(x, w []float32) float32 {
	var chains [32]float32
	for c, v := range x {
		chains[c/4%32] += float32(canonFactor(v) * canonFactor(w[c]))
	}
	return f32.TreeSum(chains[:])
}

// productMin is the bit pattern of 2^-50, the least non-zero magnitude of an operand of a product.
const productMin = 0x26800000

// canonFactor makes an operand of a product canonical (docs/numerics.md §7): a magnitude below 2^-50 becomes +0, so
// that no product or sum is subnormal.
func canonFactor(x float32) float32 {
	if math.Float32bits(x)&0x7fffffff < productMin {
		return 0
	}
	return x
}
