package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turbotrellis/turbotrellis/trellis"
)

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
	// Manifests that parse and cannot be. The first part's says what is in the files.
	text, err = os.ReadFile(filepath.Join(dir, "part-1-2", partName))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ old, new, says string }{
		{`"name":"a.safetensors"`, `"name":"./a.safetensors"`, `a file called "./a.safetensors"`},
		{`"name":"a.safetensors"`, `"name":"../a.safetensors"`, `a file called "../a.safetensors"`},
		{`"part":1}`, `"part":0}`, "is in part 0 of 2"},
		{`"part":1}`, `"part":3}`, "is in part 3 of 2"},
		{`"dtype":"U32"`, `"dtype":"I32"`, "of type I32"},
		{`"shape":[6,`, `"shape":[7,`, "and shape [7 "},
		{`"part":1,"parts":2`, `"part":1,"parts":65536`, "different runs"},
		{`"part":1,"parts":2`, `"part":1,"parts":65537`, "part 1 of 65537"},
		{`"part":1,"parts":2`, `"part":0,"parts":2`, "part 0 of 2"},
	} {
		if !strings.Contains(string(text), c.old) {
			t.Fatalf("no %s in %s", c.old, text)
		}
		name := fmt.Sprint("edited", i)
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(dir, "part-1-2"))); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, name, partName), strings.Replace(string(text), c.old, c.new, 1))
		refused(c.says, name, "part-2-2")
	}
	put(t, filepath.Join(dir, "unfinished"+partialSuffix, journalName), "")
	refused("is not finished", "unfinished")
}

// What was begun as one part does not become another.
func TestPartsApart(t *testing.T) {
	src, out := many(t), filepath.Join(t.TempDir(), "out")
	o := opts()
	o.Part, o.Parts = 1, 2
	begin(t, src, out, o, 1)
	before := tree(t, filepath.Dir(out))
	o.Part = 2
	if _, err := plan(t, src, o).Encode(context.Background(), out, run()); !errors.Is(err, ErrPartial) || !strings.Contains(err.Error(), "part 1/2") {
		t.Errorf("part 2 over part 1: %v", err)
	}
	same(t, tree(t, filepath.Dir(out)), before)
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
		tensors = append(tensors, Planned{Name: string(rune('a' + i)), Shape: []int{1, n}})
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

// What is copied is in part 1 alone, further files too.
func TestPartsCarry(t *testing.T) {
	src := toy(t)
	for part, want := range map[int][]string{
		1: {"1_Pooling/config.json", "a.safetensors", "b.safetensors", "config.json", "model.safetensors.index.json", "tokenizer.json", partName},
		2: {"a.safetensors", "b.safetensors", partName},
		3: {"a.safetensors", "b.safetensors", partName},
	} {
		o := opts()
		o.Part, o.Parts = part, 3
		out := filepath.Join(t.TempDir(), "out")
		r := encode(t, src, out, o)
		if got := slices.Sorted(maps.Keys(tree(t, out))); !slices.Equal(got, want) {
			t.Errorf("part %d has %v, want %v", part, got, want)
		}
		if want := map[bool]int{true: 2}[part == 1]; r.Copied != want {
			t.Errorf("part %d copied %d tensors, want %d", part, r.Copied, want)
		}
	}
}
