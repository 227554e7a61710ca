package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

// runStore runs the command and returns its exit code and standard output.
func runStore(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Log(err)
		return 1, out.String()
	}
	return 0, out.String()
}

func TestKVStore(t *testing.T) {
	c, err := block.New(ref.New(), []block.Layer{{Heads: 1, Params: codec.KVParams{HeadDim: 32, Keys: codec.Q8_0, Values: codec.Q4_0}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	x := codec.NewTensor(codec.F32, 1, 2, 32)
	var files, keys []string
	var frames [][]byte
	var parent block.Hash
	for i, key := range block.Chain(block.Hash{}, []uint32{1, 2, 3, 4, 5, 6}, 2) {
		size, err := c.Size(2)
		if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, size)
		if _, err := c.Encode(frame, block.ID{Key: key, Parent: parent, First: uint64(2 * i), Tokens: 2}, func(int) (codec.Tensor, codec.Tensor, error) { return x, x, nil }); err != nil {
			t.Fatal(err)
		}
		files, keys, frames, parent = append(files, filepath.Join(dir, key.String())), append(keys, key.String()), append(frames, frame), key
		if err := os.WriteFile(files[i], frame, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if code, _ := runStore(t, "kv", "store", "ls", store); code == 0 {
		t.Error("ls of a store that is not there")
	}
	if code, out := runStore(t, append([]string{"kv", "store", "put", store}, files...)...); code != 0 || !strings.Contains(out, keys[1]) || !strings.Contains(out, "tokens 2 to 3, 1 layers") {
		t.Error(code, out)
	}
	if code, out := runStore(t, "kv", "store", "ls", store, "--json"); code != 0 || strings.Count(out, `"key"`) != 3 || strings.Contains(out, "error") {
		t.Error(code, out)
	}
	back := filepath.Join(dir, "back")
	if code, _ := runStore(t, "kv", "store", "get", store, keys[2], back); code != 0 {
		t.Error("get fails")
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, frames[2]) {
		t.Error("another frame", err)
	}
	if code, _ := runStore(t, "kv", "store", "get", store, keys[1], back); code == 0 {
		t.Error("get replaces a file")
	}
	if code, out := runStore(t, "kv", "store", "get", store, keys[1], "-"); code != 0 || out != string(frames[1]) {
		t.Error("get to standard output")
	}
	if code, _ := runStore(t, "kv", "store", "get", store, "00", back, "--force"); code == 0 {
		t.Error("a key of two digits")
	}
	// A damaged block is shown and is a failure; nothing else hides it.
	bad := filepath.Join(store, keys[0][:2], keys[0]+".ttkb")
	if err := os.WriteFile(bad, frames[0][:200], 0o666); err != nil {
		t.Fatal(err)
	}
	if code, out := runStore(t, "kv", "store", "ls", store); code == 0 || strings.Count(out, "\n") != 3 || !strings.Contains(out, "damaged") {
		t.Error(code, out)
	}
	if code, _ := runStore(t, "kv", "store", "put", store, bad); code == 0 {
		t.Error("put of a damaged frame")
	}
	if code, out := runStore(t, "kv", "store", "gc", store, "--max-bytes", "1"); code != 0 || !strings.HasPrefix(out, "removed 3 blocks") {
		t.Error(code, out)
	}
	if code, _ := runStore(t, "kv", "store", "gc", store); code == 0 {
		t.Error("gc without a size")
	}
}
