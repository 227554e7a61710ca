//go:build unix

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInterrupted sends a signal to the command while it computes, waits for
// standard input, or waits for a reader of its output.
func TestInterrupted(t *testing.T) {
	data, err := filepath.Abs("../../testdata/kv_minilm.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	weights, err := filepath.Abs("../../testdata/weights_minilm.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args   string
		signal syscall.Signal
		code   int
	}{
		{"verify --long", syscall.SIGINT, 130},
		{"verify --long --filter Digest(of=keys,n=1000000) --backend ref", syscall.SIGTERM, 143},
		{"trellis table --blocks 65536", syscall.SIGTERM, 143},
		{"demo", syscall.SIGINT, 130},
		{"demo --json", syscall.SIGHUP, 129},
		{"inspect -", syscall.SIGINT, 130},
		{"inspect -", syscall.SIGHUP, 129},
		{"kv encode - out", syscall.SIGINT, 130},
		{"kv decode - -", syscall.SIGTERM, 143},
		{"kv encode " + data + " -", syscall.SIGINT, 130},
		{"trellis encode " + weights + " out --tensors query|output --bits 4 --block 128 --backend ref", syscall.SIGTERM, 143},
	} {
		t.Run(test.args+" "+test.signal.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(test.signal) {
				t.Skip("this process ignores it (nohup), and so do those that it starts")
			}
			// The delay grows until the signal meets a command that is past its start.
			for delay := 50 * time.Millisecond; ; delay += delay / 2 {
				code, stderr, dir := interrupted(t, test.args, test.signal, delay)
				if code < 0 && delay < 5*time.Second {
					continue
				}
				if code != test.code || !strings.Contains(stderr, "turbotrellis: interrupted") {
					t.Errorf("exit code %d, want %d; standard error %q", code, test.code, stderr)
				}
				left, err := os.ReadDir(dir)
				if strings.HasPrefix(test.args, "trellis encode") {
					left = slices.DeleteFunc(left, func(e os.DirEntry) bool { return e.Name() == "out.partial" })
				}
				if err != nil || len(left) > 0 {
					t.Errorf("left behind: %v (%v)", left, err)
				}
				return
			}
		})
	}
}

// interrupted runs the command in an empty directory, with a standard input that
// says nothing and a standard output that nothing reads, and signals it after a
// delay. It returns the exit code, or -1 if the signal killed it.
func interrupted(t *testing.T, args string, s syscall.Signal, delay time.Duration) (code int, stderr, dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("turbotrellis", strings.Fields(args)...)
	cmd.Dir = dir
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd.Stdout = w
	var b bytes.Buffer
	cmd.Stderr = &b
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(delay)
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		t.Fatalf("%s goes on after %v", args, s)
	}
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), b.String(), dir
}

// TestIgnored starts the command with a signal ignored, as nohup and shells do:
// it stays ignored.
func TestIgnored(t *testing.T) {
	file, err := os.ReadFile("../../testdata/kv_minilm.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		name   string
		signal syscall.Signal
	}{{"HUP", syscall.SIGHUP}, {"INT", syscall.SIGINT}} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sh", "-c", `trap "" `+s.name+`; exec turbotrellis inspect -`)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			// More than a pipe holds: once it is written, the command reads.
			if _, err := stdin.Write(file[:len(file)-1]); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(s.signal); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * grace)
			if _, err := io.WriteString(stdin, string(file[len(file)-1:])); err != nil {
				t.Fatal(err)
			}
			stdin.Close()
			if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "layers.3.values") {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
}
