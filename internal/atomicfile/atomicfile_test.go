package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// holds checks that dir has exactly the named files with the given contents.
func holds(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := want[e.Name()]; !ok {
			t.Errorf("%s is left over", e.Name())
		}
	}
	for name, content := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v; want %q", name, got, err, content)
		}
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, path string, opts Options, content string) *File {
	t.Helper()
	f, err := Create(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, content); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f := create(t, path, Options{}, "hello")
	if _, err := f.WriteAt([]byte("J"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before Commit: %v", err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second Commit: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("Close after Commit: %v", err)
	}
	holds(t, dir, map[string]string{"out": "Jello"})
}

func TestClose(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "old"), "old")
	for _, f := range []*File{
		create(t, filepath.Join(dir, "out"), Options{}, "new"),
		create(t, filepath.Join(dir, "old"), Options{Force: true}, "new"),
	} {
		for range 2 {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Commit after Close: %v", err)
		}
	}
	holds(t, dir, map[string]string{"old": "old"})
}

func TestExists(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	put(t, path, "old")
	if _, err := Create(path, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create: %v", err)
	}
	holds(t, dir, map[string]string{"out": "old"})
	if err := create(t, path, Options{Force: true}, "new").Commit(); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, map[string]string{"out": "new"})
}

// A target that appears after Create survives, with and without hard links.
func TestAppears(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	f := create(t, path, Options{}, "new")
	put(t, path, "other")
	if err := f.Commit(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Commit: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	holds(t, dir, map[string]string{"out": "other"})

	f = create(t, filepath.Join(dir, "out2"), Options{}, "new")
	if err := moveClaimed(f.f.Name(), path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("moveClaimed: %v", err)
	}
	if err := moveClaimed(f.f.Name(), filepath.Join(dir, "out2")); err != nil {
		t.Error(err)
	}
	holds(t, dir, map[string]string{"out": "other", "out2": "new"})
	if err := moveClaimed(filepath.Join(dir, "none"), filepath.Join(dir, "out3")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("moveClaimed of nothing: %v", err)
	}
	holds(t, dir, map[string]string{"out": "other", "out2": "new"})
	f.f.Close()
}

// Of many at once, one wins, and its content stays.
func TestRace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	const n = 16
	var files [n]*File
	for i := range files {
		files[i] = create(t, path, Options{}, fmt.Sprint(i))
	}
	var errs [n]error
	var wg sync.WaitGroup
	for i, f := range files {
		wg.Go(func() { errs[i] = errors.Join(f.Commit(), f.Close()) })
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner < 0:
			winner = i
		case err == nil:
			t.Errorf("both %d and %d succeeded", winner, i)
		case !errors.Is(err, fs.ErrExist):
			t.Errorf("%d: %v", i, err)
		}
	}
	holds(t, dir, map[string]string{"out": fmt.Sprint(winner)})
}

func TestNotRegular(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, os.DevNull} {
		if _, err := Create(path, Options{Force: true}); err == nil {
			t.Errorf("%s is to be replaced", path)
		}
	}
	if _, err := Create(filepath.Join(dir, "none", "out"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
	holds(t, dir, nil)
}

func TestSymlinks(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	link, dangling := filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	if err := os.Mkdir(sub, 0o777); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(sub, "file"), "old")
	if err := os.Symlink(filepath.Join("sub", "file"), link); err != nil {
		t.Skip(err) // Windows asks for a privilege
	}
	if err := os.Symlink("none", dangling); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dangling} {
		if _, err := Create(path, Options{}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{link, dangling} {
		if err := create(t, path, Options{Force: true}, "new").Commit(); err != nil {
			t.Error(err)
		}
	}
	holds(t, sub, map[string]string{"file": "new"})
	if st, err := os.Lstat(link); err != nil || st.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link is gone: %v, %v", st, err)
	}
	if st, err := os.Lstat(dangling); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the dangling link is still there: %v, %v", st, err)
	}
}

func TestPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no permissions")
	}
	dir := t.TempDir()
	mode := func(path string) fs.FileMode {
		t.Helper()
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	put(t, filepath.Join(dir, "usual"), "")
	path := filepath.Join(dir, "new")
	if err := create(t, path, Options{}, "").Commit(); err != nil {
		t.Fatal(err)
	}
	if got, want := mode(path), mode(filepath.Join(dir, "usual")); got != want {
		t.Errorf("new file: %v, want %v", got, want)
	}
	for _, want := range []fs.FileMode{0o600, 0o666, 0o755} {
		if err := os.Chmod(path, want); err != nil {
			t.Fatal(err)
		}
		if err := create(t, path, Options{Force: true}, "").Commit(); err != nil {
			t.Fatal(err)
		}
		if got := mode(path); got != want {
			t.Errorf("replaced file: %v, want %v", got, want)
		}
	}
}

// A failed write, even one whose error the caller drops, is never committed.
func TestFailedWrite(t *testing.T) {
	for _, force := range []bool{false, true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "out")
		want := map[string]string{}
		if force {
			put(t, path, "old")
			want["out"] = "old"
		}
		f := create(t, path, Options{Force: force}, "some")
		if _, err := f.WriteAt([]byte("x"), -1); err == nil {
			t.Fatal("write before the start")
		}
		if _, err := f.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		if err := f.Commit(); err == nil {
			t.Error("committed after a failed write")
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		holds(t, dir, want)
	}
}
