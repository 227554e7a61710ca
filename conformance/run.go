package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Form is how much is run.
type Form int

// The forms. Short is a part of Normal that meets every operation, value of a
// parameter, layout and kind of data; Long adds the long digests.
const (
	Normal Form = iota
	Short
	Long
)

// String returns normal, short or long.
func (f Form) String() string { return [...]string{"normal", "short", "long"}[f] }

// Options says what Run runs.
type Options struct {
	// Filter is a case's name, an operation, or a part of a name; empty means
	// all. Case does not matter.
	Filter string
	// Form is how much is run.
	Form Form
	// Progress is called now and then with the number of cases done.
	Progress func(done, total int)
	// Complete makes it a failure for the backend to decline a case.
	Complete bool
	// MaxFailures is the number of failures that are kept; 0 means 20. All are
	// counted.
	MaxFailures int
}

// OpCount counts the cases of one operation.
type OpCount struct {
	Op       string `json:"op"`
	Cases    int    `json:"cases"` // that ran, failed ones included
	Failed   int    `json:"failed"`
	Declined int    `json:"declined"`
}

// Report is what Run found.
type Report struct {
	Backend  string     `json:"backend"`
	Form     string     `json:"form"`
	Cases    int        `json:"cases"` // that ran, failed ones included
	Failed   int        `json:"failed"`
	Ops      []OpCount  `json:"ops"`      // in the order of the cases
	Failures []*Failure `json:"failures"` // the first ones
	Declined []string   `json:"declined"` // names of cases the backend returned codec.ErrUnsupported for
	// Reference is SHA-256 over everything that the reference gave for the
	// cases that ran. For the same cases it is the same on every machine.
	Reference string `json:"reference"`
	complete  bool
	stopped   error // why not all cases ran
}

// ErrNoCases reports a filter that no case matches, or a backend that declined
// them all.
var ErrNoCases = errors.New("no case ran")

// Err returns nil if at least one case ran and none failed. If Run's context
// ended first, it returns the cause.
func (r *Report) Err() error {
	switch {
	case r.stopped != nil:
		return r.stopped
	case r.Failed > 0:
		return fmt.Errorf("conformance: backend %s: %d of %d cases failed; the first:\n%w", r.Backend, r.Failed, r.Cases, r.Failures[0])
	case r.Cases == 0:
		return ErrNoCases
	case r.complete && len(r.Declined) > 0:
		return fmt.Errorf("conformance: backend %s declined %d cases, the first %s", r.Backend, len(r.Declined), r.Declined[0])
	}
	return nil
}

// Case is one check of a backend.
type Case struct {
	Op    string // the operation, a method of codec's interfaces
	Name  string // op(param=value,…), unique
	short bool
	form  Form // Long: only there; Short: only there; Normal: in Normal and, if short is set, in Short
	run   func(*env) *Failure
}

// in reports whether the case is part of a form.
func (c *Case) in(f Form) bool {
	switch {
	case c.form == f:
		return true
	case c.form != Normal:
		return false
	}
	return f == Long || c.short
}

func (c *Case) matches(filter string) bool {
	name, filter := strings.ToLower(c.Name), strings.ToLower(filter)
	if strings.HasSuffix(filter, ")") {
		return name == filter
	}
	return filter == "" || strings.ToLower(c.Op) == filter || strings.Contains(name, filter)
}

// Cases returns the cases of a form that match a filter, as Run runs them.
func Cases(f Form, filter string) []Case {
	if strings.HasSuffix(filter, ")") {
		f = Long // a case named in full runs whatever its form
	}
	all := allCases()
	// An operation's name is not also taken as a part of others'.
	exact := slices.ContainsFunc(all, func(c Case) bool { return strings.EqualFold(c.Op, filter) })
	return slices.DeleteFunc(all, func(c Case) bool {
		if strings.HasSuffix(filter, ")") {
			return !c.matches(filter)
		}
		return !c.in(f) || !c.matches(filter) || exact && !strings.EqualFold(c.Op, filter)
	})
}

// errDeclined stops a case that the backend returned codec.ErrUnsupported for.
var errDeclined = errors.New("declined")

// env is what cases share during a Run: codecs made so far.
type env struct {
	ctx     context.Context
	backend codec.Backend
	ref     codec.Backend
	kvs     map[codec.KVParams]codec.KV
	refKVs  map[codec.KVParams]codec.KV

	trellises, refTrellises map[trellis.Params]codec.Trellis
	affines, refAffines     map[affine.RowFormat]codec.Affine

	brief bool      // failures are only counted: their stage does not matter
	sum   hash.Hash // of what the reference gives
}

func newEnv(ctx context.Context, b codec.Backend) *env {
	return &env{ctx: ctx, backend: b, ref: ref.New(), sum: sha256.New(), kvs: map[codec.KVParams]codec.KV{}, refKVs: map[codec.KVParams]codec.KV{},
		trellises: map[trellis.Params]codec.Trellis{}, refTrellises: map[trellis.Params]codec.Trellis{},
		affines: map[affine.RowFormat]codec.Affine{}, refAffines: map[affine.RowFormat]codec.Affine{}}
}

// kv returns the backend's codec for p. It panics with errDeclined where the
// backend does not serve p, and with a *Failure on any other error.
func (e *env) kv(p codec.KVParams) codec.KV {
	kv, ok := e.kvs[p]
	if !ok {
		var err error
		if kv, err = e.backend.KV(p); err != nil {
			e.refuse(err, "parameters")
		}
		if kv == nil {
			panic(failure(Error, "parameters", "neither a codec nor an error"))
		}
		e.kvs[p] = kv
	}
	return kv
}

// refuse ends the case for an error that valid parameters or operands got.
func (e *env) refuse(err error, operand string) {
	if errors.Is(err, codec.ErrUnsupported) {
		panic(errDeclined)
	}
	panic(failure(Error, operand, "%v", err))
}

func (e *env) refKV(p codec.KVParams) codec.KV {
	kv, ok := e.refKVs[p]
	if !ok {
		var err error
		if kv, err = e.ref.KV(p); err != nil {
			panic(fmt.Sprintf("conformance: a case has parameters that the reference refuses: %v", err))
		}
		e.refKVs[p] = kv
	}
	return kv
}

// refStages returns the reference's codec for p with its stages.
func refStages(p codec.KVParams) *ref.KV {
	kv, err := ref.NewKV(p)
	if err != nil {
		panic(fmt.Sprintf("conformance: a case has parameters that the reference refuses: %v", err))
	}
	return kv
}

// note adds outputs of the reference, in words of type t, to the sum. NaN is
// added without its payload.
func (e *env) note(t codec.DType, b []byte) {
	if t != 0 {
		b = bytes.Clone(b)
		canonicalNaN(t, b)
	}
	e.sum.Write(b)
}

// do runs one case.
func (e *env) do(c *Case) (f *Failure, declined bool) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *Failure:
			f = r
		case error:
			if r == errDeclined {
				declined = true
				return
			}
			f = failure(Panic, "", "%v", r)
		default:
			f = failure(Panic, "", "%v", r)
		}
		if f != nil {
			f.Case = c.Name
		}
	}()
	return c.run(e), false
}

// Run runs every case of the form that matches the filter on b. It returns early once ctx ends; the Report has the
// cases until then, and its Err is the cause.
func Run(ctx context.Context, b codec.Backend, o Options) *Report {
	keep := o.MaxFailures
	if keep == 0 {
		keep = 20
	}
	r := &Report{Backend: b.Name(), Form: o.Form.String(), Ops: []OpCount{}, Failures: []*Failure{}, Declined: []string{}, complete: o.Complete}
	e := newEnv(ctx, b)
	cases := Cases(o.Form, o.Filter)
	for i := range cases {
		c := &cases[i]
		n := slices.IndexFunc(r.Ops, func(n OpCount) bool { return n.Op == c.Op })
		if n < 0 {
			n = len(r.Ops)
			r.Ops = append(r.Ops, OpCount{Op: c.Op})
		}
		e.brief = len(r.Failures) == keep
		f, declined := e.do(c)
		if ctx.Err() != nil {
			r.stopped = context.Cause(ctx) // what the case said counts for nothing
			break
		}
		switch {
		case declined:
			r.Ops[n].Declined++
			r.Declined = append(r.Declined, c.Name)
		default:
			r.Cases++
			r.Ops[n].Cases++
		}
		if f != nil {
			r.Failed++
			r.Ops[n].Failed++
			if len(r.Failures) < keep {
				r.Failures = append(r.Failures, f)
			}
		}
		if o.Progress != nil && (i%64 == 63 || i == len(cases)-1) {
			o.Progress(i+1, len(cases))
		}
	}
	r.Reference = hex.EncodeToString(e.sum.Sum(nil))
	return r
}
