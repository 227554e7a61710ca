package cpu

import (
	"math"
	"slices"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

var _ driver.Products = (*weights)(nil)

// product is one call of MatMul as a task: chunk i is outputs i·per to (i+1)·per−1 of every row of x. So weights
// are decoded once, and a panel of them stays in a cache while the rows of x pass by.
type product struct {
	x, y          []float32 // [rows, in], canonical; [rows, out]
	rows, in, out int
	per           int
	weights       panels
	row           []byte          // a row of a tensor with gaps
	natural       []float32       // a row of x in the order of columns
	kernels       *productKernels // or nil; rows of x are then in their order
	order         *trellisPanels  // the weights, with kernels
}

// panels are packed weights of shape [out, in].
type panels interface {
	// panel writes rows first to first+n−1 to w.w, of n·in elements.
	panel(w *panel, first, n int)
}

// panel is what one goroutine needs.
type panel struct {
	w     []float32
	part  []float32
	bytes []byte
	index []byte

	// With vectors:
	strips []float32 // columns of four rows, in order
	chains []float32 // [rows of x, 4, 32]
	sums   [16]float32
	ring   []byte
}

var (
	products   = sync.Pool{New: func() any { return new(product) }}
	panelsIdle = sync.Pool{New: func() any { return new(panel) }}
)

// multiply writes y = x·wᵀ, per rows of w at a time (docs/numerics.md §7).
func (b *backend) multiply(y, x codec.Tensor, w panels, per int) {
	p := products.Get().(*product)
	in, out := newTensor(x), newTensor(y)
	p.rows, p.in, p.out, p.per, p.weights = y.Rows(), in.dim, out.dim, per, w
	p.kernels, p.order = nil, nil
	if order, ok := w.(*trellisPanels); ok && b.products != nil && order.ordered() {
		p.kernels, p.order = b.products, order
		p.natural = slices.Grow(p.natural[:0], in.dim)[:in.dim]
	}
	p.x = slices.Grow(p.x[:0], p.rows*p.in)[:p.rows*p.in]
	p.y = slices.Grow(p.y[:0], p.rows*p.out)[:p.rows*p.out]
	n := max(in.dim*in.size, out.dim*out.size)
	p.row = slices.Grow(p.row[:0], n)[:n]
	for r := range p.rows {
		x := p.x[r*p.in:][:p.in]
		if p.kernels == nil {
			in.load(x, p.row, r)
			canonFactors(x)
			continue
		}
		in.load(p.natural, p.row, r)
		canonFactors(p.natural)
		p.kernels.arrange(x, p.natural)
	}
	b.pool.run(p, (p.out+per-1)/per)
	for r := range p.rows {
		out.store(p.y[r*p.out:][:p.out], p.row, r)
	}
	p.weights, p.order = nil, nil
	products.Put(p)
}

// load widens row r of t into dst. buf has room for it.
func (t *tensor) load(dst []float32, buf []byte, r int) {
	n := t.dim * t.size
	if t.contiguous {
		buf = t.Data[r*n : (r+1)*n]
	} else {
		buf = buf[:n]
		gather(buf, t.Tensor, r)
	}
	widen(dst, buf, t.DType)
}

// store rounds src into row r of t, as IEEE 754 converts.
func (t *tensor) store(src []float32, buf []byte, r int) {
	n := t.dim * t.size
	if t.contiguous {
		narrow(t.Data[r*n:(r+1)*n], src, t.DType, false)
		return
	}
	narrow(buf[:n], src, t.DType, false)
	scatter(t.Tensor, r, buf[:n])
}

func (p *product) chunk(i int) {
	if p.kernels != nil {
		p.chunkLanes(i)
		return
	}
	first := i * p.per
	n := min(p.per, p.out-first)
	w := panelsIdle.Get().(*panel)
	w.w = slices.Grow(w.w[:0], n*p.in)[:n*p.in]
	p.weights.panel(w, first, n)
	canonFactors(w.w)
	for r := range p.rows {
		x, y := p.x[r*p.in:][:p.in], p.y[r*p.out+first:][:n]
		for j := range y {
			y[j] = dot(x, w.w[j*p.in:][:p.in])
		}
	}
	panelsIdle.Put(w)
}

// productMin is the bit pattern of 2^-50, the least non-zero magnitude of an operand of a product.
const productMin = 0x26800000

// canonFactors makes operands of a product canonical.
func canonFactors(x []float32) {
	for i, v := range x {
		if math.Float32bits(v)&0x7fffffff < productMin {
			x[i] = 0
		}
	}
}

// dot returns Σ x[c]·w[c] in the order of docs/numerics.md §7. The chains are independent of each other, so that
// a processor works on several at once.
func dot(x, w []float32) float32 {
	var chains [32]float32
	n := len(x) &^ 127
	for c := 0; c < n; c += 128 {
		a, b := (*[128]float32)(x[c:]), (*[128]float32)(w[c:])
		for l := range chains {
			s := chains[l]
			s += float32(a[4*l] * b[4*l])
			s += float32(a[4*l+1] * b[4*l+1])
			s += float32(a[4*l+2] * b[4*l+2])
			s += float32(a[4*l+3] * b[4*l+3])
			chains[l] = s
		}
	}
	for c := n; c < len(x); c++ {
		chains[c/4%32] += float32(x[c] * w[c])
	}
	return f32.TreeSum(chains[:])
}

// trellisPanels are the weights of a matrix, rounded to a type.
type trellisPanels struct {
	c *weights
	m *trellis.Matrix
	t codec.DType
}

// MatMul multiplies with the decoded weights (docs/numerics.md §6, §7).
func (c *weights) MatMul(y, x codec.Tensor, m *trellis.Matrix, o codec.ProductOptions) error {
	per := max(1, chunkBytes/(4*max(1, m.Geometry.In)))
	if m.Geometry.Axis == 0 {
		per = min(c.p.T, 32) // a block's outputs, of which few are decoded at once
	}
	c.b.multiply(y, x, &trellisPanels{c, m, o.Weights}, per)
	return nil
}

func (a *trellisPanels) panel(w *panel, first, n int) {
	c, g, p := a.c, a.m.Geometry, a.c.p
	if g.Axis == 1 {
		for j := range n {
			s := pack.FromF16(a.m.Scales[first+j])
			for b := range g.In / p.T {
				c.decodePart(w.w[j*g.In+b*p.T:][:p.T], a.m.Codes[blockAt(g, p, first+j, b):][:p.BlockWords()], 0, s)
			}
		}
	} else {
		w.part = slices.Grow(w.part[:0], n)[:n]
		for col := range g.In {
			s := pack.FromF16(a.m.Scales[col])
			for j := 0; j < n; {
				block, t := (first+j)/p.T, (first+j)%p.T
				part := w.part[:min(n-j, p.T-t)]
				c.decodePart(part, a.m.Codes[blockAt(g, p, col, block):][:p.BlockWords()], t, s)
				for _, v := range part {
					w.w[j*g.In+col] = v
					j++
				}
			}
		}
	}
	if a.t != codec.F32 {
		w.bytes = slices.Grow(w.bytes[:0], len(w.w)*a.t.Size())[:len(w.w)*a.t.Size()]
		narrow(w.bytes, w.w, a.t, false)
		widen(w.w, w.bytes, a.t)
	}
}

// decodePart writes f(state)·s for the states of a block from number first on.
func (c *weights) decodePart(dst []float32, block []uint32, first int, s float32) {
	mask := uint64(len(c.values) - 1)
	k := c.p.K
	// From the last of them back, windows go up by K bits; a register holds what is left of two words.
	bit := (c.p.T - first - len(dst)) * k
	next := bit / 32
	acc, n := uint64(block[next])>>(bit%32), 32-bit%32
	for t := len(dst) - 1; t >= 0; t-- {
		if n < c.p.L {
			if next++; next == len(block) {
				next = 0
			}
			acc |= uint64(block[next]) << n
			n += 32
		}
		dst[t] = c.values[acc&mask] * s
		acc >>= k & 63
		n -= k
	}
}
