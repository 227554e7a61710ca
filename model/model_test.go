package model

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/safetensors/safetensorstest"
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

// opts selects all matrices but the embedding, in small blocks and few states, which take little time.
func opts() EncodeOptions {
	p := trellis.Params{L: 8, K: 2, T: 32}
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
