package ldlq

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
	"gonum.org/v1/gonum/mat"
)

// tiny is a trellis small enough to code thousands of blocks.
var tiny = trellis.Params{L: 6, K: 4, T: 8}

// layer is a real weight with the Hessian of its inputs.
type layer struct {
	name    string
	w       []float32
	h       []float64
	out, in int
}

func layers(t testing.TB) []layer {
	f := vectors.Load(t, "weights_minilm.safetensors")
	var l []layer
	for _, name := range f.Names() {
		if !f.Has(name + ".hessian") {
			continue
		}
		shape := f.Shape(name)
		x := layer{name: name, w: f.F32(t, name), out: shape[0], in: shape[1]}
		for _, v := range f.F32(t, name+".hessian") {
			x.h = append(x.h, float64(v))
		}
		l = append(l, x)
	}
	if len(l) == 0 {
		t.Fatal("no Hessians")
	}
	return l
}

func gauss(r *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

// encoders is Blocks over package trellis. It counts calls, and refuses what Encode must not ask for.
type encoders struct {
	p     trellis.Params
	pool  sync.Pool
	calls atomic.Int64
}

func (e *encoders) EncodeBlocks(ctx context.Context, states []uint16, samples []float32) error {
	e.calls.Add(1)
	if len(states) != len(samples) || len(samples)%e.p.T != 0 {
		return fmt.Errorf("%d states for %d samples", len(states), len(samples))
	}
	enc, ok := e.pool.Get().(*trellis.Encoder)
	if !ok {
		var err error
		if enc, err = trellis.NewEncoder(e.p); err != nil {
			return err
		}
	}
	defer e.pool.Put(enc)
	for b := 0; b < len(samples); b += e.p.T {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := enc.EncodeBlock(states[b:][:e.p.T], samples[b:][:e.p.T]); err != nil {
			return err
		}
	}
	return nil
}

// paths is a Run over package trellis with as many calls as workers.
func paths(p trellis.Params, workers int) Run {
	return Run{Blocks: &encoders{p: p}, Calls: workers, Workers: workers}
}

// encode codes w and checks what holds of every result.
func encode(t *testing.T, w []float32, h []float64, p trellis.Params, g trellis.Geometry, o Options, workers int) (trellis.Matrix, []float32, Report) {
	t.Helper()
	o.Block = BlockFor(p, g.Axis)
	f, err := Prepare(context.Background(), h, g.In, o)
	if err != nil {
		t.Fatal(err)
	}
	var m trellis.Matrix
	guarded := slices.Repeat([]float32{7}, len(w)+2)
	recon := guarded[1 : len(w)+1]
	before := slices.Clone(w)
	r, err := f.Encode(context.Background(), &m, recon, w, p, g, paths(p, workers))
	if err != nil {
		t.Fatal(err)
	}
	if guarded[0] != 7 || guarded[len(w)+1] != 7 || !slices.Equal(w, before) {
		t.Fatal("wrote outside the reconstruction")
	}
	if err := m.Validate(); err != nil || m.Params != p || m.Geometry != g {
		t.Fatalf("result %+v %+v: %v", m.Params, m.Geometry, err)
	}
	decoded := make([]float32, len(w))
	if err := m.DecodeRows(decoded, 0, g.Out); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(decoded, recon) {
		t.Fatal("the reconstruction is not what decoding gives")
	}

	plain, plainRecon := unweighted(t, w, p, g)
	for _, c := range []struct {
		name  string
		recon []float32
		got   float64
	}{{"ProxyLoss", recon, r.ProxyLoss}, {"UnweightedLoss", plainRecon, r.UnweightedLoss}} {
		if want := proxy(w, c.recon, h, g); math.Abs(c.got-want) > 1e-9*want {
			t.Fatalf("%s = %v, want %v", c.name, c.got, want)
		}
	}
	if !(r.ProxyLoss <= r.UnweightedLoss) {
		t.Fatalf("worse than unweighted: %+v", r)
	}
	if r.Rows != g.Rows() || r.Damp != f.Damp() || r.FellBack != (r.Rows > 0 && r.FellBackRows == r.Rows) {
		t.Fatalf("%+v", r)
	}
	if r.FellBack {
		same(t, m, plain)
	}
	return m, recon, r
}

func unweighted(t *testing.T, w []float32, p trellis.Params, g trellis.Geometry) (m trellis.Matrix, recon []float32) {
	t.Helper()
	e, err := trellis.NewEncoder(p)
	if err != nil {
		t.Fatal(err)
	}
	recon = make([]float32, len(w))
	if err := e.Encode(context.Background(), &m, recon, w, g); err != nil {
		t.Fatal(err)
	}
	return m, recon
}

func same(t *testing.T, got, want trellis.Matrix) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(−want, +got)\n%.1000s", d)
	}
}

// proxy is tr(E·H·Eᵀ) by gonum.
func proxy(w, recon []float32, h []float64, g trellis.Geometry) float64 {
	if len(w) == 0 {
		return 0
	}
	e := mat.NewDense(g.Out, g.In, nil)
	for i := range w {
		e.Set(i/g.In, i%g.In, float64(w[i])-float64(recon[i]))
	}
	var eh, ehe mat.Dense
	eh.Mul(e, mat.NewDense(g.In, g.In, slices.Clone(h)))
	ehe.Mul(&eh, e.T())
	return mat.Trace(&ehe)
}

// TestTargets checks the codes of every block against the definition of LDLQ,
// without a factorisation: given the errors after it, a block and all before it
// have one best continuous choice, which minimises the damped loss. The block
// must be coded as that choice.
func TestTargets(t *testing.T) {
	blocks := 0
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := trellis.Geometry{Axis: int(seed) % 2, Out: 24, In: 40}
		p := tiny
		p.Scale = trellis.ScaleRule(seed / 2 % 2)
		w := gauss(r, g.Out*g.In, 0.1)
		h := gram(r, 60, g.In)
		block := BlockFor(p, g.Axis)
		m, _, report := encode(t, w, h, p, g, Options{}, 1)
		plain, _ := unweighted(t, w, p, g)
		if report.ProxyLoss > 0.8*report.UnweightedLoss {
			t.Errorf("seed %d: loss from %v to %v only", seed, report.UnweightedLoss, report.ProxyLoss)
		}

		enc, err := trellis.NewEncoder(p)
		if err != nil {
			t.Fatal(err)
		}
		states := make([]uint16, len(w))
		if err := trellis.UnpackStates(states, m.Codes, p); err != nil {
			t.Fatal(err)
		}
		values, err := trellis.AppendValues(nil, p.Code, p.L)
		if err != nil {
			t.Fatal(err)
		}
		at := func(row, col int) int { // of w
			if g.Axis == 0 {
				return col*g.In + row
			}
			return row*g.In + col
		}
		// On axis 1 the errors fed back are those at the first scale.
		div := make([]float32, g.Rows())
		e := mat.NewDense(g.Out, g.In, nil)
		for row := range g.Rows() {
			x := make([]float32, g.Cols())
			for col := range x {
				x[col] = w[at(row, col)]
			}
			first, d, err := enc.RowScale(x)
			if err != nil {
				t.Fatal(err)
			}
			div[row] = d
			scale := pack.FromF16(first)
			if g.Axis == 0 {
				scale = pack.FromF16(m.Scales[row])
			}
			for col := range x {
				f := values[states[row*g.Cols()+col]]
				e.Set(at(row, col)/g.In, at(row, col)%g.In, float64(x[col])-float64(f*scale))
			}
		}
		d := damped(h, g.In, DefaultDamp)
		targets := mat.NewDense(g.Out, g.In, nil)
		for b := 0; b < g.In; b += block {
			end := b + block
			for o := range g.Out {
				fed := mat.NewVecDense(end, nil)
				if end < g.In {
					var rhs mat.VecDense
					rhs.MulVec(mat.DenseCopyOf(d).Slice(0, end, end, g.In), mat.NewVecDense(g.In-end, mat.Row(nil, o, e)[end:]))
					if err := fed.SolveVec(d.SliceSym(0, end), &rhs); err != nil {
						t.Fatal(err)
					}
				}
				for i := b; i < end; i++ {
					targets.Set(o, i, float64(w[o*g.In+i])+fed.AtVec(i))
				}
			}
		}
		got, x := make([]uint16, p.T), make([]float32, p.T)
		fell := 0
		for row := range g.Rows() {
			if n := g.Cols() / p.T * p.BlockWords(); g.Axis == 1 && slices.Equal(m.Codes[row*n:][:n], plain.Codes[row*n:][:n]) {
				fell++
				continue
			}
			for b := 0; b < g.Cols(); b += p.T {
				for i := range x {
					j := at(row, b+i)
					x[i] = float32(targets.At(j/g.In, j%g.In)) / div[row]
				}
				if err := enc.EncodeBlock(got, x); err != nil {
					t.Fatal(err)
				}
				if want := states[row*g.Cols()+b:][:p.T]; !slices.Equal(got, want) {
					t.Fatalf("seed %d, coded row %d, block %d: states %v, want %v", seed, row, b/p.T, want, got)
				}
				blocks++
			}
		}
		if fell != report.FellBackRows || fell > 10 {
			t.Errorf("seed %d: %d rows are those of plain coding: %+v", seed, fell, report)
		}
		checkRefit(t, m, plain, w, h, states, values)
	}
	t.Logf("checked %d blocks", blocks)
}

// checkRefit: no other stored scale of an output's row has a smaller loss, but
// for what its float32 sums round.
func checkRefit(t *testing.T, m, plain trellis.Matrix, w []float32, h []float64, states []uint16, values []float32) {
	t.Helper()
	g := m.Geometry
	if g.Axis == 0 || m.Params.Scale != trellis.Refit {
		return
	}
	row := trellis.Geometry{Out: 1, In: g.In}
	n := len(m.Codes) / g.Out
	for o := range g.Out {
		if slices.Equal(m.Codes[o*n:][:n], plain.Codes[o*n:][:n]) {
			continue // fell back
		}
		loss := func(scale uint16) float64 {
			recon := make([]float32, g.In)
			for i := range recon {
				recon[i] = values[states[o*g.In+i]] * pack.FromF16(scale)
			}
			return proxy(w[o*g.In:][:g.In], recon, h, row)
		}
		best := loss(m.Scales[o])
		for _, s := range []uint16{m.Scales[o] - 1, m.Scales[o] + 1} {
			if l := loss(s); l < best*(1-1e-5) {
				t.Errorf("row %d: scale %#x has loss %v, its neighbour %#x %v", o, m.Scales[o], best, s, l)
			}
		}
	}
}

// TestIdentity: without correlations there is nothing to feed back, and every
// bit is that of plain coding.
func TestIdentity(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	n := 0
	for axis := range 2 {
		for rule := trellis.RMS; rule <= trellis.Refit; rule++ {
			for policy := trellis.Finite; policy <= trellis.Compat; policy++ {
				for _, p := range []trellis.Params{tiny, {L: 8, K: 2, T: 16}} {
					p.Scale, p.Policy = rule, policy
					g := trellis.Geometry{Axis: axis, Out: 64, In: 96, Interleaved: p.K == 4}
					w := gauss(r, g.Out*g.In, 0.1)
					for i := range g.In {
						w[i] = 0            // an output
						w[g.In+i] *= 1e-9   // below float16's range
						w[2*g.In+i] *= 1e-6 // a subnormal scale
						w[3*g.In+i] *= 1e5
					}
					for o := range g.Out {
						w[o*g.In+5] = 0 // an input
						w[o*g.In+6] *= 1e-16
					}
					w[0] = float32(math.Copysign(0, -1))
					got, _, report := encode(t, w, identity(g.In), p, g, Options{}, 2)
					want, _ := unweighted(t, w, p, g)
					same(t, got, want)
					if report.FellBackRows != 0 || report.ProxyLoss != report.UnweightedLoss {
						t.Errorf("%+v", report)
					}
					n += len(got.Codes)
				}
			}
		}
	}
	t.Logf("compared %d words", n)
}

// TestBlockDiagonal: correlations inside blocks feed nothing back either.
func TestBlockDiagonal(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 0))
	g := trellis.Geometry{Axis: 1, Out: 8, In: 24}
	h := gram(r, 60, g.In)
	for i := range h {
		if i/g.In/tiny.T != i%g.In/tiny.T {
			h[i] = 0
		}
	}
	w := gauss(r, g.Out*g.In, 1)
	got, _, _ := encode(t, w, h, tiny, g, Options{}, 1)
	want, _ := unweighted(t, w, tiny, g)
	same(t, got, want)
}

// TestWorkers: neither goroutines nor the layout change a code.
func TestWorkers(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 0))
	for axis := range 2 {
		g := trellis.Geometry{Axis: axis, Out: 80, In: 48}
		p := tiny
		p.Scale = trellis.Refit
		w, h := gauss(r, g.Out*g.In, 0.1), gram(r, 30, g.In)
		want, _, report := encode(t, w, h, p, g, Options{}, 1)
		for _, workers := range []int{2, 7, 100} {
			got, _, again := encode(t, w, h, p, g, Options{}, workers)
			same(t, got, want)
			if again != report {
				t.Errorf("%d workers: %+v, want %+v", workers, again, report)
			}
		}
		g.Interleaved = true
		got, _, _ := encode(t, w, h, p, g, Options{}, 3)
		plain := make([]uint32, len(got.Codes))
		if err := trellis.Deinterleave(plain, got.Codes, g.Rows(), g.Cols(), p); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(plain, want.Codes) || !slices.Equal(got.Scales, want.Scales) {
			t.Errorf("axis %d: interleaved codes differ", axis)
		}
	}
}

// explosive returns L·Lᵀ whose L has −7 everywhere below its diagonal blocks:
// each error comes back sevenfold in all that is coded after it.
func explosive(n, block int) []float64 {
	l := mat.NewDense(n, n, identity(n))
	for i := range n {
		for j := range i / block * block {
			l.Set(i, j, -7)
		}
	}
	var h mat.Dense
	h.Mul(l, l.T())
	return h.RawMatrix().Data
}

// amplifying returns L·D·Lᵀ whose L feeds each error of the second half, times
// c, a power of two, back to one weight of the first.
func amplifying(n int, c float64) []float64 {
	h := identity(n)
	for i := range n / 2 {
		j := i + n/2
		h[j*n+i], h[i*n+j], h[j*n+j] = c, c, 2*c*c
	}
	return h
}

// TestGuard: feedback that leaves the range of the code, of a sample or of
// float32 is not kept. The Hessians factor exactly, the damping rounds away.
func TestGuard(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 0))
	for axis := range 2 {
		for rule := trellis.RMS; rule <= trellis.Refit; rule++ {
			p := tiny
			p.Scale = rule
			for _, c := range []struct {
				name string
				h    []float64
				n    int
				all  bool // must fall back
			}{
				// A refit can rescue rows that left the code's range.
				{"code", explosive(64, BlockFor(p, axis)), 64, rule == trellis.RMS},
				{"sample", amplifying(16, 0x1p70), 16, true},
				{"float32", amplifying(16, 0x1p200), 16, true},
			} {
				g := trellis.Geometry{Axis: axis, Out: 16, In: c.n}
				w := gauss(r, g.Out*g.In, 0.1)
				_, _, report := encode(t, w, c.h, p, g, Options{Damp: 1e-300}, 2)
				if report.FellBackRows == 0 && axis == 1 || c.all && !report.FellBack {
					t.Errorf("axis %d, %v, range of %s: %+v", axis, rule, c.name, report)
				}
			}
		}
	}
}

// TestGuardRows: rows that are worse fall back alone, and are the plain ones.
func TestGuardRows(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 0))
	g := trellis.Geometry{Axis: 1, Out: 200, In: 24}
	w := gauss(r, g.Out*g.In, 0.1)
	// Correlations too weak for every row to gain from them.
	h := identity(g.In)
	for i := range g.In - 1 {
		h[i*g.In+i+1], h[(i+1)*g.In+i] = 0.3, 0.3
	}
	m, _, report := encode(t, w, h, tiny, g, Options{}, 2)
	plain, _ := unweighted(t, w, tiny, g)
	equal, words := 0, g.In*tiny.K/32
	for o := range g.Out {
		if slices.Equal(m.Codes[o*words:][:words], plain.Codes[o*words:][:words]) && m.Scales[o] == plain.Scales[o] {
			equal++
		}
	}
	if report.FellBackRows == 0 || report.FellBackRows == g.Out || report.FellBack || equal < report.FellBackRows {
		t.Errorf("%+v, %d rows equal", report, equal)
	}
}

// TestNeverWorse lets encode check the guard on many Hessians.
func TestNeverWorse(t *testing.T) {
	fell, rows := 0, 0
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 8))
		g := trellis.Geometry{Axis: r.IntN(2), Out: 8 * (1 + r.IntN(3)), In: 8 * (1 + r.IntN(6))}
		p := tiny
		p.K, p.Scale, p.Policy = []int{4, 8}[r.IntN(2)], trellis.ScaleRule(r.IntN(2)), trellis.Policy(r.IntN(2))
		p.L = p.K + 1 + r.IntN(2)
		w := gauss(r, g.Out*g.In, math.Exp(r.NormFloat64()*4-2))
		if r.IntN(3) == 0 {
			clear(w[:g.In])
		}
		h := gram(r, 1+r.IntN(2*g.In), g.In)
		if dead := r.IntN(2 * g.In); dead < g.In {
			for i := range g.In {
				h[dead*g.In+i], h[i*g.In+dead] = 0, 0
			}
			h[dead*g.In+dead] = 1e-300 // an input that was never seen
		}
		_, _, report := encode(t, w, h, p, g, Options{Damp: math.Pow(10, -float64(r.IntN(9)))}, 1+r.IntN(3))
		fell += report.FellBackRows
		rows += report.Rows
	}
	t.Logf("%d of %d rows fell back", fell, rows)
}

func TestEncodeErrors(t *testing.T) {
	g := trellis.Geometry{Axis: 1, Out: 16, In: 16}
	prepare := func(n, block int) *Feedback {
		f, err := Prepare(context.Background(), identity(n), n, Options{Block: block})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	good, single := prepare(16, 8), prepare(16, 1)
	w := gauss(rand.New(rand.NewPCG(9, 0)), 256, 1)
	with := func(i int, v float32) []float32 {
		w := slices.Clone(w)
		w[i] = v
		return w
	}
	along := func(axis int) trellis.Geometry { g := g; g.Axis = axis; return g }
	free := tiny
	free.FreeEnds = true
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, c := range []struct {
		name    string
		f       *Feedback
		recon   []float32
		w       []float32
		p       trellis.Params
		g       trellis.Geometry
		workers int
		err     error
		says    string
	}{
		{"params", good, nil, w, trellis.Params{}, g, 1, trellis.ErrParams, ""},
		{"free ends", good, nil, w, free, g, 1, trellis.ErrParams, "free-ended"},
		{"axis", good, nil, w, tiny, along(2), 1, trellis.ErrShape, "axis 2"},
		{"not whole blocks", prepare(12, 4), nil, w[:192], tiny, trellis.Geometry{Axis: 1, Out: 16, In: 12}, 1, trellis.ErrShape, "12 weights"},
		{"weights", good, nil, w[:255], tiny, g, 1, ErrShape, "255 weights for [16, 16]"},
		{"recon", good, w[:255], w, tiny, g, 1, ErrShape, "reconstruction of 255"},
		{"Hessian", prepare(8, 8), nil, w, tiny, g, 1, ErrShape, "Hessian [8, 8] for weights [16, 16]"},
		{"blocks, axis 1", single, nil, w, tiny, g, 1, ErrShape, "blocks of 1 columns, want 8 on axis 1"},
		{"blocks, axis 0", good, nil, w, tiny, along(0), 1, ErrShape, "blocks of 8 columns, want 1 on axis 0"},
		{"nothing to code with", good, nil, w, tiny, g, 0, ErrOptions, "no Blocks"},
		{"NaN", good, nil, with(100, nan), tiny, g, 1, trellis.ErrNonFinite, "value 100"},
		{"infinite, axis 0", single, nil, with(100, inf), tiny, along(0), 1, trellis.ErrNonFinite, "value 100"},
		{"scale", good, nil, with(100, 1e9), tiny, g, 1, trellis.ErrScaleOverflow, "row at 96"},
		{"scale, axis 0", single, nil, with(100, 1e9), tiny, along(0), 1, trellis.ErrScaleOverflow, "row at 4,"},
	} {
		dst := trellis.Matrix{Codes: []uint32{1}, Scales: []uint16{2}}
		run := paths(c.p, 1)
		if c.workers == 0 {
			run.Blocks = nil
		}
		_, err := c.f.Encode(context.Background(), &dst, c.recon, c.w, c.p, c.g, run)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v saying %q", c.name, err, c.err, c.says)
		}
		same(t, dst, trellis.Matrix{Codes: []uint32{1}, Scales: []uint16{2}})
	}

	m, _, report := encode(t, nil, identity(16), tiny, trellis.Geometry{Axis: 1, In: 16}, Options{}, 3)
	if len(m.Codes) != 0 || report.ProxyLoss != 0 {
		t.Errorf("no outputs: %+v, %+v", m, report)
	}
}

// TestVectorProxyLoss asks for a quarter less proxy loss on real weights at
// k = 2: 32 rows of each, and with TURBOTRELLIS_LONG=1 all of them along both
// axes with both scale rules and more T.
func TestVectorProxyLoss(t *testing.T) {
	type choice struct{ axis, T int }
	rows, choices, last := 32, []choice{{1, 128}}, trellis.RMS
	if os.Getenv("TURBOTRELLIS_LONG") != "" {
		rows, choices, last = 384, []choice{{1, 32}, {1, 128}, {0, 128}}, trellis.Refit
	}
	for _, l := range layers(t) {
		for _, c := range choices {
			for rule := trellis.RMS; rule <= last; rule++ {
				p := trellis.DefaultParams(2)
				p.T, p.Scale = c.T, rule
				g := trellis.Geometry{Axis: c.axis, Out: rows, In: l.in}
				_, _, r := encode(t, l.w[:rows*l.in], l.h, p, g, Options{}, 2)
				less := 1 - r.ProxyLoss/r.UnweightedLoss
				t.Logf("%s: axis %d, T = %d, %v: %.3f to %.3f (−%.1f %%), %d of %d rows fell back",
					l.name, c.axis, c.T, rule, r.UnweightedLoss, r.ProxyLoss, 100*less, r.FellBackRows, r.Rows)
				if less < 0.25 {
					t.Errorf("%s: axis %d, T = %d, %v: %.1f %% less proxy loss, want 25 %%", l.name, c.axis, c.T, rule, 100*less)
				}
			}
		}
	}
}

// TestVectorDigest pins the bytes, so that running it for another GOARCH
// compares them with amd64's. The digests say nothing else: the other tests say
// what is right.
func TestVectorDigest(t *testing.T) {
	want := map[string]string{
		"encoder.layer.0.attention.self.query.weight axis 0": "a3279665a3f1dead371959b304a1cd76",
		"encoder.layer.0.attention.self.query.weight axis 1": "e6b2a2f67c9d79c770b4907b33155d57",
		"encoder.layer.3.attention.self.query.weight axis 0": "89b6750e4631139fa36d92aa34530c2b",
		"encoder.layer.3.attention.self.query.weight axis 1": "92af02dd98f82c303a65ee8ef612c747",
	}
	for i, l := range layers(t) {
		for axis := range 2 {
			p := trellis.Params{L: 8, K: 2, T: 32, Scale: trellis.ScaleRule(i)}
			g := trellis.Geometry{Axis: axis, Out: 32, In: l.in}
			m, _, r := encode(t, l.w[:g.Out*g.In], l.h, p, g, Options{}, 2)
			s := sha256.New()
			for _, v := range []any{m.Codes, m.Scales, r.ProxyLoss, r.UnweightedLoss} {
				if err := binary.Write(s, binary.LittleEndian, v); err != nil {
					t.Fatal(err)
				}
			}
			name := fmt.Sprintf("%s axis %d", l.name, axis)
			if got := hex.EncodeToString(s.Sum(nil)[:16]); got != want[name] {
				t.Errorf("%s: digest %s, want %s", name, got, want[name])
			}
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	l := layers(b)[0]
	for axis := range 2 {
		b.Run(fmt.Sprintf("axis=%d", axis), func(b *testing.B) {
			p := trellis.DefaultParams(2)
			p.T = 32
			f, err := Prepare(context.Background(), l.h, l.in, Options{Block: BlockFor(p, axis)})
			if err != nil {
				b.Fatal(err)
			}
			g := trellis.Geometry{Axis: axis, Out: 32, In: l.in}
			var m trellis.Matrix
			for b.Loop() {
				if _, err := f.Encode(context.Background(), &m, nil, l.w[:g.Out*g.In], p, g, paths(p, 1)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(g.Out*g.In)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mw/s")
			b.ReportAllocs()
		})
	}
}

// All outputs' blocks of a column go to Blocks in one call on axis 1; on axis 0 an input's blocks go in as many
// calls as asked for. A third of each is the coding without feedback.
func TestCalls(t *testing.T) {
	w := gauss(rand.New(rand.NewPCG(1, 2)), 64*32, 1)
	for axis, want := range map[int]int64{1: 32/8 + 1, 0: 32*2 + 2} {
		f, err := Prepare(context.Background(), identity(32), 32, Options{Block: BlockFor(tiny, axis)})
		if err != nil {
			t.Fatal(err)
		}
		blocks := &encoders{p: tiny}
		run := Run{Blocks: blocks, Calls: 2, Workers: 3}
		if axis == 1 {
			run.Calls = 1
		}
		var m trellis.Matrix
		if _, err := f.Encode(context.Background(), &m, nil, w, tiny, trellis.Geometry{Axis: axis, Out: 64, In: 32}, run); err != nil {
			t.Fatal(err)
		}
		if got := blocks.calls.Load(); got != want {
			t.Errorf("axis %d: %d calls, want %d", axis, got, want)
		}
	}
}

// An error of Blocks is that of Encode, at every call, and nothing is written.
func TestBlocksFail(t *testing.T) {
	lost := errors.New("the device is lost")
	w := gauss(rand.New(rand.NewPCG(1, 2)), 16*16, 1)
	for axis := range 2 {
		f, err := Prepare(context.Background(), identity(16), 16, Options{Block: BlockFor(tiny, axis)})
		if err != nil {
			t.Fatal(err)
		}
		for n := int64(1); ; n++ {
			blocks := &failing{encoders: encoders{p: tiny}, at: n, err: lost}
			dst := trellis.Matrix{Codes: []uint32{1}}
			_, err := f.Encode(context.Background(), &dst, nil, w, tiny, trellis.Geometry{Axis: axis, Out: 16, In: 16}, Run{Blocks: blocks})
			if err == nil && blocks.calls.Load() < n && n > 2 {
				break
			}
			if err != lost || len(dst.Codes) != 1 {
				t.Fatalf("axis %d, call %d: %v", axis, n, err)
			}
		}
	}
	// States that no block has are an error, not a panic.
	f, err := Prepare(context.Background(), identity(16), 16, Options{Block: 8})
	if err != nil {
		t.Fatal(err)
	}
	var dst trellis.Matrix
	_, err = f.Encode(context.Background(), &dst, nil, w, tiny, trellis.Geometry{Axis: 1, Out: 16, In: 16}, Run{Blocks: wild{}})
	if err == nil || !strings.Contains(err.Error(), "the blocks' states") {
		t.Errorf("wild states: %v", err)
	}
}

type failing struct {
	encoders
	at  int64
	err error
}

func (f *failing) EncodeBlocks(ctx context.Context, states []uint16, samples []float32) error {
	if err := f.encoders.EncodeBlocks(ctx, states, samples); err != nil {
		return err
	}
	if f.calls.Load() == f.at {
		return f.err
	}
	return nil
}

type wild struct{}

func (wild) EncodeBlocks(_ context.Context, states []uint16, _ []float32) error {
	for i := range states {
		states[i] = 0xffff
	}
	return nil
}

// Every long call returns soon after its context ends.
func TestContext(t *testing.T) {
	const n = 1200
	h := identity(n)
	for i := range h {
		h[i] += 0.5
	}
	calls := map[string]func(ctx context.Context) error{
		"Check":   func(ctx context.Context) error { return Check(ctx, h, n) },
		"Prepare": func(ctx context.Context) error { _, err := Prepare(ctx, h, n, Options{Block: 8}); return err },
	}
	for axis := range 2 {
		f, err := Prepare(context.Background(), identity(64), 64, Options{Block: BlockFor(tiny, axis)})
		if err != nil {
			t.Fatal(err)
		}
		w := gauss(rand.New(rand.NewPCG(1, 2)), 4096*64, 1)
		calls[fmt.Sprint("Encode, axis ", axis)] = func(ctx context.Context) error {
			var m trellis.Matrix
			_, err := f.Encode(ctx, &m, nil, w, tiny, trellis.Geometry{Axis: axis, Out: 4096, In: 64}, paths(tiny, 2))
			return err
		}
	}
	for name, call := range calls {
		for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
			ctx, cancel := context.WithCancel(context.Background())
			if after == 0 {
				cancel()
			} else {
				time.AfterFunc(after, cancel)
			}
			if err := call(ctx); err != nil && err != context.Canceled {
				t.Errorf("%s: %v", name, err)
			} else if after == 0 && err == nil {
				t.Errorf("%s: not stopped", name)
			}
			cancel()
		}
	}
}
