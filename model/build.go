package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/turbotrellis/turbotrellis/internal/parallel"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// copyBytes is how much is read or written at a time of what need not be held.
const copyBytes = 1 << 20

// TensorResult says what became of one tensor.
type TensorResult struct {
	Name        string  `json:"name"`
	Shape       []int   `json:"shape"`
	Bits        int     `json:"bits"`
	GroupSize   int     `json:"group_size,omitempty"` // of affine rows
	Axis        int     `json:"axis"`
	SourceBytes int64   `json:"source_bytes"`
	Bytes       int64   `json:"bytes"`
	Error       float64 `json:"relative_error"` // squared error over the sum of squares; 0 when decoding
	// With a Hessian:
	Hessian      bool    `json:"hessian,omitempty"`
	ProxyLoss    float64 `json:"proxy_loss,omitempty"` // over that of coding without feedback
	FellBackRows int     `json:"fell_back_rows,omitempty"`
}

// Weights returns the number of weights.
func (t TensorResult) Weights() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Result says what a run did.
type Result struct {
	Tensors     []TensorResult `json:"tensors"` // coded or decoded
	Copied      int            `json:"copied_tensors"`
	Resumed     int            `json:"resumed_tensors"` // of Tensors, found finished
	SourceBytes int64          `json:"source_bytes"`    // of Tensors
	Bytes       int64          `json:"bytes"`           // of Tensors, as written

	// Of an encoding; see Plan.
	Passed         []string `json:"matched_but_copied,omitempty"`
	NoHessian      []string `json:"without_hessian,omitempty"`
	UnusedHessians []string `json:"unused_hessians,omitempty"`
	Twice          []string `json:"copied_duplicates,omitempty"`
}

// Stages of a run.
const (
	Checking = "checking"
	Copying  = "copying"
	Coding   = "coding"
	Decoding = "decoding"
)

// Progress is what a run reports: what it does, how many weights of it are
// done, and now and then a tensor that is finished.
type Progress struct {
	Stage       string
	Done, Total int64 // weights, or bytes when copying
	Finished    *TensorResult
}

// job makes the tensors outs of one file from one source tensor.
type job struct {
	name    string // of the source tensor
	file    int    // of build.files
	outs    []string
	weights int64
	// check reads the source, refuses what cannot be coded, and returns a
	// digest of everything that the result depends on besides the options.
	check func(ctx context.Context, done func(weights int64)) (sum string, err error)
	// make writes the tensors. It fails with ErrChanged if the digest is another now.
	make func(ctx context.Context, dst []io.Writer, sum string, done func(weights int64)) (TensorResult, error)
}

// source is a matrix that a job loads, once to check it and once to code it.
type source[T any] struct {
	// load reads the matrix into s and returns what else the next two take, with the digest that job.check returns.
	load  func(ctx context.Context, s *scratch) (T, string, error)
	check func(ctx context.Context, s *scratch, loaded T) error
	make  func(ctx context.Context, dst []io.Writer, s *scratch, loaded T, done func(weights int64)) (TensorResult, error)
}

// fill gives j its check and make.
func (m source[T]) fill(e *encoder, j job) job {
	j.check = func(ctx context.Context, done func(int64)) (string, error) {
		s := <-e.scratch
		defer func() { e.scratch <- s }()
		loaded, sum, err := m.load(ctx, s)
		if err == nil {
			err = m.check(ctx, s, loaded)
		}
		if err != nil {
			return "", err
		}
		done(j.weights)
		return sum, nil
	}
	j.make = func(ctx context.Context, dst []io.Writer, sum string, done func(int64)) (TensorResult, error) {
		s := <-e.scratch
		defer func() { e.scratch <- s }()
		loaded, now, err := m.load(ctx, s)
		if err != nil {
			return TensorResult{}, err
		}
		if now != sum {
			return TensorResult{}, fmt.Errorf("%w: tensor %q", ErrChanged, j.name)
		}
		return m.make(ctx, dst, s, loaded, done)
	}
	return j
}

// outFile is a safetensors file to write.
type outFile struct {
	name   string // slash-separated
	meta   map[string]string
	infos  []safetensors.Info
	copies map[string]*safetensors.File // the source of each tensor that no job makes
}

// build is a model to write.
type build struct {
	given    string // the output, as the caller spelled it
	out      string // the same, cleaned
	dir      bool   // out is a directory, not the one file of files
	force    bool
	options  string // what tells runs of different parameters apart
	verb     string // Coding or Decoding
	files    []outFile
	texts    map[string][]byte   // further files by name
	links    map[string]origin   // further files to copy, by name
	apart    []string            // paths that out must not be, hold or lie within
	keep     []string            // paths that out must not be or hold
	origins  []origin            // what is read beside links
	sources  []*safetensors.File // opened for this build alone
	twice    []string            // what of links holds tensors of the model's names
	plan     *Plan               // of an encoding
	jobs     []job
	parallel int // jobs at a time
	report   func(Progress)

	mu       sync.Mutex // guards progress
	progress Progress
}

// run writes the model. An error that options, shapes, headers or the source's data decide leaves nothing behind;
// what an interruption or a failing disk leaves, the next run takes up.
func (b *build) run(ctx context.Context) (Result, error) {
	if err := distinct(b.names()); err != nil {
		return Result{}, err
	}
	p, err := b.begin()
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	b.stage(Checking, b.weights())
	sums := make([]string, len(b.jobs))
	err = b.each(ctx, func(ctx context.Context, i int) (err error) {
		sums[i], err = b.jobs[i].check(ctx, b.advance)
		return err
	})
	if err == nil {
		err = b.unchanged()
	}
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	if err != nil {
		p.abandon()
		return Result{}, err
	}
	if err := p.resume(ctx, sums); err != nil {
		if errors.Is(err, context.Canceled) {
			err = errInterrupted
		}
		return Result{}, err
	}
	results, err := b.write(ctx, p, sums)
	if err == nil {
		err = p.publish()
	}
	if err != nil {
		return Result{}, p.failed(err)
	}
	result := Result{Tensors: results, Resumed: len(p.finished), Twice: b.twice}
	if b.plan != nil {
		result.Passed, result.NoHessian, result.UnusedHessians = b.plan.Passed, b.plan.NoHessian, b.plan.UnusedHessians
	}
	for _, f := range b.files {
		result.Copied += len(f.copies)
	}
	for _, r := range results {
		result.SourceBytes += r.SourceBytes
		result.Bytes += r.Bytes
	}
	if err := p.remove(); err != nil {
		return result, fmt.Errorf("%s is written, but what remains of the run could not be removed: %w", b.out, err)
	}
	return result, nil
}

// write writes all files of the model.
func (b *build) write(ctx context.Context, p *partial, sums []string) ([]TensorResult, error) {
	if err := b.copyAll(ctx, p); err != nil {
		return nil, err
	}
	b.stage(b.verb, b.weights())
	results := make([]TensorResult, len(b.jobs))
	return results, b.each(ctx, func(ctx context.Context, i int) error {
		j := b.jobs[i]
		if r, ok := p.finished[j.name]; ok {
			results[i] = r
			b.advance(j.weights)
			return nil
		}
		r, err := p.make(ctx, j, sums[i], b.advance)
		if err != nil {
			return err
		}
		results[i] = r
		b.finishedTensor(r)
		return nil
	})
}

func (b *build) weights() int64 {
	var n int64
	for _, j := range b.jobs {
		n += j.weights
	}
	return n
}

// each calls work for every job, some at a time.
func (b *build) each(ctx context.Context, work func(ctx context.Context, i int) error) error {
	slots := make([]struct{}, max(1, b.parallel))
	return parallel.Each(ctx, slots, parallel.Range(len(b.jobs)), func(ctx context.Context, _ *struct{}, i int) error {
		return work(ctx, i)
	})
}

func (b *build) stage(name string, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress = Progress{Stage: name, Total: total}
	b.send()
}

func (b *build) advance(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.Done += n
	b.send()
}

func (b *build) finishedTensor(r TensorResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.Finished = &r
	b.send()
	b.progress.Finished = nil
}

func (b *build) send() {
	if b.report != nil {
		b.report(b.progress)
	}
}

// copyAll copies what no job makes: tensors, and files beside them.
func (b *build) copyAll(ctx context.Context, p *partial) error {
	var total int64
	for _, f := range b.files {
		for _, t := range f.infos {
			if f.copies[t.Name] != nil {
				total += t.Size
			}
		}
	}
	b.stage(Copying, total)
	for _, name := range slices.Sorted(maps.Keys(b.texts)) {
		err := p.put(name, 0o666, func(w io.Writer) error { _, err := w.Write(b.texts[name]); return err })
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.links)) {
		o := b.links[name]
		err := p.put(name, 0o666|o.info.Mode()&0o111, func(w io.Writer) error { return copyFile(ctx, w, o) })
		if err != nil {
			return err
		}
	}
	for i, f := range b.files {
		for _, t := range f.infos {
			if src := f.copies[t.Name]; src != nil {
				if err := p.writers[i].Copy(ctx, src, t.Name, b.advance); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// copyFile copies a whole file, which has not changed since it was listed.
func copyFile(ctx context.Context, w io.Writer, o origin) error {
	r, err := os.Open(o.path)
	if err != nil {
		return err
	}
	defer r.Close()
	// A directory that was swapped for a link since leads to another file.
	if st, err := r.Stat(); err != nil || !os.SameFile(st, o.info) {
		return errors.Join(err, o.unchanged(), fmt.Errorf("%w: %s", ErrChanged, o.path))
	}
	n, err := io.Copy(w, untilDone{ctx, r})
	if err == nil && n != o.info.Size() {
		err = fmt.Errorf("%w: %s", ErrChanged, o.path)
	}
	return err
}

// untilDone is a reader that fails once a context is done.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p[:min(len(p), copyBytes)])
}

// unchanged returns an error that wraps ErrChanged if a file that the run reads is not what it was when it was
// opened.
func (b *build) unchanged() error {
	for _, o := range b.origins {
		if err := o.unchanged(); err != nil {
			return err
		}
	}
	for _, o := range b.links {
		if err := o.unchanged(); err != nil {
			return err
		}
	}
	return nil
}

// readTensor fills dst with the named tensor of f, of the same size.
func readTensor(ctx context.Context, dst []byte, f *safetensors.File, name string) error {
	r, err := f.Reader(name)
	if err == nil {
		_, err = io.ReadFull(untilDone{ctx, r}, dst)
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("tensor %q: %w", name, err)
	}
	return err
}

// digest returns the SHA-256 of all parts one after another, in hex.
func digest(ctx context.Context, parts ...[]byte) (string, error) {
	h := sha256.New()
	for _, p := range parts {
		for piece := range slices.Chunk(p, copyBytes) {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			h.Write(piece)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sha is digest of a few bytes.
func sha(parts ...[]byte) string {
	sum := sha256.Sum256(slices.Concat(parts...))
	return hex.EncodeToString(sum[:])
}
