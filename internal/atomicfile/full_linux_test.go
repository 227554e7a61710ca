package atomicfile

import (
	"errors"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A limit on the size of files stands in for a full disk: both cut a write short.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	put(t, path, "old")

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1000, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	f, err := Create(path, Options{Force: true})
	if err == nil {
		_, err = f.Write(make([]byte, 2000))
	}
	if e := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), path) {
		t.Fatalf("Write: %v", err)
	}
	if err := f.Commit(); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("Commit: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	holds(t, dir, map[string]string{"out": "old"})
}
