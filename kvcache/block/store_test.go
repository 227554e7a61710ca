package block_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

var small = []block.Layer{{Heads: 1, Params: codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q4_0}}}

var model = block.Hash{7}

func openStore(t testing.TB, dir string, o block.StoreOptions) *block.Store {
	t.Helper()
	s, err := block.OpenStore(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func tokensOf(n, seed int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i*7919 + seed)
	}
	return tokens
}

// frames returns the blocks of 4 tokens of a sequence.
func frames(t testing.TB, tokens []uint32) [][]byte {
	c := newCodec(t, small)
	k, v := source(small, 4)
	var all [][]byte
	var parent block.Hash
	for i, key := range block.Chain(model, tokens, 4) {
		codec.F32.Store(k[0].Data, float32(tokens[4*i]%97)/97)
		all = append(all, encode(t, c, block.ID{Fingerprint: model, Key: key, Parent: parent, First: uint64(4 * i), Tokens: 4}, k, v))
		parent = key
	}
	return all
}

func put(t testing.TB, s *block.Store, all [][]byte) {
	t.Helper()
	for _, f := range all {
		if err := s.Put(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
}

// Keys are SHA-256 as the page defines them.
func TestChain(t *testing.T) {
	tokens := []uint32{1, 2, 3, 0xffffffff, 5}
	keys := block.Chain(model, tokens, 2)
	var parent block.Hash
	for i, key := range keys {
		text := slices.Concat(model[:], parent[:])
		for _, x := range tokens[2*i : 2*i+2] {
			text = binary.LittleEndian.AppendUint32(text, x)
		}
		if parent = sha256.Sum256(text); parent != key {
			t.Errorf("block %d: %v", i, key)
		}
	}
	if len(keys) != 2 || block.Chain(model, tokens, 0) != nil || len(block.Chain(model, tokens, 6)) != 0 {
		t.Error(keys)
	}
	if h, err := block.ParseHash(keys[0].String()); h != keys[0] || err != nil {
		t.Error(h, err)
	}
	for _, s := range []string{"", "00", strings.Repeat("0", 63) + "g"} {
		if _, err := block.ParseHash(s); !errors.Is(err, block.ErrSpec) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestStore(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "new", "store"), block.StoreOptions{})
	tokens := tokensOf(18, 0)
	all := frames(t, tokens)
	put(t, s, all[:3])
	found, err := s.Longest(model, tokens, 4)
	if err != nil || !slices.Equal(found, block.Chain(model, tokens, 4)[:3]) {
		t.Fatal(found, err)
	}
	other := slices.Clone(tokens)
	other[5]++
	if found, err := s.Longest(model, other, 4); err != nil || len(found) != 1 {
		t.Error(found, err)
	}
	if found, err := s.Longest(block.Hash{8}, tokens, 4); err != nil || len(found) != 0 {
		t.Error("another model's blocks", found, err)
	}
	if _, err := s.Longest(model, tokens, 0); !errors.Is(err, block.ErrSpec) {
		t.Error(err)
	}
	buf := []byte("before")
	for i, key := range found {
		got, err := s.Get(buf, key)
		if err != nil || !bytes.Equal(got[:6], buf) || !bytes.Equal(got[6:], all[i]) {
			t.Errorf("block %d: %v", i, err)
		}
	}
	if got, err := s.Get(buf, block.Hash{9}); !errors.Is(err, block.ErrNotFound) || string(got) != "before" {
		t.Error(err)
	}
	if err := s.Put(t.Context(), all[0][:100]); !errors.Is(err, block.ErrDamaged) {
		t.Error(err)
	}
	entries, err := s.List(t.Context())
	if err != nil || len(entries) != 3 {
		t.Error(entries, err)
	}
}

// A damaged block, and one under another's name, is refused and then written anew.
func TestStoreDamage(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, block.StoreOptions{})
	tokens := tokensOf(8, 0)
	all := frames(t, tokens)
	put(t, s, all)
	keys := block.Chain(model, tokens, 4)
	file := func(k block.Hash) string { return filepath.Join(dir, k.String()[:2], k.String()+".ttkb") }
	for name, content := range map[string][]byte{"cut": all[0][:250], "empty": {}, "flipped": func() []byte {
		b := bytes.Clone(all[0])
		b[len(b)-1] ^= 1
		return b
	}(), "another": all[1]} {
		if err := os.WriteFile(file(keys[0]), content, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(nil, keys[0]); !errors.Is(err, block.ErrDamaged) && !errors.Is(err, block.ErrFormat) && !errors.Is(err, block.ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
		put(t, s, all[:1])
		if got, err := s.Get(nil, keys[0]); err != nil || !bytes.Equal(got, all[0]) {
			t.Errorf("%s, put again: %v", name, err)
		}
	}
	// A file that is longer than memory, nearly all of it a hole.
	if err := os.Truncate(file(keys[0]), 1<<43); err != nil {
		t.Skip(err)
	}
	if _, err := s.Get(nil, keys[0]); !errors.Is(err, block.ErrDamaged) || !strings.Contains(err.Error(), keys[0].String()) {
		t.Errorf("long: %v", err)
	}
	put(t, s, all[:1])
	if got, err := s.Get(nil, keys[0]); err != nil || !bytes.Equal(got, all[0]) {
		t.Errorf("long, put again: %v", err)
	}
}

// GC keeps the most recently used, a sequence's beginning before its end, whatever the clock says; and it leaves
// files of others alone.
func TestGC(t *testing.T) {
	dir := t.TempDir()
	tokens, later := tokensOf(40, 0), tokensOf(40, 1)
	all, newer := frames(t, tokens), frames(t, later)
	s := openStore(t, dir, block.StoreOptions{MaxBytes: int64(15 * len(all[0]))})
	unbounded := openStore(t, dir, block.StoreOptions{})
	put(t, unbounded, all)
	put(t, unbounded, newer)
	notes, stale := filepath.Join(dir, "notes.txt"), filepath.Join(dir, "00", ".tmp-1")
	for _, f := range []string{notes, stale} {
		if err := os.MkdirAll(filepath.Dir(f), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(stale, old, old); err != nil {
		t.Fatal(err)
	}
	age := func(list [][]byte, by time.Duration) {
		entries, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			key, when := block.Hash(f[72:104]), time.Now().Add(-by)
			if !slices.ContainsFunc(entries, func(e block.Entry) bool { return e.Key == key }) {
				continue
			}
			if err := os.Chtimes(filepath.Join(dir, key.String()[:2], key.String()+".ttkb"), when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	age(all, 10*time.Minute)
	age(newer, -24*time.Hour) // a clock that has gone back
	removed, err := s.GC(t.Context())
	if err != nil || len(removed) != 5 {
		t.Fatal(len(removed), err)
	}
	if found, err := s.Longest(model, tokens, 4); err != nil || len(found) != 5 {
		t.Errorf("%d blocks from the beginning, want 5: %v", len(found), err)
	}
	if found, err := s.Longest(model, later, 4); err != nil || len(found) != 10 {
		t.Errorf("%d blocks of the newer sequence, want 10: %v", len(found), err)
	}
	if _, err := os.Stat(notes); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Error("a killed process's file is still there:", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.GC(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Put bounds the store by itself.
	for seed := range 10 {
		put(t, s, frames(t, tokensOf(40, 100+seed)))
	}
	entries, err := s.List(t.Context())
	if err != nil || len(entries) > 16 {
		t.Errorf("%d blocks, want at most 16: %v", len(entries), err)
	}
}

// check reads every block of a store.
func check(t *testing.T, s *block.Store, least int) {
	t.Helper()
	entries, err := s.List(t.Context())
	if err != nil || len(entries) < least {
		t.Fatalf("%d blocks, want %d: %v", len(entries), least, err)
	}
	for _, e := range entries {
		if _, err := s.Get(nil, e.Key); err != nil {
			t.Error(err)
		}
	}
}

const childVariable = "TURBOTRELLIS_BLOCK_CHILD"

// TestChild is what the tests below start as a process of its own: it puts blocks until it is killed, and says when
// the first is there.
func TestChild(t *testing.T) {
	dir := os.Getenv(childVariable)
	if dir == "" {
		t.Skip("for TestKilled")
	}
	s := openStore(t, dir, block.StoreOptions{})
	all := frames(t, tokensOf(400, 0))
	for i := 0; ; i++ {
		f := all[i%len(all)]
		if err := os.Remove(filepath.Join(dir, fmt.Sprintf("%x", f[72:73]), fmt.Sprintf("%x.ttkb", f[72:104]))); i >= len(all) && err != nil {
			t.Log(err) // the other process may have
		}
		put(t, s, [][]byte{f})
		if i == 0 {
			fmt.Println("\nready")
		}
	}
}

// TestKilled kills two writers at once, 50 times, and never sees a part of a block.
func TestKilled(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tries := 50
	if testing.Short() {
		tries = 5
	}
	for try := range tries {
		var both sync.WaitGroup
		for range 2 {
			c := exec.Command(exe, "-test.run=^TestChild$")
			c.Env = append(os.Environ(), childVariable+"="+dir)
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Skip(err) // a platform without processes
			}
			both.Go(func() {
				for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
				}
				time.Sleep(time.Duration(try) * 500 * time.Microsecond)
				_ = c.Process.Kill()
				_ = c.Wait()
			})
		}
		both.Wait()
		check(t, openStore(t, dir, block.StoreOptions{}), 1)
	}
}

// Many goroutines put, get and collect at once.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	tokens := tokensOf(80, 0)
	all := frames(t, tokens)
	var wg sync.WaitGroup
	for g := range 4 {
		s := openStore(t, dir, block.StoreOptions{MaxBytes: int64(10 * len(all[0]))})
		wg.Go(func() {
			for i := range 60 {
				f := all[(i*(g+1))%len(all)]
				if err := s.Put(t.Context(), f); err != nil {
					t.Error(err)
				}
				if got, err := s.Get(nil, block.Hash(f[72:104])); err != nil && !errors.Is(err, block.ErrNotFound) || err == nil && !bytes.Equal(got, f) {
					t.Error(err)
				}
				if _, err := s.Longest(model, tokens, 4); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	check(t, openStore(t, dir, block.StoreOptions{}), 1)
}

// FuzzStore: whatever lies in a store's folder, Get returns a sound frame of the key or an error.
func FuzzStore(f *testing.F) {
	good := frames(f, tokensOf(8, 3))
	key := block.Chain(model, tokensOf(8, 3), 4)[0]
	f.Add(good[0], "x")
	f.Add(good[1], ".tmp-1")
	f.Add(good[0][:100], key.String()+".ttkb")
	f.Add([]byte{}, strings.Repeat("0", 64)+".ttkb")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		dir := t.TempDir()
		s := openStore(t, dir, block.StoreOptions{})
		folder := filepath.Join(dir, key.String()[:2])
		if err := os.Mkdir(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{key.String() + ".ttkb", filepath.Base(name)} {
			os.WriteFile(filepath.Join(folder, name), data, 0o666) // some names no file can have
		}
		if got, err := s.Get(nil, key); err == nil && !bytes.Equal(got, good[0]) && !bytes.Equal(got, data) {
			t.Error("Get returned neither the frame nor the file")
		} else if id, _, e := block.Inspect(data); err == nil && (e != nil || id.Key != key) {
			t.Errorf("Get accepted a frame of %v: %v", id.Key, e)
		}
		if _, err := s.List(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A Store that was not opened is an error, not a panic.
func TestZeroStore(t *testing.T) {
	frame := frames(t, tokensOf(4, 0))[0]
	for _, s := range []*block.Store{nil, {}} {
		_, get := s.Get(nil, block.Hash{})
		_, longest := s.Longest(block.Hash{}, nil, 1)
		_, list := s.List(t.Context())
		_, gc := s.GC(t.Context())
		for i, err := range []error{s.Put(t.Context(), frame), get, longest, list, gc, s.Close()} {
			if !errors.Is(err, block.ErrSpec) {
				t.Errorf("%v, call %d: %v", s, i, err)
			}
		}
	}
}
