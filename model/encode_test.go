package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/trellis"
)

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
	for i, want := range []int64{6 * 64, 32 * 5, 4 * 32} {
		if got := r.Tensors[i].Weights(); got != want {
			t.Errorf("%s: %d weights, want %d", r.Tensors[i].Name, got, want)
		}
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
        "L": 8,
        "code": "1mad",
        "axis": 1
      }
    },
    "layers.0.up": {
      "mode": "trellis",
      "bits": 2,
      "group_size": 32,
      "trellis": {
        "L": 8,
        "code": "1mad",
        "axis": 0
      }
    },
    "layers.1.q": {
      "mode": "trellis",
      "bits": 2,
      "group_size": 32,
      "trellis": {
        "L": 8,
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
		"quantization": `{"layers.q":{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":8,"code":"1mad","axis":1}}}`,
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

// A copied file arrives whole, however its source is read.
func TestCopyFile(t *testing.T) {
	for _, n := range []int{0, 1, copyBytes - 1, copyBytes, copyBytes + 1, 2*copyBytes + 1} {
		path := filepath.Join(t.TempDir(), "x")
		text := strings.Repeat("0123456789abcdef", n/16+1)[:n]
		put(t, path, text)
		o, err := originOf(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := copyFile(context.Background(), &b, o); err != nil || b.String() != text {
			t.Errorf("%d bytes: %d copied, %v", n, b.Len(), err)
		}
		if err := os.WriteFile(path, []byte(text+"."), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := copyFile(context.Background(), &b, o); !errors.Is(err, ErrChanged) {
			t.Errorf("%d bytes and one more: %v", n, err)
		}
	}
	text, err := io.ReadAll(untilDone{context.Background(), iotest.DataErrReader(iotest.OneByteReader(strings.NewReader("bytes")))})
	if err != nil || string(text) != "bytes" {
		t.Errorf("read %q, %v", text, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if n, err := (untilDone{ctx, strings.NewReader("bytes")}).Read(make([]byte, 5)); n != 0 || err != context.Canceled {
		t.Errorf("after the end: %d bytes, %v", n, err)
	}
}
