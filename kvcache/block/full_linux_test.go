package block_test

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

// A disk without room is an error, and leaves nothing under the block's name and no temporary file.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv("TURBOTRELLIS_BLOCK_FULL"); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		var old syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
		// Not to the end of the process, which may have coverage to write.
		defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 300, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, dir, block.StoreOptions{})
		if err := s.Put(t.Context(), frames(t, tokensOf(4, 0))[0]); err == nil {
			t.Error("no error")
		}
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := exec.Command(exe, "-test.run=^TestFullDisk$")
	c.Env = append(os.Environ(), "TURBOTRELLIS_BLOCK_FULL="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		if errors.Is(err, syscall.ENOEXEC) {
			t.Skip("run by an emulator: ", err)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		inside, err := os.ReadDir(dir + "/" + f.Name())
		if err != nil || len(inside) > 0 {
			t.Error(inside, err)
		}
	}
	s := openStore(t, dir, block.StoreOptions{})
	put(t, s, frames(t, tokensOf(4, 0)))
	check(t, s, 1)
}
