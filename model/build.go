package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// copyBytes is how much of a tensor or file that is copied is held at a time.
const copyBytes = 1 << 20

// TensorResult says what became of one tensor.
type TensorResult struct {
	Name        string  `json:"name"`
	Shape       []int   `json:"shape"`
	Bits        int     `json:"bits"`
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
func (t TensorResult) Weights() int64 { return int64(t.Shape[0]) * int64(t.Shape[1]) }

// Result says what a run did.
type Result struct {
	Tensors     []TensorResult `json:"tensors"` // coded or decoded
	Copied      int            `json:"copied_tensors"`
	Resumed     int            `json:"resumed_tensors"` // of Tensors, found finished
	SourceBytes int64          `json:"source_bytes"`    // of Tensors
	Bytes       int64          `json:"bytes"`           // of Tensors, as written
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
	// digest of all that the result depends on beside the options.
	check func(ctx context.Context, done func(weights int64)) (sum string, err error)
	// make writes the tensors.
	make func(ctx context.Context, dst []io.Writer, done func(weights int64)) (TensorResult, error)
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
	out      string
	dir      bool // out is a directory, not the one file of files
	force    bool
	options  string // what tells runs of different parameters apart
	verb     string // Coding or Decoding
	files    []outFile
	texts    map[string][]byte   // further files by name
	links    map[string]string   // further files to copy, by name the path of the source
	sources  []*safetensors.File // opened for this build alone
	jobs     []job
	parallel int // jobs at a time
	report   func(Progress)

	mu       sync.Mutex // guards progress
	progress Progress
}

// run writes the model. On an error that concerns the source's data nothing is
// left behind; what an interruption or a failing disk leaves, the next run
// takes up.
func (b *build) run(ctx context.Context) (Result, error) {
	if err := b.target(); err != nil {
		return Result{}, err
	}
	b.stage(Checking, b.weights())
	sums := make([]string, len(b.jobs))
	err := b.each(ctx, func(ctx context.Context, i int) (err error) {
		sums[i], err = b.jobs[i].check(ctx, b.advance)
		return err
	})
	if errors.Is(err, context.Canceled) {
		return Result{}, errInterrupted
	}
	if err != nil {
		return Result{}, err
	}
	p, err := b.begin(sums)
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	if err := b.copyAll(ctx, p); err != nil {
		return Result{}, p.resumable(err)
	}
	b.stage(b.verb, b.weights())
	var result Result
	results := make([]TensorResult, len(b.jobs))
	err = b.each(ctx, func(ctx context.Context, i int) error {
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
	if err != nil {
		return Result{}, p.resumable(err)
	}
	if err := p.publish(); err != nil {
		return Result{}, p.resumable(err)
	}
	result.Tensors, result.Resumed = results, len(p.finished)
	for _, f := range b.files {
		result.Copied += len(f.copies)
	}
	for _, r := range results {
		result.SourceBytes += r.SourceBytes
		result.Bytes += r.Bytes
	}
	return result, nil
}

func (b *build) weights() int64 {
	var n int64
	for _, j := range b.jobs {
		n += j.weights
	}
	return n
}

// each calls work for every job, some at a time, and returns the error of the
// first that failed in the order of jobs, of those that ran.
func (b *build) each(ctx context.Context, work func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(b.jobs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(1, b.parallel), len(b.jobs)) {
		wg.Go(func() {
			for i := range next {
				if errs[i] = work(ctx, i); errs[i] != nil {
					cancel()
				}
			}
		})
	}
feed:
	for i := range b.jobs {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	var stopped error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		if err != nil {
			stopped = err
		}
	}
	if stopped == nil {
		stopped = ctx.Err()
	}
	return stopped
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
	buf := make([]byte, copyBytes)
	for i, f := range b.files {
		for _, t := range f.infos {
			src := f.copies[t.Name]
			if src == nil {
				continue
			}
			r, err := src.Reader(t.Name)
			if err != nil {
				return err
			}
			w, err := p.writers[i].Tensor(t.Name)
			if err != nil {
				return err
			}
			if err := copyTo(ctx, w, r, buf, b.advance); err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
		}
	}
	for name, data := range b.texts {
		if err := p.put(name, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return err
		}
	}
	for name, path := range b.links {
		err := p.put(name, func(w io.Writer) error {
			r, err := os.Open(path)
			if err != nil {
				return err
			}
			defer r.Close()
			return copyTo(ctx, w, r, buf, func(int64) {})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// copyTo is io.CopyBuffer that can be interrupted.
func copyTo(ctx context.Context, w io.Writer, r io.Reader, buf []byte, done func(int64)) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			done(int64(n))
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// target checks that out may be written.
func (b *build) target() error {
	st, err := os.Lstat(b.out)
	if errors.Is(err, fs.ErrNotExist) {
		parent, err := os.Stat(filepath.Dir(b.out))
		if err == nil && !parent.IsDir() {
			err = &fs.PathError{Op: "create", Path: b.out, Err: errors.New("its folder is not a directory")}
		}
		return err
	}
	if err != nil {
		return err
	}
	if path := b.out + partialSuffix; husk(path, b.out) {
		if err := discard(path); err != nil {
			return err
		}
	}
	if !b.force {
		return &fs.PathError{Op: "create", Path: b.out, Err: fs.ErrExist}
	}
	refuse := func(why string) error {
		return &fs.PathError{Op: "replace", Path: b.out, Err: errors.New(why)}
	}
	switch {
	case b.dir && !st.IsDir():
		return refuse("not a directory")
	case !b.dir && !st.Mode().IsRegular():
		return refuse("not a regular file")
	case b.dir:
		entries, err := os.ReadDir(b.out)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if n := e.Name(); n == configName || n == partName || strings.HasSuffix(n, ".safetensors") {
				return nil
			}
		}
		if len(entries) > 0 {
			return refuse("it does not look like a model")
		}
	}
	return nil
}

// digest returns the SHA-256 of all parts one after another, in hex.
func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
