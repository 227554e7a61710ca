package model

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
	"github.com/turbotrellis/turbotrellis/trellis/ldlq"
)

// AutoAxis chooses the axis from each tensor's shape: 1 where its rows are
// whole blocks, else 0.
const AutoAxis = -1

// EncodeOptions says what is coded and how.
type EncodeOptions struct {
	// Tensors selects by name. Of those that match, the matrices called
	// <base>.weight are coded.
	Tensors *regexp.Regexp
	// Params are the parameters. K is for tensors that Bits does not cover; it
	// may be 0 if Bits covers all.
	Params trellis.Params
	Bits   BitsMap
	Axis   int // 0, 1 or AutoAxis

	// Hessians, if not nil, weight the errors of matrices that have one.
	Hessians *Hessians

	// Part of Parts, from 1, is the part of the tensors that this run codes;
	// Merge joins what the runs write. Both are 0 for one run that does all.
	Part, Parts int
}

// Planned says how one tensor will be coded.
type Planned struct {
	Name        string  `json:"name"`
	File        string  `json:"file"`
	DType       string  `json:"dtype"`
	Shape       []int   `json:"shape"`
	Bits        int     `json:"bits"`
	GroupSize   int     `json:"group_size,omitempty"` // of affine rows
	Axis        int     `json:"axis"`
	SourceBytes int64   `json:"source_bytes"`
	Bytes       int64   `json:"bytes"`
	PerWeight   float64 `json:"bits_per_weight"` // the scales included
	Hessian     bool    `json:"hessian"`         // it is coded with feedback
	Part        int     `json:"part,omitempty"`  // the part that codes it

	from   stored
	params trellis.Params
	geom   trellis.Geometry
	hess   safetensors.Info
	rows   Affine // what it becomes, in an affine plan
}

// Weights returns the number of weights.
func (p Planned) Weights() int64 {
	if p.Shape == nil {
		return 0 // the zero value
	}
	return count(p.Shape)
}

// Plan is what an encoding will do. It is decided before any weight is read.
type Plan struct {
	Tensors []Planned // in the order of the files and their data
	Passed  []string  // matched, but not matrices called <base>.weight, or not of whole groups
	Copied  int       // tensors that are copied, Passed among them
	Files   []string  // further files that are copied
	Twice   []string  // of Files, those with tensors of the model's names, and why

	// With Hessians:
	NoHessian      []string // matrices that are coded without one
	UnusedHessians []string // Hessians that belong to no selected matrix

	model  *Model
	opts   EncodeOptions
	affine *AffineOptions // of an affine plan
}

// PlanEncode decides which tensors of m will be coded and how. Errors wrap
// ErrQuantized, ErrSelection, ErrTensor or those of package trellis.
func PlanEncode(m *Model, o EncodeOptions) (*Plan, error) {
	if m == nil || len(m.files) == 0 {
		return nil, fmt.Errorf("%w: it is not open", ErrModel)
	}
	if o.Tensors == nil {
		return nil, fmt.Errorf("%w: no expression for the names of tensors", ErrSelection)
	}
	var err error
	if o.Bits, err = o.Bits.compiled(); err != nil {
		return nil, err
	}
	if err := m.unquantized(len(m.coded) > 0, len(m.affine) > 0); err != nil {
		return nil, err
	}
	p := &Plan{model: m, opts: o}
	if err := p.make(p.plan); err != nil {
		return nil, err
	}
	return p, nil
}

// errPassed says that a matrix is not one to code; it is copied.
var errPassed = errors.New("copied")

// make plans the matrices that the options select, each by plan.
func (p *Plan) make(plan func(from stored, base string, file int) (Planned, error)) error {
	m := p.model
	p.Twice = m.twice()
	for _, f := range m.others {
		p.Files = append(p.Files, f.name)
	}
	selected := map[string]bool{}
	for i, f := range m.files {
		for _, t := range f.Tensors() {
			base, isWeight := strings.CutSuffix(t.Name, weightSuffix)
			if !m.has(i, t.Name) || !p.opts.Tensors.MatchString(t.Name) || m.codes(i, t.Name) && !isWeight {
				continue
			}
			pass := func() { p.Passed = append(p.Passed, t.Name) }
			dims := len(t.Shape)
			if j, ok := m.isBase[base]; ok && m.coded[j].Geometry.Interleaved {
				dims = 2
			}
			if dims != 2 || !isWeight {
				if p.affine == nil || p.affine.Tensors != nil || dims > 2 { // it was asked for, or is as large as what is coded
					pass()
				}
				continue
			}
			from, ok := m.find(base, p.dtype())
			if !ok {
				return fmt.Errorf("tensor %q: %w: elements of type %s, want F32, F16 or BF16", t.Name, ErrTensor, t.DType)
			}
			planned, err := plan(from, base, i)
			if err == errPassed {
				pass()
				continue
			}
			if err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
			p.Tensors = append(p.Tensors, planned)
			selected[base] = true
		}
	}
	for i, f := range m.files {
		for _, t := range f.Tensors() {
			if base, ok := m.baseOf(t.Name); !ok || !m.has(i, t.Name) || !selected[base] {
				p.Copied++
			}
		}
	}
	if len(p.Tensors) == 0 {
		return fmt.Errorf("%w: no matrix called <base>%s matches %v", ErrSelection, weightSuffix, p.opts.Tensors)
	}
	if p.opts.Hessians != nil {
		used := map[string]bool{}
		for _, t := range p.Tensors {
			if used[t.Name+hessianSuffix] = t.Hessian; !t.Hessian {
				p.NoHessian = append(p.NoHessian, t.Name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.opts.Hessians.where)) {
			if !used[name] && strings.HasSuffix(name, hessianSuffix) {
				p.UnusedHessians = append(p.UnusedHessians, name)
			}
		}
		if len(p.NoHessian) == len(p.Tensors) {
			return fmt.Errorf("%w: there is no Hessian %q, nor one of another selected tensor", ErrSelection, p.Tensors[0].Name+hessianSuffix)
		}
	}
	if p.opts.Parts != 0 {
		if p.opts.Parts < 1 || p.opts.Parts > maxParts || p.opts.Part < 1 || p.opts.Part > p.opts.Parts {
			return fmt.Errorf("%w: part %d of %d", ErrSelection, p.opts.Part, p.opts.Parts)
		}
		owner := assign(p.Tensors, p.opts.Parts)
		for i := range p.Tensors {
			p.Tensors[i].Part = owner[p.Tensors[i].Name]
		}
	}
	return p.opts.Bits.unused(p.Tensors)
}

// dtype is the type that matrices are coded in, 0 for their own.
func (p *Plan) dtype() codec.DType {
	if p.affine != nil {
		return p.affine.DType
	}
	return 0
}

// unquantized refuses a model that says that it is quantised, unless that is about matrices of the other kind alone,
// which can be converted.
func (m *Model) unquantized(as, other bool) error {
	convertible := other && !as
	keys := []string{quantizationKey, configKey}
	if !m.dir {
		if convertible {
			keys = keys[1:]
		}
		meta := m.Metadata()
		for _, key := range keys {
			if _, ok := meta[key]; ok {
				return fmt.Errorf("%w: the metadata of %s has %q", ErrQuantized, m.path, key)
			}
		}
		return nil
	}
	o, err := parseObject(m.config)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrModel, configName, err)
	}
	if convertible {
		if keys = keys[1:]; copied(o) {
			return nil
		}
	}
	for _, key := range keys {
		if o.find(key) != nil {
			return fmt.Errorf("%w: %s has %q", ErrQuantized, configName, key)
		}
	}
	return nil
}

// free refuses names that the coded form of a matrix takes and its present form does not have.
func (m *Model) free(base string, file int, suffixes ...string) error {
	for _, suffix := range suffixes {
		name := base + suffix
		_, _, listed := m.lookup(name)
		_, own := m.owner[name]
		if _, there := m.files[file].Lookup(name); listed && !own || there && !m.has(file, name) {
			return fmt.Errorf("%w: there is a tensor %q", ErrQuantized, name)
		}
	}
	return nil
}

func (p *Plan) plan(from stored, base string, file int) (Planned, error) {
	if err := p.model.free(base, file, scalesSuffix); err != nil {
		return Planned{}, err
	}
	params := p.opts.Params
	params.K = p.opts.Bits.bits(base, params.K)
	if params.K == 0 {
		return Planned{}, fmt.Errorf("%w: no number of bits is given for it", ErrTensor)
	}
	if params.FreeEnds {
		return Planned{}, fmt.Errorf("%w: free-ended blocks have no packed form", trellis.ErrParams)
	}
	if err := params.ValidateEncoder(); err != nil {
		return Planned{}, err
	}
	g := trellis.Geometry{Axis: p.opts.Axis, Out: from.shape[0], In: from.shape[1]}
	if g.Axis == AutoAxis {
		switch {
		case g.In%params.T == 0:
			g.Axis = 1
		case g.Out%params.T == 0:
			g.Axis = 0
		default:
			return Planned{}, fmt.Errorf("%w: neither side of [%d, %d] is a multiple of the block, %d", ErrTensor, g.Out, g.In, params.T)
		}
	}
	if err := g.Validate(params); err != nil {
		return Planned{}, err
	}
	var hess safetensors.Info
	var weighed bool
	if h := p.opts.Hessians; h != nil {
		var err error
		if hess, weighed, err = h.find(from.name, g.In); err != nil {
			return Planned{}, err
		}
	}
	c := Coded{base, params, g}
	return Planned{
		Name: from.name, File: p.model.files[file].name, DType: string(safetensors.DTypeOf(from.dtype)), Shape: from.shape,
		Bits: params.K, Axis: g.Axis, SourceBytes: from.size(), Bytes: c.Bytes(),
		PerWeight: 8 * float64(c.Bytes()) / float64(max(1, c.Weights())),
		Hessian:   weighed,
		from:      from, params: params, geom: g, hess: hess,
	}, nil
}

// RunOptions say how a model is written; the bytes do not depend on them.
type RunOptions struct {
	Backend  codec.Backend  // required, but to merge
	Jobs     int            // tensors at a time; less than 1 means 1
	Force    bool           // replace what is there, and begin again where the unfinished output does not match
	Progress func(Progress) // called by one goroutine at a time, if not nil

	// Twice copies further *.safetensors with tensors of the model's names, such as a stale single file beside
	// shards. Readers may take them for the model, so without it they are an ErrTwice.
	Twice bool
}

// Encode writes the coded model to out, which becomes a directory or file as
// the source is. Errors wrap those of package codec, with the tensor's name and
// the weight's row-major index, ldlq.ErrHessian, ErrModel, ErrOutput, ErrChanged,
// ErrPartial, or those of reading and writing: fs.ErrExist if there is something
// at out and run.Force is not set. When ctx ends the error says "interrupted",
// and the same call resumes the work.
func (p *Plan) Encode(ctx context.Context, out string, run RunOptions) (Result, error) {
	if run.Backend == nil {
		return Result{}, fmt.Errorf("%w: no backend", codec.ErrUnavailable)
	}
	b, err := p.build(out, run)
	if err != nil {
		return Result{}, err
	}
	return b.run(ctx)
}

// Check returns the errors of Encode that do not depend on the tensors' data, and writes nothing. run.Backend may
// be nil.
func (p *Plan) Check(out string, run RunOptions) error {
	b, err := p.build(out, run)
	if err == nil {
		err = distinct(b.names())
	}
	if err == nil {
		err = b.target()
	}
	return err
}

func (p *Plan) build(out string, run RunOptions) (*build, error) {
	m := p.model
	if m == nil {
		return nil, fmt.Errorf("%w: the plan is not PlanEncode's", ErrModel)
	}
	e := newEncoder(run)
	e.hessians = p.opts.Hessians
	changes := map[string]change{}
	var entries []newEntry
	if p.affine != nil {
		entries = p.affine.entries()
	}
	for _, t := range p.Tensors {
		base := strings.TrimSuffix(t.Name, weightSuffix)
		j, to, entry, err := p.change(e, t, base)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		changes[base] = change{to, j}
		if entry != nil {
			entries = append(entries, newEntry{base, entry})
		}
	}
	b, err := m.rewrite(out, run, p.Twice, changes, entries)
	if err != nil {
		return nil, err
	}
	b.verb, b.plan = Coding, p
	if e.hessians != nil {
		b.origins = append(b.origins, e.hessians.origins...)
		b.keep = append(b.keep, e.hessians.path)
	}
	b.options = p.options(b)
	if p.opts.Parts > 0 {
		owner := map[string]int{}
		for _, t := range p.Tensors {
			owner[t.Name] = t.Part
		}
		b.keepPart(p.opts.Part, p.opts.Parts, owner)
	}
	return b, nil
}

// change returns the job that codes a matrix, what it writes and the matrix's own entry, if it has one.
func (p *Plan) change(e *encoder, t Planned, base string) (job, []safetensors.Info, []byte, error) {
	if p.affine != nil {
		j, err := e.affineJob(t)
		return j, t.rows.tensors(), p.affine.entry(t.rows.Format), err
	}
	j, err := e.job(t)
	to := []safetensors.Info{
		{Name: t.Name, DType: safetensors.U32, Shape: t.geom.CodesShape(t.params)},
		{Name: base + scalesSuffix, DType: safetensors.F16, Shape: []int{t.geom.Rows()}},
	}
	return j, to, []byte(line(entryOf(t.params, t.Axis))), err
}

// options describes everything that the result depends on besides the source's data.
func (p *Plan) options(b *build) string {
	o := p.opts
	if p.affine != nil {
		return p.affine.options(b)
	}
	axis := "auto"
	if o.Axis != AutoAxis {
		axis = strconv.Itoa(o.Axis)
	}
	return line(struct {
		Tensors string `json:"tensors"`
		K       int    `json:"k"`
		Block   int    `json:"block"`
		L       int    `json:"L"`
		Code    string `json:"code"`
		Axis    string `json:"axis"`
		Policy  string `json:"policy"`
		Scale   string `json:"scale"`
		Hessian bool   `json:"hessian"`
		Plan    string `json:"plan"` // digest of what will be written
	}{o.Tensors.String(), o.Params.K, o.Params.T, o.Params.L, o.Params.Code.String(), axis,
		o.Params.Policy.String(), o.Params.Scale.String(), o.Hessians != nil, b.layout()})
}

// line is marshal without the line's end.
func line(v any) string { return strings.TrimSpace(string(marshal(v))) }

// layout is a digest of the files to write, without their tensors' data.
func (b *build) layout() string {
	var parts [][]byte
	for _, f := range b.files {
		parts = append(parts, marshal(f.name), marshal(f.meta), marshal(f.infos))
	}
	for _, name := range slices.Sorted(maps.Keys(b.texts)) {
		parts = append(parts, marshal(name), marshal(string(b.texts[name])))
	}
	parts = append(parts, marshal(slices.Sorted(maps.Keys(b.links))))
	return sha(parts...)
}

// start begins the description of a model to write that has this one's
// further files.
func (m *Model) start(out string, run RunOptions, twice []string) (*build, error) {
	if len(twice) > 0 && !run.Twice {
		return nil, fmt.Errorf("%w: %s; readers may take it for the model, so move it away", ErrTwice, strings.Join(twice, "; "))
	}
	b := &build{
		twice: twice, given: out, out: filepath.Clean(out), dir: m.dir, force: run.Force, parallel: run.Jobs, report: run.Progress,
		texts: map[string][]byte{}, links: map[string]origin{}, origins: slices.Clone(m.origins),
	}
	for _, f := range m.others {
		b.links[f.name] = f.origin
	}
	if m.path != "" {
		b.apart = []string{m.path}
	}
	return b, nil
}

// wideFirst orders tensors by the size of their elements, so that all are
// aligned.
func wideFirst(infos []safetensors.Info) {
	slices.SortStableFunc(infos, func(a, b safetensors.Info) int {
		return cmp.Compare(b.DType.Size(), a.DType.Size())
	})
}

// editIndex returns the index of a model in shards after tensors are gone, and
// further ones have joined <base>.weight.
func editIndex(index []byte, gone map[string]bool, further map[string][]string, files []outFile) ([]byte, error) {
	o, err := parseObject(index)
	if err != nil {
		return nil, err
	}
	at := o.find("weight_map")
	names, err := parseObject(o.raw(at))
	if err != nil {
		return nil, err
	}
	if len(gone) > 0 {
		if names, err = parseObject(names.without(func(key string) bool { return gone[key] })); err != nil {
			return nil, err
		}
	}
	var adds []edit
	for _, n := range names.members {
		base, ok := strings.CutSuffix(n.key, weightSuffix)
		if !ok {
			continue
		}
		for _, name := range further[base] {
			adds = append(adds, edit{n.stop, n.stop, append([]byte{','}, names.with(name, names.raw(&n))...)})
		}
	}
	text := splice(names.text, adds)
	edits := []edit{{at.value, at.stop, text}}
	if meta := o.find("metadata"); meta != nil {
		inner, err := parseObject(o.raw(meta))
		if err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		if total := inner.find("total_size"); total != nil {
			var size int64
			for _, f := range files {
				for _, t := range f.infos {
					n, err := t.DType.DataSize(t.Shape)
					if err != nil {
						return nil, err
					}
					size += n
				}
			}
			edits = append(edits, edit{meta.value + total.value, meta.value + total.stop, strconv.AppendInt(nil, size, 10)})
		}
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	return splice(o.text, edits), nil
}

// encoder makes the jobs of an encoding or decoding.
type encoder struct {
	feed     feeder
	backend  codec.Backend
	trellis  map[trellis.Params]codec.Trellis
	affine   map[affine.RowFormat]codec.Affine
	hessians *Hessians
	largest  int64         // bytes of the largest matrix to code
	scratch  chan *scratch // as many as there are jobs at a time
}

func newEncoder(run RunOptions) *encoder {
	e := &encoder{
		backend: run.Backend,
		trellis: map[trellis.Params]codec.Trellis{},
		affine:  map[affine.RowFormat]codec.Affine{},
		scratch: make(chan *scratch, max(1, run.Jobs)),
	}
	var feed codec.Feed
	if run.Backend != nil {
		feed = run.Backend.Feed()
	}
	e.feed = newFeeder(feed)
	for range cap(e.scratch) {
		e.scratch <- &scratch{slots: make([]slot, cap(e.feed.calls))}
	}
	return e
}

// codec returns the backend's codec, or nil without a backend, for a check.
// Codecs of equal parameters are one.
func (e *encoder) codec(p trellis.Params) (codec.Trellis, error) {
	if e.backend == nil {
		return nil, nil
	}
	if c, ok := e.trellis[p]; ok {
		return c, nil
	}
	c, err := e.backend.Trellis(p)
	if err == nil {
		e.trellis[p] = c
	}
	return c, err
}

// rows is codec for affine rows.
func (e *encoder) rows(f affine.RowFormat) (codec.Affine, error) {
	if e.backend == nil {
		return nil, nil
	}
	if c, ok := e.affine[f]; ok {
		return c, nil
	}
	c, err := e.backend.Affine(f)
	if err == nil {
		e.affine[f] = c
	}
	return c, err
}

// codecs returns the error of a backend that has no codec for how a matrix is stored. Jobs find the codecs later,
// at the same time, and change nothing.
func (e *encoder) codecs(t *stored) (err error) {
	switch {
	case t.trellis != nil:
		_, err = e.codec(t.trellis.Params)
	case t.affine != nil:
		_, err = e.rows(t.affine.Format)
	}
	return err
}

// scratch is what a job works in. Jobs hand it on, so that memory in use is
// that of the largest tensor and not of garbage.
type scratch struct {
	data         []byte
	parts        [3][]byte // of a coded matrix, as stored
	matrix       trellis.Matrix
	rows         codec.AffineRows
	errs, energy []float64 // by coded row
	slots        []slot
}

// slot is what one goroutine works in.
type slot struct {
	part  trellis.Matrix
	rows  codec.AffineRows
	recon []byte
	x, y  []float32
}

// open returns what reads the weights of a planned matrix into a scratch and
// digests all that the result depends on.
func (e *encoder) open(t Planned) (load func(context.Context, *scratch) (hessian []byte, sum string, err error), err error) {
	from := t.from
	if err := from.fits(); err != nil {
		return nil, err
	}
	if err := e.codecs(&from); err != nil {
		return nil, err
	}
	e.largest = max(e.largest, from.bytes())
	return func(ctx context.Context, s *scratch) (hessian []byte, sum string, err error) {
		parts, err := e.read(ctx, &from, s)
		if err != nil {
			return nil, "", err
		}
		if t.Hessian {
			hessian = make([]byte, t.hess.Size)
			if err := readTensor(ctx, hessian, e.hessians.where[t.hess.Name], t.hess.Name); err != nil {
				return nil, "", err
			}
		}
		if sum, err = digest(ctx, append(parts, hessian)...); err != nil {
			return nil, "", err
		}
		return hessian, sum, e.decode(ctx, &from, parts, s, func(int64) {})
	}, nil
}

func (e *encoder) job(t Planned) (job, error) {
	w := &weights{name: t.Name, g: t.geom, dtype: t.from.dtype}
	c, err := e.codec(t.params)
	if err != nil {
		return job{}, err
	}
	load, err := e.open(t)
	if err != nil {
		return job{}, err
	}
	return source[[]byte]{
		load: load,
		check: func(ctx context.Context, s *scratch, hessian []byte) error {
			if err := w.check(ctx, s.data, t.params); err != nil || !t.Hessian {
				return err
			}
			return checkHessian(ctx, t.hess, hessian)
		},
		make: func(ctx context.Context, dst []io.Writer, s *scratch, hessian []byte, done func(int64)) (r TensorResult, err error) {
			r = TensorResult{Name: t.Name, Shape: t.Shape, Bits: t.Bits, Axis: t.Axis, SourceBytes: t.SourceBytes, Bytes: t.Bytes}
			if t.Hessian {
				err = e.withFeedback(ctx, t, c, hessian, w, s, &r, done)
			} else {
				r.Error, err = w.code(ctx, e.feed, t.params, c, 1, s, done)
			}
			if err != nil {
				return TensorResult{}, err
			}
			return r, write(dst, &s.matrix)
		},
	}.fill(e, job{name: t.Name, weights: t.Weights(), outs: []string{t.Name, strings.TrimSuffix(t.Name, weightSuffix) + scalesSuffix}}), nil
}

// withFeedback codes a matrix against its Hessian. On axis 1 the rows are coded
// apart; on axis 0 each feeds back to those before it.
func (e *encoder) withFeedback(ctx context.Context, t Planned, k codec.Trellis, hessian []byte, w *weights, s *scratch, r *TensorResult, done func(int64)) error {
	f, err := prepare(ctx, t.hess, hessian, t.params, t.Axis)
	if err != nil {
		return err
	}
	calls, fewest := cap(e.feed.calls), feedbackRows
	f.run = ldlq.Run{Blocks: paths{k}, Calls: 1, Workers: max(1, runtime.GOMAXPROCS(0)/calls)}
	if t.Axis == 0 {
		fewest, f.run.Calls, f.run.Workers = max(1, t.geom.Rows()), calls, runtime.GOMAXPROCS(0)
	}
	if r.Error, err = w.code(ctx, e.feed, t.params, f, fewest, s, done); err != nil {
		return err
	}
	f.note(r)
	return nil
}

// rowCoder codes rows of a matrix, as codec.Trellis does.
type rowCoder interface {
	Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error
}

// weights is a matrix to be coded.
type weights struct {
	name  string
	g     trellis.Geometry
	dtype codec.DType
}

// view returns the weights of n coded rows from the first as a matrix, which is
// strided for axis 0.
func (w *weights) view(data []byte, first, n int) (codec.Tensor, trellis.Geometry) {
	g, size := w.g, w.dtype.Size()
	if g.Axis == 0 {
		g.In = n
		return codec.Tensor{DType: w.dtype, Shape: []int{g.Out, n}, Stride: []int{w.g.In, 1}, Data: data[min(len(data), first*size):]}, g
	}
	g.Out = n
	return codec.Tensor{DType: w.dtype, Shape: []int{n, g.In}, Data: data[first*g.In*size:][:n*g.In*size]}, g
}

// check refuses weights that are not finite and rows whose scale overflows,
// with the index of the weight in the whole matrix.
func (w *weights) check(ctx context.Context, data []byte, p trellis.Params) error {
	size := w.dtype.Size()
	largest, err := finite(ctx, w.name, data, w.dtype)
	if err != nil || largest < 256 {
		return err // far from f16's limit under every code and rule
	}
	enc, err := trellis.NewEncoder(p)
	if err != nil {
		return err
	}
	row := make([]float32, w.g.Cols())
	for r := range w.g.Rows() {
		if err := ctx.Err(); err != nil {
			return err
		}
		at, step := r*w.g.In, 1
		if w.g.Axis == 0 {
			at, step = r, w.g.In
		}
		for c := range row {
			row[c] = w.dtype.Load(data[(at+c*step)*size:])
		}
		if _, _, err := enc.RowScale(row); err != nil {
			return w.placed(&codec.Error{Err: codec.ErrScaleOverflow, Reason: err.Error()}, r, at)
		}
	}
	return nil
}

// finite refuses a weight that is not and returns the largest magnitude.
func finite(ctx context.Context, name string, data []byte, t codec.DType) (largest float32, err error) {
	size := t.Size()
	for i := range len(data) / size {
		if i%copyBytes == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		v := t.Load(data[i*size:])
		if !f32.IsFinite(v) {
			return 0, &codec.Error{Err: codec.ErrNonFinite, Tensor: strconv.Quote(name), Index: i, Reason: fmt.Sprint(v)}
		}
		largest = max(largest, v, -v)
	}
	return largest, nil
}

// placed names the tensor in a codec's error and sets its index to that of the
// row's first weight.
func (w *weights) placed(err error, row, at int) error {
	e, ok := errors.AsType[*codec.Error](err)
	if !ok {
		return err
	}
	moved := *e
	moved.Tensor = strconv.Quote(w.name)
	moved.Index = at
	moved.Reason = fmt.Sprintf("row %d along axis %d: %s", row, w.g.Axis, e.Reason)
	return &moved
}

// code codes the matrix in s.data into s.matrix, at least fewest rows at a
// time, and returns the squared error over the sum of squares.
func (w *weights) code(ctx context.Context, f feeder, params trellis.Params, c rowCoder, fewest int, s *scratch, done func(int64)) (float64, error) {
	rows, cols := w.g.Rows(), w.g.Cols()
	words := cols / params.T * params.BlockWords() // a row
	s.matrix = trellis.Matrix{
		Params:   params,
		Geometry: w.g,
		Codes:    sized(s.matrix.Codes, rows*words),
		Scales:   sized(s.matrix.Scales, rows),
	}
	s.reset(rows)
	err := f.rows(ctx, s.slots, rows, cols*w.dtype.Size(), fewest, func(ctx context.Context, k *slot, r span) error {
		first, n := r.first, r.rows
		x, g := w.view(s.data, first, n)
		k.recon = sized(k.recon, 4*n*cols)
		recon := codec.Tensor{DType: codec.F32, Shape: x.Shape, Data: k.recon}
		if err := c.Encode(ctx, &k.part, recon, x, g); err != nil {
			return fmt.Errorf("tensor %q, from row %d along axis %d: %w", w.name, first, g.Axis, err)
		}
		copy(s.matrix.Codes[first*words:], k.part.Codes)
		copy(s.matrix.Scales[first:], k.part.Scales)
		s.measure(k, x, recon, first, g.Axis)
		done(int64(n) * int64(cols))
		return nil
	})
	return ratio(s.errs, s.energy), err
}

// reset begins to measure so many rows.
func (s *scratch) reset(rows int) {
	s.errs, s.energy = sized(s.errs, rows), sized(s.energy, rows)
	clear(s.errs)
	clear(s.energy)
}

// measure adds the squared errors of recon and the squares of x to those of the coded rows from first on, which lie
// along an axis.
func (s *scratch) measure(k *slot, x, recon codec.Tensor, first, axis int) {
	k.x, k.y = sized(k.x, x.Dim()), sized(k.y, x.Dim())
	for out := range x.Rows() {
		x.LoadRow(k.x, out)
		recon.LoadRow(k.y, out)
		for in, v := range k.x {
			r := first + out
			if axis == 0 {
				r = first + in
			}
			d := float64(k.y[in]) - float64(v)
			s.errs[r] += float64(d * d)
			s.energy[r] += float64(float64(v) * float64(v))
		}
	}
}

// sized returns a slice of n elements, s itself where it is large enough. It
// makes no room for more, as append does.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// ratio returns the sum of errs over that of energy, 0 for no error at all.
func ratio(errs, energy []float64) float64 {
	var num, den float64
	for i := range errs {
		num += errs[i]
		den += energy[i]
	}
	if num == 0 {
		return 0
	}
	if den == 0 {
		return math.MaxFloat64 // an all-zero matrix under the compat policy
	}
	return num / den
}

// write writes the codes and scales of a matrix, little-endian.
func write(dst []io.Writer, m *trellis.Matrix) error {
	buf := make([]byte, 0, copyBytes)
	for codes := range slices.Chunk(m.Codes, copyBytes/4) {
		buf = buf[:0]
		for _, c := range codes {
			buf = binary.LittleEndian.AppendUint32(buf, c)
		}
		if _, err := dst[0].Write(buf); err != nil {
			return err
		}
	}
	for scales := range slices.Chunk(m.Scales, copyBytes/2) {
		buf = buf[:0]
		for _, s := range scales {
			buf = binary.LittleEndian.AppendUint16(buf, s)
		}
		if _, err := dst[1].Write(buf); err != nil {
			return err
		}
	}
	return nil
}
