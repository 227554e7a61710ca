package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
	"github.com/turbotrellis/turbotrellis/trellis/ldlq"
)

// hessianSuffix follows a tensor's name in that of its Hessian.
const hessianSuffix = ".hessian"

// feedbackRows is the fewest rows worth a call of the feedback coder, which
// goes through the Hessian's factor once for all rows of a call.
const feedbackRows = 32

// Hessians are the second moments XᵀX/n of the inputs of matrices, which weight
// the errors of their coding (package ldlq): tensors <base>.weight.hessian,
// [In, In], F32, F16 or BF16, in one safetensors file or in all of a directory.
type Hessians struct {
	path    string
	origins []origin
	files   []*safetensors.File
	where   map[string]*safetensors.File
}

// OpenHessians opens a directory or file of Hessians. It reads their headers.
func OpenHessians(path string) (*Hessians, error) {
	h := &Hessians{path: path, where: map[string]*safetensors.File{}}
	if err := h.open(path); err != nil {
		h.Close()
		return nil, fmt.Errorf("Hessians: %w", err)
	}
	return h, nil
}

func (h *Hessians) open(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	paths := []string{path}
	if st.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		paths = nil
		for _, e := range entries {
			if filepath.Ext(e.Name()) == ".safetensors" {
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
		if len(paths) == 0 {
			return fmt.Errorf("%w: there is no *.safetensors in %s", ErrModel, path)
		}
	}
	for _, path := range paths {
		o, err := originOf(path)
		if err != nil {
			return err
		}
		f, err := safetensors.Open(path)
		if err != nil {
			return err
		}
		h.origins = append(h.origins, o)
		h.files = append(h.files, f)
		for _, t := range f.Tensors() {
			if _, ok := h.where[t.Name]; ok {
				return fmt.Errorf("%w: tensor %q is in two files", ErrModel, t.Name)
			}
			h.where[t.Name] = f
		}
	}
	return nil
}

// find returns the Hessian of a tensor, checked against the input features.
func (h *Hessians) find(name string, in int) (safetensors.Info, bool, error) {
	name += hessianSuffix
	f, ok := h.where[name]
	if !ok {
		return safetensors.Info{}, false, nil
	}
	t, _ := f.Lookup(name)
	if _, ok := t.DType.Float(); !ok || !slices.Equal(t.Shape, []int{in, in}) {
		return t, false, fmt.Errorf("%w: its Hessian %q is %s %v, want F32, F16 or BF16 [%d %d]", ErrTensor, name, t.DType, t.Shape, in, in)
	}
	if in > ldlq.MaxN {
		return t, false, fmt.Errorf("%w: a Hessian of order %d, want at most %d", ErrTensor, in, ldlq.MaxN)
	}
	return t, true, nil
}

// Close closes the files.
func (h *Hessians) Close() error {
	var errs []error
	for _, f := range h.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// feedback codes one matrix against its Hessian, with a backend's paths.
type feedback struct {
	*ldlq.Feedback
	params trellis.Params
	run    ldlq.Run

	mu     sync.Mutex // guards report
	report ldlq.Report
}

// paths is ldlq.Blocks over a backend's codec.
type paths struct{ codec.Trellis }

func (p paths) EncodeBlocks(ctx context.Context, states []uint16, samples []float32) error {
	x := codec.NewTensor(codec.F32, len(samples))
	for i, v := range samples {
		codec.F32.Store(x.Data[4*i:], v)
	}
	x.Shape = []int{len(samples) / p.Params().T, p.Params().T}
	return p.Trellis.EncodeBlocks(ctx, states, x)
}

// floats returns the values of a tensor, whose bytes are data.
func floats(ctx context.Context, t safetensors.Info, data []byte) ([]float64, error) {
	d, _ := t.DType.Float()
	h := make([]float64, len(data)/d.Size())
	for i := range h {
		if i%copyBytes == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h[i] = float64(d.Load(data[i*d.Size():]))
	}
	return h, nil
}

// checkHessian returns the error of the Hessian t, whose bytes are data, that comes before its factorisation.
func checkHessian(ctx context.Context, t safetensors.Info, data []byte) error {
	h, err := floats(ctx, t, data)
	if err != nil {
		return err
	}
	if err := ldlq.Check(ctx, h, t.Shape[0]); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return nil
}

// CheckHessians reads the Hessians of the planned matrices, in this part if the work is shared, and returns the
// error that Encode returns for them before it codes the first weight: an ldlq.ErrHessian that names the tensor and
// the element, or ctx.Err() soon after ctx ends.
func (p *Plan) CheckHessians(ctx context.Context) error {
	for _, t := range p.Tensors {
		if !t.Hessian || p.opts.Parts > 0 && t.Part != p.opts.Part {
			continue
		}
		data := make([]byte, t.hess.Size)
		if err := readTensor(ctx, data, p.opts.Hessians.where[t.hess.Name], t.hess.Name); err != nil {
			return err
		}
		if err := checkHessian(ctx, t.hess, data); err != nil {
			return err
		}
	}
	return nil
}

// prepare factors the Hessian t, whose bytes are data.
func prepare(ctx context.Context, t safetensors.Info, data []byte, p trellis.Params, axis int) (*feedback, error) {
	h, err := floats(ctx, t, data)
	if err != nil {
		return nil, err
	}
	f, err := ldlq.Prepare(ctx, h, t.Shape[0], ldlq.Options{Block: ldlq.BlockFor(p, axis)})
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return &feedback{Feedback: f, params: p}, nil
}

// Encode has the form of codec.Trellis's.
func (f *feedback) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error {
	w := make([]float32, x.Len())
	for r := range x.Rows() {
		x.LoadRow(w[r*x.Dim():][:x.Dim()], r)
	}
	out := make([]float32, len(w))
	rep, err := f.Feedback.Encode(ctx, dst, out, w, f.params, g, f.run)
	if err != nil {
		return err
	}
	for r := range recon.Rows() {
		recon.StoreRow(r, out[r*recon.Dim():][:recon.Dim()])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report.ProxyLoss += rep.ProxyLoss
	f.report.UnweightedLoss += rep.UnweightedLoss
	f.report.FellBackRows += rep.FellBackRows
	return nil
}

// note adds to r what the feedback was worth.
func (f *feedback) note(r *TensorResult) {
	r.Hessian = true
	r.FellBackRows = f.report.FellBackRows
	if f.report.UnweightedLoss > 0 {
		r.ProxyLoss = f.report.ProxyLoss / f.report.UnweightedLoss
	}
}
