package ldlq

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// batch is the number of an output's rows that are coded side by side on axis 1,
// so that each part of L is read once for all of them.
const batch = 8

// Report says what Encode kept, and what it is worth. Losses are
// tr((W − Ŵ)·H·(W − Ŵ)ᵀ), of H without damping.
type Report struct {
	ProxyLoss      float64 // of the result
	UnweightedLoss float64 // of coding without feedback; at least ProxyLoss
	Damp           float64 // of the Feedback
	Rows           int     // coded rows
	FellBackRows   int     // coded rows that are those of unweighted coding
	FellBack       bool    // every row is
}

// Encode codes the matrix w [Out, In], row-major, into dst with the feedback of
// a Hessian [In, In], using up to workers goroutines. Where recon is not nil it
// has the length of w and receives the decoded weights. The bytes do not depend
// on workers. On any error nothing is written.
//
// Errors are those of (*trellis.Encoder).Encode, a *trellis.ValueError indexing
// w; an ErrShape for a Hessian of another size or one prepared for other blocks
// than BlockFor; and an ErrOptions for workers < 1. Feedback that leaves the
// range of a sample is no error: those rows fall back.
//
// It holds twice the codes and an encoder a worker, and on axis 0 4·Out·In
// bytes of errors.
func (f *Feedback) Encode(dst *trellis.Matrix, recon, w []float32, p trellis.Params, g trellis.Geometry, workers int) (Report, error) {
	c, err := f.newCoder(w, p, g, workers)
	if err != nil {
		return Report{}, err
	}
	if recon != nil && len(recon) != len(w) {
		return Report{}, fmt.Errorf("%w: reconstruction of %d for %d weights", ErrShape, len(recon), len(w))
	}

	plain, fed := c.newMatrix(), c.newMatrix()
	c.encodePlain(plain)
	var diverged []bool
	if g.Axis == 0 {
		diverged = []bool{c.encodeInputs(fed)}
	} else {
		diverged = c.encodeOutputs(fed)
	}
	r := c.choose(fed, plain, diverged)

	fed.Geometry = g
	if g.Interleaved {
		codes := make([]uint32, len(fed.Codes))
		if err := trellis.Interleave(codes, fed.Codes, g.Rows(), g.Cols(), p); err != nil {
			return Report{}, err
		}
		fed.Codes = codes
	}
	if recon != nil {
		if err := fed.DecodeRows(recon, 0, g.Out); err != nil {
			return Report{}, err
		}
	}
	*dst = *fed
	return r, nil
}

// coder is one call of Encode.
type coder struct {
	*Feedback
	w      []float32
	p      trellis.Params
	g      trellis.Geometry // not interleaved
	values []float32        // f(s)
	first  []uint16         // RowScale of each coded row
	div    []float32
	work   []worker
}

// worker is what one goroutine writes to.
type worker struct {
	enc     *trellis.Encoder
	states  []uint16  // a block's
	samples []float32 // a block's
	row     []float32 // a coded row
	fed     []float64 // what is added to the blocks at hand
}

func (f *Feedback) newCoder(w []float32, p trellis.Params, g trellis.Geometry, workers int) (*coder, error) {
	if err := g.Validate(p); err != nil {
		return nil, err
	}
	switch {
	case workers < 1:
		return nil, fmt.Errorf("%w: %d workers", ErrOptions, workers)
	case p.FreeEnds:
		return nil, fmt.Errorf("%w: free-ended blocks have no packed form", trellis.ErrParams)
	case len(w) != g.Out*g.In:
		return nil, fmt.Errorf("%w: %d weights for [%d, %d]", ErrShape, len(w), g.Out, g.In)
	case f.n != g.In:
		return nil, fmt.Errorf("%w: Hessian [%d, %d] for weights [%d, %d]", ErrShape, f.n, f.n, g.Out, g.In)
	case f.block != BlockFor(p, g.Axis):
		return nil, fmt.Errorf("%w: feedback for blocks of %d columns, want %d on axis %d with T = %d",
			ErrShape, f.block, BlockFor(p, g.Axis), g.Axis, p.T)
	}
	g.Interleaved = false
	values, err := trellis.AppendValues(nil, p.Code, p.L)
	if err != nil {
		return nil, err
	}
	c := &coder{
		Feedback: f, w: w, p: p, g: g, values: values,
		first: make([]uint16, g.Rows()),
		div:   make([]float32, g.Rows()),
		work:  make([]worker, workers),
	}
	for i := range c.work {
		enc, err := trellis.NewEncoder(p)
		if err != nil {
			return nil, err
		}
		c.work[i] = worker{enc, make([]uint16, p.T), make([]float32, p.T), make([]float32, g.Cols()), make([]float64, batch*p.T)}
	}
	k := &c.work[0]
	for r := range c.first {
		c.gather(k.row, r)
		c.first[r], c.div[r], err = k.enc.RowScale(k.row)
		if err != nil {
			var v *trellis.ValueError
			if errors.As(err, &v) {
				v.Index = c.weightAt(r, v.Index)
			}
			return nil, err
		}
	}
	return c, nil
}

func (c *coder) newMatrix() *trellis.Matrix {
	return &trellis.Matrix{
		Params:   c.p,
		Geometry: c.g,
		Codes:    make([]uint32, c.g.CodesLen(c.p)),
		Scales:   make([]uint16, c.g.Rows()),
	}
}

// weightAt returns the offset in w of a weight of a coded row.
func (c *coder) weightAt(row, col int) int {
	if c.g.Axis == 0 {
		return col*c.g.In + row
	}
	return row*c.g.In + col
}

func (c *coder) gather(dst []float32, row int) {
	for i := range dst {
		dst[i] = c.w[c.weightAt(row, i)]
	}
}

// block returns the words of a block of a coded row.
func (c *coder) block(m *trellis.Matrix, row, b int) []uint32 {
	n := c.p.BlockWords()
	return m.Codes[(row*(c.g.Cols()/c.p.T)+b)*n:][:n]
}

// each calls do for every i below n, on the coder's workers.
func (c *coder) each(n int, do func(k *worker, i int)) {
	if n == 1 || len(c.work) == 1 {
		for i := range n {
			do(&c.work[0], i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for i := range min(n, len(c.work)) {
		wg.Go(func() {
			for {
				j := int(next.Add(1)) - 1
				if j >= n {
					return
				}
				do(&c.work[i], j)
			}
		})
	}
	wg.Wait()
}

// must is for what newCoder's checks rule out.
func must(err error) {
	if err != nil {
		panic("ldlq: " + err.Error())
	}
}

func (c *coder) encodePlain(m *trellis.Matrix) {
	n := len(m.Codes) / max(c.g.Rows(), 1)
	c.each(c.g.Rows(), func(k *worker, r int) {
		c.gather(k.row, r)
		var err error
		m.Scales[r], err = k.enc.EncodeRow(m.Codes[r*n:][:n], nil, k.row)
		must(err)
	})
}

// encodeBlock codes T targets of a coded row and writes their code values to f.
// It reports false where a target is out of range.
func (c *coder) encodeBlock(k *worker, words []uint32, f, target []float32, div float32) bool {
	for t, v := range target {
		k.samples[t] = f32.Canon(v) / div
	}
	if k.enc.EncodeBlock(k.states, k.samples) != nil {
		return false
	}
	must(trellis.PackStates(words, k.states, c.p))
	for t, s := range k.states {
		f[t] = c.values[s]
	}
	return true
}

// encodeOutputs codes axis 1, where each output is a coded row. It reports the
// rows that left the range of a sample.
func (c *coder) encodeOutputs(m *trellis.Matrix) (diverged []bool) {
	n, T := c.n, c.p.T
	diverged = make([]bool, c.g.Out)
	c.each((c.g.Out+batch-1)/batch, func(k *worker, i int) {
		lo := i * batch
		hi := min(lo+batch, c.g.Out)
		f, e := make([]float32, batch*n), make([]float32, batch*n)
		fed, target := k.fed, make([]float32, T)
		for b := n - T; b >= 0; b -= T {
			clear(fed)
			for j := b + T; j < n; j++ {
				l := c.a[j*n+b:][:T]
				for r := range hi - lo {
					axpy(fed[r*T:][:T], float64(e[r*n+j]), l)
				}
			}
			for r := lo; r < hi; r++ {
				at := (r-lo)*n + b
				w := c.w[r*n+b:][:T]
				for t, v := range w {
					target[t] = float32(float64(v) + fed[(r-lo)*T+t])
				}
				if diverged[r] || !c.encodeBlock(k, c.block(m, r, b/T), f[at:][:T], target, c.div[r]) {
					diverged[r] = true
					continue
				}
				s := pack.FromF16(c.first[r])
				for t, v := range w {
					e[at+t] = v - float32(f[at+t]*s)
				}
			}
		}
		for r := lo; r < hi; r++ {
			m.Scales[r] = c.first[r]
			if c.p.Scale == trellis.Refit && !diverged[r] {
				m.Scales[r] = c.refit(c.first[r], c.w[r*n:][:n], f[(r-lo)*n:][:n])
			}
		}
	})
	return diverged
}

// axpy adds x·v to y.
func axpy(y []float64, x float64, v []float64) {
	v = v[:len(y)]
	for i := range y {
		y[i] += float64(x * v[i])
	}
}

// refit is trellis.RefitScale with the inner products of H, in the same order
// and precision: the same where H is the identity.
func (c *coder) refit(first uint16, w, f []float32) uint16 {
	x, y := make([]float64, len(f)), make([]float64, len(f))
	for i, v := range f {
		x[i] = float64(v)
	}
	c.multiply(y, x)
	var num, den [32]float32
	for i, v := range y {
		hf := float32(v)
		num[i%32] += float32(f32.Canon(w[i]) * hf)
		den[i%32] += float32(f[i] * hf)
	}
	s := pack.ToF16(f32.TreeSum(num[:]) / f32.TreeSum(den[:]))
	if v := pack.FromF16(s); first == 0 || !(v > 0) || !f32.IsFinite(v) {
		return first
	}
	return s
}

// encodeInputs codes axis 0, where each input is a coded row. It reports
// whether one left the range of a sample.
func (c *coder) encodeInputs(m *trellis.Matrix) (diverged bool) {
	n, out, T := c.n, c.g.Out, c.p.T
	errs := make([]float32, n*out) // [In, Out]
	f, target := make([]float32, out), make([]float32, out)
	bad := make([]bool, out/T)
	for i := n - 1; i >= 0; i-- {
		c.each(out/T, func(k *worker, b int) {
			fed := k.fed[:T]
			clear(fed)
			for j := i + 1; j < n; j++ {
				l := c.a[j*n+i]
				for t, e := range errs[j*out+b*T:][:T] {
					fed[t] += float64(float64(e) * l)
				}
			}
			x := target[b*T:][:T]
			for t := range x {
				x[t] = float32(float64(c.w[(b*T+t)*n+i]) + fed[t])
			}
			bad[b] = !c.encodeBlock(k, c.block(m, i, b), f[b*T:][:T], x, c.div[i])
		})
		if slices.Contains(bad, true) {
			return true
		}
		m.Scales[i] = c.first[i]
		if c.p.Scale == trellis.Refit {
			var err error
			m.Scales[i], err = trellis.RefitScale(c.first[i], target, f)
			must(err)
		}
		s := pack.FromF16(m.Scales[i])
		for o, v := range f {
			errs[i*out+o] = c.w[o*n+i] - float32(v*s)
		}
	}
	return false
}

// losses returns the proxy loss of each output.
func (c *coder) losses(m *trellis.Matrix) []float64 {
	n := c.n
	loss := make([]float64, c.g.Out)
	c.each(c.g.Out, func(_ *worker, r int) {
		recon := make([]float32, n)
		must(m.DecodeRows(recon, r, r+1))
		e, y := make([]float64, n), make([]float64, n)
		for i, v := range recon {
			e[i] = float64(c.w[r*n+i]) - float64(v)
		}
		c.multiply(y, e)
		for i, v := range y {
			loss[r] += float64(e[i] * v)
		}
	})
	return loss
}

// choose replaces in fed what plain has a smaller loss for.
func (c *coder) choose(fed, plain *trellis.Matrix, diverged []bool) Report {
	r := Report{Damp: c.damp, Rows: c.g.Rows()}
	after, before := c.losses(fed), c.losses(plain)
	if c.g.Axis == 0 {
		after, before = []float64{sum(after)}, []float64{sum(before)}
	}
	rows := r.Rows / max(len(after), 1) // coded rows a loss
	words := len(fed.Codes) / max(len(after), 1)
	for i, loss := range after {
		if diverged[i] || !(loss <= before[i]) {
			copy(fed.Codes[i*words:][:words], plain.Codes[i*words:])
			copy(fed.Scales[i*rows:][:rows], plain.Scales[i*rows:])
			r.FellBackRows += rows
			loss = before[i]
		}
		r.ProxyLoss += loss
		r.UnweightedLoss += before[i]
	}
	r.FellBack = r.Rows > 0 && r.FellBackRows == r.Rows
	return r
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}
