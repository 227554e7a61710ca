package cpu

import (
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
)

// productKernels multiply with the 32 chains of docs/numerics.md §7 in the lanes of vectors. A chain takes four
// neighbouring columns, then the same four of the next 128. So the operands of 128 columns are put in the order of
// their use: lanes chains at a time, for those their first columns, their second ones and so on. Rows are whole 128s.
type productKernels struct {
	lanes int
	// tile adds the products of rows rows of x, 1 or 4, with 4 rows of w to 4·rows times 32 chains. Rows begin
	// xStep and wStep elements apart.
	tile func(chains []float32, rows int, x []float32, xStep int, w []float32, wStep, width int)
	// trees writes the sums of n times 32 chains.
	trees func(dst, chains []float32, n int)
}

// strip is the number of columns whose weights lie in a buffer: those of four rows fit a first cache.
const strip = 1024

// place returns where the column c of 128 goes.
func (k *productKernels) place(c int) int {
	l, i := c/4, c%4
	return l/k.lanes*4*k.lanes + i*k.lanes + l%k.lanes
}

// arrange puts src in order.
func (k *productKernels) arrange(dst, src []float32) {
	for ; len(src) >= 128; dst, src = dst[128:], src[128:] {
		for c, v := range src[:128] {
			dst[k.place(c)] = v
		}
	}
}

// chunkLanes is chunk with vectors.
func (p *product) chunkLanes(i int) {
	k := p.kernels
	first := i * p.per
	n := min(p.per, p.out-first)
	w := panelsIdle.Get().(*panel)
	w.chains = slices.Grow(w.chains[:0], p.rows*4*32)[:p.rows*4*32]
	w.strips = slices.Grow(w.strips[:0], 4*strip)[:4*strip]
	for j := 0; j < n; j += 4 {
		rows := min(4, n-j)
		natural := false
		clear(w.chains)
		for from := 0; from < p.in; from += strip {
			part := min(strip, p.in-from)
			for r := range rows {
				dst := w.strips[r*strip:][:part]
				if !natural && p.order.order(w, dst, first+j+r, from) {
					continue
				}
				if !natural {
					natural = true
					w.w = slices.Grow(w.w[:0], rows*p.in)[:rows*p.in]
					p.weights.panel(w, first+j, rows)
					canonFactors(w.w)
				}
				row := w.w[r*p.in:][:p.in]
				k.arrange(dst, row[from:from+part])
			}
			for m := 0; m < p.rows; {
				many := 1
				if p.rows-m >= 4 {
					many = 4
				}
				k.tile(w.chains[m*4*32:][:many*4*32], many, p.x[m*p.in+from:], p.in, w.strips, strip, part)
				m += many
			}
		}
		for m := range p.rows {
			k.trees(w.sums[:], w.chains[m*4*32:][:4*32], 4)
			copy(p.y[m*p.out+first+j:][:rows], w.sums[:])
		}
	}
	panelsIdle.Put(w)
}

// ordered reports whether order serves the weights. Blocks of whole 128s (orderFor) make rows of whole 128s. To put
// weights there one by one, where it does not, costs more than the kernels save.
func (a *trellisPanels) ordered() bool {
	g, p := a.m.Geometry, a.c.p
	return a.c.simd.order != nil && g.Axis == 1 && strip%p.T == 0 && a.t != codec.F16
}

// order decodes a trellis row in the order of its use (docs/numerics.md §6.7, §7).
func (a *trellisPanels) order(w *panel, dst []float32, row, from int) bool {
	c, g, p := a.c, a.m.Geometry, a.c.p
	scale := pack.FromF16(a.m.Scales[row])
	if !f32.IsFinite(scale) {
		return false
	}
	for ; len(dst) >= p.T; dst, from = dst[p.T:], from+p.T {
		block := a.m.Codes[blockAt(g, p, row, from/p.T):][:p.BlockWords()]
		w.ring = unroll(w.ring[:0], block)
		c.simd.order(dst[:p.T], w.ring, scale, a.t == codec.BF16)
	}
	return true
}
