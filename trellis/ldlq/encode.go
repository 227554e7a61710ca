package ldlq

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/fault"
	"github.com/turbotrellis/turbotrellis/internal/parallel"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

const (
	// batch is the number of an output's rows whose feedback is added up side by side on axis 1, so that each
	// part of L is read once for all of them.
	batch = 8

	// pieceSamples bounds the samples of one call of Blocks where any number may be coded at once.
	pieceSamples = 1 << 20
)

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

// Blocks finds paths of the trellis, as codec.Trellis's EncodeBlocks does.
type Blocks interface {
	// EncodeBlocks writes to states, as many as samples, the states of the best path for each block of T samples.
	// The samples are finite and at most trellis.MaxSample in size.
	EncodeBlocks(ctx context.Context, states []uint16, samples []float32) error
}

// Run says what Encode works with. The bytes depend on none of it.
type Run struct {
	Blocks  Blocks // has the parameters that Encode is given; required
	Calls   int    // calls of Blocks at once, on axis 0; less than 1 means 1
	Workers int    // goroutines for all other work; less than 1 means 1
}

// Encode codes the matrix w [Out, In], row-major, into dst with the feedback of
// a Hessian [In, In]. If recon is not nil it has the length of w and receives
// the decoded weights. On any error nothing is written.
//
// A weight that is not finite and a row whose scale overflows binary16 are a
// *trellis.ValueError indexing w; other errors are an ErrShape for a Hessian of
// another size or one prepared for other blocks than BlockFor, an ErrOptions for
// a Run without Blocks, those of package trellis for p and g, those of Blocks,
// and ctx.Err() soon after ctx ends. Feedback that leaves the range of a sample
// is not an error: those rows fall back.
//
// It needs memory for two copies of the codes, and 4·Out·In bytes for errors and
// on axis 1 as many for code values.
func (f *Feedback) Encode(ctx context.Context, dst *trellis.Matrix, recon, w []float32, p trellis.Params, g trellis.Geometry, run Run) (Report, error) {
	c, err := f.newCoder(ctx, w, p, g, run)
	if err != nil {
		return Report{}, err
	}
	if recon != nil && len(recon) != len(w) {
		return Report{}, fault.New(ErrShape, "reconstruction of %d for %d weights", len(recon), len(w))
	}

	plain, fed := c.newMatrix(), c.newMatrix()
	if err := c.encodePlain(plain); err != nil {
		return Report{}, err
	}
	var diverged []bool
	if g.Axis == 0 {
		diverged, err = c.encodeInputs(fed)
	} else {
		diverged, err = c.encodeOutputs(fed)
	}
	if err != nil {
		return Report{}, err
	}
	r, err := c.choose(fed, plain, diverged)
	if err != nil {
		return Report{}, err
	}

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
	ctx    context.Context
	w      []float32
	p      trellis.Params
	g      trellis.Geometry // not interleaved
	blocks Blocks
	calls  int
	values []float32 // f(s)
	first  []uint16  // RowScale of each coded row
	div    []float32
	work   []worker
}

// worker is what one goroutine writes to.
type worker struct {
	fed  []float64 // what is added to the blocks at hand
	x, y []float64 // [In] each
	row  []float32 // [In]
}

func (f *Feedback) newCoder(ctx context.Context, w []float32, p trellis.Params, g trellis.Geometry, run Run) (*coder, error) {
	if err := g.Validate(p); err != nil {
		return nil, err
	}
	switch {
	case run.Blocks == nil:
		return nil, fault.New(ErrOptions, "no Blocks to code with")
	case p.FreeEnds:
		return nil, fault.New(trellis.ErrParams, "free-ended blocks have no packed form")
	case len(w) != g.Out*g.In:
		return nil, fault.New(ErrShape, "%d weights for [%d, %d]", len(w), g.Out, g.In)
	case f.n != g.In:
		return nil, fault.New(ErrShape, "Hessian [%d, %d] for weights [%d, %d]", f.n, f.n, g.Out, g.In)
	case f.block != BlockFor(p, g.Axis):
		return nil, fault.New(ErrShape, "feedback for blocks of %d columns, want %d on axis %d with T = %d",
			f.block, BlockFor(p, g.Axis), g.Axis, p.T)
	}
	g.Interleaved = false
	enc, err := trellis.NewEncoder(p)
	if err != nil {
		return nil, err
	}
	values, err := trellis.AppendValues(nil, p.Code, p.L)
	if err != nil {
		return nil, err
	}
	c := &coder{
		Feedback: f, ctx: ctx, w: w, p: p, g: g, blocks: run.Blocks, calls: max(1, run.Calls), values: values,
		first: make([]uint16, g.Rows()),
		div:   make([]float32, g.Rows()),
		work:  make([]worker, max(1, run.Workers)),
	}
	for i := range c.work {
		c.work[i] = worker{make([]float64, batch*p.T), make([]float64, f.n), make([]float64, f.n), make([]float32, f.n)}
	}
	row := make([]float32, g.Cols())
	for r := range c.first {
		c.gather(row, r)
		c.first[r], c.div[r], err = enc.RowScale(row)
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
func (c *coder) each(n int, do func(k *worker, i int) error) error {
	slots := c.work[:max(1, min(n, len(c.work)))]
	return parallel.Each(c.ctx, slots, parallel.Range(n), func(_ context.Context, k *worker, i int) error {
		return do(k, i)
	})
}

// keep packs the states of a block into words and writes their code values to f.
func (c *coder) keep(words []uint32, f []float32, states []uint16) error {
	if err := trellis.PackStates(words, states, c.p); err != nil {
		return fmt.Errorf("the blocks' states: %w", err)
	}
	for t, s := range states {
		f[t] = c.values[s]
	}
	return nil
}

// stored returns the scale to store for a coded row that w and f, the code values, are fitted to.
func (c *coder) stored(row int, w, f []float32) (uint16, error) {
	if c.p.Scale != trellis.Refit {
		return c.first[row], nil
	}
	return trellis.RefitScale(c.first[row], w, f)
}

// piece is what one call of Blocks writes to.
type piece struct {
	row, f, samples []float32
	states          []uint16
}

// encodePlain codes without feedback, some rows per call.
func (c *coder) encodePlain(m *trellis.Matrix) error {
	rows, cols := c.g.Rows(), c.g.Cols()
	per := max(1, min(pieceSamples/max(1, cols), (rows+c.calls-1)/c.calls))
	pieces := make([]piece, c.calls)
	return parallel.Each(c.ctx, pieces, parallel.Range((rows+per-1)/per), func(ctx context.Context, s *piece, i int) error {
		first := i * per
		n := min(per, rows-first)
		if s.row == nil {
			*s = piece{make([]float32, cols), make([]float32, cols), make([]float32, per*cols), make([]uint16, per*cols)}
		}
		for r := range n {
			c.gather(s.row, first+r)
			for j, v := range s.row {
				s.samples[r*cols+j] = f32.Canon(v) / c.div[first+r]
			}
		}
		if err := c.blocks.EncodeBlocks(ctx, s.states[:n*cols], s.samples[:n*cols]); err != nil {
			return err
		}
		for r := range n {
			for b := range cols / c.p.T {
				at := b * c.p.T
				if err := c.keep(c.block(m, first+r, b), s.f[at:][:c.p.T], s.states[r*cols+at:][:c.p.T]); err != nil {
					return err
				}
			}
			c.gather(s.row, first+r)
			var err error
			if m.Scales[first+r], err = c.stored(first+r, s.row, s.f); err != nil {
				return err
			}
		}
		return nil
	})
}

// sample writes targets divided by a row's scale to samples, and reports false where one is out of range: the
// samples are then zeros.
func sample(samples, target []float32, div float32) bool {
	for t, v := range target {
		x := f32.Canon(v) / div
		if !(x >= -trellis.MaxSample && x <= trellis.MaxSample) {
			clear(samples)
			return false
		}
		samples[t] = x
	}
	return true
}

// encodeOutputs codes axis 1, where each output is a coded row: a block of all of them per call. It reports the
// rows that left the range of a sample.
func (c *coder) encodeOutputs(m *trellis.Matrix) (diverged []bool, err error) {
	n, T, out := c.n, c.p.T, c.g.Out
	groups := (out + batch - 1) / batch
	diverged = make([]bool, out)
	f, e := make([]float32, out*n), make([]float32, out*n)
	samples, states := make([]float32, out*T), make([]uint16, out*T)
	for b := n - T; b >= 0; b -= T {
		err := c.each(groups, func(k *worker, i int) error {
			lo := i * batch
			hi := min(lo+batch, out)
			clear(k.fed)
			for j := b + T; j < n; j++ {
				l := c.a[j*n+b:][:T]
				for r := lo; r < hi; r++ {
					axpy(k.fed[(r-lo)*T:][:T], float64(e[r*n+j]), l)
				}
			}
			target := k.row[:T]
			for r := lo; r < hi; r++ {
				for t, v := range c.w[r*n+b:][:T] {
					target[t] = float32(float64(v) + k.fed[(r-lo)*T+t])
				}
				if diverged[r] = diverged[r] || !sample(samples[r*T:][:T], target, c.div[r]); diverged[r] {
					clear(samples[r*T:][:T])
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if err := c.blocks.EncodeBlocks(c.ctx, states, samples); err != nil {
			return nil, err
		}
		err = c.each(groups, func(_ *worker, i int) error {
			for r := i * batch; r < min(i*batch+batch, out); r++ {
				at := r*n + b
				if err := c.keep(c.block(m, r, b/T), f[at:][:T], states[r*T:][:T]); err != nil {
					return err
				}
				s := pack.FromF16(c.first[r])
				for t, v := range c.w[at:][:T] {
					e[at+t] = v - float32(f[at+t]*s)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return diverged, c.each(out, func(k *worker, r int) error {
		m.Scales[r] = c.first[r]
		if c.p.Scale == trellis.Refit && !diverged[r] {
			m.Scales[r] = c.refit(k, c.first[r], c.w[r*n:][:n], f[r*n:][:n])
		}
		return nil
	})
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
func (c *coder) refit(k *worker, first uint16, w, f []float32) uint16 {
	for i, v := range f {
		k.x[i] = float64(v)
	}
	c.multiply(k.y, k.x)
	var num, den [32]float32
	for i, v := range k.y {
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

// encodeInputs codes axis 0, where each input is a coded row, its blocks shared out among calls. It reports
// whether one left the range of a sample.
func (c *coder) encodeInputs(m *trellis.Matrix) (diverged []bool, err error) {
	n, out, T := c.n, c.g.Out, c.p.T
	errs := make([]float32, n*out) // [In, Out]
	f, target, samples := make([]float32, out), make([]float32, out), make([]float32, out)
	states := make([]uint16, out)
	bad := make([]bool, out/T)
	calls := make([]struct{}, max(1, min(c.calls, out/T)))
	for i := n - 1; i >= 0; i-- {
		err := c.each(out/T, func(k *worker, b int) error {
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
			bad[b] = !sample(samples[b*T:][:T], x, c.div[i])
			return nil
		})
		if err != nil {
			return nil, err
		}
		if slices.Contains(bad, true) {
			return []bool{true}, nil
		}
		err = parallel.Each(c.ctx, calls, parallel.Range(len(calls)), func(ctx context.Context, _ *struct{}, i int) error {
			lo, hi := i*(out/T)/len(calls)*T, (i+1)*(out/T)/len(calls)*T
			return c.blocks.EncodeBlocks(ctx, states[lo:hi], samples[lo:hi])
		})
		if err != nil {
			return nil, err
		}
		for b := range out / T {
			if err := c.keep(c.block(m, i, b), f[b*T:][:T], states[b*T:][:T]); err != nil {
				return nil, err
			}
		}
		if m.Scales[i], err = c.stored(i, target, f); err != nil {
			return nil, err
		}
		s := pack.FromF16(m.Scales[i])
		for o, v := range f {
			errs[i*out+o] = c.w[o*n+i] - float32(v*s)
		}
	}
	return []bool{false}, nil
}

// losses returns the proxy loss of each output.
func (c *coder) losses(m *trellis.Matrix) ([]float64, error) {
	n := c.n
	loss := make([]float64, c.g.Out)
	err := c.each(c.g.Out, func(k *worker, r int) error {
		if err := m.DecodeRows(k.row, r, r+1); err != nil {
			return err
		}
		for i, v := range k.row {
			k.x[i] = float64(c.w[r*n+i]) - float64(v)
		}
		c.multiply(k.y, k.x)
		for i, v := range k.y {
			loss[r] += float64(k.x[i] * v)
		}
		return nil
	})
	return loss, err
}

// choose replaces in fed what plain has a smaller loss for.
func (c *coder) choose(fed, plain *trellis.Matrix, diverged []bool) (Report, error) {
	r := Report{Damp: c.damp, Rows: c.g.Rows()}
	after, err := c.losses(fed)
	if err != nil {
		return r, err
	}
	before, err := c.losses(plain)
	if err != nil {
		return r, err
	}
	if c.g.Axis == 0 {
		after, before = []float64{sum(after)}, []float64{sum(before)}
	}
	rows := r.Rows / max(len(after), 1) // coded rows per loss
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
	return r, nil
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}
