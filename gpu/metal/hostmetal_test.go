//go:build metal && hostmetal

package metal_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

// What hostmetal.h declares: any driver has loaded it into the process by the time it is asked for.
var (
	liveCount   func(name *byte) int
	setFault    func(name string, n int) int32
	clearFaults func()
	setAbort    func(on int32)
	misuses     func() uint
	lastMisuse  func() string
	hooks       = sync.OnceFunc(func() {
		for f, name := range map[any]string{
			&liveCount: "hostmetal_live_count", &setFault: "hostmetal_set_fault", &clearFaults: "hostmetal_clear_faults",
			&setAbort: "hostmetal_set_abort", &misuses: "hostmetal_misuses", &lastMisuse: "hostmetal_last_misuse",
		} {
			purego.RegisterLibFunc(f, purego.RTLD_DEFAULT, name)
		}
	})
)

// liveObjects counts Metal's objects.
func liveObjects() int {
	hooks()
	return liveCount(nil)
}

// fault sets a fault until the end of the test.
func fault(t *testing.T, name string, n int) {
	t.Helper()
	hooks()
	t.Cleanup(clearFaults)
	if setFault(name, n) != 0 {
		t.Fatal("hostmetal has no fault", name)
	}
}

// Everything goes with the device, whether it was released or not.
func TestNothingLeft(t *testing.T) {
	open(t).Close()
	if n := liveObjects(); n != 0 {
		t.Fatal(n, "objects before")
	}
	d := open(t)
	l := library(t, d)
	add := pipeline(t, l, "add")
	x, y := buffer(t, d, 256), buffer(t, d, 256)
	run(t, d, addTo(add, x, 0, 64, 1), addTo(add, y, 0, 64, 1))
	x.Release()
	if _, err := d.NewLibrary("kernel", gpu.CompileOptions{}); !errors.Is(err, gpu.ErrCompile) {
		t.Error(err)
	}
	if _, err := l.Pipeline("subtract"); !errors.Is(err, gpu.ErrNoFunction) {
		t.Error(err)
	}
	runtime.GC()
	if n := liveObjects(); n < 4 { // the device, its queue, the library, the pipeline, a buffer
		t.Error("only", n, "objects")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := liveObjects(); n != 0 {
		t.Error(n, "objects after Close")
	}
	if _, err := metal.List(); err != nil {
		t.Error(err)
	}
	if n := liveObjects(); n != 0 {
		t.Error(n, "objects after List")
	}
}

// Every injected fault has its error, leaves nothing behind, and the device works afterwards.
func TestFaults(t *testing.T) {
	d := open(t)
	l := library(t, d)
	x := addTo(pipeline(t, l, "add"), buffer(t, d, 256), 0, 64, 1)
	openIt := func() error {
		e, err := metal.Open(gpu.Options{})
		if err == nil {
			e.Close()
		}
		return err
	}
	compile := func() error { _, err := d.NewLibrary(source, gpu.CompileOptions{}); return err }
	prepare := func() error { _, err := l.Pipeline("add"); return err }
	allocate := func() error { _, err := d.NewBuffer(64); return err }
	once := func() error { _, err := d.Run(x); return err }
	for _, test := range []struct {
		fault string
		n     int
		call  func() error
		want  error
		text  string
	}{
		{"no-device", -1, openIt, gpu.ErrUnavailable, "no Metal device"},
		{"no-device", 1, openIt, nil, ""}, // MTLCopyAllDevices has one
		{"no-queue", -1, openIt, gpu.ErrUnavailable, "command queue"},
		{"no-library", 1, compile, gpu.ErrCompile, "injected"},
		{"no-function", 1, prepare, gpu.ErrNoFunction, "add"},
		{"no-pipeline", 1, prepare, gpu.ErrPipeline, "injected"},
		{"no-buffer", 1, allocate, gpu.ErrOutOfMemory, "64 bytes"},
		{"no-command-buffer", 1, once, gpu.ErrFailed, "command buffer"},
		{"no-encoder", 1, once, gpu.ErrFailed, "encoder"},
		{"command-out-of-memory", 1, once, gpu.ErrOutOfMemory, "Insufficient Memory"},
		{"command-timeout", 1, once, gpu.ErrTimeout, "Timeout"},
		{"command-page-fault", 1, once, gpu.ErrPageFault, "Address Fault"},
	} {
		before := liveObjects()
		fault(t, test.fault, test.n)
		err := test.call()
		clearFaults()
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", test.fault, err, test.want)
		} else if err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v does not say %q", test.fault, err, test.text)
		}
		if after := liveObjects(); after != before {
			t.Errorf("%s: %d objects, were %d", test.fault, after, before)
		}
		clear(x.Buffers[0].Buffer.Bytes())
		if err := once(); err != nil || words(x.Buffers[0].Buffer)[63] != 1 {
			t.Errorf("after %s: %v, %v", test.fault, err, words(x.Buffers[0].Buffer))
		}
	}
	d.Close()
	if n := liveObjects(); n != 0 {
		t.Error(n, "objects after Close")
	}
}

// A fault in the middle of a list, and one that another goroutine's Run meets, stop neither the device nor the others.
func TestFaultUnderLoad(t *testing.T) {
	d := open(t)
	l := library(t, d)
	p := pipeline(t, l, "add")
	fault(t, "command-timeout", 7)
	fault(t, "no-buffer", 11)
	fault(t, "no-encoder", 13)
	var mu sync.Mutex
	failed := map[error]int{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 10 {
				b, err := d.NewBuffer(256)
				if err == nil {
					_, err = d.Run(addTo(p, b, 0, 64, 2), addTo(p, b, 0, 64, 3))
					if got := words(b)[63]; err == nil && got != 5 {
						t.Error(got)
					}
					b.Release()
				}
				if err != nil {
					mu.Lock()
					failed[errors.Unwrap(err)]++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if len(failed) != 3 || failed[gpu.ErrTimeout] != 1 || failed[gpu.ErrOutOfMemory] != 1 || failed[gpu.ErrFailed] != 1 {
		t.Error(failed)
	}
	d.Close()
	if n := liveObjects(); n != 0 {
		t.Error(n, "objects after Close")
	}
}

func TestTraits(t *testing.T) {
	open(t).Close()
	fault(t, "width-16", 1)
	fault(t, "threads-256", 1)
	fault(t, "little-memory", 1)
	d := open(t)
	if a := d.Info().Architecture; !strings.HasPrefix(a, "hostmetal-") { // told by architecture.name, which old systems lack
		t.Errorf("architecture %q", a)
	}
	p := pipeline(t, library(t, d), "add")
	if p.ExecutionWidth() != 16 || p.MaxThreads() != 256 || d.Info().MaxThreads[0] != 256 {
		t.Error(p.ExecutionWidth(), p.MaxThreads(), d.Info())
	}
	x := addTo(p, buffer(t, d, 1024), 0, 256, 1)
	x.GroupSize[0] = 257
	if _, err := d.Run(x); !errors.Is(err, gpu.ErrInvalid) {
		t.Error(err)
	}
	x.GroupSize[0] = 256
	run(t, d, x)
	var held []gpu.Buffer
	for {
		b, err := d.NewBuffer(256 << 10)
		if err != nil {
			if !errors.Is(err, gpu.ErrOutOfMemory) || len(held) != 3 { // of 1 MiB, 1 KiB of which is taken
				t.Error(len(held), err)
			}
			break
		}
		held = append(held, b)
	}
	held[0].Release()
	if b, err := d.NewBuffer(256 << 10); err != nil {
		t.Error("after a release:", err)
	} else {
		b.Release()
	}
}

// A compiled library runs like its source, which on hostmetal it is.
func TestPrebuilt(t *testing.T) {
	open(t).Close()
	dir := t.TempDir()
	name := gpu.PrebuiltName(source)
	path := filepath.Join(dir, name+".metallib")
	const subtracts = "x[i] -= a.value" // shows which one ran
	compiled := strings.Replace(source, "x[i] += a.value", subtracts, 1) + "[[kernel]] void " + name + "() {}\n"
	if err := os.WriteFile(path, []byte(compiled), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(metal.EnvPrebuilt, dir)
	d := open(t)
	x := addTo(pipeline(t, library(t, d), "add"), buffer(t, d, 256), 0, 64, 1)
	run(t, d, x)
	if got := words(x.Buffers[0].Buffer)[63]; got != 1<<32-1 {
		t.Errorf("got %#x: it did not load the library", got)
	}
	before := liveObjects()
	if err := os.WriteFile(path, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NewLibrary(source, gpu.CompileOptions{}); !errors.Is(err, gpu.ErrCompile) || !strings.Contains(err.Error(), "another source") {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte{0xff}, 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := d.NewLibrary(source, gpu.CompileOptions{})
	if err != nil {
		t.Fatal("a library that the system refuses is not compiled:", err)
	}
	l.Release()
	if after := liveObjects(); after != before {
		t.Errorf("%d objects, were %d", after, before)
	}
}

// A kernel that writes past its buffer makes an error, not a crash, where the framework catches it.
func TestKernelFault(t *testing.T) {
	d := open(t)
	p := pipeline(t, library(t, d), "add")
	hooks()
	setAbort(0)
	defer setAbort(1)
	before := misuses()
	b := buffer(t, d, 256)
	_, err := d.Run(addTo(p, b, 0, 65, 1))
	if !errors.Is(err, gpu.ErrFailed) || !strings.Contains(err.Error(), "add") {
		t.Error(err)
	}
	run(t, d, addTo(p, buffer(t, d, 256), 0, 64, 1))
	if n := misuses() - before; n != 0 {
		t.Error(n, lastMisuse())
	}
	b.Release()
	if n := misuses() - before; n != 0 { // hostmetal reports it once
		t.Error(n, lastMisuse())
	}
}
