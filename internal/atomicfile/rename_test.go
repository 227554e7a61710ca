package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// The temporary file of a killed process is removed by the next one that writes there; that of a running one and
// what only looks like one are not.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, tempPrefix+"killed"+tempSuffix)
	put(t, stale, "half")
	put(t, filepath.Join(dir, "victim"), "precious")
	put(t, filepath.Join(dir, tempPrefix+"notes"), "other suffix")
	if err := os.Symlink("victim", filepath.Join(dir, tempPrefix+"link"+tempSuffix)); err != nil {
		t.Skip(err)
	}
	running := create(t, filepath.Join(dir, "first"), Options{}, "first")
	if _, err := os.Lstat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the killed one's: %v", err)
	}
	second := create(t, filepath.Join(dir, "second"), Options{}, "second")
	if err := errors.Join(running.Commit(), second.Commit()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"first": "first", "second": "second", "victim": "precious", tempPrefix + "notes": "other suffix"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestMoveNew(t *testing.T) {
	for name, move := range map[string]func(from, to string) error{"system call": MoveNew, "without": moveNew, "claimed": moveClaimed} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			put(t, from, "new")
			put(t, to, "old")
			if err := move(from, to); !errors.Is(err, fs.ErrExist) {
				t.Errorf("to an existing file: %v", err)
			}
			holds(t, dir, map[string]string{"from": "new", "to": "old"})
			if err := os.Remove(to); err != nil {
				t.Fatal(err)
			}
			if err := move(from, to); err != nil {
				t.Error(err)
			}
			holds(t, dir, map[string]string{"to": "new"})
		})
	}
	// A rename onto an empty directory would succeed.
	for name, move := range map[string]func(from, to string) error{"system call": MoveNew, "without": moveNew} {
		t.Run(name+", directories", func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			if err := errors.Join(os.Mkdir(from, 0o777), os.Mkdir(to, 0o777)); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(from, "x"), "new")
			if err := move(from, to); !errors.Is(err, fs.ErrExist) {
				t.Errorf("to an existing directory: %v", err)
			}
			if err := errors.Join(os.Remove(to), move(from, to)); err != nil {
				t.Error(err)
			}
			holds(t, to, map[string]string{"x": "new"})
		})
	}
}

func TestExchange(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := errors.Join(os.Mkdir(a, 0o777), os.Mkdir(b, 0o777)); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(a, "x"), "of a")
	put(t, filepath.Join(b, "y"), "of b")
	switch err := Exchange(a, b); {
	case errors.Is(err, errors.ErrUnsupported) && runtime.GOOS != "linux" && runtime.GOOS != "darwin":
		holds(t, a, map[string]string{"x": "of a"})
		holds(t, b, map[string]string{"y": "of b"})
		return
	case err != nil:
		t.Fatal(err)
	}
	holds(t, a, map[string]string{"y": "of b"})
	holds(t, b, map[string]string{"x": "of a"})
	if err := Exchange(a, filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with nothing: %v", err)
	}
}

func TestMovable(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "x"), "")
	if err := Movable(filepath.Join(dir, "x")); err != nil {
		t.Error(err)
	}
	if runtime.GOOS == "linux" {
		if err := Movable("/proc"); err == nil {
			t.Error("/proc is movable")
		}
	}
}

func TestTryLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	put(t, path, "")
	var files [3]*os.File
	for i := range files {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	switch runtime.GOOS {
	case "darwin", "dragonfly", "freebsd", "linux", "netbsd", "openbsd", "windows":
	default:
		t.Skip("no locks")
	}
	if !TryLock(files[0]) || TryLock(files[1]) {
		t.Error("the lock does not exclude")
	}
	files[0].Close()
	if !TryLock(files[2]) {
		t.Error("the lock outlives the file")
	}
}
