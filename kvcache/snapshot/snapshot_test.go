package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/safetensors/safetensorstest"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
)

type (
	memory = safetensorstest.Memory
	tensor = safetensorstest.Tensor
)

var file = safetensorstest.File

func f32(name string, shape []int, f func(i int) float32) tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := make([]byte, 4*n)
	for i := range n {
		codec.F32.Store(data[4*i:], f(i))
	}
	return tensor{Name: name, DType: safetensors.F32, Shape: shape, Data: data}
}

func wave(i int) float32 { return float32(i%97) - 48 }

func options() EncodeOptions {
	return EncodeOptions{Backend: ref.New(), Params: codec.KVParams{Keys: codec.Q8_0, Values: codec.Q3_0}}
}

func encode(t testing.TB, src []byte, o EncodeOptions) ([]byte, error) {
	t.Helper()
	var dst memory
	_, err := Encode(t.Context(), &dst, bytes.NewReader(src), int64(len(src)), o)
	return dst.Data, err
}

func params(t testing.TB, s *Snapshot, i int) codec.KVParams {
	t.Helper()
	p, err := s.Params(i)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(b []byte) (*Snapshot, error) { return Open(bytes.NewReader(b), int64(len(b))) }

func decode(t testing.TB, snapshot []byte, o DecodeOptions) (*safetensors.File, error) {
	t.Helper()
	s, err := open(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	var dst memory
	o.Backend = ref.New()
	if _, err := s.Decode(t.Context(), &dst, o); err != nil {
		return nil, err
	}
	f, err := safetensors.NewFile(bytes.NewReader(dst.Data), int64(len(dst.Data)))
	if err != nil {
		t.Fatal(err)
	}
	return f, nil
}

// TestRealCache packs a real cache and compares every stored and restored byte
// with the codec's, called directly on whole tensors.
func TestRealCache(t *testing.T) {
	src := vectors.ReadFile(t, "kv_minilm.safetensors")
	f := vectors.Load(t, "kv_minilm.safetensors")
	snap, err := encode(t, src, options())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(snap)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []codec.DType{0, codec.F32, codec.BF16} {
		out, err := decode(t, snap, DecodeOptions{DType: d})
		if err != nil {
			t.Fatal(err)
		}
		if d == 0 {
			d = codec.F16
		}
		compared := 0
		for i, l := range s.Layers() {
			kv, err := ref.New().KV(params(t, s, i))
			if err != nil {
				t.Fatal(err)
			}
			x := func(name string) codec.Tensor {
				return codec.Tensor{DType: codec.F16, Shape: f[name].Shape, Data: f[name].Data}
			}
			var k codec.Keys
			var v codec.Values
			if err := errors.Join(kv.EncodeKeys(&k, x(l.Keys.Name)), kv.EncodeValues(&v, x(l.Values.Name))); err != nil {
				t.Fatal(err)
			}
			gotK, gotV, err := s.Read(i)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(k, gotK) + cmp.Diff(v, gotV); diff != "" {
				t.Fatalf("%s: packed form differs:\n%s", l.Keys.Name, diff)
			}
			for name, decode := range map[string]func(codec.Tensor) error{
				l.Keys.Name:   func(out codec.Tensor) error { return kv.DecodeKeys(out, k) },
				l.Values.Name: func(out codec.Tensor) error { return kv.DecodeValues(out, v) },
			} {
				want := codec.NewTensor(d, f[name].Shape...)
				if err := decode(want); err != nil {
					t.Fatal(err)
				}
				got, err := out.AppendTensor(nil, name)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want.Data) {
					t.Fatalf("%s as %v: restored bytes differ", name, d)
				}
				if in, _ := out.Lookup(name); !slices.Equal(in.Shape, f[name].Shape) {
					t.Fatalf("%s: shape %v, want %v", name, in.Shape, f[name].Shape)
				}
				compared += len(got)
			}
		}
		if compared == 0 {
			t.Fatal("nothing compared")
		}
		t.Logf("%v: compared %d bytes in %d layers", d, compared, len(s.Layers()))
	}
	if got := s.Metadata()["source"]; got == "" {
		t.Error("the source's metadata is gone")
	}
}

// TestPieces packs tensors longer than a piece of every goroutine together.
func TestPieces(t *testing.T) {
	rows := 5*ref.New().Feed().Bytes/(4*64) + 3
	src := file(t, nil, f32("k", []int{rows, 64}, wave), f32("v", []int{rows, 64}, wave))
	snap, err := encode(t, src, options())
	if err != nil {
		t.Fatal(err)
	}
	out, err := decode(t, snap, DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kv, _ := ref.New().KV(codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q3_0})
	in := f32("", []int{rows, 64}, wave)
	x := codec.Tensor{DType: codec.F32, Shape: in.Shape, Data: in.Data}
	want := codec.NewTensor(codec.F32, rows, 64)
	var k codec.Keys
	if err := errors.Join(kv.EncodeKeys(&k, x), kv.DecodeKeys(want, k)); err != nil {
		t.Fatal(err)
	}
	got, err := out.AppendTensor(nil, "k")
	if err != nil || !bytes.Equal(got, want.Data) {
		t.Errorf("keys differ (%v)", err)
	}
}

func TestSkipLayersAndRawTensors(t *testing.T) {
	ids := tensor{Name: "positions", DType: safetensors.I64, Shape: []int{2}, Data: []byte("0123456789abcdef")}
	var tensors []tensor
	for l := range 3 {
		tensors = append(tensors, f32(fmt.Sprintf("layers.%d.k", l), []int{2, 4, 32}, wave), f32(fmt.Sprintf("layers.%d.v", l), []int{2, 4, 64}, wave))
	}
	src := file(t, map[string]string{"model": "m"}, append(tensors, ids)...)
	o := options()
	o.Skip, _ = ParseLayers("1")
	snap, err := encode(t, src, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(snap)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Raw(), []string{"layers.1.k", "layers.1.v", "positions"}; !slices.Equal(got, want) {
		t.Errorf("raw %v, want %v", got, want)
	}
	if p := params(t, s, 1); p.HeadDim != 32 || p.ValueHeadDim != 64 {
		t.Errorf("head dimensions %d and %d", p.HeadDim, p.ValueHeadDim)
	}
	out, err := decode(t, snap, DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []tensor{tensors[2], tensors[3], ids} {
		got, err := out.AppendTensor(nil, x.Name)
		if err != nil || !bytes.Equal(got, x.Data) {
			t.Errorf("%s is not the original (%v)", x.Name, err)
		}
	}
	if diff := cmp.Diff(map[string]string{"model": "m"}, out.Metadata()); diff != "" {
		t.Error(diff)
	}
	// One layer alone.
	for layer, want := range map[string][]string{"1": {"layers.1.k", "layers.1.v"}, "2": {"layers.2.k", "layers.2.v"}} {
		set, _ := ParseLayers(layer)
		out, err := decode(t, snap, DecodeOptions{Layers: set})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, in := range out.Tensors() {
			names = append(names, in.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("layer %s restored %v, want %v", layer, names, want)
		}
	}
	if _, err := decode(t, snap, DecodeOptions{Layers: LayerSet{7: true}}); !errors.Is(err, ErrNoTensor) || !strings.Contains(err.Error(), "layer 7") {
		t.Errorf("layer 7: %v", err)
	}
}

func TestEmptyTensors(t *testing.T) {
	snap, err := encode(t, file(t, nil, f32("k", []int{2, 0, 32}, wave), f32("v", []int{2, 0, 32}, wave)), options())
	if err != nil {
		t.Fatal(err)
	}
	out, err := decode(t, snap, DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if in, ok := out.Lookup("v"); !ok || !slices.Equal(in.Shape, []int{2, 0, 32}) {
		t.Errorf("restored %v", in)
	}
}

func TestEncodeErrors(t *testing.T) {
	k, v := f32("a.k", []int{4, 32}, wave), f32("a.v", []int{4, 32}, wave)
	as := func(x tensor, d safetensors.DType) tensor {
		x.DType = d
		x.Data = x.Data[:len(x.Data)*d.Size()/4]
		return x
	}
	renamed := func(x tensor, name string) tensor { x.Name = name; return x }
	base := options()
	with := func(f func(*EncodeOptions)) EncodeOptions { o := base; f(&o); return o }
	big := f32("a.k", []int{9000, 64}, func(i int) float32 {
		if i == 543210 {
			return float32(math.NaN())
		}
		return 1
	})
	huge := f32("a.v", []int{4, 32}, func(i int) float32 { return 1e9 })
	for _, test := range []struct {
		name string
		src  []byte
		o    EncodeOptions
		err  error
		text string
	}{
		{"no match", file(t, nil, renamed(k, "weight")), base, ErrNoTensor, "no name matches"},
		{"all skipped", file(t, nil, renamed(k, "0.k"), renamed(v, "0.v")), with(func(o *EncodeOptions) { o.Skip = LayerSet{0: true} }), ErrNoTensor, "skipped layers aside"},
		{"skip of no layer", file(t, nil, k, v), with(func(o *EncodeOptions) { o.Skip = LayerSet{3: true} }), ErrNoTensor, "layer 3"},
		{"no values", file(t, nil, k), base, ErrPair, `keys "a.k" have no values`},
		{"no keys", file(t, nil, v), base, ErrPair, `values "a.v" have no keys`},
		{"two keys", file(t, nil, k, renamed(k, "a.keys"), v), base, ErrPair, `"a.k" and "a.keys"`},
		{"both", file(t, nil, k, v), with(func(o *EncodeOptions) { o.KeyNames = regexp.MustCompile(".") }), ErrPair, "as keys and as values"},
		{"lengths", file(t, nil, k, f32("a.v", []int{5, 32}, wave)), base, ErrPair, "[4 32]"},
		{"dtypes", file(t, nil, k, as(v, safetensors.F16)), base, ErrPair, "F16"},
		{"integers", file(t, nil, as(k, safetensors.I32), as(v, safetensors.I32)), base, codec.ErrDType, "I32"},
		{"rank", file(t, nil, f32("k", []int{32}, wave), f32("v", []int{32}, wave)), base, codec.ErrShape, "[32]"},
		{"head dimension", file(t, nil, f32("a.k", []int{4, 40}, wave), f32("a.v", []int{4, 40}, wave)), base, codec.ErrParams, "40"},
		{"largest head dimension", file(t, nil, f32("a.k", []int{0, 1 << 21}, wave), f32("a.v", []int{0, 1 << 21}, wave)), base, codec.ErrParams, "exceeds 1048576"},
		{"value transform", file(t, nil, f32("a.k", []int{4, 32}, wave), f32("a.v", []int{4, 576}, wave)), base, codec.ErrParams, "576"},
		{"bits", file(t, nil, k, v), with(func(o *EncodeOptions) { o.Params.Values = 77 }), codec.ErrParams, "values: format Format(77)"},
		{"NaN", file(t, nil, big, f32("a.v", []int{9000, 64}, wave)), base, codec.ErrNonFinite, `"a.k": element 543210`},
		{"overflow", file(t, nil, k, huge), base, codec.ErrScaleOverflow, `"a.v": element 0`},
		{"name of a part", file(t, nil, k, v, tensor{Name: "a.k.scales", DType: safetensors.U8, Shape: []int{1}, Data: []byte{0}}), base, ErrSource, `tensor "a.k.scales" has the name that a part of "a.k" takes`},
		{"reserved metadata", file(t, map[string]string{"turbotrellis.kv": "x"}, k, v), base, ErrSource, `"turbotrellis.kv" is reserved`},
		{"no backend", file(t, nil, k, v), with(func(o *EncodeOptions) { o.Backend = nil }), ErrArgument, "no backend"},
		{"another type", []byte("PK\x03\x04 not this"), base, safetensors.ErrNotSafetensors, "not a safetensors file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := encode(t, test.src, test.o)
			if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.err, test.text)
			}
		})
	}
	snap, err := encode(t, file(t, nil, k, v), base)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := encode(t, snap, base); !errors.Is(err, ErrSource) || !strings.Contains(err.Error(), "already") {
		t.Errorf("encoding a snapshot: %v", err)
	}
}

// TestOpenRefuses changes one thing of a good snapshot at a time.
func TestOpenRefuses(t *testing.T) {
	src := file(t, nil, f32("0.k", []int{4, 32}, wave), f32("0.v", []int{4, 32}, wave), f32("1.k", []int{4, 32}, wave), f32("1.v", []int{4, 32}, wave), f32("other", []int{3}, wave))
	o := options()
	o.Skip = LayerSet{1: true}
	snap, err := encode(t, src, o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.NewFile(bytes.NewReader(snap), int64(len(snap)))
	if err != nil {
		t.Fatal(err)
	}
	// rebuilt returns the snapshot with other metadata and tensors.
	rebuilt := func(meta func(map[string]string), keep func(safetensors.Info) []safetensors.Info) []byte {
		m := f.Metadata()
		meta(m)
		var tensors []tensor
		for _, in := range f.Tensors() {
			for _, out := range keep(in) {
				data, err := f.AppendTensor(nil, in.Name)
				if err != nil {
					t.Fatal(err)
				}
				tensors = append(tensors, tensor{Name: out.Name, DType: out.DType, Shape: out.Shape, Data: data})
			}
		}
		return file(t, m, tensors...)
	}
	all := func(in safetensors.Info) []safetensors.Info { return []safetensors.Info{in} }
	same := func(map[string]string) {}
	if _, err := open(rebuilt(same, all)); err != nil {
		t.Fatalf("the unchanged snapshot: %v", err)
	}
	replaced := func(old, new string) []byte {
		return rebuilt(func(m map[string]string) {
			s := strings.Replace(m[kvKey], old, new, 1)
			if s == m[kvKey] {
				t.Fatalf("%q is not in %s", old, m[kvKey])
			}
			m[kvKey] = s
		}, all)
	}
	for _, test := range []struct {
		name string
		b    []byte
		err  error
		text string
	}{
		{"no format", rebuilt(func(m map[string]string) { delete(m, formatKey) }, all), ErrNotSnapshot, ""},
		{"other format", rebuilt(func(m map[string]string) { m[formatKey] = "x" }, all), ErrNotSnapshot, `"x"`},
		{"version", rebuilt(func(m map[string]string) { m[versionKey] = "3" }, all), ErrVersion, `"3"`},
		{"no version", rebuilt(func(m map[string]string) { delete(m, versionKey) }, all), ErrVersion, ""},
		{"no description", rebuilt(func(m map[string]string) { delete(m, kvKey) }, all), ErrSnapshot, ""},
		{"not JSON", rebuilt(func(m map[string]string) { m[kvKey] = "{" }, all), ErrSnapshot, ""},
		{"two values", rebuilt(func(m map[string]string) { m[kvKey] += "{}" }, all), ErrSnapshot, "more than one"},
		{"unknown field", replaced(`"group":32`, `"group":32,"mystery":1`), ErrSnapshot, "mystery"},
		{"null", replaced(`"group":32`, `"group":null`), ErrSnapshot, `"group" is missing`},
		{"no sign seed", replaced(`"sign_seed":42,`, ``), ErrSnapshot, `"sign_seed" is missing`},
		{"no policy", replaced(`"policy":"finite",`, ``), ErrSnapshot, `"policy" is missing`},
		{"no bits", replaced(`,"bits":3`, ``), ErrSnapshot, `layers[0].values: field "bits" is missing`},
		{"no dtype", replaced(`"dtype":"F32",`, ``), ErrSnapshot, `layers[0].keys: field "dtype" is missing`},
		{"no keys", replaced(`"keys":{`, `"keys":null,"values":{`), ErrSnapshot, `duplicate field "values"`},
		{"signed values", replaced(`"bits":3`, `"bits":3,"signed":true`), ErrSnapshot, "values are not signed"},
		{"signed and not of 8 bits", replaced(`"bits":8,"signed":true`, `"bits":4,"signed":true`), ErrSnapshot, "4"},
		{"unsigned, stored signed", replaced(`"signed":true`, `"signed":false`), ErrSnapshot, "0.k.codes"},
		{"half a surrogate pair", replaced(`"other"`, `"other\ud800"`), ErrSnapshot, "half a surrogate pair"},
		{"field in another case", replaced(`"group":32`, `"Group":32`), ErrSnapshot, "Group"},
		{"field twice", replaced(`"group":32`, `"group":64,"group":32`), ErrSnapshot, "duplicate"},
		{"group", replaced(`"group":32`, `"group":16`), ErrSnapshot, "group 16"},
		{"no group", replaced(`"group":32,`, ``), ErrSnapshot, ""},
		{"scale type", replaced(`"f16"`, `"f64"`), ErrSnapshot, "f64"},
		{"policy", replaced(`"finite"`, `"maybe"`), ErrSnapshot, "maybe"},
		{"rule", replaced(`"rms"`, `"best"`), ErrSnapshot, "best"},
		{"seed", replaced(`"sign_seed":42`, `"sign_seed":7`), ErrSnapshot, "7"},
		{"bits", replaced(`"bits":3`, `"bits":6`), ErrSnapshot, "6"},
		{"other bits", replaced(`"bits":3`, `"bits":4`), ErrSnapshot, "0.v.codes"},
		{"signed", replaced(`,"signed":true`, ``), ErrSnapshot, "0.k.codes"},
		{"shape", replaced(`"shape":[4,32]`, `"shape":[5,32]`), ErrSnapshot, ""},
		{"huge shape", replaced(`"shape":[4,32]`, `"shape":[4611686018427387904,32]`), ErrSnapshot, ""},
		{"huge head dimension", replaced(`"shape":[4,32]`, `"shape":[0,1099511627776]`), ErrSnapshot, "exceeds 1048576"},
		{"no shape", replaced(`"shape":[4,32]`, `"shape":[]`), ErrSnapshot, ""},
		{"dtype", replaced(`"dtype":"F32"`, `"dtype":"I8"`), ErrSnapshot, "I8"},
		{"renamed", replaced(`"name":"0.k"`, `"name":"9.k"`), ErrSnapshot, ""},
		{"raw missing", replaced(`"other"`, `"nowhere"`), ErrSnapshot, "nowhere"},
		{"raw twice", replaced(`"raw":[`, `"raw":["other",`), ErrSnapshot, "twice"},
		{"raw not listed", replaced(`,"other"`, ``), ErrSnapshot, "belongs to no layer"},
		{"part missing", rebuilt(same, func(in safetensors.Info) []safetensors.Info {
			if in.Name == "0.k.zeros" {
				return nil
			}
			return all(in)
		}), ErrSnapshot, "0.k.zeros"},
		{"part of another type", rebuilt(same, func(in safetensors.Info) []safetensors.Info {
			if in.Name == "0.v.scales" {
				in.DType = safetensors.BF16
			}
			return all(in)
		}), ErrSnapshot, "BF16"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := open(test.b)
			if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.err, test.text)
			}
		})
	}
}

// TestFailingWrites fails every write in turn: the error comes back.
func TestFailingWrites(t *testing.T) {
	src := file(t, nil, f32("k", []int{4, 32}, wave), f32("v", []int{4, 32}, wave), f32("x", []int{3}, wave))
	full := errors.New("disk full")
	for n := 0; ; n++ {
		left := n
		_, err := Encode(t.Context(), writerAt(func(p []byte, off int64) (int, error) {
			if left == 0 {
				return 0, full
			}
			left--
			return len(p), nil
		}), bytes.NewReader(src), int64(len(src)), options())
		if err == nil {
			if n < 5 {
				t.Fatalf("only %d writes", n)
			}
			return
		}
		if !errors.Is(err, full) {
			t.Fatalf("write %d: %v", n, err)
		}
	}
}

type writerAt func(p []byte, off int64) (int, error)

func (w writerAt) WriteAt(p []byte, off int64) (int, error) { return w(p, off) }

// TestShrinkingSource reads from a file that ends before its header says.
func TestShrinkingSource(t *testing.T) {
	src := file(t, nil, f32("k", []int{4, 32}, wave), f32("v", []int{4, 32}, wave))
	_, err := Encode(t.Context(), new(memory), bytes.NewReader(src[:len(src)-10]), int64(len(src)), options())
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

func TestProgress(t *testing.T) {
	src := file(t, nil, f32("k", []int{4, 32}, wave), f32("v", []int{4, 32}, wave), f32("x", []int{3}, wave))
	o := options()
	last, total := int64(-1), int64(0)
	o.Progress = func(d, n int64) {
		if d < last || last < 0 && d != 0 {
			t.Errorf("%d after %d", d, last)
		}
		last, total = d, n
	}
	if _, err := encode(t, src, o); err != nil {
		t.Fatal(err)
	}
	if want := int64(2*4*32*4 + 12); last != want || total != want {
		t.Errorf("ended at %d of %d, want %d", last, total, want)
	}
}

func TestParseLayers(t *testing.T) {
	got, err := ParseLayers("0,2,5-7")
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 2, 5, 6, 7}; !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"a", "1,", "3-1", "-1", "1-", "0-99999999999", "1-2-3", " 1"} {
		if _, err := ParseLayers(bad); err == nil || !strings.Contains(err.Error(), "layer list") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FuzzOpen opens and decodes arbitrary descriptions over a good file's tensors.
func FuzzOpen(f *testing.F) {
	src := file(f, nil, f32("k", []int{2, 32}, wave), f32("v", []int{2, 32}, wave))
	snap, err := encode(f, src, options())
	if err != nil {
		f.Fatal(err)
	}
	in, err := safetensors.NewFile(bytes.NewReader(snap), int64(len(snap)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(snap)
	var tensors []tensor
	for _, x := range in.Tensors() {
		data, err := in.AppendTensor(nil, x.Name)
		if err != nil {
			f.Fatal(err)
		}
		tensors = append(tensors, tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: data})
	}
	meta := in.Metadata()
	var d map[string]any
	if err := json.Unmarshal([]byte(meta[kvKey]), &d); err != nil {
		f.Fatal(err)
	}
	for key := range d {
		saved := d[key]
		for _, v := range []any{nil, 0, -1, 64, "", []any{}, map[string]any{}, int64(math.MaxInt64)} {
			d[key] = v
			b, err := json.Marshal(d)
			if err != nil {
				f.Fatal(err)
			}
			meta[kvKey] = string(b)
			f.Add(file(f, meta, tensors...))
		}
		d[key] = saved
	}
	v2, _ := version2Snapshot(f)
	f.Add(v2)
	f.Add(bytes.Replace(v2, []byte(`"raw_first":1`), []byte(`"raw_first":9`), 1))
	f.Add(bytes.Replace(v2, []byte(`"code":"levels"`), []byte(`"code":"Levels"`), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := open(b)
		if err != nil {
			return
		}
		for i := range s.Layers() {
			if _, _, err := s.Read(i); err != nil {
				t.Error(err)
			}
			if _, _, err := s.ReadRaw(i); err != nil {
				t.Error(err)
			}
		}
		// A scale code, a mean or a gain out of range is found where it is read.
		if _, err := s.Decode(t.Context(), new(memory), DecodeOptions{Backend: ref.New()}); err != nil && !errors.Is(err, ErrSnapshot) {
			t.Errorf("a snapshot that opens does not decode: %v", err)
		}
	})
}

// TestMisuse: what no file is to blame for is an error, not a panic.
func TestMisuse(t *testing.T) {
	snap, err := encode(t, file(t, nil, f32("0.k", []int{4, 32}, wave), f32("0.v", []int{4, 32}, wave)), options())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(snap)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Snapshot{s, {}} {
		for _, i := range []int{-1, len(s.Layers()), math.MaxInt} {
			_, err1 := s.Params(i)
			_, _, err2 := s.Sizes(i)
			_, _, err3 := s.Read(i)
			for _, err := range []error{err1, err2, err3} {
				if !errors.Is(err, ErrArgument) {
					t.Errorf("layer %d: %v", i, err)
				}
			}
		}
	}
	var zero Snapshot
	if zero.Layers() != nil || zero.Raw() != nil || zero.Metadata() != nil || zero.Common() != (codec.KVParams{}) {
		t.Error("the zero Snapshot has something in it")
	}
	for name, err := range map[string]error{
		"zero Snapshot": second(zero.Decode(t.Context(), new(memory), DecodeOptions{Backend: ref.New()})),
		"no backend":    second(s.Decode(t.Context(), new(memory), DecodeOptions{})),
		"element type":  second(s.Decode(t.Context(), new(memory), DecodeOptions{Backend: ref.New(), DType: 99})),
	} {
		if !errors.Is(err, ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is handed out is the caller's.
	s.Layers()[0].Keys.Shape[0] = 7
	s.Layers()[0].Values.Shape[0] = 7
	if k, v, err := s.Read(0); err != nil || k.Shape[0] != 4 || v.Shape[0] != 4 {
		t.Errorf("shapes %v and %v, %v", k.Shape, v.Shape, err)
	} else if k.Shape[0] = 7; s.Layers()[0].Keys.Shape[0] != 4 {
		t.Error("Read shares its shape")
	}
}

func second[T any](_ T, err error) error { return err }

// TestNames pairs names and numbers layers as other programs write them.
func TestNames(t *testing.T) {
	re := regexp.MustCompile
	for _, test := range []struct {
		name         string
		keys, values string // expressions
		tensors      []string
		layers       string // to skip, then to restore
		skipped      []string
		rest         int // layers packed
	}{
		// From mlx_lm.models.cache.save_prompt_cache: cache index, then 0 for keys and 1 for values.
		{"mlx-lm", `\.(0)$`, `\.(1)$`, []string{"0.0", "0.1", "1.0", "1.1", "2.0", "2.1"}, "1", []string{"1.0", "1.1"}, 2},
		{"numbers before and after", `(keys)`, `(values)`, []string{"layers.3.keys.0", "layers.3.values.0", "layers.4.keys.0", "layers.4.values.0"}, "4", []string{"layers.4.keys.0", "layers.4.values.0"}, 1},
		{"number after", `^(k)`, `^(v)`, []string{"k.0", "v.0", "k.1", "v.1"}, "0", []string{"k.0", "v.0"}, 1},
		{"default", "", "", []string{"model.layers.10.self_attn.k", "model.layers.10.self_attn.v", "model.layers.2.self_attn.keys", "model.layers.2.self_attn.values"}, "10", []string{"model.layers.10.self_attn.k", "model.layers.10.self_attn.v"}, 1},
		{"first submatch", `^(k)\.(\d+)$`, `^(v)\.(\d+)$`, []string{"k.0", "v.0", "k.1", "v.1"}, "1", []string{"k.1", "v.1"}, 1},
		{"submatch that takes no part", `^(x)?k`, `^(x)?v`, []string{"k.0", "v.0", "k.1", "v.1"}, "1", []string{"k.1", "v.1"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var tensors []tensor
			for i, name := range test.tensors {
				tensors = append(tensors, f32(name, []int{1, 32}, func(j int) float32 { return float32(i + j) }))
			}
			o := options()
			if test.keys != "" {
				o.KeyNames, o.ValueNames = re(test.keys), re(test.values)
			}
			o.Skip, _ = ParseLayers(test.layers)
			snap, err := encode(t, file(t, nil, tensors...), o)
			if err != nil {
				t.Fatal(err)
			}
			s, err := open(snap)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.Raw(), test.skipped) || len(s.Layers()) != test.rest {
				t.Errorf("raw %v, want %v; %d layers, want %d", s.Raw(), test.skipped, len(s.Layers()), test.rest)
			}
			f, err := decode(t, snap, DecodeOptions{Layers: o.Skip})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, in := range f.Tensors() {
				names = append(names, in.Name)
			}
			if !slices.Equal(names, test.skipped) {
				t.Errorf("layer %s restored %v, want %v", test.layers, names, test.skipped)
			}
			// Every packed layer alone.
			for _, l := range s.Layers() {
				n, ok := layerNumber(shared(l.Keys.Name, l.Values.Name))
				if !ok {
					t.Fatalf("%s has no number", l.Keys.Name)
				}
				f, err := decode(t, snap, DecodeOptions{Layers: LayerSet{n: true}})
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := f.Lookup(l.Values.Name); !ok || len(f.Tensors()) != 2 {
					t.Errorf("layer %d restored %v", n, f.Tensors())
				}
			}
		})
	}
}

// TestSizes compares Sizes with what the file holds.
func TestSizes(t *testing.T) {
	for _, scales := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		for _, group := range []int{32, 64} {
			o := options()
			o.Params.ScaleType, o.Params.Group = scales, group
			src := file(t, nil, f32("k", []int{3, 2, 64}, wave), f32("v", []int{3, 2, 128}, wave))
			snap, err := encode(t, src, o)
			if err != nil {
				t.Fatal(err)
			}
			s, err := open(snap)
			if err != nil {
				t.Fatal(err)
			}
			f, err := safetensors.NewFile(bytes.NewReader(snap), int64(len(snap)))
			if err != nil {
				t.Fatal(err)
			}
			var want int64
			for _, in := range f.Tensors() {
				want += in.Size
			}
			k, v, err := s.Sizes(0)
			if err != nil || k.Packed+v.Packed != want || k.Source != 6*64*4 || v.Source != 6*128*4 || k.Elements != 6*64 || v.Elements != 6*128 {
				t.Errorf("scales %v, group %d: %+v and %+v, want %d packed; %v", scales, group, k, v, want, err)
			}
		}
	}
}

// failing fails to read the bytes from from to to.
type failing struct {
	io.ReaderAt
	from, to int64
}

var errRead = errors.New("bad sector")

func (r failing) ReadAt(p []byte, off int64) (int, error) {
	if off < r.to && r.from < off+int64(len(p)) {
		return 0, errRead
	}
	return r.ReaderAt.ReadAt(p, off)
}

// TestFailingReads fails the read of every stored tensor in turn.
func TestFailingReads(t *testing.T) {
	src := file(t, nil, f32("k", []int{4, 32}, wave), f32("v", []int{4, 32}, wave), f32("x", []int{3}, wave))
	snap, err := encode(t, src, options())
	if err != nil {
		t.Fatal(err)
	}
	each := func(b []byte, f func(name string, r io.ReaderAt)) {
		in, err := safetensors.NewFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range in.Tensors() {
			f(x.Name, failing{bytes.NewReader(b), x.Offset, x.Offset + x.Size})
		}
	}
	n := 0
	each(src, func(name string, r io.ReaderAt) {
		n++
		if _, err := Encode(t.Context(), new(memory), r, int64(len(src)), options()); !errors.Is(err, errRead) || !strings.Contains(err.Error(), name) {
			t.Errorf("encoding, %s: %v", name, err)
		}
	})
	each(snap, func(name string, r io.ReaderAt) {
		n++
		s, err := Open(r, int64(len(snap)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Decode(t.Context(), new(memory), DecodeOptions{Backend: ref.New()}); !errors.Is(err, errRead) || !strings.Contains(err.Error(), name) {
			t.Errorf("decoding, %s: %v", name, err)
		}
		if k, v, err := s.Read(0); (name != "x") != errors.Is(err, errRead) || err != nil && (k.Codes != nil || v.Codes != nil) {
			t.Errorf("Read, %s: %v", name, err)
		}
	})
	if n != 3+6 {
		t.Errorf("%d tensors", n)
	}
}

// TestCancel ends the context at every report of progress in turn: Encode and
// Decode return its cause.
func TestCancel(t *testing.T) {
	src := file(t, nil, f32("k", []int{4, 32}, wave), f32("v", []int{4, 32}, wave), f32("x", []int{3}, wave))
	snap, err := encode(t, src, options())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(snap)
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	for name, run := range map[string]func(ctx context.Context, progress func(_, _ int64)) error{
		"encode": func(ctx context.Context, progress func(_, _ int64)) error {
			o := options()
			o.Progress = progress
			return second(Encode(ctx, new(memory), bytes.NewReader(src), int64(len(src)), o))
		},
		"decode": func(ctx context.Context, progress func(_, _ int64)) error {
			return second(s.Decode(ctx, new(memory), DecodeOptions{Backend: ref.New(), Progress: progress}))
		},
	} {
		for n := range 3 { // before the keys, the values, the raw tensor
			ctx, cancel := context.WithCancelCause(t.Context())
			left := n
			if err := run(ctx, func(_, _ int64) {
				if left--; left < 0 {
					cancel(stop)
				}
			}); err != stop {
				t.Errorf("%s, stopped at report %d: %v", name, n, err)
			}
		}
	}
}
