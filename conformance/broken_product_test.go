package conformance

import (
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// mutantProduct is the reference with one fault in its products, masks or copies.
type mutantProduct struct {
	codec.Backend // the reference
	dot           func(x, w []float32) float32
	weights       func(t codec.DType) codec.DType // in place of the type that weights are rounded to
	alone         func(y codec.Tensor)            // after a product of more than one row
	quantized     func(a *codec.AffineRows)
	mask          func(dst, logits codec.Tensor, m codec.Bitmask)
	empty         func(rows []int) []int
	view          func(x codec.Tensor) codec.Tensor
}

func (b *mutantProduct) Trellis(p trellis.Params) (codec.Trellis, error) {
	t, err := b.Backend.Trellis(p)
	return &mutantMatrix{t, b}, err
}

func (b *mutantProduct) Affine(f affine.RowFormat) (codec.Affine, error) {
	a, err := b.Backend.Affine(f)
	if err != nil {
		return nil, err
	}
	return &mutantRows{a, b}, nil
}

// product writes y again with this mutant's fault.
func (b *mutantProduct) product(y, x, w codec.Tensor) {
	if y.Len() == 0 {
		return
	}
	if b.dot != nil {
		row, weights, out := make([]float32, x.Dim()), make([]float32, x.Dim()), make([]float32, y.Dim())
		for r := range x.Rows() {
			x.LoadRow(row, r)
			for n := range out {
				w.LoadRow(weights, n)
				out[n] = b.dot(row, weights)
			}
			y.StoreRow(r, out)
		}
	}
	if b.alone != nil && x.Rows() > 1 {
		b.alone(y)
	}
}

type mutantMatrix struct {
	codec.Trellis
	b *mutantProduct
}

func (c *mutantMatrix) MatMul(y, x codec.Tensor, m *trellis.Matrix, o codec.ProductOptions) error {
	if c.b.weights != nil && o.Weights == 0 {
		o.Weights = c.b.weights(x.DType)
	}
	if err := c.Trellis.MatMul(y, x, m, o); err != nil {
		return err
	}
	if o.Weights == 0 {
		o.Weights = x.DType
	}
	w := codec.NewTensor(o.Weights, m.Geometry.Out, m.Geometry.In)
	if err := c.Decode(w, m, 0); err != nil {
		return err
	}
	c.b.product(y, x, w)
	return nil
}

type mutantRows struct {
	codec.Affine
	b *mutantProduct
}

func (c *mutantRows) MatMul(y, x codec.Tensor, a codec.AffineRows, o codec.ProductOptions) error {
	if err := c.Affine.MatMul(y, x, a, o); err != nil {
		return err
	}
	w := codec.NewTensor(a.DType, a.Shape...)
	if err := c.Dequantize(w, a); err != nil {
		return err
	}
	c.b.product(y, x, w)
	return nil
}

func (c *mutantRows) Quantize(dst *codec.AffineRows, x codec.Tensor) error {
	if c.b.view != nil && x.Validate("") == nil {
		x = c.b.view(x)
	}
	err := c.Affine.Quantize(dst, x)
	if err == nil && c.b.quantized != nil {
		c.b.quantized(dst)
	}
	return err
}

func (b *mutantProduct) Mask(dst, logits codec.Tensor, m codec.Bitmask) ([]int, error) {
	plain := codec.Tensor{}
	if logits.Validate("") == nil && len(logits.Shape) > 0 {
		plain = dense(logits)
	}
	empty, err := b.Backend.Mask(dst, logits, m)
	if err == nil && b.mask != nil {
		b.mask(dst, plain, m)
	}
	if err == nil && b.empty != nil {
		empty = b.empty(empty)
	}
	return empty, err
}

func (b *mutantProduct) Compact(dst *codec.Tensor, x codec.Tensor) error {
	if b.view != nil && x.Validate("") == nil && len(x.Shape) > 0 {
		x = b.view(x)
	}
	return b.Backend.Compact(dst, x)
}

// chained is the sum of docs/numerics.md §7 with parts of it put otherwise.
func chained(chain func(c int) int, add func(acc, x, w float32) float32, fold func(chains []float32) float32) func(x, w []float32) float32 {
	return func(x, w []float32) float32 {
		var chains [32]float32
		for c, v := range x {
			chains[chain(c)] = add(chains[chain(c)], factor(v), factor(w[c]))
		}
		return fold(chains[:])
	}
}

func TestBrokenProducts(t *testing.T) {
	chain := func(c int) int { return c / 4 % 32 }
	add := func(acc, x, w float32) float32 { return acc + float32(x*w) }
	gap := func(x codec.Tensor) codec.Tensor {
		if n := len(x.Shape); x.Stride != nil && x.Len() > 0 && x.Shape[n-1] > 1 && x.Stride[n-1] > 1 {
			x.Stride = slices.Clone(x.Stride)
			x.Stride[n-1]--
		}
		return x
	}
	put := func(f func(bits uint64, allow bool) (uint64, bool)) func(dst, logits codec.Tensor, m codec.Bitmask) {
		return func(dst, logits codec.Tensor, m codec.Bitmask) {
			size := dst.DType.Size()
			eachElement(dst, func(i, at int) {
				r, token := i/dst.Dim(), i%dst.Dim()
				if m.Rows == 1 {
					r = 0
				}
				allow := token/32 < m.Words && m.Data[4*r*max(m.Stride, m.Words)+token/8]>>(token%8)&1 != 0
				if v, ok := f(bitsOf(logits.Data[i*size:][:size]), allow); ok {
					for j := range size {
						dst.Data[at+j] = byte(v >> (8 * j))
					}
				}
			})
		}
	}
	for _, test := range []struct {
		name   string
		ops    []string
		mutant mutantProduct
		want   []Stage
	}{
		{"none", []string{"MatMul", "AffineMatMul"}, mutantProduct{dot: chained(chain, add, f32.TreeSum)}, nil},
		{"chain of columns c mod 32", []string{"MatMul", "AffineMatMul"}, mutantProduct{dot: chained(func(c int) int { return c % 32 }, add, f32.TreeSum)}, []Stage{Product}},
		{"chains in groups of eight columns", []string{"MatMul", "AffineMatMul"}, mutantProduct{dot: chained(func(c int) int { return c / 8 % 32 }, add, f32.TreeSum)}, []Stage{Product}},
		{"tree of neighbours", []string{"MatMul", "AffineMatMul"}, mutantProduct{dot: chained(chain, add, func(q []float32) float32 {
			for n := len(q); n > 1; n /= 2 {
				for i := range n / 2 {
					q[i] = q[2*i] + q[2*i+1]
				}
			}
			return q[0]
		})}, []Stage{Product}},
		{"fused multiply-add", []string{"MatMul", "AffineMatMul"}, mutantProduct{dot: chained(chain, func(acc, x, w float32) float32 { return f32.FMA(x, w, acc) }, f32.TreeSum)}, []Stage{Product}},
		{"a tail column added", []string{"MatMul"}, mutantProduct{dot: func(x, w []float32) float32 {
			if n := len(x); n%128 != 0 {
				x, w = append(slices.Clip(x), x[n-1]), append(slices.Clip(w), w[n-1])
			}
			return chained(chain, add, f32.TreeSum)(x, w)
		}}, []Stage{Product}},
		{"factors not canonical", []string{"MatMul", "AffineMatMul"}, mutantProduct{dot: func(x, w []float32) float32 {
			var chains [32]float32
			for c, v := range x {
				chains[chain(c)] += float32(v * w[c])
			}
			return f32.TreeSum(chains[:])
		}}, []Stage{Product}},
		{"another order with an error of its own", []string{"check=bound", "check=exact"}, mutantProduct{dot: func(x, w []float32) float32 {
			return chained(chain, add, f32.TreeSum)(x, w) * (1 + 0x1p-8)
		}}, []Stage{Product}},
		{"another order without the last chain", []string{"check=bound"}, mutantProduct{dot: chained(chain, add, func(q []float32) float32 {
			q[len(q)-1] = 0
			return f32.TreeSum(q)
		})}, []Stage{Product}},
		{"weights not rounded", []string{"MatMul"}, mutantProduct{weights: func(codec.DType) codec.DType { return codec.F32 }}, []Stage{Product}},
		{"rows that depend on their number", []string{"check=alone"}, mutantProduct{alone: func(y codec.Tensor) {
			y.DType.Store(y.Data, up(1+y.DType.Load(y.Data)))
		}}, []Stage{Product}},
		{"scales rounded up", []string{"Quantize"}, mutantProduct{quantized: func(a *codec.AffineRows) {
			if len(a.Scales) > 0 {
				a.Scales[0]++
			}
		}}, []Stage{Scale}},
		{"biases negated", []string{"Quantize"}, mutantProduct{quantized: func(a *codec.AffineRows) {
			for i := a.DType.Size() - 1; i < len(a.Biases); i += a.DType.Size() {
				a.Biases[i] ^= 0x80
			}
		}}, []Stage{Zero}},
		{"an index off by one", []string{"Quantize"}, mutantProduct{quantized: func(a *codec.AffineRows) {
			if len(a.Codes) > 0 {
				a.Codes[len(a.Codes)/2] ^= 1
			}
		}}, []Stage{Index}},
		{"off-by-one stride", []string{"Quantize", "Compact"}, mutantProduct{view: gap}, []Stage{Scale, Zero, Index, Copy, Error}},
		{"rejected NaN becomes -Inf", []string{"Mask"}, mutantProduct{mask: func(dst, logits codec.Tensor, m codec.Bitmask) {
			f := put(func(bits uint64, allow bool) (uint64, bool) {
				v := logits.DType.Load([]byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
				return map[codec.DType]uint64{codec.F32: 0xff800000, codec.F16: 0xfc00, codec.BF16: 0xff80}[dst.DType], v != v && !allow
			})
			f(dst, logits, m)
		}}, []Stage{Mask}},
		{"-0 kept", []string{"Mask"}, mutantProduct{mask: func(dst, logits codec.Tensor, m codec.Bitmask) {
			zero := uint64(1) << (8*dst.DType.Size() - 1)
			put(func(bits uint64, allow bool) (uint64, bool) { return bits, allow && bits == zero })(dst, logits, m)
		}}, []Stage{Mask}},
		{"tokens beyond the words allowed", []string{"Mask"}, mutantProduct{mask: func(dst, logits codec.Tensor, m codec.Bitmask) {
			size := dst.DType.Size()
			eachElement(dst, func(i, at int) {
				if i%dst.Dim()/32 >= m.Words {
					copy(dst.Data[at:at+size], logits.Data[i*size:])
				}
			})
		}}, []Stage{Mask}},
		{"empty rows not told", []string{"Mask"}, mutantProduct{empty: func([]int) []int { return nil }}, []Stage{Mask}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.mutant.Backend = ref.New()
			for _, op := range test.ops {
				r := Run(t.Context(), &test.mutant, plainly(op))
				if test.want == nil {
					if err := r.Err(); err != nil {
						t.Error(err)
					}
					continue
				}
				if r.Failed == 0 {
					t.Errorf("%s: %d cases, none failed", op, r.Cases)
				}
				for _, f := range r.Failures {
					if !slices.Contains(test.want, f.Stage) {
						t.Errorf("want stage %v: %v", test.want, f)
						break
					}
				}
				t.Logf("%s: %d of %d cases failed", op, r.Failed, r.Cases)
			}
		})
	}
}
