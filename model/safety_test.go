package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/atomicfile"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis/ldlq"
)

// all selects every tensor called <base>.weight.
func all() EncodeOptions {
	o := opts()
	o.Tensors = regexp.MustCompile("weight")
	return o
}

func forced() RunOptions {
	r := run()
	r.Force = true
	return r
}

// refused encodes and wants an error with the text, and that nothing is there afterwards beside what was.
func refused(t *testing.T, path, out string, o EncodeOptions, r RunOptions, is error, text string) {
	t.Helper()
	dir := filepath.Dir(out)
	var before map[string]string
	if _, err := os.Stat(dir); err == nil {
		before = tree(t, dir)
	}
	m, err := Open(path)
	if err == nil {
		defer m.Close()
		var p *Plan
		if p, err = PlanEncode(m, o); err == nil {
			_, err = p.Encode(context.Background(), out, r)
		}
	}
	if !errors.Is(err, is) || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %v with %q", err, is, text)
	}
	if before != nil {
		if len(before) == 0 {
			before["."] = ""
			if got := tree(t, dir); len(got) != 0 {
				t.Errorf("it left %v", got)
			}
			return
		}
		same(t, tree(t, dir), before)
	}
}

// bytesOf returns the bytes of a tensor of a model.
func bytesOf(t *testing.T, m *Model, name string) []byte {
	t.Helper()
	for _, f := range m.files {
		if _, ok := f.Lookup(name); ok {
			b, err := f.AppendTensor(nil, name)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// tensorOf reads a tensor of a safetensors file.
func tensorOf(t *testing.T, path, name string) tensor {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("%s has no %s", path, name)
	}
	data, err := f.AppendTensor(nil, name)
	if err != nil {
		t.Fatal(err)
	}
	return tensor{name, info.DType, info.Shape, data}
}

// An index may spell a path in any way; the file is one, and is written once.
func TestIndexSpelling(t *testing.T) {
	const shard = "model-00001-of-00001.safetensors"
	src := "testdata/index-dot-slash"
	x := tensorOf(t, filepath.Join(src, shard), "a.weight")
	codes, scales, _ := oracle(t, x, opts().Params, 1, codec.F32)
	for _, spelling := range []string{"./" + shard, "x/../" + shard, ".//" + shard, shard} {
		t.Run(spelling, func(t *testing.T) {
			in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
			if err := os.CopyFS(in, os.DirFS(src)); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(in, indexName))
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(in, indexName), strings.Replace(string(text), "./"+shard, spelling, 1))
			if r := encode(t, in, out, all()); len(r.Tensors) != 1 || r.Copied != 0 {
				t.Errorf("%+v", r)
			}
			m := open(t, out)
			if len(m.Coded()) != 1 || m.Coded()[0].Base != "a" {
				t.Errorf("coded: %v", m.Coded())
			}
			if !bytes.Equal(bytesOf(t, m, "a.weight"), codes) || !bytes.Equal(bytesOf(t, m, "a.scales"), scales) {
				t.Error("the codes are not the reference's")
			}
			if got := tree(t, out); len(got) != 3 {
				t.Errorf("%d files, want 3", len(got))
			}
			back := filepath.Join(t.TempDir(), "back")
			if _, err := m.Decode(context.Background(), back, codec.F32, run()); err != nil {
				t.Fatal(err)
			}
			if got := open(t, back).Files(); len(got) != 1 || got[0] != shard {
				t.Errorf("restored files %v", got)
			}
		})
	}
}

// Two files of the output are never one, on any file system.
func TestOnePath(t *testing.T) {
	w := func(dir, name string, x ...tensor) {
		writeFile(t, filepath.Join(dir, filepath.FromSlash(name)), nil, x...)
	}
	a, b := normal("a.weight", "F32", 1, 32), normal("b.weight", "F32", 1, 32)
	for name, make := range map[string]func(dir string) string{
		"shards in two cases": func(dir string) string {
			w(dir, "Shard.safetensors", a)
			w(dir, "shard.safetensors", b)
			return `{"weight_map": {"a.weight": "Shard.safetensors", "b.weight": "shard.safetensors"}}`
		},
		"Kelvin sign": func(dir string) string {
			w(dir, "k.safetensors", a)
			w(dir, "\u212a.safetensors", b)
			return "{\"weight_map\": {\"a.weight\": \"k.safetensors\", \"b.weight\": \"\u212a.safetensors\"}}"
		},
		"a shard called config.json": func(dir string) string {
			w(dir, "Config.json", a)
			return `{"weight_map": {"a.weight": "Config.json"}}`
		},
		"further files in two cases": func(dir string) string {
			w(dir, "a.safetensors", a)
			put(t, filepath.Join(dir, "README"), "1")
			put(t, filepath.Join(dir, "readme"), "2")
			return `{"weight_map": {"a.weight": "a.safetensors"}}`
		},
		"a folder in another case than a file": func(dir string) string {
			w(dir, "a.safetensors", a)
			put(t, filepath.Join(dir, "x"), "1")
			put(t, filepath.Join(dir, "X", "y"), "2")
			return `{"weight_map": {"a.weight": "a.safetensors"}}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
			put(t, filepath.Join(in, configName), "{}")
			put(t, filepath.Join(in, indexName), make(in))
			if runtime.GOOS != "linux" {
				t.Skip("file names that not every system tells apart")
			}
			refused(t, in, out, all(), run(), ErrModel, "")
		})
	}
}

// A tensor that the index does not list is carried along, whatever its name.
func TestUnlistedTensor(t *testing.T) {
	const shard = "model-00001-of-00001.safetensors"
	src, out := "testdata/index-unlisted-tensor", filepath.Join(t.TempDir(), "out")
	if r := encode(t, src, out, all()); len(r.Tensors) != 1 || r.Tensors[0].Name != "a.weight" || r.Copied != 1 {
		t.Errorf("%+v", r)
	}
	stale := tensorOf(t, filepath.Join(src, shard), "stale.weight")
	m := open(t, out)
	if got := bytesOf(t, m, "stale.weight"); !bytes.Equal(got, stale.data) {
		t.Error("it was changed")
	}
	if len(m.Coded()) != 1 || len(m.Plain()) != 1 || m.Plain()[0].Name != "stale.weight" {
		t.Errorf("coded %v, plain %v", m.Coded(), m.Plain())
	}
	back := filepath.Join(t.TempDir(), "back")
	if _, err := m.Decode(context.Background(), back, codec.F32, run()); err != nil {
		t.Fatal(err)
	}
	if got := bytesOf(t, open(t, back), "stale.weight"); !bytes.Equal(got, stale.data) {
		t.Error("it was changed by decoding")
	}

	// One that has the name of scales to be written is in the way.
	in := filepath.Join(t.TempDir(), "in")
	put(t, filepath.Join(in, configName), "{}")
	put(t, filepath.Join(in, indexName), `{"weight_map": {"a.weight": "s"}}`)
	writeFile(t, filepath.Join(in, "s"), nil, normal("a.weight", "F32", 1, 32), normal("a.scales", "F16", 1))
	refused(t, in, filepath.Join(t.TempDir(), "out"), all(), run(), ErrQuantized, `"a.scales"`)

	// One that is another shard's as well stays where it is.
	in, out = filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
	put(t, filepath.Join(in, configName), "{}")
	put(t, filepath.Join(in, indexName), `{"weight_map": {"a.weight": "s", "b.weight": "t"}}`)
	old := normal("old", "F32", 1, 32)
	old.name = "a.weight"
	writeFile(t, filepath.Join(in, "s"), nil, normal("a.weight", "F32", 1, 32))
	writeFile(t, filepath.Join(in, "t"), nil, normal("b.weight", "F32", 1, 32), old)
	encode(t, in, out, all())
	if got := tensorOf(t, filepath.Join(out, "t"), "a.weight"); got.dtype != "F32" || !bytes.Equal(got.data, old.data) {
		t.Error("the copy in another shard was changed")
	}
	open(t, out)
}

// A file beside the shards that holds tensors of the model's names is refused, or carried along if asked for.
func TestTwice(t *testing.T) {
	src, out := "testdata/single-and-shards", filepath.Join(t.TempDir(), "out")
	refused(t, src, out, all(), run(), ErrTwice, `model.safetensors holds a tensor "a.weight" too, which the model has in model-00001-of-00001.safetensors`)
	p := plan(t, src, all())
	if err := p.Check(out, run()); !errors.Is(err, ErrModel) || len(p.Twice) != 1 {
		t.Errorf("checked: %v, %v", err, p.Twice)
	}
	r := run()
	r.Twice = true
	if _, err := p.Encode(context.Background(), out, r); err != nil {
		t.Fatal(err)
	}
	if got, want := tree(t, out)[singleName], tree(t, src)[singleName]; got != want {
		t.Error("the further file was changed")
	}
	m := open(t, out)
	if _, err := m.Decode(context.Background(), out+"-back", codec.F32, run()); !errors.Is(err, ErrModel) {
		t.Errorf("decoding: %v", err)
	}
	if result, err := m.Decode(context.Background(), out+"-back", codec.F32, r); err != nil || len(result.Twice) != 1 {
		t.Error(result, err)
	}
	if got, want := tree(t, out+"-back")[singleName], tree(t, src)[singleName]; got != want {
		t.Error("the further file was changed by decoding")
	}

	// A shard that no index names.
	in := filepath.Join(t.TempDir(), "in")
	put(t, filepath.Join(in, configName), "{}")
	writeFile(t, filepath.Join(in, singleName), nil, normal("a.weight", "F32", 1, 32))
	writeFile(t, filepath.Join(in, "old", "model-00001-of-00002.SafeTensors"), nil, normal("a.weight", "F32", 1, 32))
	writeFile(t, filepath.Join(in, "adapter.safetensors"), nil, normal("lora.a.weight", "F32", 1, 32))
	put(t, filepath.Join(in, "notes.safetensors"), "text")
	refused(t, in, out+"2", all(), run(), ErrModel, "old/model-00001-of-00002.SafeTensors holds")
}

// A source that changes while it is read is an error, whenever that is, and the next run mixes nothing.
func TestChangedSource(t *testing.T) {
	for _, c := range []struct{ stage, file string }{
		{Checking, "model-0.safetensors"}, {Copying, "model-0.safetensors"}, {Coding, "model-0.safetensors"},
		{Coding, "model-1.safetensors"}, {Coding, "tokenizer.json"}, {Coding, configName},
	} {
		for _, stealthy := range []bool{false, true} { // the time and size stay
			t.Run(c.stage+" "+c.file+map[bool]string{true: " stealthy"}[stealthy], func(t *testing.T) {
				src := many(t)
				m := open(t, src)
				out := filepath.Join(t.TempDir(), "out")
				p, err := PlanEncode(m, opts())
				if err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(src, c.file)
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				tensors := c.file != "tokenizer.json" && c.file != configName
				if stealthy && (!tensors || c.stage == Checking) {
					t.Skip("nothing tells")
				}
				changed := false
				r := run()
				r.Progress = func(p Progress) {
					late := c.stage != Coding || p.Finished != nil
					if p.Stage != c.stage || changed || !late {
						return
					}
					changed = true
					st, err := os.Stat(path)
					if err != nil {
						t.Fatal(err)
					}
					if tensors {
						// The last matrix of the file.
						f, err := os.OpenFile(path, os.O_RDWR, 0)
						if err != nil {
							t.Fatal(err)
						}
						if _, err := f.WriteAt([]byte{text[len(text)-2] ^ 1}, int64(len(text)-2)); err != nil {
							t.Fatal(err)
						}
						f.Close()
					} else {
						put(t, path, string(text)+" ")
					}
					when := st.ModTime().Add(time.Second)
					if stealthy {
						when = st.ModTime()
					}
					if err := os.Chtimes(path, when, when); err != nil {
						t.Fatal(err)
					}
				}
				_, err = p.Encode(context.Background(), out, r)
				if !errors.Is(err, ErrChanged) || !changed {
					t.Errorf("error %v", err)
				}
				absent(t, out)
				whole := filepath.Join(t.TempDir(), "whole")
				encode(t, src, whole, opts())
				// Another config.json is another run, which begins again.
				if _, err := plan(t, src, opts()).Encode(context.Background(), out, forced()); err != nil {
					t.Fatal(err)
				}
				same(t, tree(t, out), tree(t, whole))
			})
		}
	}
}

// With force a folder is replaced only if it holds nothing but what the run writes again, or the files of the
// model that the folder describes.
func TestForce(t *testing.T) {
	src := toy(t)
	for name, text := range map[string]string{
		".git/HEAD": `".git"`, ".git": `".git"`, "notes.md": `"notes.md"`, "src/main.go": `"src/main.go"`,
		"extra.safetensors": `"extra.safetensors"`, ".cache/x": `".cache"`, "link": `"link"`,
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			encode(t, src, out, opts())
			path := filepath.Join(out, filepath.FromSlash(name))
			if name == "link" {
				if err := os.Symlink(src, path); err != nil {
					t.Skip(err)
				}
			} else {
				put(t, path, "precious")
			}
			_, err := plan(t, src, opts()).Encode(context.Background(), out, forced())
			if err == nil || !strings.Contains(err.Error(), "what this run does not write: "+text) {
				t.Errorf("error %v", err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Error(err)
			}
			absent(t, out+partialSuffix)
			if err := plan(t, src, opts()).Check(out, forced()); err == nil {
				t.Error("not found by Check")
			}
		})
	}
	// The shards of an older model of another number of files go.
	out := filepath.Join(t.TempDir(), "out")
	encode(t, many(t), out, opts())
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, forced()); err != nil {
		t.Error(err)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	encode(t, src, whole, opts())
	same(t, tree(t, out), tree(t, whole))
	// So do those of a part: the first has an index, the second a manifest alone.
	for part := 1; part <= 2; part++ {
		o := opts()
		o.Part, o.Parts = part, 2
		path := fmt.Sprint(out, "-part-", part)
		encode(t, many(t), path, o)
		if _, err := plan(t, src, opts()).Encode(context.Background(), path, forced()); err != nil {
			t.Error(err)
		}
		same(t, tree(t, path), tree(t, whole))
	}
	// The message names one and counts the others.
	for n, want := range []string{`"0.md"; move`, `"0.md" and 1 more; move`, `"0.md" and 2 more; move`} {
		put(t, filepath.Join(out, fmt.Sprint(n, ".md")), "note")
		if err := plan(t, src, opts()).Check(out, forced()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d notes: %v, want %q", n+1, err, want)
		}
	}
}

func TestCleanName(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "./a": "a", "a/../b": "b", "a//b": "a/b", "a/": "a",
		"": "", ".": "", "a/..": "", "..": "", "../a": "", "a/../../b": "", "/a": "",
	} {
		if got, err := cleanName(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", name, got, err, want)
		}
	}
}

// A file has changed if any of its identity, its size and its time has.
func TestUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	put(t, path, "text")
	o, err := originOf(path)
	if err != nil {
		t.Fatal(err)
	}
	at := o.info.ModTime()
	for i, change := range []func() error{
		func() error { return os.Chtimes(path, at, at.Add(time.Second)) },
		func() error { return errors.Join(os.Truncate(path, 3), os.Chtimes(path, at, at)) },
		func() error {
			return errors.Join(os.Rename(path, path+"2"), os.WriteFile(path, []byte("text"), 0o666), os.Chtimes(path, at, at))
		},
		func() error { return os.Remove(path) },
	} {
		if i == 0 {
			if err := o.unchanged(); err != nil {
				t.Fatal(err)
			}
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := o.unchanged(); !errors.Is(err, ErrChanged) {
			t.Errorf("change %d: %v", i, err)
		}
		if i == 0 { // the time is as it was again
			if err := errors.Join(os.Chtimes(path, at, at), o.unchanged()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What cannot be an output is found before work starts.
func TestOutputRefused(t *testing.T) {
	src := toy(t)
	dir := t.TempDir()
	t.Chdir(dir)
	one := filepath.Join(dir, "in.st")
	writeFile(t, one, nil, normal("layers.weight", "F32", 2, 32))
	if err := os.Link(one, filepath.Join(dir, "hard.st")); err != nil {
		t.Skip(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(src, "below"), 0o777), os.Symlink(filepath.Join(src, "below"), filepath.Join(dir, "deep")),
		os.Symlink("in.st", filepath.Join(dir, "soft.st")), os.Symlink(src, filepath.Join(dir, "soft")),
		os.Symlink(filepath.Dir(src), filepath.Join(dir, "around"))); err != nil {
		t.Skip(err)
	}
	begun := false
	r := forced()
	r.Progress = func(Progress) { begun = true }
	for _, c := range []struct{ in, out, text string }{
		{src, "", "it has no name"}, {src, ".", "does not name"}, {src, "..", "does not name"}, {src, "/", "does not name"},
		{src, "a/..", "does not name"}, {src, src, "is the source itself"}, {src, "soft", "is the source itself"},
		{src, "soft/x", "is the source itself or within"}, {src, "deep/x", "is the source itself or within"}, {src, "around", "is within"}, {one, "hard.st", "is the source itself"},
		{one, "soft.st", "is the source itself"}, {one, "in.st", "is the source itself"}, {src, "none/out", "no such file"},
		{src, "in.st/out", "not a directory"}, {src, "in.st", "not a directory"}, {one, "around", "is a symbolic link"},
	} {
		_, err := plan(t, c.in, opts()).Encode(context.Background(), c.out, r)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s to %q: %v, want %q", c.in, c.out, err, c.text)
		}
		if err := plan(t, c.in, opts()).Check(c.out, r); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s to %q checked: %v", c.in, c.out, err)
		}
	}
	// A source in the folder that the run works in would be emptied.
	begin(t, many(t), filepath.Join(dir, "w"), opts(), 3)
	inside := filepath.Join(dir, "w"+partialSuffix, modelName, "model-0.safetensors")
	before := tree(t, filepath.Join(dir, "w"+partialSuffix))
	writeFile(t, inside, nil, normal("layers.weight", "F32", 2, 32))
	before[modelName+"/model-0.safetensors"] = tree(t, inside)["."]
	if _, err := plan(t, inside, opts()).Encode(context.Background(), "w", r); !errors.Is(err, ErrOutput) || !strings.Contains(err.Error(), "where the run would work") {
		t.Errorf("a source in the unfinished output: %v", err)
	}
	same(t, tree(t, filepath.Join(dir, "w"+partialSuffix)), before)
	// Hessians may lie beside the output, not in it.
	writeFile(t, filepath.Join(dir, "h", "h.safetensors"), nil, gram("layers.weight.hessian", 32))
	for _, c := range []struct{ hessians, out, text string }{
		{"h/h.safetensors", "h/h.safetensors", "which the run reads"}, {"h", "h/out.st", ""},
	} {
		path, text := c.out, c.text
		err := plan(t, one, hessianOpts(t, c.hessians)).Check(path, r)
		if err == nil != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("Hessians and %s: %v", path, err)
		}
	}
	if runtime.GOOS == "linux" {
		if _, err := plan(t, src, opts()).Encode(context.Background(), "/proc", r); err == nil || !strings.Contains(err.Error(), "mount point") {
			t.Errorf("/proc: %v", err)
		}
	}
	if begun {
		t.Error("work had begun")
	}
}

// Nothing is written through a symbolic link that stands in the unfinished output.
func TestPartialLinks(t *testing.T) {
	src := many(t)
	for _, name := range []string{"", modelName, journalName, "model/model-0.safetensors", "model/tokenizer.json", "model/config.json"} {
		t.Run("link "+name, func(t *testing.T) {
			dir := t.TempDir()
			out, other := filepath.Join(dir, "out"), filepath.Join(dir, "other")
			begin(t, src, out, opts(), 3)
			path := filepath.Join(out+partialSuffix, filepath.FromSlash(name))
			if err := os.Rename(path, other); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(other, path); err != nil {
				t.Skip(err)
			}
			before := tree(t, other)
			for _, r := range []RunOptions{run(), forced()} {
				if _, err := plan(t, src, opts()).Encode(context.Background(), out, r); !errors.Is(err, ErrPartial) {
					t.Errorf("error %v", err)
				}
			}
			same(t, tree(t, other), before)
			absent(t, out)
		})
	}
	// A file of the unfinished output that has another name elsewhere keeps its bytes there.
	dir := t.TempDir()
	out, other := filepath.Join(dir, "out"), filepath.Join(dir, "other")
	begin(t, src, out, opts(), 3)
	if err := os.Link(filepath.Join(out+partialSuffix, modelName, "model-1.safetensors"), other); err != nil {
		t.Skip(err)
	}
	before := tree(t, other)
	encode(t, src, out, opts())
	same(t, tree(t, other), before)
}

// Where two directories cannot be exchanged, what was there is put back first after a kill.
func TestReplacedPutBack(t *testing.T) {
	defer func(f func(a, b string) error) { exchange = f }(exchange)
	exchange = func(_, _ string) error { return errors.ErrUnsupported }
	src := many(t)
	dir := t.TempDir()
	out, whole := filepath.Join(dir, "out"), filepath.Join(dir, "whole")
	encode(t, src, whole, opts())
	old := opts()
	old.Params.K = 1
	encode(t, src, out, old)
	before := tree(t, out)
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, forced()); err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, out), tree(t, whole))
	absent(t, out+partialSuffix)

	// As a kill between the two renames leaves it.
	for _, r := range []RunOptions{run(), forced()} {
		out := filepath.Join(t.TempDir(), "out")
		encode(t, src, out, old)
		begin(t, src, out+"2", opts(), 12)
		if err := errors.Join(os.Rename(out+"2"+partialSuffix, out+partialSuffix), os.Rename(out, filepath.Join(out+partialSuffix, replacedName))); err != nil {
			t.Fatal(err)
		}
		_, err := plan(t, src, opts()).Encode(context.Background(), out, r)
		if !r.Force {
			if !errors.Is(err, fs.ErrExist) {
				t.Errorf("without force: %v", err)
			}
			same(t, tree(t, out), before)
			continue
		}
		if err != nil {
			t.Error(err)
		}
		same(t, tree(t, out), tree(t, whole))
		absent(t, out+partialSuffix)
	}

	// Something else has been put there since.
	begin(t, src, out+"3", opts(), 3)
	put(t, filepath.Join(out+"3"+partialSuffix, replacedName, configName), "old")
	put(t, filepath.Join(out+"3", configName), "new")
	if _, err := plan(t, src, opts()).Encode(context.Background(), out+"3", forced()); !errors.Is(err, ErrPartial) {
		t.Errorf("two to choose from: %v", err)
	}
	if got := tree(t, out+"3"+partialSuffix); got["replaced/config.json"] != "old" {
		t.Error("one of them is lost")
	}
}

// What a run leaves that was killed after it had published is removed, and never written to.
func TestLeftover(t *testing.T) {
	src := many(t)
	out := filepath.Join(t.TempDir(), "out")
	encode(t, src, out, opts())
	before := tree(t, out)
	leave := func(files map[string]string) {
		put(t, filepath.Join(out+partialSuffix, journalName), `{"format":"turbotrellis journal 1","options":"x"}`+"\n"+`{"publishing":true}`+"\n")
		for name, text := range files {
			put(t, filepath.Join(out+partialSuffix, name), text)
		}
	}
	for _, files := range []map[string]string{nil, {"model/config.json": "old"}, {"replaced/config.json": "old"}} {
		leave(files)
		if _, err := plan(t, src, opts()).Encode(context.Background(), out, run()); !errors.Is(err, fs.ErrExist) {
			t.Errorf("finished: %v", err)
		}
		absent(t, out+partialSuffix)
		same(t, tree(t, out), before)
	}
	// The result's file may still have its other name.
	one := filepath.Join(src, "model-0.safetensors")
	encode(t, one, out+".st", opts())
	old := tree(t, out+".st")
	put(t, filepath.Join(out+".st"+partialSuffix, journalName), `{"format":"turbotrellis journal 1","options":"x"}`+"\n"+`{"publishing":true}`+"\n")
	if err := os.Mkdir(filepath.Join(out+".st"+partialSuffix, modelName), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Link(out+".st", filepath.Join(out+".st"+partialSuffix, modelName, "model-0.safetensors")), os.Link(out+".st", out+".keep")); err != nil {
		t.Skip(err)
	}
	o := opts()
	o.Params.K = 1
	if _, err := plan(t, one, o).Encode(context.Background(), out+".st", forced()); err != nil {
		t.Fatal(err)
	}
	if tree(t, out+".st")["."] == old["."] || tree(t, out+".keep")["."] != old["."] {
		t.Error("the old file was written to, or not replaced")
	}
	absent(t, out+".st"+partialSuffix)
}

// The lock is held until the result is in place and the rest is gone: a second run that waits for its chance at
// every step finds either a run in progress or a finished output.
func TestLockedUntilPublished(t *testing.T) {
	src := many(t)
	out := filepath.Join(t.TempDir(), "out")
	old := opts()
	old.Params.K = 1
	encode(t, src, out, old)
	var second error
	tried := 0
	defer func(f func(a, b string) error) { exchange = f }(exchange)
	exchange = func(a, b string) error {
		for _, before := range []bool{true, false} {
			if before {
				tried++
			} else if err := atomicfile.Exchange(a, b); err != nil {
				return err
			}
			_, second = plan(t, src, opts()).Encode(context.Background(), out, forced())
			if !errors.Is(second, ErrPartial) || !strings.Contains(second.Error(), "another run is writing") {
				t.Errorf("a second run while the first publishes: %v", second)
			}
		}
		return nil
	}
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("no exchange")
	}
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, forced()); err != nil || tried != 1 {
		t.Fatal(err, tried)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	encode(t, src, whole, opts())
	same(t, tree(t, out), tree(t, whole))
	absent(t, out+partialSuffix)
}

// Files are executable as in the source; .git is left out, be it a file.
func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no execute bits")
	}
	src, out := toy(t), filepath.Join(t.TempDir(), "out")
	put(t, filepath.Join(src, "run.sh"), "#!/bin/sh\n")
	put(t, filepath.Join(src, "sub", ".git"), "gitdir: ../x\n")
	if err := os.Chmod(filepath.Join(src, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	encode(t, src, out, opts())
	for name, want := range map[string]fs.FileMode{"run.sh": 0o111, "tokenizer.json": 0} {
		if st, err := os.Stat(filepath.Join(out, name)); err != nil || st.Mode()&0o111 != want {
			t.Errorf("%s: %v, want %v (%v)", name, st.Mode(), want, err)
		}
	}
	absent(t, filepath.Join(out, "sub"))
}

// What options, shapes, headers and Hessians decide is decided before the first weight is coded.
func TestLate(t *testing.T) {
	h, err := OpenHessians("testdata/late-hessian-nan.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	src, out := "testdata/late-weights.safetensors", filepath.Join(t.TempDir(), "out")
	coded := false
	r := run()
	r.Progress = func(p Progress) { coded = coded || p.Stage == Coding }
	o := all()
	o.Hessians = h
	refused(t, src, out, o, r, ldlq.ErrHessian, "NaN")
	if coded {
		t.Error("weights had been coded")
	}
	for text, change := range map[string]func(*EncodeOptions){
		"back-pointers": func(o *EncodeOptions) { o.Params.L, o.Params.K, o.Params.T = 16, 1, 1<<11 },
		"free-ended":    func(o *EncodeOptions) { o.Params.FreeEnds = true },
	} {
		o := all()
		change(&o)
		in := filepath.Join(t.TempDir(), "in")
		writeFile(t, in, nil, normal("a.weight", "F32", 1, 1<<11))
		if _, err := PlanEncode(open(t, in), o); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("planned: %v, want %q", err, text)
		}
	}
}

// Fused experts that match, and Hessians without a matrix, are reported.
func TestPassedOver(t *testing.T) {
	o := opts()
	o.Tensors = regexp.MustCompile("experts|q_proj")
	p := plan(t, "testdata/moe-3d-experts", o)
	if got := strings.Join(p.Passed, " "); got != "layers.0.mlp.experts.gate_up_proj layers.0.mlp.experts.down_proj.weight" &&
		got != "layers.0.mlp.experts.down_proj.weight layers.0.mlp.experts.gate_up_proj" {
		t.Errorf("passed over: %s", got)
	}
	r, err := p.Encode(context.Background(), filepath.Join(t.TempDir(), "out"), run())
	if err != nil || len(r.Passed) != 2 || r.Copied != 2 || len(r.Tensors) != 1 {
		t.Errorf("%+v, %v", r, err)
	}

	// Affine rows by default: matrices are for the taking, experts were expected.
	rows, err := PlanAffine(open(t, "testdata/moe-3d-experts"), AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 32}})
	if err != nil || !slices.Equal(rows.Passed, []string{"layers.0.mlp.experts.down_proj.weight"}) {
		t.Errorf("affine: passed over %v, %v", rows.Passed, err)
	}

	dir := t.TempDir()
	in, hessians := filepath.Join(dir, "in"), filepath.Join(dir, "h")
	writeFile(t, in, nil, normal("a.weight", "F32", 2, 32), normal("b.weight", "F32", 2, 32))
	writeFile(t, hessians, nil, gram("a.weight.hessian", 32), gram("c.weight.hessian", 32), normal("x", "F32", 1))
	p = plan(t, in, hessianOpts(t, hessians))
	if len(p.NoHessian) != 1 || p.NoHessian[0] != "b.weight" || len(p.UnusedHessians) != 1 || p.UnusedHessians[0] != "c.weight.hessian" {
		t.Errorf("without %v, unused %v", p.NoHessian, p.UnusedHessians)
	}
}

// Misuse is an error and not a panic.
func TestMisuse(t *testing.T) {
	ctx := context.Background()
	var m Model
	var p Plan
	if _, err := PlanEncode(nil, opts()); !errors.Is(err, ErrModel) {
		t.Errorf("no model: %v", err)
	}
	if _, err := PlanEncode(&m, opts()); !errors.Is(err, ErrModel) {
		t.Errorf("zero Model: %v", err)
	}
	if _, err := m.Decode(ctx, "x", codec.F32, run()); !errors.Is(err, ErrSelection) {
		t.Errorf("zero Model: %v", err)
	}
	if m.Metadata() != nil || m.Coded() != nil || m.Plain() != nil || m.Files() != nil || m.IsDir() || m.Close() != nil {
		t.Error("zero Model holds something")
	}
	if _, err := m.Matrix("x"); !errors.Is(err, ErrSelection) {
		t.Errorf("zero Model: %v", err)
	}
	if _, err := p.Encode(ctx, "x", run()); !errors.Is(err, ErrModel) {
		t.Errorf("zero Plan: %v", err)
	}
	if err := p.Check("x", RunOptions{}); !errors.Is(err, ErrModel) {
		t.Errorf("zero Plan: %v", err)
	}
	if (Coded{}).Bytes() != 0 || (Coded{}).Weights() != 0 || (Planned{}).Weights() != 0 {
		t.Error("zero Coded or Planned holds something")
	}
	if err := (&Hessians{}).Close(); err != nil {
		t.Error(err)
	}
	if _, err := Merge(ctx, nil, "x", RunOptions{}); !errors.Is(err, ErrParts) {
		t.Errorf("no parts: %v", err)
	}
	src := toy(t)
	if _, err := PlanEncode(open(t, src), EncodeOptions{}); !errors.Is(err, ErrSelection) {
		t.Errorf("no selection: %v", err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := plan(t, src, opts()).Encode(ctx, out, RunOptions{}); !errors.Is(err, codec.ErrUnavailable) {
		t.Errorf("no backend: %v", err)
	}
	o := opts()
	o.Bits = BitsMap{{Pattern: "layers.0.q", Bits: 3}, {Pattern: "layers", Bits: 4}}
	if got := plan(t, src, o).Tensors; got[0].Bits != 3 || got[1].Bits != 4 {
		t.Errorf("a map that was not parsed: %v", got)
	}
	o.Bits = BitsMap{{Pattern: "(", Bits: 3}}
	if _, err := PlanEncode(open(t, src), o); !errors.Is(err, ErrSelection) {
		t.Errorf("a map with a bad pattern: %v", err)
	}
	coded := filepath.Join(t.TempDir(), "coded")
	encode(t, src, coded, opts())
	if _, err := open(t, coded).Decode(ctx, out, 0, run()); !errors.Is(err, codec.ErrDType) {
		t.Errorf("no type: %v", err)
	}
	absent(t, out, out+partialSuffix, "x", "x"+partialSuffix)
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
