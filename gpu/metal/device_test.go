package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal/internal/mtlfake"
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// add adds the argument to each of the first bytes of buffer 0; copyTo copies buffer 0 to buffer 1,
// without arguments.
var testKernels = map[string]mtlfake.Kernel{
	"add": func(b [][]byte, args []byte, threads int) {
		for i := range threads {
			b[0][i] += byte(binary.LittleEndian.Uint32(args))
		}
	},
	"copyTo": func(b [][]byte, args []byte, threads int) { copy(b[1][:threads], b[0]) },
}

func openFake(t *testing.T, r *mtlfake.Runtime) gpu.Device {
	t.Helper()
	r.Kernels = testKernels
	d, err := open(r, "fake", gpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func pipelineOf(t *testing.T, d gpu.Device, name string) gpu.Pipeline {
	t.Helper()
	l, err := d.NewLibrary("source", gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Pipeline(name)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	return p
}

func newBuffer(t *testing.T, d gpu.Device, n int) gpu.Buffer {
	t.Helper()
	b, err := d.NewBuffer(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func dispatch(p gpu.Pipeline, n uint32, b ...gpu.Binding) gpu.Dispatch {
	d := gpu.Dispatch{Pipeline: p, Buffers: b, Groups: [3]int{2, 1, 1}, GroupSize: [3]int{4, 1, 1}}
	if p.Name() == "add" {
		d.Args = binary.LittleEndian.AppendUint32(nil, n)
	}
	return d
}

func TestOpen(t *testing.T) {
	for _, test := range []struct {
		name    string
		runtime *mtlfake.Runtime
		options gpu.Options
		want    string // the device's name
		reason  string // or the error's detail
	}{
		{"default", &mtlfake.Runtime{}, gpu.Options{}, "Fake M1", ""},
		{"by name", &mtlfake.Runtime{}, gpu.Options{Name: "Fake M2"}, "Fake M2", ""},
		{"by id", &mtlfake.Runtime{}, gpu.Options{RegistryID: mtlfake.IDs[1]}, "Fake M2", ""},
		{"by both", &mtlfake.Runtime{}, gpu.Options{Name: "Fake M1", RegistryID: mtlfake.IDs[1]}, "",
			`no Metal device named "Fake M1" with registry id 0x100000def`},
		{"no default", &mtlfake.Runtime{NoDefaultDevice: true}, gpu.Options{}, "Fake M1", ""},
		{"none", &mtlfake.Runtime{NoDefaultDevice: true, NoDevices: true}, gpu.Options{}, "", "no Metal device"},
		{"other name", &mtlfake.Runtime{}, gpu.Options{Name: "Fake"}, "", `no Metal device named "Fake"`},
		{"no queue", &mtlfake.Runtime{NilQueue: true}, gpu.Options{Name: "Fake M2"}, "", "Fake M2 gives no command queue"},
	} {
		r := test.runtime
		d, err := open(r, "fake", test.options)
		if test.reason != "" {
			var e *gpu.Error
			if !errors.As(err, &e) || e.Err != gpu.ErrUnavailable || e.Detail != test.reason {
				t.Errorf("%s: got %v, want %q", test.name, err, test.reason)
			}
		} else if err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else {
			want := gpu.Info{
				Driver: "fake", Name: test.want, Architecture: "fakegpu", RegistryID: d.Info().RegistryID, UnifiedMemory: true,
				WorkingSet: 3 << 30, MaxBuffer: mtlfake.MaxBuffer, MaxThreadgroupMemory: mtlfake.MaxThreadgroupMemory,
				MaxThreads: [3]int{1024, 1024, 64}, MatrixUnits: true,
			}
			if got := d.Info(); got != want {
				t.Errorf("%s: got %+v, want %+v", test.name, got, want)
			}
			if err := d.Close(); err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
		}
		checkLive(t, r)
	}
}

func checkLive(t *testing.T, r *mtlfake.Runtime) {
	t.Helper()
	if live := r.Live(); len(live) > 0 {
		t.Errorf("left alive: %v", live)
	}
}

func TestList(t *testing.T) {
	for _, test := range []struct {
		runtime *mtlfake.Runtime
		want    []string
	}{
		{&mtlfake.Runtime{}, mtlfake.Names[:]},
		{&mtlfake.Runtime{NoDevices: true}, mtlfake.Names[:1]},
		{&mtlfake.Runtime{NoDefaultDevice: true, OldSystem: true}, mtlfake.Names[:]},
		{&mtlfake.Runtime{NoDefaultDevice: true, NoDevices: true}, nil},
	} {
		var got []string
		for _, i := range list(test.runtime, "fake") {
			got = append(got, i.Name)
			if (i.Architecture == "") != test.runtime.OldSystem {
				t.Errorf("architecture %q", i.Architecture)
			}
		}
		if strings.Join(got, ",") != strings.Join(test.want, ",") {
			t.Errorf("got %v, want %v", got, test.want)
		}
		checkLive(t, test.runtime)
	}
}

func TestPrebuilt(t *testing.T) {
	dir := t.TempDir()
	const source, other = "kernels", "others"
	name := gpu.PrebuiltName(source)
	if name != "turbotrellis_e98f56f907c45b8a6621bdf148bdb5afdd9cba932fd4d9898890733e094d9f45" { // sha256sum
		t.Error(name)
	}
	path := filepath.Join(dir, name+".metallib")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := &mtlfake.Runtime{Kernels: map[string]mtlfake.Kernel{name: testKernels["add"]}}
	d, err := open(r, "fake", gpu.Options{Prebuilt: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		source string
		o      gpu.CompileOptions
		loaded string
	}{{source, gpu.CompileOptions{}, path}, {other, gpu.CompileOptions{}, ""}, {source, gpu.CompileOptions{FastMath: true}, ""}} {
		r.Loaded = ""
		l, err := d.NewLibrary(test.source, test.o)
		if err != nil {
			t.Error(err)
			continue
		}
		if r.Loaded != test.loaded {
			t.Errorf("%+v: loaded %q", test, r.Loaded)
		}
		l.Release()
	}
	delete(r.Kernels, name)
	if _, err := d.NewLibrary(source, gpu.CompileOptions{}); !errors.Is(err, gpu.ErrCompile) || !strings.Contains(err.Error(), "another source") {
		t.Error("a library of something else:", err)
	}
	r.Load, r.Options = &mtlfake.Fault{Domain: "MTLLibraryErrorDomain", Text: "not a library", Code: 1}, ""
	if l, err := d.NewLibrary(source, gpu.CompileOptions{}); err != nil || r.Options == "" {
		t.Errorf("a library that the system refuses: %v, compiled %q", err, r.Options)
	} else {
		l.Release()
	}
	if _, err := open(r, "fake", gpu.Options{Prebuilt: "\xff"}); !errors.Is(err, gpu.ErrInvalid) {
		t.Error("a folder that is not UTF-8:", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	checkLive(t, r)
}

func TestRun(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	add, copyTo := pipelineOf(t, d, "add"), pipelineOf(t, d, "copyTo")
	if add.Name() != "add" || add.MaxThreads() != mtlfake.MaxThreads || add.ExecutionWidth() != 32 || add.StaticThreadgroupMemory() != mtlfake.StaticMemory {
		t.Error("pipeline:", add.Name(), add.MaxThreads(), add.ExecutionWidth(), add.StaticThreadgroupMemory())
	}
	x, y := newBuffer(t, d, 12), newBuffer(t, d, 8)
	if x.Len() != 12 || len(x.Bytes()) != 12 {
		t.Error("buffer:", x.Len(), len(x.Bytes()))
	}
	copy(x.Bytes(), "abcdefghijkl")
	at := gpu.Binding{Buffer: x, Offset: 3}
	first := dispatch(add, 1, at)
	first.ThreadgroupMemory = []int{16, 32}
	// One list, in order: add, add, then copy what they left.
	spent, err := d.Run(first, dispatch(add, 2, at), dispatch(copyTo, 0, at, gpu.Binding{Buffer: y}))
	if err != nil || spent != 250*time.Millisecond {
		t.Error(spent, err)
	}
	if got := string(x.Bytes()); got != "abcghijklmnl" {
		t.Errorf("got %q", got)
	}
	if got := string(y.Bytes()); got != "ghijklmn" {
		t.Errorf("got %q", got)
	}
	wide := dispatch(add, 1, at)
	wide.Groups, wide.GroupSize = [3]int{1, 2, 1}, [3]int{2, 1, 2}
	if _, err := d.Run(wide); err != nil || r.Grid != "{1 2 1} {2 1 2}" {
		t.Error(r.Grid, err)
	}
	none := dispatch(add, 1, at)
	none.Groups[1] = 0
	for _, list := range [][]gpu.Dispatch{{}, {none}} {
		if spent, err := d.Run(list...); spent != 0 || err != nil {
			t.Error(spent, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	checkLive(t, r)
}

// Upload and Download copy the bytes asked for and no others.
func TestCopy(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	b, err := d.NewShared(8)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), "abcdefgh")
	got := make([]byte, 3)
	if err := errors.Join(b.Upload(2, []byte("XYZ")), b.Upload(8, nil), b.Download(4, got)); err != nil {
		t.Error(err)
	}
	if string(b.Bytes()) != "abXYZfgh" || string(got) != "Zfg" {
		t.Errorf("%q, %q", b.Bytes(), got)
	}
	for _, offset := range []int{-1, 6, 9} {
		for _, err := range []error{b.Upload(offset, []byte("XYZ")), b.Download(offset, got)} {
			if !errors.Is(err, gpu.ErrInvalid) {
				t.Errorf("offset %d: %v", offset, err)
			}
		}
	}
	if string(b.Bytes()) != "abXYZfgh" || string(got) != "Zfg" {
		t.Errorf("%q, %q", b.Bytes(), got)
	}
	d.Close()
	checkLive(t, r)
}

// What was not released before Close goes with it; after Close everything says so.
func TestClose(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	l, err := d.NewLibrary("source", gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, b := pipelineOf(t, d, "add"), newBuffer(t, d, 8)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	checkLive(t, r)
	if b.Bytes() != nil || b.Len() != 8 {
		t.Error("buffer after Close:", b.Bytes(), b.Len())
	}
	_, err1 := d.NewBuffer(8)
	_, err2 := d.NewLibrary("source", gpu.CompileOptions{})
	_, err3 := l.Pipeline("add")
	_, err4 := d.Run(dispatch(p, 1, gpu.Binding{Buffer: b}))
	_, err5 := d.NewShared(8)
	err6, err7 := b.Upload(0, []byte("a")), b.Download(0, make([]byte, 1))
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, d.Close()} {
		if !errors.Is(err, gpu.ErrClosed) {
			t.Error(i, err)
		}
	}
	b.Release()
	p.Release()
	l.Release()
}

func TestReleased(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	p, b := pipelineOf(t, d, "add"), newBuffer(t, d, 8)
	x := dispatch(p, 1, gpu.Binding{Buffer: b})
	b.Release()
	b.Release()
	if b.Bytes() != nil {
		t.Error("bytes after Release")
	}
	for _, err := range []error{b.Upload(0, nil), b.Download(0, nil)} {
		if !errors.Is(err, gpu.ErrReleased) {
			t.Error(err)
		}
	}
	if _, err := d.Run(x); !errors.Is(err, gpu.ErrReleased) || err.Error() != "run add: released: buffer 0" {
		t.Error(err)
	}
	x.Buffers[0].Buffer = newBuffer(t, d, 8)
	p.Release()
	if _, err := d.Run(x); !errors.Is(err, gpu.ErrReleased) || err.Error() != "run add: released: the pipeline" {
		t.Error(err)
	}
	l, err := d.NewLibrary("source", gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	if _, err := l.Pipeline("add"); !errors.Is(err, gpu.ErrReleased) {
		t.Error(err)
	}
	if live := fmt.Sprint(r.Live()); live != "map[MTLBuffer:1 MTLCommandQueue:1 MTLDevice:3]" { // the device: ours, the queue's, the buffer's
		t.Error(live)
	}
	d.Close()
	checkLive(t, r)
}

// A buffer released while a Run uses it stays until the Run ends.
func TestReleaseDuringRun(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	p, b := pipelineOf(t, d, "add"), newBuffer(t, d, 8)
	o := &b.(*buffer).object
	if !o.hold() { // as Run does
		t.Fatal("hold failed")
	}
	view := b.Bytes()
	view[0] = 7
	b.Release()
	if o.hold() {
		t.Error("hold after Release")
	}
	if view[0] != 7 { // the fake clears what goes
		t.Error("gone while held")
	}
	o.drop()
	if view[0] != 0 {
		t.Error("alive after the last hold")
	}
	p.Release()
	d.Close()
	checkLive(t, r)
}

func TestOtherDevice(t *testing.T) {
	r := &mtlfake.Runtime{}
	d, e := openFake(t, r), openFake(t, r)
	p, b := pipelineOf(t, d, "add"), newBuffer(t, e, 8)
	x := dispatch(p, 1, gpu.Binding{Buffer: b})
	if _, err := d.Run(x); !errors.Is(err, gpu.ErrInvalid) || !strings.Contains(err.Error(), "buffer 0 is another device's") {
		t.Error(err)
	}
	if _, err := e.Run(x); !errors.Is(err, gpu.ErrInvalid) || !strings.Contains(err.Error(), "the pipeline is another device's") {
		t.Error(err)
	}
	d.Close()
	e.Close()
	checkLive(t, r)
}

func TestCompileOptions(t *testing.T) {
	for _, test := range []struct {
		old, fast bool
		want      string
	}{
		{false, false, "setLanguageVersion:196608 setMathMode:0 setMathFloatingPointFunctions:1"},
		{false, true, "setLanguageVersion:196608 setMathMode:2 setMathFloatingPointFunctions:0"},
		{true, false, "setLanguageVersion:196608 setFastMathEnabled:false"},
		{true, true, "setLanguageVersion:196608 setFastMathEnabled:true"},
	} {
		r := &mtlfake.Runtime{OldSystem: test.old}
		d := openFake(t, r)
		if _, err := d.NewLibrary("source", gpu.CompileOptions{FastMath: test.fast}); err != nil {
			t.Fatal(err)
		}
		if r.Options != test.want {
			t.Errorf("got %q, want %q", r.Options, test.want)
		}
		d.Close()
		checkLive(t, r)
	}
}

// Every failure has its error, leaves nothing behind, and the device works afterwards.
func TestFaults(t *testing.T) {
	const commands = "MTLCommandBufferErrorDomain"
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	l, err := d.NewLibrary("source", gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, b := pipelineOf(t, d, "add"), newBuffer(t, d, 8)
	x := dispatch(p, 1, gpu.Binding{Buffer: b})
	run := func() error { _, err := d.Run(x, x); return err }
	for _, test := range []struct {
		set  func()
		call func() error
		want gpu.Error
	}{
		{func() { r.NilBuffer = true }, func() error { _, err := d.NewBuffer(8); return err },
			gpu.Error{Op: "new buffer", Err: gpu.ErrOutOfMemory, Detail: "8 bytes"}},
		{func() { r.NilContents = true }, func() error { _, err := d.NewBuffer(8); return err },
			gpu.Error{Op: "new buffer", Err: gpu.ErrOutOfMemory, Detail: "8 bytes"}},
		{func() {}, func() error { _, err := d.NewBuffer(mtlfake.MaxBuffer + 1); return err },
			gpu.Error{Op: "new buffer", Err: gpu.ErrOutOfMemory, Detail: "1073741825 bytes, more than the device's limit of 1073741824"}},
		{func() {}, func() error { _, err := d.NewBuffer(0); return err }, gpu.Error{Op: "new buffer", Err: gpu.ErrInvalid, Detail: "0 bytes"}},
		{func() {}, func() error { _, err := d.NewBuffer(-1); return err }, gpu.Error{Op: "new buffer", Err: gpu.ErrInvalid, Detail: "-1 bytes"}},
		{func() {
			r.Compile = &mtlfake.Fault{Domain: "MTLLibraryErrorDomain", Code: 3, Text: "program_source:3:1: error: expected ';'"}
		},
			func() error { _, err := d.NewLibrary("kernel", gpu.CompileOptions{}); return err },
			gpu.Error{Op: "compile", Err: gpu.ErrCompile, Domain: "MTLLibraryErrorDomain", Code: 3, Detail: "program_source:3:1: error: expected ';'"}},
		{func() {}, func() error { _, err := d.NewLibrary("a\x00b", gpu.CompileOptions{}); return err },
			gpu.Error{Op: "compile", Err: gpu.ErrInvalid, Detail: "NUL in the source at byte 1"}},
		{func() {}, func() error { _, err := l.Pipeline("sub"); return err }, gpu.Error{Op: "pipeline", Kernel: "sub", Err: gpu.ErrNoFunction}},
		{func() {}, func() error { _, err := l.Pipeline("a\x00b"); return err },
			gpu.Error{Op: "pipeline", Err: gpu.ErrInvalid, Detail: `NUL in the kernel's name "a\x00b"`}},
		{func() { r.Pipeline = &mtlfake.Fault{Domain: "AGXMetalG16X", Code: 3, Text: "too many registers"} },
			func() error { _, err := l.Pipeline("add"); return err },
			gpu.Error{Op: "pipeline", Kernel: "add", Err: gpu.ErrPipeline, Domain: "AGXMetalG16X", Code: 3, Detail: "too many registers"}},
		{func() { r.NilCommands = true }, run, gpu.Error{Op: "run", Err: gpu.ErrFailed, Detail: "the queue gives no command buffer"}},
		{func() { r.NilEncoder = true }, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrFailed, Detail: "the command buffer gives no encoder"}},
		{func() { r.Commit = &mtlfake.Fault{Domain: commands, Code: 2, Text: "t"} }, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrTimeout, Domain: commands, Code: 2, Detail: "t"}},
		{func() { r.Commit = &mtlfake.Fault{Domain: commands, Code: 3, Text: "p"} }, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrPageFault, Domain: commands, Code: 3, Detail: "p"}},
		{func() { r.Commit = &mtlfake.Fault{Domain: commands, Code: 8, Text: "m"} }, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrOutOfMemory, Domain: commands, Code: 8, Detail: "m"}},
		{func() { r.Commit = &mtlfake.Fault{Domain: commands, Code: 1, Text: "i"} }, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrFailed, Domain: commands, Code: 1, Detail: "i"}},
		{func() {
			r.Commit = &mtlfake.Fault{Domain: commands, Code: 1, Text: "Internal Error (0000000e:Internal Error)"}
		}, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrTimeout, Domain: commands, Code: 1, Detail: "Internal Error (0000000e:Internal Error)"}},
		{func() { r.Commit = &mtlfake.Fault{Domain: "Other", Code: 8, Text: "o"} }, run,
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrFailed, Domain: "Other", Code: 8, Detail: "o"}},
		{func() { r.Commit = &mtlfake.Fault{} }, run, // status says error, and error is nil
			gpu.Error{Op: "run", Kernel: "add", Err: gpu.ErrFailed, Detail: "the system gave no reason"}},
	} {
		before := fmt.Sprint(r.Live())
		test.set()
		err := test.call()
		var got *gpu.Error
		if !errors.As(err, &got) || *got != test.want {
			t.Errorf("got %v, want %v", err, &test.want)
		}
		if after := fmt.Sprint(r.Live()); after != before {
			t.Errorf("%v: left %s, had %s", err, after, before)
		}
		r.NilBuffer, r.NilContents, r.NilCommands, r.NilEncoder, r.Compile, r.Pipeline, r.Commit = false, false, false, false, nil, nil, nil
		clear(b.Bytes())
		if err := run(); err != nil || b.Bytes()[7] != 2 {
			t.Errorf("after %v: %v, %v", got, err, b.Bytes())
		}
	}
	d.Close()
	checkLive(t, r)
}

// A device that the system ignores, or that does not answer, is lost until Reset, which keeps shared memory and
// nothing else.
func TestLost(t *testing.T) {
	release := make(chan struct{})
	for name, fail := range map[string]func(*mtlfake.Runtime){
		"ignored": func(r *mtlfake.Runtime) {
			r.Commit = &mtlfake.Fault{Domain: "MTLCommandBufferErrorDomain", Code: 4, Text: "Ignored (for causing prior/excessive GPU errors)"}
		},
		"silent": func(r *mtlfake.Runtime) { r.Wait = func() { <-release } },
	} {
		r := &mtlfake.Runtime{}
		d := openFake(t, r)
		add, b := pipelineOf(t, d, "add"), newBuffer(t, d, 8)
		shared, err := d.NewShared(8)
		if err != nil {
			t.Fatal(err)
		}
		copy(shared.Bytes(), "abcdefgh")
		fail(r)
		if name == "silent" {
			d.(*device).timeout = 20 * time.Millisecond
		}
		if _, err := d.Run(dispatch(add, 1, gpu.Binding{Buffer: b})); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
		_, err1 := d.Run(dispatch(add, 1, gpu.Binding{Buffer: b}))
		_, err2 := d.NewBuffer(8)
		for i, err := range []error{err1, err2, b.Upload(0, nil), shared.Download(0, nil)} {
			if !errors.Is(err, gpu.ErrLost) {
				t.Errorf("%s: %d: %v", name, i, err)
			}
		}
		lost := d.(gpu.Resetter)
		if !lost.Lost() {
			t.Errorf("%s: not lost", name)
		}
		if name == "silent" { // it comes back late
			d.(*device).timeout = time.Minute
			close(release)
		} else {
			r.Commit = nil
		}
		if err := lost.Reset(); err != nil || lost.Lost() {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := d.Run(dispatch(add, 1, gpu.Binding{Buffer: shared})); !errors.Is(err, gpu.ErrReleased) {
			t.Errorf("%s: a pipeline of before: %v", name, err)
		}
		if b.Bytes() != nil || string(shared.Bytes()) != "abcdefgh" {
			t.Errorf("%s: buffers %q, %q", name, b.Bytes(), shared.Bytes())
		}
		if _, err := d.Run(dispatch(pipelineOf(t, d, "add"), 1, gpu.Binding{Buffer: shared})); err != nil {
			t.Errorf("%s: after Reset: %v", name, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		for range 100 { // the run that was given up may still be on its way out
			if len(r.Live()) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		checkLive(t, r)
	}
}

func TestConcurrent(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	add := pipelineOf(t, d, "add")
	var group sync.WaitGroup
	for g := range uint32(8) {
		group.Go(func() {
			for range 50 {
				b := newBuffer(t, d, 8)
				if _, err := d.Run(dispatch(add, g, gpu.Binding{Buffer: b})); err != nil {
					t.Error(err)
				}
				if got := b.Bytes()[7]; got != byte(g) {
					t.Errorf("goroutine %d got %d", g, got)
				}
				b.Release()
			}
		})
	}
	group.Wait()
	d.Close()
	checkLive(t, r)
}

// Goroutines whose device is closed under them: every call ends well or with an error that says
// why.
func TestCloseWhileUsed(t *testing.T) {
	r := &mtlfake.Runtime{}
	d := openFake(t, r)
	add := pipelineOf(t, d, "add")
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := 0; ; i++ {
				b, err := d.NewBuffer(8)
				if err == nil {
					_, err = d.Run(dispatch(add, 3, gpu.Binding{Buffer: b}))
				}
				if g == 0 && i == 20 {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}
				if err != nil {
					if !errors.Is(err, gpu.ErrClosed) {
						t.Error(err)
					}
					return
				}
				if i%2 == 0 {
					b.Release()
				}
			}
		})
	}
	group.Wait()
	checkLive(t, r)
}

// The table has no message that nothing sends.
func TestEveryMessageSent(t *testing.T) {
	sent := map[mtl.Msg]bool{}
	for _, r := range []*mtlfake.Runtime{{}, {OldSystem: true}} {
		list(r, "fake")
		d := openFake(t, r)
		b, c := newBuffer(t, d, 8), newBuffer(t, d, 8)
		x := dispatch(pipelineOf(t, d, "add"), 1, gpu.Binding{Buffer: b}, gpu.Binding{Buffer: c})
		x.ThreadgroupMemory = []int{16}
		if _, err := d.Run(x); err != nil {
			t.Error(err)
		}
		r.Commit = &mtlfake.Fault{Domain: "Other", Code: 1, Text: "text"}
		if _, err := d.Run(x); err == nil {
			t.Error("no error")
		}
		d.Close()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, gpu.PrebuiltName("source")+".metallib"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		d, err := open(r, "fake", gpu.Options{Prebuilt: dir})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.NewLibrary("source", gpu.CompileOptions{}); err == nil {
			t.Error("no error")
		}
		d.Close()
		for m := range r.Sent {
			sent[m] = true
		}
	}
	for m := range mtl.NumMessages {
		if !sent[m] {
			t.Errorf("nothing sent %v", m)
		}
	}
}
