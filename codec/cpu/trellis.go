package cpu

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// weights implements driver.Trellis.
type weights struct {
	b       *backend
	p       trellis.Params
	values  []float32 // f(s)
	squares []float32 // f(s)·f(s)
	rms     float32   // f32(1/lutRMS)

	steps                       steps
	branchValues, branchSquares []float32 // values and squares in the order of steps

	distinct distinct
	simd     trellisKernels

	coders sync.Pool // of *coder
	calls  sync.Pool // of *trellisCall
}

func newTrellis(b *backend, p trellis.Params) (*weights, error) {
	values, err := trellis.AppendValues(nil, p.Code, p.L)
	if err != nil {
		return nil, err
	}
	return newWeights(b, p, values), nil
}

// newWeights returns the codec of a trellis with the given values of states.
func newWeights(b *backend, p trellis.Params, values []float32) *weights {
	c := &weights{b: b, p: p, values: values, squares: make([]float32, len(values)), rms: trellis.InvRMS(values)}
	for s, f := range values {
		c.squares[s] = f * f
	}
	if c.steps = stepsSIMD(p, b.level); c.steps != nil {
		// Vector steps read values as they are.
	} else if c.steps = stepsFor(p); c.steps != nil {
		c.branchValues, c.branchSquares = byBranch(c.values, p), byBranch(c.squares, p)
	}
	c.distinct = newDistinct(c.values)
	c.simd = trellisKernelsFor(c, b.level)
	c.coders.New = func() any { return newCoder(c) }
	c.calls.New = func() any { return &trellisCall{c: c} }
	return c
}

// coder is what one goroutine needs.
type coder struct {
	viterbi *viterbi // made by the first encoder
	samples []float32
	states  []uint16
	row     []float32 // a coded row, or a decoded one
	f       []float32 // the code values of a coded row
	src     []byte    // a row of a tensor with gaps
	dst     []byte    // decoder: likewise
	ring    []byte    // a block's bytes, and its first ones again
	rings   []byte    // those of a row's blocks
	table   *rowTable // decoder: the weights of a row
}

func newCoder(c *weights) *coder {
	return &coder{samples: make([]float32, c.p.T), states: make([]uint16, c.p.T)}
}

func (w *coder) encoder(c *weights) *viterbi {
	if w.viterbi == nil {
		w.viterbi = newViterbi(c)
	}
	return w.viterbi
}

// trellisOp is what a call does.
type trellisOp uint8

const (
	encodeBlocks trellisOp = iota
	checkRows              // scales of all rows, before anything is written
	encodeRows
	decodeRows
	decodeTiles // of a matrix coded along its columns
)

// trellisKernels are vector kernels, or nil.
type trellisKernels struct {
	// decode decodes blocks whose rings follow each other. It is false, having written nothing, where it does not
	// serve the scale or the type.
	decode func(dst, rings []byte, scale float32, t codec.DType) bool
	// order decodes one block in the order of productKernels, the weights rounded to bf16 if bf16 is set, from a
	// ring. The scale is finite.
	order func(dst []float32, ring []byte, scale float32, bf16 bool)
}

// trellisCall is one call as a task: chunk i is rows i·per to (i+1)·per−1, coded rows for encoders.
type trellisCall struct {
	c         *weights
	op        trellisOp
	rows, per int
	x         tensor // encoders: the input; decoder: the output
	states    []uint16
	m         *trellis.Matrix
	divisors  []float32 // by row: what its samples are divided by; the scales are in m
	first     int       // decoder: the first row

	done                <-chan struct{} // of the context
	stopped             atomic.Bool
	nonFinite, overflow atomic.Int64 // least index found, or none
}

// stop reports whether the context has ended.
func (a *trellisCall) stop() bool {
	if a.done == nil {
		return false
	}
	if a.stopped.Load() {
		return true
	}
	select {
	case <-a.done:
		a.stopped.Store(true)
		return true
	default:
		return false
	}
}

func (a *trellisCall) run(op trellisOp, rows, per int) {
	a.op, a.rows, a.per = op, rows, max(1, per)
	a.c.b.pool.run(a, (rows+a.per-1)/a.per)
}

func (c *weights) call(ctx context.Context) *trellisCall {
	a := c.calls.Get().(*trellisCall)
	a.done = nil
	if ctx != nil {
		a.done = ctx.Done()
	}
	a.stopped.Store(false)
	a.nonFinite.Store(none)
	a.overflow.Store(none)
	return a
}

// found returns what an encoder's call found.
func (a *trellisCall) found(dim int) driver.Found {
	f := driver.Found{NonFinite: driver.None, Overflow: driver.None}
	// The element found first in the order of coded rows: indices up to here count in that order.
	at := func(i int) int {
		if a.m != nil && a.m.Geometry.Axis == 0 {
			return i%dim*a.m.Geometry.In + i/dim
		}
		return i
	}
	if i := a.nonFinite.Load(); i != none {
		f.NonFinite = at(int(i))
	}
	if i := a.overflow.Load(); i != none {
		f.Overflow = at(int(i))
	}
	return f
}

// put gives a call back for reuse, without the caller's memory.
func (c *weights) put(a *trellisCall) {
	a.x, a.states, a.m, a.done = tensor{}, nil, nil, nil
	c.calls.Put(a)
}

func (c *weights) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) (driver.Found, error) {
	a := c.call(ctx)
	defer c.put(a)
	a.states, a.x = states, newTensor(x)
	a.run(encodeBlocks, x.Rows(), 1)
	if a.stopped.Load() {
		return driver.Found{}, ctx.Err()
	}
	return a.found(0), nil
}

func (c *weights) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor) (driver.Found, error) {
	a := c.call(ctx)
	defer c.put(a)
	g := dst.Geometry
	a.m, a.x = dst, newTensor(x)
	a.divisors = slices.Grow(a.divisors[:0], g.Rows())[:g.Rows()]
	a.run(checkRows, g.Rows(), chunkBytes/(4*g.Cols()))
	if f := a.found(g.Cols()); f.NonFinite != driver.None || f.Overflow != driver.None {
		return f, nil
	}
	a.run(encodeRows, g.Rows(), 1)
	if a.stopped.Load() {
		return driver.Found{}, ctx.Err()
	}
	f := a.found(g.Cols())
	if recon.DType != 0 {
		return f, c.Decode(recon, dst, 0)
	}
	return f, nil
}

func (c *weights) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	a := c.call(nil)
	defer c.put(a)
	a.m, a.x, a.first = m, newTensor(dst), first
	if m.Geometry.Axis == 0 {
		blocks := (first+dst.Rows()-1)/c.p.T - first/c.p.T + 1
		a.run(decodeTiles, blocks*((m.Geometry.In+tile-1)/tile), 1)
		return nil
	}
	a.run(decodeRows, dst.Rows(), chunkBytes/(4*m.Geometry.In))
	return nil
}

func (a *trellisCall) chunk(i int) {
	c := a.c
	w := c.coders.Get().(*coder)
	defer c.coders.Put(w)
	for r := i * a.per; r < min((i+1)*a.per, a.rows); r++ {
		if a.stop() {
			return
		}
		switch a.op {
		case encodeBlocks:
			a.encodeBlocks(w, r)
		case checkRows:
			a.checkRow(w, r)
		case encodeRows:
			a.encodeRow(w, r)
		case decodeRows:
			a.decodeRow(w, r)
		case decodeTiles:
			a.decodeTile(w, r)
		}
	}
}

// maxSample bounds the samples of EncodeBlocks.
const maxSample = trellis.MaxSample

func (a *trellisCall) encodeBlocks(w *coder, r int) {
	x := w.samples
	a.load(w, x, r)
	for i, v := range x {
		if !f32.IsFinite(v) {
			least(&a.nonFinite, int64(r*len(x)+i))
			return
		}
		if v > maxSample || v < -maxSample {
			least(&a.overflow, int64(r*len(x)+i))
		}
	}
	w.encoder(a.c).encode(a.states[r*len(x):][:len(x)], x, a)
}

// load widens row r of the tensor.
func (a *trellisCall) load(w *coder, dst []float32, r int) {
	n := a.x.dim * a.x.size
	src := a.x.Data
	if a.x.contiguous {
		src = src[r*n : (r+1)*n]
	} else {
		w.src = slices.Grow(w.src[:0], n)[:n]
		src = w.src
		gather(src, a.x.Tensor, r)
	}
	widen(dst, src, a.x.DType)
}

// coded leaves coded row r of the matrix in w.row.
func (a *trellisCall) coded(w *coder, r int) []float32 {
	g := a.m.Geometry
	w.row = slices.Grow(w.row[:0], g.Cols())[:g.Cols()]
	if g.Axis == 1 {
		a.load(w, w.row, r)
		return w.row
	}
	// A column of the tensor.
	stride := [2]int{g.In, 1}
	if a.x.Stride != nil {
		stride = [2]int{a.x.Stride[0], a.x.Stride[1]}
	}
	n := a.x.size
	src, step := a.x.Data[r*stride[1]*n:], stride[0]*n
	for i := range w.row {
		w.row[i] = a.x.DType.Load(src[i*step:])
	}
	return w.row
}

// checkRow finds the scale of coded row r, and what its samples are divided by.
func (a *trellisCall) checkRow(w *coder, r int) {
	c := a.c
	row := a.coded(w, r)
	var lanes [32]float32
	zero := true
	for i := 0; i < len(row); i += 32 { // rows are whole blocks; a block may be shorter than the lanes
		for l, v := range row[i:min(i+32, len(row))] {
			if !f32.IsFinite(v) {
				least(&a.nonFinite, int64(r*len(row)+i+l))
				return
			}
			v = f32.Canon(v)
			zero = zero && v == 0
			lanes[l] += float32(v * v)
		}
	}
	if zero {
		a.m.Scales[r], a.divisors[r] = c.p.ZeroScale(), 1
		return
	}
	s := f32.Sqrt(f32.TreeSum(lanes[:])/float32(len(row))) * c.rms
	if c.p.Scale == trellis.Refit {
		s *= trellis.RefitFactor(c.p.K)
	}
	a.m.Scales[r] = pack.ToF16(s)
	div := pack.FromF16(a.m.Scales[r])
	switch {
	case !f32.IsFinite(div):
		least(&a.overflow, int64(r*len(row)))
	case div == 0:
		div = 1
	}
	a.divisors[r] = div
}

// encodeRow codes coded row r.
func (a *trellisCall) encodeRow(w *coder, r int) {
	c, g, p := a.c, a.m.Geometry, a.c.p
	row := a.coded(w, r)
	div := a.divisors[r]
	enc := w.encoder(c)
	refit := p.Scale == trellis.Refit
	if refit {
		w.f = slices.Grow(w.f[:0], len(row))[:len(row)]
	}
	words := p.BlockWords()
	for b := range len(row) / p.T {
		for t, v := range row[b*p.T:][:p.T] {
			w.samples[t] = f32.Canon(v) / div
		}
		if a.stop() || !enc.encode(w.states, w.samples, a) {
			return
		}
		packBlock(a.m.Codes[blockAt(g, p, r, b):][:words], w.states, p)
		if refit {
			for t, s := range w.states {
				w.f[b*p.T+t] = c.values[s]
			}
		}
	}
	if refit {
		if s, err := trellis.RefitScale(a.m.Scales[r], row, w.f); err == nil { // the lengths are equal
			a.m.Scales[r] = s
		}
	}
}

// packBlock packs the symbols of one block.
func packBlock(dst []uint32, states []uint16, p trellis.Params) {
	mask := uint64(1)<<p.K - 1
	var acc uint64
	n := 0 // bits in acc
	for t := len(states) - 1; t >= 0; t-- {
		acc |= uint64(states[t]) & mask << n
		if n += p.K; n >= 32 {
			dst[0] = uint32(acc)
			dst, acc, n = dst[1:], acc>>32, n-32
		}
	}
}

// blockAt returns the offset in the codes of a block of a coded row.
func blockAt(g trellis.Geometry, p trellis.Params, row, block int) int {
	if g.Interleaved {
		return ((block/2*g.Rows()+row)*2 + block%2) * p.BlockWords()
	}
	return (row*(g.Cols()/p.T) + block) * p.BlockWords()
}
