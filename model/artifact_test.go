package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	"github.com/turbotrellis/turbotrellis/trellis"
)

// tensor is one to be written to a file.
type tensor struct {
	name  string
	dtype safetensors.DType
	shape []int
	data  []byte
}

// normal returns a tensor of normal weights, the same for the same name.
func normal(name string, d safetensors.DType, shape ...int) tensor {
	var seed uint64
	for _, c := range name {
		seed = seed*31 + uint64(c)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	n := 1
	for _, s := range shape {
		n *= s
	}
	t := tensor{name: name, dtype: d, shape: shape, data: make([]byte, n*d.Size())}
	if dt, ok := d.Float(); ok {
		for i := range n {
			dt.Store(t.data[i*d.Size():], float32(r.NormFloat64()/16))
		}
		return t
	}
	for i := range t.data {
		t.data[i] = byte(r.Uint32())
	}
	return t
}

func (t tensor) set(i int, v float32) tensor {
	d, _ := t.dtype.Float()
	d.Store(t.data[i*d.Size():], v)
	return t
}

func writeFile(tb testing.TB, path string, meta map[string]string, tensors ...tensor) {
	tb.Helper()
	files := make([]safetensorstest.Tensor, len(tensors))
	for i, t := range tensors {
		files[i] = safetensorstest.Tensor{Name: t.name, DType: t.dtype, Shape: t.shape, Data: t.data}
	}
	put(tb, path, string(safetensorstest.File(tb, meta, files...)))
}

func put(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		tb.Fatal(err)
	}
}

// A config with what a careless rewrite loses: order, spelling of numbers,
// escapes, an empty line.
const config = `{
  "vocab_size": 10,
  "architectures": ["Toy"],

  "rope_theta": 1e6, "eps": 1.00e-05,
  "big": 12345678901234567890,
  "note": "<a> \u00e9"
}
`

const index = `{
  "metadata": {
    "total_parameters": 1,
    "total_size": 6324.0
  },
  "weight_map": {
    "embed.weight": "a.safetensors",
    "layers.0.q.weight": "a.safetensors",
    "layers.0.up.weight": "b.safetensors",
    "layers.1.q.weight": "b.safetensors",
    "norm.weight": "b.safetensors"
  }
}
`

// shardA and shardB are the tensors of the toy model.
func shardA() []tensor {
	return []tensor{normal("embed.weight", "BF16", 5, 3), normal("layers.0.q.weight", "F32", 6, 64)}
}

func shardB() []tensor {
	return []tensor{
		normal("layers.0.up.weight", "F16", 32, 5), // along axis 0
		normal("norm.weight", "F32", 7),
		normal("layers.1.q.weight", "BF16", 4, 32),
	}
}

// toy writes a model in shards and returns its directory.
func toy(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "model")
	put(tb, filepath.Join(dir, "config.json"), config)
	put(tb, filepath.Join(dir, "model.safetensors.index.json"), index)
	put(tb, filepath.Join(dir, "tokenizer.json"), "{}")
	put(tb, filepath.Join(dir, "1_Pooling", "config.json"), "pool")
	put(tb, filepath.Join(dir, ".git", "HEAD"), "not carried")
	writeFile(tb, filepath.Join(dir, "a.safetensors"), map[string]string{"format": "pt"}, shardA()...)
	writeFile(tb, filepath.Join(dir, "b.safetensors"), nil, shardB()...)
	return dir
}

// opts selects all matrices but the embedding, in small blocks.
func opts() EncodeOptions {
	p := trellis.DefaultParams(2)
	p.T = 32
	return EncodeOptions{Tensors: regexp.MustCompile(`layers`), Params: p, Axis: AutoAxis}
}

func run() RunOptions { return RunOptions{Backend: ref.New()} }

func open(tb testing.TB, path string) *Model {
	tb.Helper()
	m, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { m.Close() })
	return m
}

func plan(tb testing.TB, path string, o EncodeOptions) *Plan {
	tb.Helper()
	p, err := PlanEncode(open(tb, path), o)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func encode(tb testing.TB, path, out string, o EncodeOptions) Result {
	tb.Helper()
	r, err := plan(tb, path, o).Encode(context.Background(), out, run())
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// tree returns the files below dir, or the file itself.
func tree(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

// same compares two trees.
func same(tb testing.TB, got, want map[string]string) {
	tb.Helper()
	if len(want) == 0 {
		tb.Fatal("nothing to compare")
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); d != "" {
		tb.Errorf("files (-want +got):\n%s", d)
	}
	for name, text := range want {
		if got[name] != text {
			tb.Errorf("%s differs: %d bytes, want %d", name, len(got[name]), len(text))
		}
	}
}

func absent(tb testing.TB, paths ...string) {
	tb.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			tb.Errorf("%s is there (%v)", path, err)
		}
	}
}

// oracle codes a tensor with the reference and returns the bytes of codes,
// scales and decoded weights.
func oracle(tb testing.TB, t tensor, p trellis.Params, axis int, dtype codec.DType) (codes, scales, decoded []byte) {
	tb.Helper()
	c, err := ref.New().Trellis(p)
	if err != nil {
		tb.Fatal(err)
	}
	d, _ := t.dtype.Float()
	var m trellis.Matrix
	g := trellis.Geometry{Axis: axis, Out: t.shape[0], In: t.shape[1]}
	if err := c.Encode(context.Background(), &m, codec.Tensor{}, codec.Tensor{DType: d, Shape: t.shape, Data: t.data}, g); err != nil {
		tb.Fatal(err)
	}
	for _, w := range m.Codes {
		codes = binary.LittleEndian.AppendUint32(codes, w)
	}
	for _, s := range m.Scales {
		scales = binary.LittleEndian.AppendUint16(scales, s)
	}
	x := codec.NewTensor(dtype, t.shape...)
	if err := c.Decode(x, &m, 0); err != nil {
		tb.Fatal(err)
	}
	return codes, scales, x.Data
}

func TestDirectory(t *testing.T) {
	src := toy(t)
	out := filepath.Join(t.TempDir(), "out")
	var stages []string
	o := run()
	o.Jobs = 3
	o.Progress = func(p Progress) {
		if !slices.Contains(stages, p.Stage) {
			stages = append(stages, p.Stage)
		}
		if p.Done > p.Total {
			t.Errorf("%s: %d of %d done", p.Stage, p.Done, p.Total)
		}
	}
	r, err := plan(t, src, opts()).Encode(context.Background(), out, o)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{Checking, Copying, Coding}; !slices.Equal(stages, want) {
		t.Errorf("stages %v, want %v", stages, want)
	}
	absent(t, out+partialSuffix)
	if len(r.Tensors) != 3 || r.Copied != 2 || r.Resumed != 0 {
		t.Errorf("%+v", r)
	}

	// Codes, scales and decoded weights are the reference's.
	m := open(t, out)
	n := 0
	for i, x := range []tensor{shardA()[1], shardB()[0], shardB()[2]} {
		axis := 1
		if x.shape[1]%32 != 0 {
			axis = 0
		}
		codes, scales, _ := oracle(t, x, opts().Params, axis, codec.F32)
		for suffix, want := range map[string][]byte{"": codes, scalesSuffix: scales} {
			name := x.name
			if suffix != "" {
				name = strings.TrimSuffix(name, weightSuffix) + suffix
			}
			file, _, ok := m.lookup(name)
			if !ok {
				t.Fatalf("there is no %s", name)
			}
			got, err := m.files[file].AppendTensor(nil, name)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %x, want %x (%v)", name, got, want, err)
			}
			n += len(got)
		}
		if e := r.Tensors[i].Error; r.Tensors[i].Name != x.name || e <= 0.02 || e > 0.15 {
			t.Errorf("%s: error %v", r.Tensors[i].Name, e)
		}
	}
	t.Logf("%d bytes compared", n)

	// What is not coded is what it was.
	got, want := tree(t, out), tree(t, src)
	for _, name := range []string{"tokenizer.json", "1_Pooling/config.json"} {
		if got[name] != want[name] {
			t.Errorf("%s: %q", name, got[name])
		}
	}
	if _, ok := got[".git/HEAD"]; ok {
		t.Error(".git was copied")
	}
	for _, x := range []tensor{shardA()[0], shardB()[1]} {
		file, info, _ := m.lookup(x.name)
		got, err := m.files[file].AppendTensor(nil, x.name)
		if err != nil || !bytes.Equal(got, x.data) || info.DType != x.dtype {
			t.Errorf("%s was changed (%v)", x.name, err)
		}
	}
	if f := m.files[0]; f.name != "a.safetensors" || f.Metadata()["format"] != "pt" {
		t.Errorf("metadata of %s: %v", f.name, f.Metadata())
	}
	for _, f := range m.files {
		for _, x := range f.Tensors() {
			if x.Offset%int64(x.DType.Size()) != 0 {
				t.Errorf("%s is not aligned", x.Name)
			}
		}
	}

	wantConfig := strings.TrimSuffix(config, "\n}\n") + `,
  "quantization": {
    "layers.0.q": {
      "mode": "trellis",
      "bits": 2,
      "group_size": 32,
      "trellis": {
        "L": 12,
        "code": "1mad",
        "axis": 1
      }
    },
    "layers.0.up": {
      "mode": "trellis",
      "bits": 2,
      "group_size": 32,
      "trellis": {
        "L": 12,
        "code": "1mad",
        "axis": 0
      }
    },
    "layers.1.q": {
      "mode": "trellis",
      "bits": 2,
      "group_size": 32,
      "trellis": {
        "L": 12,
        "code": "1mad",
        "axis": 1
      }
    }
  }
}
`
	if d := cmp.Diff(wantConfig, got["config.json"]); d != "" {
		t.Errorf("config.json (-want +got):\n%s", d)
	}
	// 30 + 28 bytes of plain tensors; codes of 2 bits a weight; scales.
	size := 30 + 28 + (6*64+5*32+4*32)/4 + 2*(6+5+4)
	wantIndex := strings.Replace(index, "6324.0", fmt.Sprint(size), 1)
	for base, file := range map[string]string{"layers.0.q": "a", "layers.0.up": "b", "layers.1.q": "b"} {
		line := fmt.Sprintf("\"%s.weight\": \"%s.safetensors\"", base, file)
		wantIndex = strings.Replace(wantIndex, line, line+",\n    "+strings.Replace(line, ".weight", ".scales", 1), 1)
	}
	if d := cmp.Diff(wantIndex, got["model.safetensors.index.json"]); d != "" {
		t.Errorf("index (-want +got):\n%s", d)
	}

	// And back.
	back := filepath.Join(t.TempDir(), "back")
	if _, err := m.Decode(context.Background(), back, codec.BF16, run()); err != nil {
		t.Fatal(err)
	}
	restored := tree(t, back)
	if restored["config.json"] != config {
		t.Errorf("config.json restored:\n%s", restored["config.json"])
	}
	size = 30 + 28 + 2*(6*64+5*32+4*32)
	if want := strings.Replace(index, "6324.0", fmt.Sprint(size), 1); restored["model.safetensors.index.json"] != want {
		t.Errorf("index restored:\n%s", restored["model.safetensors.index.json"])
	}
	mb := open(t, back)
	for _, x := range []tensor{shardA()[1], shardB()[0], shardB()[2]} {
		axis := 1
		if x.shape[1]%32 != 0 {
			axis = 0
		}
		_, _, want := oracle(t, x, opts().Params, axis, codec.BF16)
		file, info, _ := mb.lookup(x.name)
		got, err := mb.files[file].AppendTensor(nil, x.name)
		if err != nil || !bytes.Equal(got, want) || info.DType != safetensors.BF16 || !slices.Equal(info.Shape, x.shape) {
			t.Errorf("%s restored as %s %v (%v)", x.name, info.DType, info.Shape, err)
		}
	}
	if len(mb.Coded()) != 0 {
		t.Errorf("%v is still coded", mb.Coded())
	}
}

func TestSingleFile(t *testing.T) {
	dir := t.TempDir()
	src, out, back := filepath.Join(dir, "in.safetensors"), filepath.Join(dir, "out.safetensors"), filepath.Join(dir, "back.safetensors")
	x := normal("layers.q.weight", "F32", 3, 64)
	y := normal("x", "U8", 3)
	writeFile(t, src, map[string]string{"k": "v"}, x, y)
	encode(t, src, out, opts())
	m := open(t, out)
	if d := cmp.Diff(map[string]string{
		"k":            "v",
		"quantization": `{"layers.q":{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":12,"code":"1mad","axis":1}}}`,
	}, m.Metadata()); d != "" {
		t.Errorf("metadata (-want +got):\n%s", d)
	}
	c, err := m.Matrix("layers.q")
	if err != nil {
		t.Fatal(err)
	}
	_, _, want := oracle(t, x, opts().Params, 1, codec.F32)
	rows := make([]float32, len(want)/4)
	if err := c.DecodeRows(rows, 0, 3); err != nil || !bytes.Equal(codec.FromF32(rows, len(rows)).Data, want) {
		t.Errorf("Matrix decodes to something else (%v)", err)
	}
	if _, err := m.Matrix("layers.k"); !errors.Is(err, ErrSelection) {
		t.Errorf("no such matrix: %v", err)
	}
	if _, err := m.Decode(context.Background(), back, codec.F32, run()); err != nil {
		t.Fatal(err)
	}
	mb := open(t, back)
	if d := cmp.Diff(map[string]string{"k": "v"}, mb.Metadata()); d != "" {
		t.Errorf("metadata restored (-want +got):\n%s", d)
	}
	if got, err := mb.files[0].AppendTensor(nil, x.name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("decoded to something else (%v)", err)
	}
	if got, err := mb.files[0].AppendTensor(nil, "x"); err != nil || !bytes.Equal(got, y.data) {
		t.Errorf("the other tensor was changed (%v)", err)
	}

	// The same file from memory.
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	fm, err := OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil || len(fm.Coded()) != 1 || len(fm.Plain()) != 1 {
		t.Errorf("OpenFile: %v, %v", fm, err)
	}
}

// TestVectorRows takes the seed's rows through files.
func TestVectorRows(t *testing.T) {
	f := vectors.Load(t, "trellis/rows.safetensors")
	n := 0
	for _, base := range []string{"rows.k2", "rows.k3.T128", "rows.k4", "real.k3"} {
		dir := t.TempDir()
		src, out, back := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "back")
		w := f[base+".w"]
		writeFile(t, src, nil, tensor{"m.weight", "F32", w.Shape, w.Data})
		p := trellis.DefaultParams(int(base[6] - '0'))
		if strings.HasSuffix(base, "T128") {
			p.T = 128
		}
		p.Policy = trellis.Compat
		encode(t, src, out, EncodeOptions{Tensors: regexp.MustCompile("m"), Params: p, Axis: 1})
		m := open(t, out)
		if _, err := m.Decode(context.Background(), back, codec.F32, run()); err != nil {
			t.Fatal(err)
		}
		mb := open(t, back)
		for _, c := range []struct {
			m          *Model
			name, want string
		}{{m, "m.weight", ".codes"}, {m, "m.scales", ".scales"}, {mb, "m.weight", ".decoded"}} {
			got, err := c.m.files[0].AppendTensor(nil, c.name)
			want := f[base+c.want].Data
			if err != nil || len(want) == 0 || !bytes.Equal(got, want) {
				t.Errorf("%s%s differs (%v)", base, c.want, err)
			}
			n += len(want)
		}
	}
	t.Logf("%d bytes compared", n)
}

// Interleaved codes, which other programs write, are read.
func TestInterleaved(t *testing.T) {
	x := normal("m.weight", "F32", 3, 128)
	p := opts().Params
	codes, scales, want := oracle(t, x, p, 1, codec.F32)
	words := make([]uint32, len(codes)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(codes[4*i:])
	}
	inter := make([]uint32, len(words))
	if err := trellis.Interleave(inter, words, 3, 128, p); err != nil {
		t.Fatal(err)
	}
	for i, w := range inter {
		binary.LittleEndian.PutUint32(codes[4*i:], w)
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	writeFile(t, in, map[string]string{"quantization": `{"m":{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":12,"code":"1mad","axis":1}}}`},
		tensor{"m.weight", "U32", []int{2, 3, 4}, codes}, tensor{"m.scales", "F16", []int{3}, scales})
	if _, err := open(t, in).Decode(context.Background(), out, codec.F32, run()); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, out).files[0].AppendTensor(nil, "m.weight")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("decodes to something else (%v)", err)
	}
}

// The bytes do not depend on how the work is spread.
func TestJobsAndAxes(t *testing.T) {
	src := filepath.Join(t.TempDir(), "in")
	var tensors []tensor
	for i := range 5 {
		tensors = append(tensors, normal(fmt.Sprintf("m%d.weight", i), "BF16", 32*(1+i%2), 64))
	}
	writeFile(t, src, nil, tensors...)
	for _, axis := range []int{0, 1} {
		o := opts()
		o.Tensors, o.Axis = regexp.MustCompile("m"), axis
		o.Params.K = 4
		var first map[string]string
		for _, jobs := range []int{0, 1, 4} {
			out := filepath.Join(t.TempDir(), "out")
			ro := run()
			ro.Jobs = jobs
			if _, err := plan(t, src, o).Encode(context.Background(), out, ro); err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = tree(t, out)
			}
			same(t, tree(t, out), first)
		}
	}
}

func TestBitsMap(t *testing.T) {
	m, err := ParseBitsMap([]byte(`{"layers\\.0": 3, "layers.0.up": 4, "layers.1.q.weight": 1, "layers": 8}`))
	if err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string]int{"layers.0.q": 3, "layers.0.up": 4, "layers.1.q": 1, "layers.2.q": 8, "head": 7} {
		if got := m.bits(base, 7); got != want {
			t.Errorf("%s: %d bits, want %d", base, got, want)
		}
	}
	for _, text := range []string{``, `[]`, `{"a": 9}`, `{"a": 0}`, `{"a": 1.5}`, `{"a": "2"}`, `{"(": 2}`, `{"a": 2, "a": 3}`, `{"a": 2} x`} {
		if _, err := ParseBitsMap([]byte(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	o := opts()
	o.Bits, o.Params.K = m[:3], 0
	p := plan(t, toy(t), o)
	var got []int
	for _, x := range p.Tensors {
		got = append(got, x.Bits)
	}
	if !slices.Equal(got, []int{3, 4, 1}) {
		t.Errorf("bits %v", got)
	}
	o.Bits = m
	if _, err := PlanEncode(open(t, toy(t)), o); !errors.Is(err, ErrSelection) || !strings.Contains(err.Error(), `"layers"`) {
		t.Errorf("a rule for nothing: %v", err)
	}
	o.Bits = m[:2]
	if _, err := PlanEncode(open(t, toy(t)), o); !errors.Is(err, ErrTensor) || !strings.Contains(err.Error(), "layers.1.q.weight") {
		t.Errorf("a tensor without bits: %v", err)
	}
}

func TestPlan(t *testing.T) {
	o := opts()
	o.Tensors = regexp.MustCompile(`norm|layers`)
	p := plan(t, toy(t), o)
	var got []string
	for _, x := range p.Tensors {
		got = append(got, fmt.Sprintf("%s %s %s %v k%d a%d %d %d %.3f", x.Name, x.File, x.DType, x.Shape, x.Bits, x.Axis, x.SourceBytes, x.Bytes, x.PerWeight))
	}
	want := []string{
		"layers.0.q.weight a.safetensors F32 [6 64] k2 a1 1536 108 2.250",
		"layers.0.up.weight b.safetensors F16 [32 5] k2 a0 320 50 2.500",
		"layers.1.q.weight b.safetensors BF16 [4 32] k2 a1 256 40 2.500",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if !slices.Equal(p.Passed, []string{"norm.weight"}) || p.Copied != 2 || !slices.Equal(p.Files, []string{"1_Pooling/config.json", "tokenizer.json"}) {
		t.Errorf("passed %v, copied %d, files %v", p.Passed, p.Copied, p.Files)
	}
}

// Bad data is refused before anything is written.
func TestRefused(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	one := func(x ...tensor) func(string) {
		return func(path string) { writeFile(t, path, nil, x...) }
	}
	noConfig := func(dir string) {
		put(t, filepath.Join(dir, "model.safetensors"), "x")
	}
	model := func(config string, x ...tensor) func(string) {
		return func(dir string) {
			put(t, filepath.Join(dir, "config.json"), config)
			writeFile(t, filepath.Join(dir, "model.safetensors"), nil, x...)
		}
	}
	q := normal("q.weight", "F32", 4, 64)
	change := func(f func(*EncodeOptions)) func(*EncodeOptions) { return f }
	for _, c := range []struct {
		name string
		make func(path string)
		opts func(*EncodeOptions)
		err  error
		text string
	}{
		{"columns", one(normal("q.weight", "F32", 4, 48)), nil, ErrTensor, `"q.weight": cannot be coded: neither side of [4, 48] is a multiple of the block, 32`},
		{"axis", one(normal("q.weight", "F32", 4, 48)), change(func(o *EncodeOptions) { o.Axis = 1 }), trellis.ErrShape, `"q.weight"`},
		{"T·k", one(q), change(func(o *EncodeOptions) { o.Params.T = 8 }), trellis.ErrParams, "want a multiple of 16"},
		{"k ≥ L", one(q), change(func(o *EncodeOptions) { o.Params.L, o.Params.K = 4, 4 }), trellis.ErrParams, "L = 4 with K = 4"},
		{"code", one(q), change(func(o *EncodeOptions) { o.Params.Code = 9 }), codec.ErrParams, "Code(9)"},
		{"NaN", one(normal("q.weight", "F32", 4, 64).set(130, nan).set(200, inf)), nil, codec.ErrNonFinite, `"q.weight": element 130: NaN`},
		{"Inf, f16, axis 0", one(normal("q.weight", "F16", 64, 3).set(7, inf)), nil, codec.ErrNonFinite, `"q.weight": element 7: +Inf`},
		{"-Inf, bf16", one(normal("q.weight", "BF16", 4, 64).set(255, -inf)), nil, codec.ErrNonFinite, `element 255: -Inf`},
		{"overflow", one(normal("q.weight", "F32", 4, 64).set(2*64+5, 1e9)), nil, codec.ErrScaleOverflow, `"q.weight": element 128: row 2 along axis 1`},
		{"overflow, axis 0", one(normal("q.weight", "F32", 64, 3).set(7, 1e30)), nil, codec.ErrScaleOverflow, `"q.weight": element 1: row 1 along axis 0`},
		{"nothing", one(normal("k.weight", "F32", 4, 64)), nil, ErrSelection, "matches q"},
		{"no matrix", one(normal("q.weight", "F32", 64)), nil, ErrSelection, "matches q"},
		{"dtype", one(normal("q.weight", "F64", 4, 64)), nil, ErrTensor, "F64"},
		{"coded", one(normal("q.weight", "U32", 4, 4), normal("q.scales", "F16", 4)), nil, ErrTensor, "U32"},
		{"scales", one(q, normal("q.scales", "F16", 4)), nil, ErrQuantized, `"q.scales"`},
		{"metadata", func(path string) { writeFile(t, path, map[string]string{"quantization": "x"}, q) }, nil, ErrQuantized, "metadata"},
		{"metadata of another kind", func(path string) { writeFile(t, path, map[string]string{"quantization_config": "x"}, q) }, nil, ErrQuantized, "quantization_config"},
		{"entry twice", func(path string) { writeFile(t, path, map[string]string{"quantization": `{"m":{},"m":{}}`}, q) }, nil, ErrEntry, "duplicate"},
		{"quantization", model(`{"quantization": {"bits": 4, "group_size": 64}}`, q), nil, ErrQuantized, `"quantization"`},
		{"quantization_config", model(`{"quantization_config": {"quant_method": "gptq"}}`, q), nil, ErrQuantized, `"quantization_config"`},
		{"config", model(`{"a": 1,}`, q), nil, ErrModel, "config.json"},
		{"config twice", model(`{"a": 1, "a": 2}`, q), nil, ErrModel, "duplicate"},
		{"no config", noConfig, nil, ErrModel, "config.json"},
		{"empty", func(dir string) { put(t, filepath.Join(dir, "config.json"), "{}") }, nil, ErrModel, "neither model.safetensors nor"},
		{"not there", func(string) {}, nil, fs.ErrNotExist, ""},
		{"no tensors file", func(path string) { put(t, path, "hello, this is text") }, nil, safetensors.ErrNotSafetensors, ""},
		{"missing shards", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			os.Remove(filepath.Join(dir, "a.safetensors"))
		}, nil, ErrModel, "1 of 2 shards are missing: a.safetensors"},
		{"missing tensor", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			writeFile(t, filepath.Join(dir, "a.safetensors"), nil, shardA()[0])
		}, nil, ErrModel, `tensor "layers.0.q.weight" is missing from a.safetensors`},
		{"shard elsewhere", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			put(t, filepath.Join(dir, "model.safetensors.index.json"), `{"weight_map": {"q": "../q.safetensors"}}`)
		}, nil, ErrModel, "outside"},
		{"index", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			put(t, filepath.Join(dir, "model.safetensors.index.json"), `{}`)
		}, nil, ErrModel, "no weight_map"},
		{"bits by part", one(q), change(func(o *EncodeOptions) { o.Part, o.Parts = 3, 2 }), ErrSelection, "part 3 of 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			c.make(in)
			o := opts()
			o.Tensors = regexp.MustCompile("q")
			if c.opts != nil {
				c.opts(&o)
			}
			m, err := Open(in)
			if err == nil {
				defer m.Close()
				var p *Plan
				if p, err = PlanEncode(m, o); err == nil {
					_, err = p.Encode(context.Background(), out, run())
				}
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.err, c.text)
			}
			absent(t, out, out+partialSuffix)
		})
	}
}

// Rows that are all zero or below binary16's range decode to zeros under the
// finite policy.
func TestZeroAndTinyRows(t *testing.T) {
	dir := t.TempDir()
	in, out, back := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "back")
	x := normal("q.weight", "F32", 3, 32)
	for i := range 32 {
		x.set(i, 0).set(32+i, 1e-12)
	}
	writeFile(t, in, nil, x)
	o := opts()
	o.Tensors = regexp.MustCompile("q")
	encode(t, in, out, o)
	if _, err := open(t, out).Decode(context.Background(), back, codec.F32, run()); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, back).files[0].AppendTensor(nil, "q.weight")
	if err != nil || len(got) != 3*32*4 {
		t.Fatalf("%d bytes (%v)", len(got), err)
	}
	for i := range 96 {
		if v := codec.F32.Load(got[4*i:]); (v == 0) != (i < 64) {
			t.Errorf("weight %d decodes to %v", i, v)
		}
	}
}

// An entry that disagrees with its tensors, or that this program does not know,
// is refused and never guessed at.
func TestEntryRefused(t *testing.T) {
	const good = `{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":12,"code":"1mad","axis":1}}`
	codes, scales := normal("m.weight", "U32", 3, 4), normal("m.scales", "F16", 3)
	for _, c := range []struct {
		name, entry string
		tensors     []tensor
		err         error
		text        string
	}{
		{"good", good, []tensor{codes, scales}, nil, ""},
		{"code", strings.Replace(good, "1mad", "2mad", 1), []tensor{codes, scales}, codec.ErrParams, `"2mad"`},
		{"binary16 code", strings.Replace(good, "1mad", "3inst-f16", 1), []tensor{codes, scales}, codec.ErrParams, "reserved"},
		{"k ≥ L", strings.Replace(good, `"L":12`, `"L":2`, 1), []tensor{codes, scales}, trellis.ErrParams, "L = 2"},
		{"T·k", strings.Replace(good, `"group_size":32`, `"group_size":8`, 1), []tensor{codes, scales}, trellis.ErrParams, "T = 8"},
		{"columns", strings.Replace(good, `"bits":2`, `"bits":3`, 1), []tensor{codes, scales}, trellis.ErrShape, "[3 4]"},
		{"axis", strings.Replace(good, `"axis":1`, `"axis":2`, 1), []tensor{codes, scales}, trellis.ErrShape, "axis 2"},
		{"no axis", strings.Replace(good, `,"axis":1`, ``, 1), []tensor{codes, scales}, ErrEntry, "axis"},
		{"no bits", strings.Replace(good, `"bits":2,`, ``, 1), []tensor{codes, scales}, ErrEntry, "bits"},
		{"unknown field", strings.Replace(good, `"axis":1`, `"axis":1,"V":2`, 1), []tensor{codes, scales}, ErrEntry, `"V"`},
		{"another case", strings.Replace(good, `"bits"`, `"Bits"`, 1), []tensor{codes, scales}, ErrEntry, `"Bits"`},
		{"field twice", strings.Replace(good, `"L":12`, `"L":12,"L":12`, 1), []tensor{codes, scales}, ErrEntry, "duplicate"},
		{"fraction", strings.Replace(good, `"bits":2`, `"bits":2.5`, 1), []tensor{codes, scales}, ErrEntry, "2.5"},
		{"no codes", good, []tensor{scales}, ErrEntry, `no tensor "m.weight"`},
		{"no scales", good, []tensor{codes}, ErrEntry, `no tensor "m.scales"`},
		{"codes dtype", good, []tensor{normal("m.weight", "F32", 3, 4), scales}, ErrEntry, "F32, want U32"},
		{"scales dtype", good, []tensor{codes, normal("m.scales", "BF16", 3)}, ErrEntry, "want F16 [3]"},
		{"scales shape", good, []tensor{codes, normal("m.scales", "F16", 4)}, ErrEntry, "F16 [4], want F16 [3]"},
		{"one dimension", good, []tensor{normal("m.weight", "U32", 12), scales}, ErrEntry, "[12]"},
		{"other", `{"mode":"affine","bits":4}`, []tensor{codes, scales}, ErrSelection, "no trellis-coded weights"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			put(t, filepath.Join(in, "config.json"), `{"quantization": {"group_size": 64, "m": `+c.entry+`}}`)
			writeFile(t, filepath.Join(in, "model.safetensors"), nil, c.tensors...)
			m, err := Open(in)
			if err == nil {
				defer m.Close()
				_, err = m.Decode(context.Background(), out, codec.F32, run())
			}
			if c.err == nil {
				if got := tree(t, out)["config.json"]; err != nil || got != `{"quantization": {"group_size": 64}}` {
					t.Errorf("config.json %s, error %v", got, err)
				}
				return
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.err, c.text)
			}
			absent(t, out, out+partialSuffix)
		})
	}
}

func TestExistingOutput(t *testing.T) {
	src := toy(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	put(t, filepath.Join(out, "config.json"), "precious")
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, run()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("existing output: %v", err)
	}
	if got := tree(t, out); len(got) != 1 || got["config.json"] != "precious" {
		t.Errorf("the output was changed: %v", got)
	}
	force := run()
	force.Force = true
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, force); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(dir, "fresh")
	encode(t, src, fresh, opts())
	same(t, tree(t, out), tree(t, fresh))
	absent(t, out+partialSuffix)

	// What does not look like a model is not replaced.
	home := filepath.Join(dir, "home")
	put(t, filepath.Join(home, "thesis.txt"), "precious")
	if _, err := plan(t, src, opts()).Encode(context.Background(), home, force); err == nil {
		t.Error("a directory of other things was replaced")
	}
	// Nor is the model itself, nor anything in or around it.
	for _, path := range []string{src, filepath.Join(src, "out"), filepath.Dir(src), filepath.Join(dir, "none", "out")} {
		if _, err := plan(t, src, opts()).Encode(context.Background(), path, force); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if _, ok := tree(t, src)["a.safetensors"]; !ok {
		t.Error("the model is gone")
	}

	// One file.
	in, to := filepath.Join(dir, "in.st"), filepath.Join(dir, "to.st")
	writeFile(t, in, nil, normal("layers.weight", "F32", 2, 32))
	put(t, to, "precious")
	if _, err := plan(t, in, opts()).Encode(context.Background(), to, run()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("existing file: %v", err)
	}
	if _, err := plan(t, in, opts()).Encode(context.Background(), to, force); err != nil {
		t.Error(err)
	}
	if len(open(t, to).Coded()) != 1 {
		t.Error("the file was not replaced")
	}
	if _, err := plan(t, in, opts()).Encode(context.Background(), in, force); err == nil {
		t.Error("the source was replaced")
	}
}

// A model may be links, as a download cache keeps it.
func TestLinks(t *testing.T) {
	blobs := toy(t)
	dir := t.TempDir()
	snapshot, out, whole := filepath.Join(dir, "snapshot"), filepath.Join(dir, "out"), filepath.Join(dir, "whole")
	for name := range tree(t, blobs) {
		if strings.HasPrefix(name, ".git") {
			continue
		}
		link := filepath.Join(snapshot, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(link), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(blobs, filepath.FromSlash(name)), link); err != nil {
			t.Skip(err)
		}
	}
	if err := os.Symlink(snapshot, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	encode(t, blobs, whole, opts())
	encode(t, filepath.Join(dir, "link"), out+"/", opts())
	same(t, tree(t, out), tree(t, whole))
	force := run()
	force.Force = true
	if _, err := plan(t, filepath.Join(dir, "link"), opts()).Encode(context.Background(), snapshot, force); err == nil {
		t.Error("the model was replaced")
	}
}

// A backend that does not serve the parameters is found out before anything is
// written.
func TestUnserved(t *testing.T) {
	src, out := toy(t), filepath.Join(t.TempDir(), "out")
	_, err := plan(t, src, opts()).Encode(context.Background(), out, RunOptions{Backend: unserving{}})
	if !errors.Is(err, codec.ErrUnsupported) || !strings.Contains(err.Error(), "layers.0.q.weight") {
		t.Errorf("error %v", err)
	}
	absent(t, out, out+partialSuffix)
}

type unserving struct{ codec.Backend }

func (unserving) Feed() codec.Feed { return codec.Feed{} }

func (unserving) Trellis(trellis.Params) (codec.Trellis, error) {
	return nil, &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex}
}

func TestParts(t *testing.T) {
	src := toy(t)
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	encode(t, src, whole, opts())
	for _, n := range []int{1, 2, 5} {
		var parts []string
		coded := 0
		for i := n; i >= 1; i-- {
			o := opts()
			o.Part, o.Parts = i, n
			path := filepath.Join(dir, fmt.Sprintf("part-%d-%d", i, n))
			coded += len(encode(t, src, path, o).Tensors)
			parts = append(parts, path)
		}
		if coded != 3 {
			t.Errorf("%d parts coded %d tensors", n, coded)
		}
		out := filepath.Join(dir, fmt.Sprintf("merged-%d", n))
		if _, err := Merge(context.Background(), parts, out, RunOptions{}); err != nil {
			t.Fatal(err)
		}
		same(t, tree(t, out), tree(t, whole))
	}

	refused := func(text string, parts ...string) {
		t.Helper()
		for i := range parts {
			parts[i] = filepath.Join(dir, parts[i])
		}
		out := filepath.Join(dir, "refused")
		if _, err := Merge(context.Background(), parts, out, RunOptions{}); !errors.Is(err, ErrParts) || !strings.Contains(err.Error(), text) {
			t.Errorf("merge of %v: %v, want %q", parts, err, text)
		}
		absent(t, out, out+partialSuffix)
	}
	refused("of 2 parts [2] are missing", "part-1-2")
	refused("different runs", "part-1-2", "part-2-5")
	refused("both part 1", "part-1-2", "part-1-2")
	refused("no turbotrellis-part.json", "whole", "part-1-2")
	o := opts()
	o.Part, o.Parts, o.Params.Scale = 2, 2, trellis.Refit
	encode(t, src, filepath.Join(dir, "other"), o)
	refused("different runs", "part-1-2", "other")
	text, err := os.ReadFile(filepath.Join(dir, "part-2-2", partName))
	if err != nil {
		t.Fatal(err)
	}
	for i, bad := range []string{
		strings.Replace(string(text), `"part":2,"parts":2`, `"part":3,"parts":2`, 1),
		strings.Replace(string(text), "part 1", "part 9", 1),
		"{", "",
	} {
		put(t, filepath.Join(dir, fmt.Sprint("bad", i), partName), bad)
		refused("turbotrellis-part.json", "part-1-2", fmt.Sprint("bad", i))
	}
	put(t, filepath.Join(dir, "unfinished"+partialSuffix, journalName), "")
	refused("is not finished", "unfinished")
}

func TestPartsOfOneFile(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.st")
	writeFile(t, in, map[string]string{"a": "b"}, normal("layers.0.weight", "F32", 2, 32), normal("x", "U8", 3), normal("layers.1.weight", "F32", 2, 64))
	encode(t, in, filepath.Join(dir, "whole.st"), opts())
	var parts []string
	for i := range 2 {
		o := opts()
		o.Part, o.Parts = i+1, 2
		parts = append(parts, filepath.Join(dir, fmt.Sprint(i)))
		encode(t, in, parts[i], o)
	}
	out := filepath.Join(dir, "merged.st")
	if _, err := Merge(context.Background(), parts, out, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, out), tree(t, filepath.Join(dir, "whole.st")))
}

func TestAssign(t *testing.T) {
	var tensors []Planned
	for i, n := range []int{5, 1, 4, 4, 3, 1} {
		tensors = append(tensors, Planned{Name: string(rune('a' + i)), geom: trellis.Geometry{Out: 1, In: n}})
	}
	// By hand: a5→1, c4→2, d4→3, e3→2, b1→3, f1→1 (5 and 5 tie).
	want := map[string]int{"a": 1, "c": 2, "d": 3, "e": 2, "b": 3, "f": 1}
	for range 3 {
		if d := cmp.Diff(want, assign(tensors, 3)); d != "" {
			t.Errorf("assign (-want +got):\n%s", d)
		}
		slices.Reverse(tensors)
	}
}

// Editing keeps every byte that it need not change.
func TestEditJSON(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{`{}`, `{"q": 1}`},
		{`{ }`, `{"q": 1 }`},
		{` {"a":1} `, ` {"a":1,"q":1} `},
		{"{\n\t\"a\" : [1.0, {}]\n}\n", "{\n\t\"a\" : [1.0, {}],\n\t\"q\" : 1\n}\n"},
		{"{\r\n  \"q,\\\"}\": 1e0, \"b\":\"}\"\r\n}", "{\r\n  \"q,\\\"}\": 1e0, \"b\":\"}\",\r\n  \"q\": 1\r\n}"},
	} {
		o, err := parseObject([]byte(c.in))
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		got := o.appended("q", []byte("1"))
		if string(got) != c.out {
			t.Errorf("%q became %q, want %q", c.in, got, c.out)
		}
		if o, err = parseObject(got); err != nil {
			t.Errorf("%q: %v", got, err)
			continue
		}
		if back := o.without(func(key string) bool { return key == "q" }); string(back) != c.in {
			t.Errorf("%q came back as %q", c.in, back)
		}
	}
	o, err := parseObject([]byte(`{"a": 1, "b": 2,  "c": 3, "d": 4}`))
	if err != nil {
		t.Fatal(err)
	}
	for drop, want := range map[string]string{
		"a": `{"b": 2,  "c": 3, "d": 4}`, "bc": `{"a": 1, "d": 4}`, "cd": `{"a": 1, "b": 2}`, "abcd": `{}`, "": `{"a": 1, "b": 2,  "c": 3, "d": 4}`,
	} {
		got := o.without(func(key string) bool { return strings.Contains(drop, key) })
		if string(got) != want {
			t.Errorf("without %s: %s, want %s", drop, got, want)
		}
	}
	if o, err = parseObject([]byte(`{"a": NaN, "q": null, "b": [-Infinity]}`)); err != nil {
		t.Fatal(err)
	}
	if got, want := o.appended("q", []byte(`{"x": 1}`)), `{"a": NaN, "q": {"x": 1}, "b": [-Infinity]}`; o.find("q") != nil || string(got) != want {
		t.Errorf("null became %s, want %s", got, want)
	}
	for _, bad := range []string{``, `[]`, `null`, `{`, `{"a"}`, `{"a":1,}`, `{"a":1}{}`, `{"a":1 "b":2}`, `{"a":1,"a":2}`} {
		if _, err := parseObject([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// FuzzEditJSON: what parses is edited to what parses, and back.
func FuzzEditJSON(f *testing.F) {
	for _, s := range []string{config, index, `{}`, `{"a":{"b":[1]},"c":""}`, `{ "quantization" : {} }`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := parseObject(text)
		if err != nil {
			return
		}
		if o.named("\x00new") != nil {
			return
		}
		got := o.appended("\x00new", o.indented([]byte(`{"x":[1,2]}`)))
		p, err := parseObject(got)
		if err != nil || len(p.members) != len(o.members)+1 {
			t.Fatalf("%q became %q: %v", text, got, err)
		}
		back := p.without(func(key string) bool { return key == "\x00new" })
		if !bytes.Equal(back, text) {
			t.Fatalf("%q came back as %q", text, back)
		}
	})
}

// FuzzEntry: an entry never makes Open panic, and one that is accepted fits.
func FuzzEntry(f *testing.F) {
	f.Add(`{"m":{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":12,"code":"1mad","axis":1}}}`, 3, 4)
	f.Add(`{"m":{"mode":"trellis","bits":8,"group_size":4,"trellis":{"L":16,"code":"rand","axis":0}}}`, 1, 1)
	f.Fuzz(func(t *testing.T, q string, rows, words int) {
		if rows < 0 || words < 0 || rows > 64 || words > 64 {
			return
		}
		var b safetensorstest.Memory
		w, err := safetensors.NewWriterAt(&b, map[string]string{"quantization": q}, []safetensors.Info{
			{Name: "m.weight", DType: "U32", Shape: []int{rows, words}}, {Name: "m.scales", DType: "F16", Shape: []int{rows}}})
		if err != nil {
			return // not UTF-8
		}
		for name, n := range map[string]int{"m.weight": 4 * rows * words, "m.scales": 2 * rows} {
			tw, err := w.Tensor(name)
			if err != nil {
				return
			}
			tw.Write(make([]byte, n))
		}
		m, err := OpenFile(bytes.NewReader(b.Data), int64(len(b.Data)))
		if err != nil {
			return
		}
		for _, c := range m.Coded() {
			if _, err := m.Matrix(c.Base); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			if c.Weights()*int64(c.Params.K) != int64(32*rows*words) {
				t.Fatalf("%s: %d weights in %d words", q, c.Weights(), rows*words)
			}
		}
	})
}
