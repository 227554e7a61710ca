//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
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

// promised is how soon after the first signal docs/promises.md says that a command has ended.
const promised = 100 * time.Millisecond

func init() { commands["stubborn"] = stubborn }

// TestInterrupted sends a signal to the command while it computes, waits for
// standard input, or waits for a reader of its output. The command ends in the
// promised time. A busy machine delays it, so it may have some tries.
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
		{"report - --html out", syscall.SIGINT, 130},
		{"report " + data + " --html out --backend ref", syscall.SIGTERM, 143},
		{"trellis encode " + weights + " out --tensors query|output --bits 4 --block 128 --backend ref", syscall.SIGTERM, 143},
	} {
		t.Run(test.args+" "+test.signal.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(test.signal) {
				t.Skip("this process ignores it (nohup), and so do those that it starts")
			}
			// The delay grows until the signal meets a command that is past its start.
			late := 0
			for delay := 50 * time.Millisecond; ; {
				code, stderr, dir, took := interrupted(t, test.args, test.signal, delay)
				if code < 0 && delay < 5*time.Second {
					delay += delay / 2
					continue
				}
				if took > promised && late < 20 {
					late++
					continue
				}
				if took > promised {
					t.Errorf("ended %v after the signal, want %v at most", took, promised)
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
// delay. It returns the exit code, or -1 if the signal killed it, and how long
// after the signal the command ended.
func interrupted(t *testing.T, args string, s syscall.Signal, delay time.Duration) (code int, stderr, dir string, took time.Duration) {
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
	sent := time.Now()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
		took = time.Since(sent)
	case <-time.After(time.Minute):
		cmd.Process.Kill()
		t.Fatalf("%s goes on after %v", args, s)
	}
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), b.String(), dir, took
}

// stubborn is a command whose work does not stop after a signal and whose
// clean-up does not end.
func stubborn() {
	cleanups.add(func() { time.Sleep(time.Hour) })
	os.Exit(untilSignal(func(ctx context.Context) int {
		fmt.Println("working")
		<-ctx.Done()
		fmt.Println("told to stop")
		time.Sleep(time.Hour)
		return exitOK
	}))
}

// TestSecondSignal sends two signals to a command that the first one does not
// end: the second has its default action.
func TestSecondSignal(t *testing.T) {
	for _, test := range []struct{ first, second syscall.Signal }{
		{syscall.SIGINT, syscall.SIGINT},
		{syscall.SIGTERM, syscall.SIGINT},
		{syscall.SIGINT, syscall.SIGTERM},
		{syscall.SIGHUP, syscall.SIGHUP},
	} {
		t.Run(fmt.Sprint(test.first, " ", test.second), func(t *testing.T) {
			if signal.Ignored(test.first) || signal.Ignored(test.second) {
				t.Skip("this process ignores it (nohup), and so do those that it starts")
			}
			cmd := exec.Command("stubborn")
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
			lines := bufio.NewScanner(stdout)
			for _, step := range []struct {
				said string
				send syscall.Signal
			}{{"working", test.first}, {"told to stop", test.second}} {
				if !lines.Scan() || lines.Text() != step.said {
					t.Fatalf("it says %q, want %q", lines.Text(), step.said)
				}
				if err := cmd.Process.Signal(step.send); err != nil {
					t.Fatal(err)
				}
			}
			cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !status.Signaled() || status.Signal() != test.second {
				t.Errorf("%v, want it killed by %v", cmd.ProcessState, test.second)
			}
		})
	}
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
