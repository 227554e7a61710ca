package model

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/safetensors/safetensorstest"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func rows(tb testing.TB, path, out string, o AffineOptions) Result {
	tb.Helper()
	p, err := PlanAffine(open(tb, path), o)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := p.Encode(context.Background(), out, run())
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func decodeRows(tb testing.TB, path, out string, dtype codec.DType) Result {
	tb.Helper()
	r, err := open(tb, path).DecodeAffine(context.Background(), out, dtype, run())
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// The folder of testdata/mlx that mlx-lm quantised (internal/tools/mlx) has the tensors and entries that an encoding
// of its source has, and is restored to what mx.dequantize gives.
func TestMLXFolder(t *testing.T) {
	dir, mlx := t.TempDir(), filepath.Join("testdata", "mlx")
	out, back := filepath.Join(dir, "out"), filepath.Join(dir, "back")
	bits, err := ParseBitsMap([]byte(`{"v_proj": 6}`))
	if err != nil {
		t.Fatal(err)
	}
	rows(t, filepath.Join(mlx, "source"), out, AffineOptions{Format: affine.RowFormat{Bits: 3, Group: 32}, Bits: bits})
	got, want := open(t, out), open(t, filepath.Join(mlx, "quantized"))
	if len(want.Affine()) != 8 { // seven projections and the embedding
		t.Fatalf("%d affine matrices", len(want.Affine()))
	}
	if !slices.EqualFunc(sortedAffine(got), sortedAffine(want), func(a, b Affine) bool {
		return a.Base == b.Base && a.Format == b.Format && a.DType == b.DType && slices.Equal(a.Shape, b.Shape)
	}) {
		t.Errorf("matrices %+v, want %+v", sortedAffine(got), sortedAffine(want))
	}
	compared := 0
	for _, x := range want.files[0].Tensors() {
		a, b := bytesOf(t, got, x.Name), bytesOf(t, want, x.Name)
		if string(a) != string(b) {
			t.Errorf("%s: other bytes than mlx-lm's", x.Name)
		}
		compared += len(b)
	}
	if n := len(got.files[0].Tensors()); n != len(want.files[0].Tensors()) {
		t.Errorf("%d tensors, want %d", n, len(want.files[0].Tensors()))
	}
	var config map[string]any
	if err := json.Unmarshal([]byte(tree(t, out)[configName]), &config); err != nil {
		t.Fatal(err)
	}
	q := marshal(config[quantizationKey])
	if want := `{"bits":3,"group_size":32,"mode":"affine","model.layers.0.self_attn.v_proj":{"bits":6,"group_size":32,"mode":"affine"}}`; strings.TrimSpace(string(q)) != want {
		t.Errorf("quantization %s, want %s", q, want)
	}
	if string(marshal(config[configKey])) != string(q) {
		t.Errorf("%s is %s", configKey, marshal(config[configKey]))
	}

	decodeRows(t, filepath.Join(mlx, "quantized"), back, 0)
	text, err := os.ReadFile(filepath.Join(mlx, "dequantized.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sums map[string]string
	if err := json.Unmarshal(text, &sums); err != nil || len(sums) != 8 {
		t.Fatal(len(sums), err)
	}
	m := open(t, back)
	for name, want := range sums {
		data := bytesOf(t, m, name)
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s: other weights than mx.dequantize's", name)
		}
		compared += len(data)
	}
	if strings.Contains(tree(t, back)[configName], "quantization") || len(m.Affine()) != 0 {
		t.Error("the restored model says that it is quantised")
	}
	if index := tree(t, back)[indexName]; strings.Contains(index, "scales") || strings.Contains(index, "biases") {
		t.Errorf("index %s", index)
	}
	t.Logf("%d bytes compared", compared)
}

func sortedAffine(m *Model) []Affine {
	return slices.SortedFunc(slices.Values(m.Affine()), func(a, b Affine) int { return strings.Compare(a.Base, b.Base) })
}

// Affine weights become trellis codes and these affine ones, each through one decode: the tensors are those of the
// decoded models. Matrices that are not selected keep their form and what quantization says of them.
func TestConvert(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, single := range []bool{false, true} {
		t.Run(map[bool]string{false: "folder", true: "file"}[single], func(t *testing.T) {
			src, name := path("src"), map[bool]string{false: "", true: ".st"}[single]
			if single {
				src = path("src.st")
				writeFile(t, src, map[string]string{"a": "b"}, normal("q.weight", "F32", 6, 64), normal("norm.weight", "BF16", 64), normal("up.weight", "F16", 32, 32))
			} else {
				put(t, filepath.Join(src, configName), "{\n  \"x\": 1e3\n}\n")
				put(t, filepath.Join(src, indexName), `{"metadata": {"total_size": 1}, "weight_map": {"q.weight": "a", "norm.weight": "a", "up.weight": "b"}}`)
				writeFile(t, filepath.Join(src, "a"), nil, normal("q.weight", "F32", 6, 64), normal("norm.weight", "BF16", 64))
				writeFile(t, filepath.Join(src, "b"), nil, normal("up.weight", "F16", 32, 32))
			}
			at := func(stage string) string { return path(stage + name) }
			o := AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 32}}
			r := rows(t, src, at("affine"), o)
			if len(r.Tensors) != 2 || r.Copied != 1 || r.Tensors[0].GroupSize != 32 || r.Tensors[0].Error <= 0 || r.Tensors[0].Error > 0.01 {
				t.Errorf("%+v", r)
			}
			decodeRows(t, at("affine"), at("plain"), 0)
			if !single {
				same(t, map[string]string{"config": tree(t, at("plain"))[configName]}, map[string]string{"config": tree(t, src)[configName]})
			}

			// One matrix of two.
			some := few()
			some.Tensors = regexp.MustCompile("q")
			some.Params.T = 32
			encode(t, at("affine"), at("mixed"), some)
			m := open(t, at("mixed"))
			if len(m.Affine()) != 1 || len(m.Coded()) != 1 || m.Affine()[0].Base != "up" {
				t.Fatalf("%+v and %+v", m.Affine(), m.Coded())
			}
			encode(t, at("plain"), at("direct"), some)
			for _, tensor := range []string{"q.weight", "q.scales"} {
				if string(bytesOf(t, m, tensor)) != string(bytesOf(t, open(t, at("direct")), tensor)) {
					t.Errorf("%s is not what coding the decoded matrix gives", tensor)
				}
			}
			// Either decode leaves the other's matrices.
			if _, err := m.Decode(context.Background(), at("half"), codec.F32, run()); err != nil {
				t.Fatal(err)
			}
			half := open(t, at("half"))
			if len(half.Affine()) != 1 || len(half.Coded()) != 0 || !half.uniform {
				t.Errorf("%+v and %+v", half.Affine(), half.Coded())
			}
			decodeRows(t, at("mixed"), at("other-half"), codec.F32)
			if other := open(t, at("other-half")); len(other.Affine()) != 0 || len(other.Coded()) != 1 || other.uniform {
				t.Errorf("%+v and %+v", other.Affine(), other.Coded())
			}

			// Another program's quantization_config is no copy, and stays.
			if !single {
				mixed := tree(t, at("mixed"))[configName]
				config, err := parseObject([]byte(mixed))
				if err != nil {
					t.Fatal(err)
				}
				const theirs = `{"quant_method":"x"}`
				put(t, filepath.Join(at("mixed"), configName), string(config.set(configKey, []byte(theirs))))
				if _, err := open(t, at("mixed")).Decode(context.Background(), at("theirs"), codec.F32, run()); err != nil {
					t.Fatal(err)
				}
				if config, err = parseObject([]byte(tree(t, at("theirs"))[configName])); err != nil {
					t.Fatal(err)
				}
				if e := config.find(configKey); e == nil || string(config.raw(e)) != theirs {
					t.Errorf("%s became %s", theirs, tree(t, at("theirs"))[configName])
				}
			}

			// All, and back.
			some.Tensors = regexp.MustCompile("weight$")
			encode(t, at("affine"), at("trellis"), some)
			if m := open(t, at("trellis")); len(m.Affine()) != 0 || len(m.Coded()) != 2 {
				t.Fatalf("%+v and %+v", m.Affine(), m.Coded())
			}
			if _, err := open(t, at("trellis")).Decode(context.Background(), at("restored"), codec.F16, run()); err != nil {
				t.Fatal(err)
			}
			o.DType = codec.F16
			rows(t, at("trellis"), at("again"), o)
			rows(t, at("restored"), at("at-once"), o)
			if single {
				got, want := open(t, at("again")), open(t, at("at-once"))
				for _, x := range want.files[0].Tensors() {
					if string(bytesOf(t, got, x.Name)) != string(bytesOf(t, want, x.Name)) {
						t.Errorf("%s differs", x.Name)
					}
				}
				return
			}
			same(t, tree(t, at("again")), tree(t, at("at-once")))
			if config := tree(t, at("trellis"))[configName]; strings.Contains(config, configKey) {
				t.Errorf("%s stays: %s", configKey, config)
			}
		})
	}
}

// Weights of another type than asked for are rounded to it once, as IEEE 754 says, before they are quantised.
func TestAffineDType(t *testing.T) {
	dir := t.TempDir()
	src, cast := filepath.Join(dir, "src"), filepath.Join(dir, "cast")
	x := normal("q.weight", "F32", 4, 64)
	writeFile(t, src, nil, x)
	y := normal("q.weight", "BF16", 4, 64)
	for i := range 4 * 64 {
		codec.BF16.Store(y.data[2*i:], codec.F32.Load(x.data[4*i:]))
	}
	writeFile(t, cast, nil, y)
	o := AffineOptions{Format: affine.RowFormat{Bits: 5, Group: 64}}
	want := filepath.Join(dir, "want")
	rows(t, cast, want, o)
	o.DType = codec.BF16
	got := filepath.Join(dir, "got")
	rows(t, src, got, o)
	if tree(t, got)["."] != tree(t, want)["."] {
		t.Error("the cast differs")
	}
	back := filepath.Join(dir, "back")
	decodeRows(t, got, back, codec.F32)
	own := filepath.Join(dir, "own")
	decodeRows(t, got, own, 0)
	a, b := bytesOf(t, open(t, back), "q.weight"), bytesOf(t, open(t, own), "q.weight")
	for i := range 4 * 64 {
		if codec.F32.Load(a[4*i:]) != codec.BF16.Load(b[2*i:]) {
			t.Fatalf("weight %d: %v, want %v", i, codec.F32.Load(a[4*i:]), codec.BF16.Load(b[2*i:]))
		}
	}
}

func TestAffineRefused(t *testing.T) {
	dir := t.TempDir()
	inf := float32(math.Inf(1))
	quantized := filepath.Join(dir, "quantized")
	rows(t, filepath.Join("testdata", "mlx", "source"), quantized, AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 32}})
	for _, test := range []struct {
		name    string
		tensors []tensor
		meta    map[string]string
		o       AffineOptions
		is      error
		text    string
	}{
		{name: "infinite", tensors: []tensor{normal("q.weight", "F32", 4, 64).set(70, inf)}, is: codec.ErrNonFinite, text: `"q.weight"`},
		{name: "range", tensors: []tensor{normal("q.weight", "F32", 4, 64).set(130, 3e38).set(131, -3e38)}, is: codec.ErrScaleOverflow, text: "element 128"},
		{name: "beyond the type", tensors: []tensor{normal("q.weight", "F32", 4, 64).set(9, 1e6)}, o: AffineOptions{DType: codec.F16}, is: codec.ErrNonFinite, text: "element 9"},
		{name: "nothing", tensors: []tensor{normal("q.weight", "F32", 4, 48), normal("norm.weight", "F32", 64)}, is: ErrSelection},
		{name: "scales", tensors: []tensor{normal("q.weight", "F32", 4, 64), normal("q.biases", "F32", 4)}, is: ErrQuantized, text: "q.biases"},
		{name: "integers", tensors: []tensor{normal("q.weight", "F32", 4, 64), {name: "i.weight", dtype: "I32", shape: []int{1, 64}, data: make([]byte, 256)}}, is: ErrTensor, text: "I32"},
		{name: "quantization", tensors: []tensor{normal("q.weight", "F32", 4, 64)}, meta: map[string]string{"quantization": "{}"}, is: ErrQuantized},
		{name: "format", tensors: []tensor{normal("q.weight", "F32", 4, 64)}, o: AffineOptions{Format: affine.RowFormat{Bits: 7, Group: 64}}, is: codec.ErrParams},
		{name: "bits by name", tensors: []tensor{normal("q.weight", "F32", 4, 64)}, o: AffineOptions{Bits: BitsMap{{Pattern: "q", Bits: 7}}}, is: codec.ErrParams},
		{name: "unused bits", tensors: []tensor{normal("q.weight", "F32", 4, 64)}, o: AffineOptions{Bits: BitsMap{{Pattern: "k", Bits: 8}}}, is: ErrSelection, text: `"k"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			src, out := filepath.Join(t.TempDir(), "src"), filepath.Join(dir, "out")
			writeFile(t, src, test.meta, test.tensors...)
			if test.o.Format == (affine.RowFormat{}) {
				test.o.Format = affine.RowFormat{Bits: 4, Group: 64}
			}
			p, err := PlanAffine(open(t, src), test.o)
			if err == nil {
				_, err = p.Encode(context.Background(), out, run())
			}
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%v, want %v with %q", err, test.is, test.text)
			}
			absent(t, out, out+partialSuffix)
		})
	}
	if _, err := PlanAffine(open(t, quantized), AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 64}}); !errors.Is(err, ErrQuantized) {
		t.Errorf("affine weights again: %v", err)
	}
	// A trellis matrix has no biases of its own: a tensor of that name is in the way, in its file or in another.
	trellised, src := filepath.Join(dir, "trellised"), filepath.Join(dir, "one.st")
	writeFile(t, src, nil, normal("q.weight", "F32", 4, 64), normal("q.biases", "F32", 4))
	all := opts()
	all.Tensors = regexp.MustCompile("q.weight")
	encode(t, src, trellised, all)
	shards := filepath.Join(dir, "shards")
	put(t, filepath.Join(shards, configName), "{}")
	put(t, filepath.Join(shards, indexName), `{"weight_map": {"q.weight": "a", "q.biases": "b"}}`)
	writeFile(t, filepath.Join(shards, "a"), nil, normal("q.weight", "F32", 4, 64))
	writeFile(t, filepath.Join(shards, "b"), nil, normal("q.biases", "F32", 4))
	encode(t, shards, filepath.Join(dir, "trellised-shards"), all)
	for _, path := range []string{trellised, filepath.Join(dir, "trellised-shards")} {
		if _, err := PlanAffine(open(t, path), AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 64}}); !errors.Is(err, ErrQuantized) || !strings.Contains(err.Error(), `"q.biases"`) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := open(t, filepath.Join("testdata", "mlx", "source")).DecodeAffine(context.Background(), "x", 0, run()); !errors.Is(err, ErrSelection) {
		t.Errorf("nothing to decode: %v", err)
	}
}

// Descriptions that disagree with their tensors are refused; those of other modes and programs are left alone.
func TestAffineEntries(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join("testdata", "mlx", "source")
	good := filepath.Join(dir, "good")
	rows(t, source, good, AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 32}})
	files := tree(t, good)
	const base = `"model.embed_tokens"`
	for _, test := range []struct {
		quantization string
		matrices     int
		is           error
	}{
		{`{"group_size": 32, "bits": 4}`, 8, nil},
		{`{"group_size": 32, "bits": 4, "mode": "affine", ` + base + `: true}`, 8, nil},
		{`{"group_size": 32, "bits": 4, ` + base + `: false}`, 7, nil},
		{`{"group_size": 32, "bits": 4, ` + base + `: {"mode": "mxfp4", "bits": 4, "group_size": 32}}`, 7, nil},
		{`{"group_size": 32, "bits": 4, "mode": "mxfp4", ` + base + `: {"bits": 4, "group_size": 32}}`, 1, nil},
		{`{"group_size": 32, "bits": 4, "mode": "nvfp4"}`, 0, nil},
		{`{"group_size": 32, "bits": 7}`, 0, nil},
		{`{"group_size": "32", "bits": 4}`, 0, nil},
		{`{"bits": 4}`, 0, nil},
		{`{}`, 0, nil},
		{`{"group_size": 32, "bits": 5}`, 0, ErrEntry},
		{`{"group_size": 64, "bits": 4}`, 0, ErrEntry},
		{`{"group_size": 32, "bits": 4, ` + base + `: {"bits": 8, "group_size": 32}}`, 0, ErrEntry},
	} {
		files := maps.Clone(files)
		files[configName] = `{"quantization": ` + test.quantization + `}`
		path := filepath.Join(t.TempDir(), "m")
		for name, text := range files {
			put(t, filepath.Join(path, name), text)
		}
		m, err := Open(path)
		if !errors.Is(err, test.is) || err == nil && len(m.Affine()) != test.matrices {
			t.Errorf("%s: %v, %v matrices, want %v, %d", test.quantization, err, m, test.is, test.matrices)
		}
		if err == nil {
			m.Close()
		}
	}
}

// An encoding that was interrupted is taken up, and ends with the bytes of one that was not; parts join to them.
func TestAffineResume(t *testing.T) {
	src, dir := many(t), t.TempDir()
	o := AffineOptions{Tensors: all().Tensors, Format: affine.RowFormat{Bits: 3, Group: 32}}
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	n := len(rows(t, src, whole, o).Tensors)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	r := run()
	r.Progress = func(p Progress) {
		if p.Finished != nil {
			stop()
		}
	}
	p, err := PlanAffine(open(t, src), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Encode(ctx, out, r); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the same command continues") {
		t.Fatal(err)
	}
	if got := rows(t, src, out, o); got.Resumed == 0 || len(got.Tensors) != n {
		t.Errorf("%d of %d tensors resumed, want some of %d", got.Resumed, len(got.Tensors), n)
	}
	same(t, tree(t, out), tree(t, whole))

	var parts []string
	for i := range 3 {
		o := o
		o.Part, o.Parts = i+1, 3
		parts = append(parts, filepath.Join(dir, "part"+string(rune('0'+i))))
		rows(t, src, parts[i], o)
	}
	merged := filepath.Join(dir, "merged")
	if _, err := Merge(context.Background(), parts, merged, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, merged), tree(t, whole))
}

// Interleaved codes have three dimensions; the matrix is one of two.
func TestAffineOfInterleaved(t *testing.T) {
	p := trellis.Params{L: 8, K: 2, T: 32}
	g := trellis.Geometry{Axis: 1, Out: 4, In: 128, Interleaved: true}
	x := normal("q.weight", "F32", 4, 128)
	c, err := run().Backend.Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	var m trellis.Matrix
	if err := c.Encode(context.Background(), &m, codec.Tensor{}, codec.Tensor{DType: codec.F32, Shape: x.shape, Data: x.data}, g); err != nil {
		t.Fatal(err)
	}
	codes := tensor{name: "q.weight", dtype: "U32", shape: g.CodesShape(p)}
	for _, w := range m.Codes {
		codes.data = append(codes.data, byte(w), byte(w>>8), byte(w>>16), byte(w>>24))
	}
	scales := tensor{name: "q.scales", dtype: "F16", shape: []int{4}}
	for _, s := range m.Scales {
		scales.data = append(scales.data, byte(s), byte(s>>8))
	}
	dir := t.TempDir()
	src, plain := filepath.Join(dir, "src"), filepath.Join(dir, "plain")
	writeFile(t, src, map[string]string{quantizationKey: `{"q":` + string(marshal(entryOf(p, 1))) + `}`}, codes, scales)
	if _, err := open(t, src).Decode(context.Background(), plain, codec.BF16, run()); err != nil {
		t.Fatal(err)
	}
	o := AffineOptions{Format: affine.RowFormat{Bits: 8, Group: 128}}
	rows(t, src, filepath.Join(dir, "a"), o)
	rows(t, plain, filepath.Join(dir, "b"), o)
	for _, name := range []string{"q.weight", "q.scales", "q.biases"} {
		if string(bytesOf(t, open(t, filepath.Join(dir, "a")), name)) != string(bytesOf(t, open(t, filepath.Join(dir, "b")), name)) {
			t.Errorf("%s differs", name)
		}
	}
}

// FuzzAffineEntry: what quantization says never makes Open panic, and the matrices that are accepted can be decoded.
func FuzzAffineEntry(f *testing.F) {
	f.Add(`{"bits":4,"group_size":32,"mode":"affine"}`, 2, 8, 2)
	f.Add(`{"bits":4,"group_size":32,"m":{"bits":6,"group_size":64}}`, 1, 12, 1)
	f.Add(`{"bits":4,"group_size":32,"m":false}`, 1, 1, 1)
	f.Fuzz(func(t *testing.T, q string, rows, words, groups int) {
		if rows < 0 || words < 0 || groups < 0 || rows > 64 || words > 64 || groups > 64 {
			return
		}
		var b safetensorstest.Memory
		w, err := safetensors.NewWriterAt(&b, map[string]string{"quantization": q}, []safetensors.Info{
			{Name: "m.weight", DType: "U32", Shape: []int{rows, words}}, {Name: "m.scales", DType: "F16", Shape: []int{rows, groups}}, {Name: "m.biases", DType: "F16", Shape: []int{rows, groups}}})
		if err != nil {
			return // not UTF-8
		}
		for name, n := range map[string]int{"m.weight": 4 * rows * words, "m.scales": 2 * rows * groups, "m.biases": 2 * rows * groups} {
			tw, err := w.Tensor(name)
			if err != nil {
				return
			}
			tw.Write(make([]byte, n))
		}
		m, err := OpenFile(bytes.NewReader(b.Data), int64(len(b.Data)))
		if err != nil || len(m.Affine()) == 0 {
			return
		}
		a := m.Affine()[0]
		if a.Bytes() != int64(rows)*int64(4*words+4*groups) || a.Weights()*int64(a.Format.Bits) != int64(32*rows*words) {
			t.Fatalf("%s: %+v of %d words", q, a, rows*words)
		}
		if _, err := m.DecodeAffine(context.Background(), filepath.Join(t.TempDir(), "out"), codec.F32, run()); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	})
}
