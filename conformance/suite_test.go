package conformance

import (
	"context"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// The package runs outside go test, and on the reference only.
func TestImports(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if path == "testing" || path == "math/rand" || path == "math/rand/v2" ||
				strings.Contains(path, "turbotrellis/codec/") && !strings.HasSuffix(path, "/codec/ref") && !strings.HasSuffix(path, "/codec/driver") {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}

// Names are unique, well formed, and part of what is documented.
func TestNames(t *testing.T) {
	all := Cases(Long, "")
	seen := map[string]bool{}
	for _, c := range all {
		if seen[c.Name] {
			t.Errorf("two cases named %s", c.Name)
		}
		seen[c.Name] = true
		if !strings.HasPrefix(c.Name, c.Op+"(") || !strings.HasSuffix(c.Name, ")") || strings.ContainsAny(c.Name, " '\"") {
			t.Errorf("name %q of operation %s", c.Name, c.Op)
		}
	}
	short, normal := Cases(Short, ""), Cases(Normal, "")
	if len(normal) < 20000 || len(short) < 1000 || len(short) > len(normal)/4 || len(all) <= len(normal) {
		t.Errorf("%d short, %d normal, %d long cases", len(short), len(normal), len(all))
	}
	t.Logf("%d short, %d normal, %d long cases", len(short), len(normal), len(all))

	// Short meets every value of every parameter.
	met := map[string]bool{}
	for _, c := range short {
		for _, v := range c.params() {
			met[v] = true
		}
	}
	for _, c := range normal {
		for _, v := range c.params() {
			if c.Op != "Digest" && !met[v] {
				t.Errorf("no short case with %s", v)
				met[v] = true
			}
		}
	}
}

// A name runs its case alone, whatever the form; an operation's name runs its
// cases and no other's.
func TestFilter(t *testing.T) {
	all := Cases(Long, "")
	for i := 0; i < len(all); i += 4999 {
		got := Cases(Short, strings.ToUpper(all[i].Name))
		if len(got) != 1 || got[0].Name != all[i].Name {
			t.Errorf("%s: %d cases", all[i].Name, len(got))
		}
	}
	for _, c := range Cases(Normal, "decode") {
		if c.Op != "Decode" {
			t.Fatalf("filter Decode runs %s", c.Name)
		}
	}
	if n := len(Cases(Normal, "data=nan-last")); n == 0 {
		t.Error("a part of a name matches nothing")
	}
	r := Run(t.Context(), ref.New(), Options{Filter: "abacus"})
	if !errors.Is(r.Err(), ErrNoCases) || r.Cases != 0 {
		t.Errorf("a filter that matches nothing: %v", r.Err())
	}
}

// Declined cases are counted and named, and can be forbidden.
func TestDeclined(t *testing.T) {
	m := rewritten()
	m.decline = func(p codec.KVParams) bool { return p.ValueHeadDim > 500 || p.HeadDim > 500 }
	o := Options{Filter: "Unrotate", Form: Short}
	r := Run(t.Context(), m, o)
	if r.Err() != nil || len(r.Declined) == 0 || r.Ops[0].Declined != len(r.Declined) || r.Cases == 0 {
		t.Errorf("%d cases, %d declined: %v", r.Cases, len(r.Declined), r.Err())
	}
	if o.Complete = true; Run(t.Context(), m, o).Err() == nil {
		t.Error("declined cases pass a run that must be complete")
	}
	m.decline = func(codec.KVParams) bool { return true }
	if r := Run(t.Context(), m, Options{Filter: "Unrotate", Form: Short}); !errors.Is(r.Err(), ErrNoCases) {
		t.Errorf("a backend that declines all: %v", r.Err())
	}
}

// What is searched for is found: the data hold the ties that they are named for.
func TestTies(t *testing.T) {
	for _, f := range keyFormats {
		p := keyParams(128, f, 32, codec.F16, codec.Finite)
		in := &input{params: p, dtype: codec.F32, rows: 2, d: 128, s: seeded("ties")}
		x := make([]float32, 256)
		div := float32(p.KeyFormat().MaxIndex())
		if f.Signed() {
			div *= 2
		}
		indexTies(x, in)
		ties := 0
		for g := 0; g < len(x); g += 32 {
			se := (x[g+1]-x[g])/div + eps
			for _, v := range x[g+2 : g+32] {
				if q := v / se; q-f32.Rint(q) == 0.5 || q-f32.Rint(q) == -0.5 {
					ties++
				}
			}
		}
		if ties != 8*30 {
			t.Errorf("%d bits: %d ties of 240 indices", f.Bits(), ties)
		}
		zeroTies(x, in)
		for g := 0; g < len(x); g += 32 {
			lo, hi := x[g], x[g+1]
			z := lo / ((hi-lo)/div + eps)
			if f.Signed() {
				z = (hi + lo) / (2 * ((hi-lo)/div + eps))
			}
			if d := z - f32.Rint(z); d != 0.5 && d != -0.5 {
				t.Errorf("%d bits: a zero point of %v is no tie", f.Bits(), z)
			}
		}
	}
	for _, f := range valueFormats {
		bits := f.Bits()
		for _, d := range []int{64, 96, 128, 160, 224, 256} {
			p := valueParams(d, f, 32, codec.F16, codec.Finite, codec.RMS)
			in := &input{params: p, values: true, dtype: codec.F32, rows: 3, d: d, s: seeded("ties")}
			x := make([]float32, 3*d)
			boundaryTies(x, in)
			r, err := hadamard.New(d)
			if err != nil {
				t.Fatal(err)
			}
			table, err := lloydmax.Lookup(bits)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(x); i += d {
				row := x[i : i+d]
				r.Forward(row)
				ties := 0
				for g := 0; g < d; g += 32 {
					scale := f32.Sqrt(treeOfSquares(row[g:g+32]) * (1. / 32))
					for _, y := range row[g : g+32] {
						n := y / (scale + eps)
						if j := table.Index(n); j < table.Levels()-1 && n == table.Boundary(j) {
							ties++
						}
					}
				}
				if ties == 0 {
					t.Errorf("%d bits, d=%d: no element on a boundary", bits, d)
				}
			}
			// Half of a last place of the stored scale.
			in.params.ScaleType = codec.BF16
			if d == 64 || d == 256 {
				scaleTies(x, in)
				for i := 0; i < len(x); i += d {
					r.Forward(x[i : i+d])
					scale := f32.Sqrt(treeOfSquares(x[i:i+32]) * (1. / 32))
					if bits := f32Bits(scale) & 0xffff; bits != 0x8000 {
						t.Errorf("d=%d: scale %x is not halfway between two of bf16", d, scale)
					}
				}
			}
		}
	}
}

func f32Bits(x float32) uint32 { return uint32(ordered(elements(codec.FromF32([]float32{x}, 1)))) }

// The cases of saturation saturate, each operation and format, and only under
// Finite and to f16.
func TestSaturationCases(t *testing.T) {
	b := ref.New()
	met := map[string]bool{}
	for _, c := range saturationCases() {
		before := uint64(0)
		e := newEnv(t.Context(), b)
		if f := c.run(e); f != nil {
			t.Fatal(f)
		}
		var n uint64
		for _, kv := range e.refKVs {
			n += kv.Saturated() - before
		}
		if n > 0 {
			if !strings.Contains(c.Name, "policy=finite,") || !strings.Contains(c.Name, "dtype=f16") {
				t.Errorf("%s saturates %d", c.Name, n)
			}
			for _, part := range c.params() {
				met[part] = true
			}
		}
	}
	for _, want := range []string{"DecodeKeys bits=8", "DecodeKeys signed=true", "DecodeKeys bits=5", "DecodeKeys bits=4", "DecodeKeys bits=3", "DecodeKeys bits=2",
		"DecodeValues vbits=2", "DecodeValuesRotated vbits=3", "DecodeValuesRotated vbits=8", "Decode vbits=2", "DecodeRotated vbits=2",
		"DecodeKeys scale=f32", "DecodeKeys scale=bf16", "DecodeValues scale=f16"} {
		if !met[want] {
			t.Errorf("no case of %s saturates", want)
		}
	}
}

// Errors are where the data put them, not only where the reference says.
func TestNonFinite(t *testing.T) {
	for name, want := range map[string]int{"nan": 191, "inf": 0, "negative-inf": 383, "nan-last": 383, "nan-first": 0} {
		c := encodeCase{name: name, params: keyParams(128, codec.Uint8, 32, codec.F16, codec.Finite), dtype: codec.F32, layout: layouts[0], data: kindNamed(name)}
		x, _ := c.tensor()
		var k packed
		err := encode(newEnv(t.Context(), ref.New()).kv(c.params), false, &k, x)
		var e *codec.Error
		if !errors.As(err, &e) || e.Err != codec.ErrNonFinite || e.Index != want || e.Tensor != "keys" {
			t.Errorf("%s: %v, want the element %d", name, err, want)
		}
	}
}

// The report of a case has what the issue of a difference needs.
func TestReport(t *testing.T) {
	m := rewritten()
	m.permute = swapNibbles
	name := "EncodeKeys(d=128,bits=4,group=32,scale=f16,policy=finite,dtype=f32,layout=dense,data=normal)"
	r := Run(t.Context(), m, Options{Filter: name})
	if r.Cases != 1 || r.Failed != 1 {
		t.Fatalf("%d of %d cases failed", r.Failed, r.Cases)
	}
	f := r.Failures[0]
	if f.Stage != Index || f.Operand != "codes" || f.Index < 0 || f.Group != f.Index/32 || f.Groups != 12 || f.BadGroups == 0 || f.BadBits == 0 || f.ULP == 0 {
		t.Errorf("%+v", f)
	}
	text := f.Error()
	for _, want := range []string{"stage index", "the reference's group: canon [", "codes[", "group", "got 0x0", "want 0x0", "ulp", "of 12 groups differ", "bits", "again: turbotrellis verify --filter '" + name + "'"} {
		if !strings.Contains(text, want) {
			t.Errorf("report lacks %q:\n%s", want, text)
		}
	}
	if _, err := os.Stat("vectors/README.md"); err != nil {
		t.Error(err)
	}
}

// Run ends with its context: the report's error is the cause.
func TestStopped(t *testing.T) {
	stop := errors.New("stop")
	for _, o := range []Options{
		{Form: Short, Filter: "EncodeKeys"},
		{Filter: "Digest(of=keys,n=10000)"},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := Run(ctx, stopper{ref.New(), func() { cancel(stop) }}, o)
		if r.Err() != stop || r.Cases != 0 {
			t.Errorf("%s: %d cases, %v", o.Filter, r.Cases, r.Err())
		}
	}
}

// stopper is a backend that calls stop when it is first used.
type stopper struct {
	codec.Backend
	stop func()
}

func (s stopper) KV(p codec.KVParams) (codec.KV, error) {
	s.stop()
	return s.Backend.KV(p)
}
