package model

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
	"github.com/turbotrellis/turbotrellis/trellis/ldlq"
)

// gram returns a Hessian of n inputs: XᵀX of n+3 random rows whose neighbours
// go together.
func gram(name string, n int) tensor {
	x := normal(name+" inputs", "F32", n+3, n)
	f := values(x)
	for i := range f {
		if i%n > 0 {
			f[i] += 0.9 * f[i-1]
		}
	}
	t := tensor{name: name, dtype: "F32", shape: []int{n, n}, data: make([]byte, 4*n*n)}
	for i := range n {
		for j := range n {
			var s float64
			for r := range n + 3 {
				s += float64(f[r*n+i]) * float64(f[r*n+j])
			}
			t.set(i*n+j, float32(s))
		}
	}
	return t
}

func values(t tensor) []float32 {
	d, _ := t.dtype.Float()
	v := make([]float32, len(t.data)/d.Size())
	for i := range v {
		v[i] = d.Load(t.data[i*d.Size():])
	}
	return v
}

// hessianOpts is opts with the Hessians at path.
func hessianOpts(tb testing.TB, path string) EncodeOptions {
	tb.Helper()
	h, err := OpenHessians(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { h.Close() })
	o := opts()
	o.Tensors = regexp.MustCompile(`weight$`)
	o.Hessians = h
	return o
}

// TestHessian compares what is written with package ldlq's coding of the whole
// matrix at once, on both axes, and with plain coding where there is no Hessian.
func TestHessian(t *testing.T) {
	dir := t.TempDir()
	in, out, hessians := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "hessians")
	a, b, c := normal("a.weight", "F32", 70, 64), normal("b.weight", "BF16", 32, 24), normal("c.weight", "F32", 4, 32)
	writeFile(t, in, nil, a, b, c)
	ha, hb := gram("a.weight.hessian", 64), gram("b.weight.hessian", 24)
	writeFile(t, filepath.Join(hessians, "1.safetensors"), nil, ha)
	writeFile(t, filepath.Join(hessians, "2.safetensors"), nil, hb)
	put(t, filepath.Join(hessians, "README"), "not read")
	r := encode(t, in, out, hessianOpts(t, hessians))
	m := open(t, out)
	n := 0
	for i, x := range []struct{ w, h tensor }{{a, ha}, {b, hb}} {
		axis := 1 - i
		p := opts().Params
		var h []float64
		for _, v := range values(x.h) {
			h = append(h, float64(v))
		}
		f, err := ldlq.Prepare(context.Background(), h, x.w.shape[1], ldlq.Options{Block: ldlq.BlockFor(p, axis)})
		if err != nil {
			t.Fatal(err)
		}
		e, err := trellis.NewEncoder(p)
		if err != nil {
			t.Fatal(err)
		}
		var want trellis.Matrix
		weights := values(x.w)
		recon := make([]float32, len(weights))
		report, err := f.Encode(context.Background(), &want, recon, weights, p, trellis.Geometry{Axis: axis, Out: x.w.shape[0], In: x.w.shape[1]}, ldlq.Run{Blocks: singly{e}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Matrix(strings.TrimSuffix(x.w.name, ".weight"))
		if err != nil {
			t.Fatal(err)
		}
		for j, c := range want.Codes {
			if got.Codes[j] != c {
				t.Fatalf("%s: word %d is %#x, want %#x", x.w.name, j, got.Codes[j], c)
			}
		}
		for j, s := range want.Scales {
			if got.Scales[j] != s {
				t.Fatalf("%s: scale %d is %#x, want %#x", x.w.name, j, got.Scales[j], s)
			}
		}
		n += len(want.Codes) + len(want.Scales)
		var errs, energy float64
		for j, v := range weights {
			errs += math.Pow(float64(recon[j])-float64(v), 2)
			energy += math.Pow(float64(v), 2)
		}
		if got := r.Tensors[i].Error; math.Abs(got*energy/errs-1) > 1e-9 {
			t.Errorf("%s: error %v, want %v", x.w.name, got, errs/energy)
		}
		ratio := report.ProxyLoss / report.UnweightedLoss
		if g := r.Tensors[i]; !g.Hessian || math.Abs(g.ProxyLoss/ratio-1) > 1e-9 || g.ProxyLoss > 0.95 || g.FellBackRows != report.FellBackRows {
			t.Errorf("%+v, want a proxy loss of %v", g, ratio)
		}
	}
	codes, _, _ := oracle(t, c, opts().Params, 1, codec.F32)
	got, err := m.Matrix("c")
	if err != nil {
		t.Fatal(err)
	}
	for j, w := range got.Codes {
		if w != binary.LittleEndian.Uint32(codes[4*j:]) {
			t.Fatalf("c.weight: word %d differs from plain coding", j)
		}
	}
	if r.Tensors[2].Hessian {
		t.Errorf("%+v has no Hessian", r.Tensors[2])
	}
	t.Logf("%d words compared", n+len(got.Codes))
}

func TestHessianRefused(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		h    tensor
		err  error
		text string
	}{
		"size":     {gram("q.weight.hessian", 32), ErrTensor, `"q.weight": cannot be coded: its Hessian "q.weight.hessian" is F32 [32 32], want F32, F16 or BF16 [64 64]`},
		"type":     {normal("q.weight.hessian", "F64", 64, 64), ErrTensor, "F64"},
		"shape":    {normal("q.weight.hessian", "F32", 64*64), ErrTensor, "[4096]"},
		"other":    {gram("k.weight.hessian", 64), ErrSelection, `there is no Hessian "q.weight.hessian"`},
		"NaN":      {gram("q.weight.hessian", 64).set(65, nan), ldlq.ErrHessian, `"q.weight.hessian": not a Gram matrix`},
		"negative": {gram("q.weight.hessian", 64).set(65, -9), ldlq.ErrHessian, `"q.weight.hessian": not a Gram matrix: h[1, 1] = -9, want a positive diagonal`},
		"zero":     {gram("q.weight.hessian", 64).set(130, 0), ldlq.ErrHessian, `"q.weight.hessian": not a Gram matrix: h[2, 2] = 0, want`},
		"lopsided": {gram("q.weight.hessian", 64).set(3*64+1, 1e6), ldlq.ErrHessian, `"q.weight.hessian": not a Gram matrix: h[3, 1] = 1e+06 and`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			in, out, h := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "h")
			writeFile(t, in, nil, normal("q.weight", "F32", 4, 64))
			writeFile(t, h, nil, c.h)
			p, err := PlanEncode(open(t, in), hessianOpts(t, h))
			if err == nil {
				_, err = p.Encode(context.Background(), out, run())
				if early := p.CheckHessians(context.Background()); early == nil || early.Error() != err.Error() {
					t.Errorf("CheckHessians: %v; Encode: %v", early, err)
				}
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.err, c.text)
			}
			absent(t, out, out+partialSuffix)
		})
	}
	dir := t.TempDir()
	if _, err := OpenHessians(dir); !errors.Is(err, ErrModel) {
		t.Errorf("an empty directory: %v", err)
	}
	writeFile(t, filepath.Join(dir, "1.safetensors"), nil, gram("q.weight.hessian", 4))
	writeFile(t, filepath.Join(dir, "2.safetensors"), nil, gram("q.weight.hessian", 4))
	if _, err := OpenHessians(dir); !errors.Is(err, ErrModel) || !strings.Contains(err.Error(), "in two files") {
		t.Errorf("twice the same: %v", err)
	}
	put(t, filepath.Join(dir, "1.safetensors"), "PK\x03\x04")
	if _, err := OpenHessians(dir); !errors.Is(err, safetensors.ErrNotSafetensors) {
		t.Errorf("another type of file: %v", err)
	}
}

// A Hessian that only its factorisation finds to be bad is named, nothing is published, and what was there stays.
func TestHessianIndefinite(t *testing.T) {
	dir := t.TempDir()
	in, out, h := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "h")
	writeFile(t, in, nil, normal("p.weight", "F32", 4, 64), normal("q.weight", "F32", 4, 64))
	bad := gram("q.weight.hessian", 64)
	bad.set(7*64+5, 1e7).set(5*64+7, 1e7)
	for i := range 64 {
		bad.set(i*64+i, 600_000)
	}
	writeFile(t, h, nil, gram("p.weight.hessian", 64), bad)
	p := plan(t, in, hessianOpts(t, h))
	if err := p.CheckHessians(context.Background()); err != nil {
		t.Fatal(err)
	}
	const want = `tensor "q.weight.hessian": not a Gram matrix: [64, 64] is not positive definite at h[7, 7] with`
	_, err := p.Encode(context.Background(), out, run())
	if !errors.Is(err, ldlq.ErrHessian) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "continues from there") {
		t.Errorf("error %v, want %q", err, want)
	}
	absent(t, out)
	put(t, out, "what was there")
	if _, err := p.Encode(context.Background(), out, forced()); !errors.Is(err, ldlq.ErrHessian) {
		t.Error(err)
	}
	if got := tree(t, out)["."]; got != "what was there" {
		t.Errorf("%q is published", got)
	}
	// The matrix before it is kept for a run with a better Hessian.
	writeFile(t, h, nil, gram("p.weight.hessian", 64), gram("q.weight.hessian", 64))
	r, err := plan(t, in, hessianOpts(t, h)).Encode(context.Background(), out, forced())
	if err != nil || r.Resumed != 1 {
		t.Errorf("%d resumed: %v", r.Resumed, err)
	}
}

// A matrix of zeros loses nothing with or without feedback.
func TestHessianZeros(t *testing.T) {
	dir := t.TempDir()
	in, out, h := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "h")
	zeros := normal("q.weight", "F32", 4, 64)
	clear(zeros.data)
	writeFile(t, in, nil, zeros)
	writeFile(t, h, nil, gram("q.weight.hessian", 64))
	if r := encode(t, in, out, hessianOpts(t, h)).Tensors[0]; r.ProxyLoss != 0 || r.Error != 0 || !r.Hessian {
		t.Errorf("%+v", r)
	}
}

// The largest Hessian is of order ldlq.MaxN. Its file has holes for data.
func TestHessianOrder(t *testing.T) {
	for n, ok := range map[int]bool{ldlq.MaxN: true, ldlq.MaxN + 1: false} {
		dir := t.TempDir()
		in, h := filepath.Join(dir, "in"), filepath.Join(dir, "h")
		writeFile(t, in, nil, normal("q.weight", "BF16", 32, n))
		header := fmt.Sprintf(`{"q.weight.hessian":{"dtype":"F16","shape":[%d,%d],"data_offsets":[0,%d]}}`, n, n, 2*n*n)
		put(t, h, string(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))+header)
		if err := os.Truncate(h, int64(8+len(header)+2*n*n)); err != nil {
			t.Skip(err)
		}
		_, err := PlanEncode(open(t, in), hessianOpts(t, h))
		if ok != (err == nil) || !ok && !strings.Contains(err.Error(), `"q.weight": cannot be coded: a Hessian of order 32769, want at most 32768`) {
			t.Errorf("order %d: %v", n, err)
		}
	}
}

// looks is a context that counts how often it is asked whether it has ended, which it has from a time on.
type looks struct {
	context.Context
	n, end int
}

func (l *looks) Err() error {
	if l.n++; l.n >= l.end {
		return context.Canceled
	}
	return nil
}

// Long loops over a tensor's elements look at the context every copyBytes elements.
func TestLooks(t *testing.T) {
	const n = 2*copyBytes + 1
	x := safetensors.Info{Name: "h", DType: "BF16", Shape: []int{n, 1}}
	data := make([]byte, 2*n)
	w := &weights{name: "w", g: trellis.Geometry{Axis: 1, Out: n, In: 1}, dtype: codec.BF16}
	for name, f := range map[string]func(context.Context) error{
		"floats": func(ctx context.Context) error { _, err := floats(ctx, x, data); return err },
		"check":  func(ctx context.Context) error { return w.check(ctx, data, opts().Params) },
	} {
		ctx := &looks{context.Background(), 0, 4}
		if err := f(ctx); err != nil || ctx.n != 3 {
			t.Errorf("%s: %d looks, want 3 (%v)", name, ctx.n, err)
		}
		ctx = &looks{context.Background(), 0, 3}
		if err := f(ctx); err != context.Canceled {
			t.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
}

// singly codes block after block with package trellis.
type singly struct{ *trellis.Encoder }

func (s singly) EncodeBlocks(_ context.Context, states []uint16, samples []float32) error {
	n := s.Params().T
	for b := 0; b < len(samples); b += n {
		if err := s.EncodeBlock(states[b:][:n], samples[b:][:n]); err != nil {
			return err
		}
	}
	return nil
}

// counting counts the calls of a backend that code blocks and matrices.
type counting struct {
	codec.Backend
	feed          codec.Feed
	mu            sync.Mutex
	blocks, whole int
}

type countingTrellis struct {
	codec.Trellis
	c *counting
}

func (c *counting) Feed() codec.Feed { return c.feed }

func (c *counting) Trellis(p trellis.Params) (codec.Trellis, error) {
	k, err := c.Backend.Trellis(p)
	return countingTrellis{k, c}, err
}

func (k countingTrellis) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) error {
	k.c.mu.Lock()
	k.c.blocks++
	k.c.mu.Unlock()
	return k.Trellis.EncodeBlocks(ctx, states, x)
}

func (k countingTrellis) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error {
	k.c.mu.Lock()
	k.c.whole++
	k.c.mu.Unlock()
	return k.Trellis.Encode(ctx, dst, recon, x, g)
}

// The paths of a matrix with a Hessian are found by the backend, in calls as large as it asks for.
func TestHessianBackend(t *testing.T) {
	dir := t.TempDir()
	in, h, want := filepath.Join(dir, "in"), filepath.Join(dir, "h"), filepath.Join(dir, "want")
	writeFile(t, in, nil, normal("a.weight", "F32", 100, 64))
	writeFile(t, h, nil, gram("a.weight.hessian", 64))
	encode(t, in, want, hessianOpts(t, h))
	for name, c := range map[string]struct {
		feed   codec.Feed
		blocks int // calls
	}{
		// All rows at once: a call for each of two blocks of columns, and one without feedback.
		"large": {codec.Feed{Bytes: 64 << 20, Calls: 1}, 3},
		// 32, 32, 32 and 4 rows.
		"small": {codec.Feed{Bytes: 1, Calls: 1}, 4 * 3},
	} {
		b := &counting{Backend: ref.New(), feed: c.feed}
		out := filepath.Join(dir, name)
		if _, err := plan(t, in, hessianOpts(t, h)).Encode(context.Background(), out, RunOptions{Backend: b}); err != nil {
			t.Fatal(err)
		}
		same(t, tree(t, out), tree(t, want))
		if b.whole != 0 || b.blocks != c.blocks {
			t.Errorf("%s: %d calls for blocks, want %d, and %d for matrices", name, b.blocks, c.blocks, b.whole)
		}
	}
}
