//go:build linux

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/gpu"
)

var (
	_ gpu.Resetter = (*device)(nil)
	_ driver       = (*fake)(nil)
	_ compiler     = (*fakeCompiler)(nil)
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

const kernelsOfFake = "add plain fault"

// kit is a device with a pipeline of each of the fake's kernels.
type kit struct {
	t *testing.T
	f *fake
	d gpu.Device
	l gpu.Library
	p map[string]gpu.Pipeline
}

func newKit(t *testing.T, o Options) *kit {
	t.Helper()
	k := &kit{t: t, f: newFake()}
	k.d = openFake(t, k.f, o)
	k.load()
	return k
}

func (k *kit) load() {
	k.t.Helper()
	k.l = must[gpu.Library](k.t)(k.d.NewLibrary(kernelsOfFake, gpu.CompileOptions{}))
	k.p = map[string]gpu.Pipeline{}
	for _, name := range strings.Fields(kernelsOfFake) {
		k.p[name] = must[gpu.Pipeline](k.t)(k.l.Pipeline(name))
	}
}

func (k *kit) buffer(words ...uint32) gpu.Buffer {
	k.t.Helper()
	b := must[gpu.Buffer](k.t)(k.d.NewBuffer(4 * len(words)))
	if err := b.Upload(0, wordBytes(words...)); err != nil {
		k.t.Fatal(err)
	}
	return b
}

func wordBytes(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func (k *kit) words(b gpu.Buffer) []uint32 {
	k.t.Helper()
	data := make([]byte, b.Len())
	if err := b.Download(0, data); err != nil {
		k.t.Fatal(err)
	}
	var w []uint32
	for i := 0; i < len(data); i += 4 {
		w = append(w, binary.LittleEndian.Uint32(data[i:]))
	}
	return w
}

// add is a dispatch of n threads that add x.
func (k *kit) add(from, to gpu.Buffer, n int, x uint32) gpu.Dispatch {
	return gpu.Dispatch{Pipeline: k.p["add"], Buffers: []gpu.Binding{{Buffer: from}, {Buffer: to}}, Args: wordBytes(x, 0),
		Groups: [3]int{n, 1, 1}, GroupSize: [3]int{1, 1, 1}}
}

func (k *kit) close() {
	k.t.Helper()
	if err := k.d.Close(); err != nil {
		k.t.Error(err)
	}
	k.f.check(k.t)
}

func TestOpenChooses(t *testing.T) {
	for _, test := range []struct {
		o        Options
		registry uint64
		err      string
	}{
		{Options{}, 1<<40 | 3<<8, ""},
		{Options{Number: 1}, 1<<40 | 4<<8, ""},
		{Options{Name: "Fake B"}, 1<<40 | 4<<8, ""},
		{Options{Name: "Fake A", Number: 1}, 1<<40 | 5<<8, ""},
		{Options{Number: 3}, 0, "no device 3: there are 3 CUDA devices"},
		{Options{Number: -1}, 0, "no device -1"},
		{Options{Name: "Fake B", Number: 1}, 0, `no device 1: there are 1 CUDA devices named "Fake B"`},
		{Options{Name: "C"}, 0, `no device 0: there are 0 CUDA devices named "C"`},
	} {
		f := newFake()
		d, err := open(f, newCompiler(), cache{}, test.o)
		if test.err != "" {
			if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v: %v", test.o, err)
			}
			f.check(t)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		info := d.Info()
		if info.RegistryID != test.registry || info.Architecture != "sm_90" || info.UnifiedMemory || info.MaxThreadgroupMemory != 227<<10 || info.MaxThreads != [3]int{1024, 1024, 64} {
			t.Errorf("%+v: %+v", test.o, info)
		}
		d.Close()
		f.check(t)
	}
	list := must[[]gpu.Info](t)(list(newFake()))
	if len(list) != 3 || list[1].Name != "Fake B" || list[2].RegistryID != 1<<40|5<<8 {
		t.Errorf("%+v", list)
	}
}

func TestOpenUnavailable(t *testing.T) {
	f := newFake()
	f.cc = 61
	if _, err := open(f, newCompiler(), cache{}, Options{}); !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), "NVRTC 13.0 does not compile for compute capability 6.1") {
		t.Error(err)
	}
	for _, call := range []string{"cuDeviceGetCount", "cuCtxCreate"} {
		f := newFake()
		f.strike[call] = struct{ nth, code int }{1, 100}
		_, err := open(f, newCompiler(), cache{}, Options{})
		var e *gpu.Error
		if !errors.Is(err, gpu.ErrUnavailable) || !errors.As(err, &e) || e.Code != 100 || e.Domain != "CUDA" {
			t.Errorf("%s: %v", call, err)
		}
		f.check(t)
	}
}

func TestArchitecture(t *testing.T) {
	for cc, want := range map[int]string{75: "sm_75", 90: "sm_90", 86: "compute_80", 103: "compute_90", 70: ""} {
		got, err := architecture(newCompiler(), cc)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%d: %q, %v", cc, got, err)
		}
	}
}

func TestCompileOptions(t *testing.T) {
	old := &fakeCompiler{major: 12, minor: 8}
	for _, test := range []struct {
		c     compiler
		flush bool
		o     gpu.CompileOptions
		want  string
	}{
		{newCompiler(), false, gpu.CompileOptions{}, "-arch=a -std=c++20 -default-device -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -no-cache"},
		{old, true, gpu.CompileOptions{}, "-arch=a -std=c++20 -default-device -fmad=false -prec-div=true -prec-sqrt=true -ftz=true"},
		{old, false, gpu.CompileOptions{FastMath: true}, "-arch=a -std=c++20 -default-device -use_fast_math -D__FAST_MATH__=1"},
		{&fakeCompiler{major: 12, minor: 9}, false, gpu.CompileOptions{FastMath: true}, "-arch=a -std=c++20 -default-device -use_fast_math -D__FAST_MATH__=1 -no-cache"},
	} {
		if got := strings.Join(compileOptions(test.c, "a", test.flush, test.o), " "); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// Buffers are zeroed; device memory has no Bytes, shared memory has.
func TestBuffers(t *testing.T) {
	k := newKit(t, Options{})
	private := must[gpu.Buffer](t)(k.d.NewBuffer(8))
	shared := must[gpu.Buffer](t)(k.d.NewShared(8))
	for _, b := range []gpu.Buffer{private, shared} {
		if b.Len() != 8 || (b.Bytes() == nil) != (b == private) || !slices.Equal(k.words(b), []uint32{0, 0}) {
			t.Errorf("%d bytes, %v, %v", b.Len(), b.Bytes(), k.words(b))
		}
		got := make([]byte, 3)
		if err := errors.Join(b.Upload(0, []byte("abcdefgh")), b.Upload(2, []byte("XYZ")), b.Upload(8, nil), b.Download(4, got)); err != nil || string(got) != "Zfg" {
			t.Errorf("%q, %v", got, err)
		}
		for _, offset := range []int{-1, 6, 9} {
			if err := errors.Join(b.Upload(offset, got), b.Download(offset, got)); !errors.Is(err, gpu.ErrInvalid) {
				t.Errorf("offset %d: %v", offset, err)
			}
		}
	}
	if string(shared.Bytes()) != "abXYZfgh" {
		t.Errorf("%q", shared.Bytes())
	}
	for _, make := range []func(int) (gpu.Buffer, error){k.d.NewBuffer, k.d.NewShared} {
		for size, want := range map[int]error{0: gpu.ErrInvalid, -1: gpu.ErrInvalid, 1<<20 + 1: gpu.ErrOutOfMemory} {
			if _, err := make(size); !errors.Is(err, want) {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	}
	most := must[gpu.Buffer](t)(k.d.NewBuffer(1<<20 - 8))
	if _, err := k.d.NewBuffer(1); !errors.Is(err, gpu.ErrOutOfMemory) {
		t.Error(err)
	}
	most.Release()
	most.Release()
	must[gpu.Buffer](t)(k.d.NewBuffer(1))
	shared.Release()
	if shared.Bytes() != nil || !errors.Is(shared.Upload(0, nil), gpu.ErrReleased) {
		t.Error("a released buffer is used")
	}
	k.close()
	if err := private.Upload(0, nil); !errors.Is(err, gpu.ErrClosed) {
		t.Error(err)
	}
}

// A list runs in order, from device and shared memory, at offsets; its time is the device's.
func TestRun(t *testing.T) {
	k := newKit(t, Options{})
	a, c := k.buffer(1, 2, 3, 4), k.buffer(0, 0, 0, 0)
	b := must[gpu.Buffer](t)(k.d.NewShared(16))
	part := k.add(b, c, 2, 1000)
	part.Buffers = []gpu.Binding{{Buffer: b, Offset: 8}, {Buffer: c, Offset: 4}}
	empty := k.add(a, c, 0, 7)
	spent := must[time.Duration](t)(k.d.Run(k.add(a, b, 4, 10), empty, part))
	if got := k.words(b); !slices.Equal(got, []uint32{11, 12, 13, 14}) {
		t.Errorf("shared: %v", got)
	}
	if got := k.words(c); !slices.Equal(got, []uint32{0, 1013, 1014, 0}) {
		t.Errorf("private: %v", got)
	}
	if spent != 4*time.Millisecond {
		t.Errorf("%v", spent)
	}
	launches := len(k.f.grids)
	if spent, err := k.d.Run(empty); spent != 0 || err != nil || len(k.f.grids) != launches {
		t.Errorf("an empty list: %v, %v", spent, err)
	}
	if k.f.calls["cuStreamCreate"] != 1 {
		t.Errorf("%d streams for calls one after the other", k.f.calls["cuStreamCreate"])
	}
	k.close()
}

// Grids beyond CUDA's limits go in parts, each of which knows where it begins.
func TestGrids(t *testing.T) {
	k := newKit(t, Options{})
	count := k.buffer(0)
	past := int64(1<<31 + 5) // no constant of int where that has 32 bits
	for _, groups := range [][3]int{{1, 65535, 1}, {2, 65536, 1}, {3, 2*65535 + 1, 65537}, {int(past), 1, 1}} {
		k.f.grids = nil
		d := gpu.Dispatch{Pipeline: k.p["plain"], Buffers: []gpu.Binding{{Buffer: count}}, Groups: groups, GroupSize: [3]int{1, 1, 1}}
		must[time.Duration](t)(k.d.Run(d))
		seen := 0
		covered := map[[3]int]bool{}
		for _, g := range k.f.grids {
			seen += g[0] * g[1] * g[2]
			for i := range 3 {
				if g[3+i]+g[i] > groups[i] {
					t.Errorf("%v: part %v", groups, g)
				}
			}
			if at := [3]int(g[3:]); covered[at] {
				t.Errorf("%v: twice at %v", groups, at)
			} else {
				covered[at] = true
			}
		}
		if seen != groups[0]*groups[1]*groups[2] {
			t.Errorf("%v: %d groups", groups, seen)
		}
	}
	k.close()
}

func TestPipelines(t *testing.T) {
	k := newKit(t, Options{})
	p := k.p["add"]
	if p.Name() != "add" || p.MaxThreads() != 256 || p.ExecutionWidth() != 32 || p.StaticThreadgroupMemory() != 16 {
		t.Errorf("%+v", p)
	}
	a := k.buffer(1)
	large := k.add(a, a, 1, 1)
	large.ThreadgroupMemory = []int{200 << 10} // more than a kernel has without asking
	must[time.Duration](t)(k.d.Run(large))
	if _, err := k.l.Pipeline("none"); !errors.Is(err, gpu.ErrNoFunction) {
		t.Error(err)
	}
	if _, err := k.l.Pipeline("a\x00"); !errors.Is(err, gpu.ErrInvalid) {
		t.Error(err)
	}
	if _, err := k.d.NewLibrary("a\x00", gpu.CompileOptions{}); !errors.Is(err, gpu.ErrInvalid) {
		t.Error(err)
	}
	if _, err := k.d.NewLibrary("wrong", gpu.CompileOptions{}); !errors.Is(err, gpu.ErrCompile) || !strings.Contains(err.Error(), "wrong.cu:3: error") {
		t.Error(err)
	}
	k.l.Release() // its pipelines live on
	must[time.Duration](t)(k.d.Run(large))
	if k.f.calls["cuModuleUnload"] != 0 {
		t.Error("the module went before its functions")
	}
	if _, err := k.l.Pipeline("add"); !errors.Is(err, gpu.ErrReleased) {
		t.Error(err)
	}
	for _, p := range k.p {
		p.Release()
	}
	if k.f.calls["cuModuleUnload"] != 1 {
		t.Error("the module stays")
	}
	k.close()
}

// What is wrong with a dispatch is said before anything is sent.
func TestRefused(t *testing.T) {
	k, other := newKit(t, Options{}), newKit(t, Options{})
	a := k.buffer(1, 2)
	for _, test := range []struct {
		change func(d *gpu.Dispatch)
		class  error
		want   string
	}{
		{func(d *gpu.Dispatch) { d.Args = d.Args[:4] }, gpu.ErrInvalid, "4 bytes of arguments, not a multiple of 8"},
		{func(d *gpu.Dispatch) { d.Args = nil }, gpu.ErrInvalid, "2 buffers and 0 bytes of arguments are 40 bytes of parameters, the kernel takes 48"},
		{func(d *gpu.Dispatch) { d.Buffers = d.Buffers[:1] }, gpu.ErrInvalid, "the kernel takes 48"},
		{func(d *gpu.Dispatch) { d.ThreadgroupMemory = []int{16, 16} }, gpu.ErrInvalid, "2 slots"},
		{func(d *gpu.Dispatch) { d.ThreadgroupMemory = []int{227 << 10} }, gpu.ErrInvalid, "threadgroup memory 0"},
		{func(d *gpu.Dispatch) { d.GroupSize[0] = 257 }, gpu.ErrInvalid, "more than 256 threads"},
		{func(d *gpu.Dispatch) { d.Pipeline = other.p["add"] }, gpu.ErrInvalid, "another device's"},
		{func(d *gpu.Dispatch) { d.Buffers[1].Buffer = other.buffer(1) }, gpu.ErrInvalid, "buffer 1 is another device's"},
		{func(d *gpu.Dispatch) { b := k.buffer(1); b.Release(); d.Buffers[1].Buffer = b }, gpu.ErrReleased, "buffer 1"},
	} {
		d := k.add(a, a, 1, 1)
		test.change(&d)
		launches := len(k.f.grids)
		if _, err := k.d.Run(k.add(a, a, 1, 1), d); !errors.Is(err, test.class) || !strings.Contains(err.Error(), test.want) || len(k.f.grids) != launches {
			t.Errorf("want %q, got %v", test.want, err)
		}
	}
	k.close()
	other.close()
}

// Each call of the driver that fails gives an error of its class, leaves nothing behind, and the device works
// afterwards.
func TestFailures(t *testing.T) {
	works := func(k *kit) error {
		a, err := k.d.NewBuffer(8)
		if err != nil {
			return err
		}
		defer a.Release()
		b, err := k.d.NewShared(8)
		if err != nil {
			return err
		}
		defer b.Release()
		if err := a.Upload(0, wordBytes(1, 2)); err != nil {
			return err
		}
		l, err := k.d.NewLibrary(kernelsOfFake, gpu.CompileOptions{})
		if err != nil {
			return err
		}
		defer l.Release()
		p, err := l.Pipeline("add")
		if err != nil {
			return err
		}
		defer p.Release()
		d := k.add(a, b, 2, 1)
		d.Pipeline = p
		if _, err := k.d.Run(d); err != nil {
			return err
		}
		got := make([]byte, 8)
		if err := a.Download(0, got); err != nil {
			return err
		}
		if !bytes.Equal(b.Bytes(), wordBytes(2, 3)) || !bytes.Equal(got, wordBytes(1, 2)) {
			return fmt.Errorf("wrong bytes %v, %v", b.Bytes(), got)
		}
		return nil
	}
	struck := 0
	for _, call := range []string{"cuCtxPushCurrent", "cuStreamCreate", "cuEventCreate", "cuMemAlloc", "cuMemsetD8Async", "mmap", "cuMemHostRegister", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncGetParamInfo", "cuFuncSetAttribute", "cuEventRecord", "cuLaunchKernel",
		"cuStreamSynchronize", "cuEventElapsedTime"} {
		for nth, hit := 1, true; hit; nth++ {
			for _, code := range []int{resultOutOfMemory, 1} {
				k := &kit{t: t, f: newFake()}
				k.d = openFake(t, k.f, Options{})
				k.f.strike[call] = struct{ nth, code int }{nth, code}
				before := k.f.count()
				err := works(k)
				if hit = k.f.calls[call] >= nth; hit {
					struck++
				}
				// What is given back in the end may meet this one, and says nothing.
				release := call == "cuCtxPushCurrent"
				if err == nil && hit && !release {
					t.Errorf("%s %d: no error", call, nth)
				}
				var e *gpu.Error
				if err != nil && (!errors.As(err, &e) || (code == resultOutOfMemory || call == "mmap") != errors.Is(err, gpu.ErrOutOfMemory) || k.d.(*device).Lost()) {
					t.Errorf("%s %d, result %d: %v", call, nth, code, err)
				}
				k.f.strike = nil
				if after := k.f.count(); err != nil && after != before && !release {
					t.Errorf("%s %d: %s, were %s", call, nth, after, before)
				}
				if err := works(k); err != nil {
					t.Errorf("after %s %d: %v", call, nth, err)
				}
				if release && hit {
					k.d.Close() // memory that could not be unregistered stays
				} else {
					k.close()
				}
			}
		}
	}
	t.Logf("%d failures", struck)
}

// count describes what lives of what callers hold.
func (f *fake) count() string {
	return fmt.Sprint(len(f.live["memory"]), len(f.live["registration"]), len(f.live["pages"]), len(f.live["module"]))
}

// What ends a context is ErrLost from then on, until Reset: then shared memory is as it was, and the rest has
// gone.
func TestLost(t *testing.T) {
	k := newKit(t, Options{})
	a := k.buffer(1, 2)
	s := must[gpu.Buffer](t)(k.d.NewShared(8))
	gone := must[gpu.Buffer](t)(k.d.NewShared(8))
	if err := k.d.(gpu.Resetter).Reset(); !errors.Is(err, gpu.ErrInvalid) {
		t.Error("reset of a device that works:", err)
	}
	copy(s.Bytes(), wordBytes(5, 6))
	fault := gpu.Dispatch{Pipeline: k.p["fault"], Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}}
	_, err := k.d.Run(k.add(a, s, 2, 0), fault)
	var e *gpu.Error
	if !errors.Is(err, gpu.ErrLost) || !errors.As(err, &e) || e.Code != 700 || e.Kernel != "add, fault" || !k.d.(gpu.Resetter).Lost() {
		t.Fatal(err)
	}
	_, err1 := k.d.NewBuffer(4)
	_, err2 := k.d.NewShared(4)
	_, err3 := k.d.NewLibrary(kernelsOfFake, gpu.CompileOptions{})
	_, err4 := k.l.Pipeline("add")
	_, err5 := k.d.Run(k.add(a, s, 1, 1))
	for i, err := range []error{err1, err2, err3, err4, err5, a.Upload(0, nil), s.Download(0, nil)} {
		if !errors.Is(err, gpu.ErrLost) || !strings.Contains(err.Error(), "illegal memory access") {
			t.Error(i, err)
		}
	}
	gone.Release()
	if !bytes.Equal(s.Bytes(), wordBytes(1, 2)) {
		t.Errorf("shared memory has %v", s.Bytes())
	}
	if err := k.d.(gpu.Resetter).Reset(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{a.Upload(0, nil), second(k.d.Run(k.add(a, s, 1, 1))), second(k.l.Pipeline("add"))} {
		if !errors.Is(err, gpu.ErrReleased) {
			t.Error(err)
		}
	}
	a.Release()
	k.l.Release()
	k.load()
	b := k.buffer(0, 0)
	must[time.Duration](t)(k.d.Run(k.add(s, b, 2, 7)))
	if got := k.words(b); !slices.Equal(got, []uint32{8, 9}) {
		t.Errorf("%v", got)
	}
	k.close()
	if s.Bytes() != nil {
		t.Error("shared memory after Close")
	}
}

func second[T any](_ T, err error) error { return err }

// A reset that fails leaves the device lost; a later one may succeed. Closing a lost device leaves nothing.
func TestResetFails(t *testing.T) {
	for i, call := range []string{"cuCtxCreate", "cuCtxCreate", "cuCtxPushCurrent", "cuMemHostRegister"} {
		k := newKit(t, Options{})
		s := must[gpu.Buffer](t)(k.d.NewShared(8))
		copy(s.Bytes(), wordBytes(5, 6))
		fault := gpu.Dispatch{Pipeline: k.p["fault"], Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}}
		if _, err := k.d.Run(fault); !errors.Is(err, gpu.ErrLost) {
			t.Fatal(err)
		}
		k.f.strike[call] = struct{ nth, code int }{k.f.calls[call] + 1, 999}
		r := k.d.(gpu.Resetter)
		if err := r.Reset(); !errors.Is(err, gpu.ErrLost) || !r.Lost() {
			t.Errorf("%s: %v", call, err)
		}
		if _, err := k.d.NewBuffer(1); !errors.Is(err, gpu.ErrLost) {
			t.Error(err)
		}
		if i == 0 || call == "cuMemHostRegister" {
			k.close() // lost
			continue
		}
		if err := r.Reset(); err != nil {
			t.Fatal(call, err)
		}
		k.load()
		b := k.buffer(0, 0)
		must[time.Duration](t)(k.d.Run(k.add(s, b, 2, 0)))
		if got := k.words(b); !slices.Equal(got, []uint32{5, 6}) {
			t.Errorf("%v", got)
		}
		k.close()
	}
}

// Every kind of result that ends a context is one, and others are not.
func TestEndsContext(t *testing.T) {
	for code, want := range map[int]bool{1: false, 2: false, 500: false, 700: true, 701: false, 702: true, 709: true, 716: true, 719: true, 720: false, 214: true} {
		if got := endsContext(fmt.Errorf("x: %w", &callError{code: code})); got != want {
			t.Errorf("%d: %t", code, got)
		}
	}
	if endsContext(errors.New("x")) {
		t.Error("an error without a result")
	}
}

func TestCloseIsFinal(t *testing.T) {
	k := newKit(t, Options{})
	a := k.buffer(1)
	k.close()
	_, err1 := k.d.NewBuffer(1)
	_, err2 := k.d.NewShared(1)
	_, err3 := k.d.NewLibrary(kernelsOfFake, gpu.CompileOptions{})
	_, err4 := k.l.Pipeline("add")
	_, err5 := k.d.Run(k.add(a, a, 1, 1))
	for i, err := range []error{err1, err2, err3, err4, err5, a.Upload(0, nil), k.d.Close(), k.d.(gpu.Resetter).Reset()} {
		if !errors.Is(err, gpu.ErrClosed) {
			t.Error(i, err)
		}
	}
	a.Release()
	k.l.Release()
	k.f.check(t)
}

// Goroutines share the device, each on streams of its own, while objects come and go; then one of them ends the
// context, and all of them say so.
func TestConcurrent(t *testing.T) {
	k := newKit(t, Options{})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 50 {
				a, err := k.d.NewBuffer(8)
				if err != nil {
					t.Error(err)
					return
				}
				b, err := k.d.NewShared(8)
				if err != nil {
					t.Error(err)
					return
				}
				x := uint32(100*i + j)
				err = a.Upload(0, wordBytes(x, x+1))
				if err == nil {
					_, err = k.d.Run(k.add(a, b, 2, 1))
				}
				if err != nil || !bytes.Equal(b.Bytes(), wordBytes(x+1, x+2)) {
					t.Error(err, b.Bytes())
				}
				a.Release()
				b.Release()
			}
		})
	}
	group.Wait()
	if n := k.f.calls["cuStreamCreate"]; n > 8 {
		t.Errorf("%d streams", n)
	}
	fault := gpu.Dispatch{Pipeline: k.p["fault"], Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}}
	for i := range 8 {
		group.Go(func() {
			for j := 0; ; j++ {
				var err error
				if i == 0 && j == 10 {
					_, err = k.d.Run(fault)
				} else {
					var a gpu.Buffer
					if a, err = k.d.NewBuffer(4); err == nil {
						_, err = k.d.Run(k.add(a, a, 1, 1))
						a.Release()
					}
				}
				if errors.Is(err, gpu.ErrLost) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if err := k.d.(gpu.Resetter).Reset(); err != nil {
		t.Error(err)
	}
	k.close()
}

// ---- the cache ----

func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	c := cache{dir, 1 << 20}
	if _, ok := c.get("k"); ok {
		t.Fatal("an entry in no folder")
	}
	c.put("k", []byte("image"))
	if got, ok := c.get("k"); !ok || string(got) != "image" {
		t.Fatalf("%q, %t", got, ok)
	}
	// A damaged entry is none: each byte changed, each length, and nothing but the head.
	whole := must[[]byte](t)(os.ReadFile(c.path("k")))
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 1
		os.WriteFile(c.path("k"), bad, 0o600)
		if _, ok := c.get("k"); ok {
			t.Errorf("byte %d changed", i)
		}
		os.WriteFile(c.path("k"), whole[:i], 0o600)
		if _, ok := c.get("k"); ok {
			t.Errorf("%d bytes", i)
		}
	}
	c.put("k", []byte("image"))
	if _, ok := c.get("k"); !ok {
		t.Error("written again, and not there")
	}
	cache{}.put("k", []byte("image"))
	if _, ok := (cache{}).get("k"); ok {
		t.Error("an entry without a folder")
	}
	// A folder that cannot be written is no error.
	cache{filepath.Join(c.path("k"), "x"), 1}.put("k", []byte("image"))
}

// The entries not used for longest go, and what was left half written.
func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := cache{dir, int64(3*(100+sha256Size) + 10)}
	ages := map[string]time.Duration{"a": 4, "b": 3, "c": 2}
	for name, age := range ages {
		c.put(name, make([]byte, 100))
		when := time.Now().Add(-age * time.Hour)
		os.Chtimes(c.path(name), when, when)
	}
	stale, fresh, foreign := filepath.Join(dir, cacheTemp+"1"), filepath.Join(dir, cacheTemp+"2"), filepath.Join(dir, "notes.txt")
	for _, f := range []string{stale, fresh, foreign} {
		os.WriteFile(f, make([]byte, 1000), 0o600)
	}
	when := time.Now().Add(-2 * time.Hour)
	os.Chtimes(stale, when, when)
	if _, ok := c.get("a"); !ok { // used, so no longer the oldest
		t.Fatal("a is not there")
	}
	c.put("d", make([]byte, 100))
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if _, ok := c.get(name); ok != want {
			t.Errorf("%s: %t", name, ok)
		}
	}
	for f, want := range map[string]bool{stale: false, fresh: true, foreign: true} {
		if _, err := os.Stat(f); (err == nil) != want {
			t.Errorf("%s: %v", f, err)
		}
	}
}

const sha256Size = 32 + len(cacheMagic)

// A source is compiled once; another source, option, version or build is compiled anew, and so is a damaged
// entry.
func TestCompileCaches(t *testing.T) {
	files := cache{t.TempDir(), 1 << 20}
	c := newCompiler()
	runs := 0
	want := func(n int, c *fakeCompiler, source string, options ...string) {
		t.Helper()
		before := len(c.options)
		image, err := compile(c, files, source, options)
		if err != nil || string(image) != source {
			t.Errorf("%q, %v", image, err)
		}
		if got := len(c.options) - before; got != n {
			t.Errorf("compiled %d times, want %d", got, n)
		}
		runs += n
	}
	want(1, c, "a", "-x")
	want(0, c, "a", "-x")
	want(1, c, "b", "-x")
	want(1, c, "a", "-y")
	want(1, c, "a", "-x", "-y")
	want(1, &fakeCompiler{major: 13, minor: 1}, "a", "-x")
	entries := must[[]os.DirEntry](t)(os.ReadDir(files.dir))
	if len(entries) != runs {
		t.Errorf("%d entries, %d compiled", len(entries), runs)
	}
	for _, e := range entries {
		os.WriteFile(filepath.Join(files.dir, e.Name()), []byte(cacheMagic), 0o600)
	}
	want(1, c, "a", "-x")
	want(0, c, "a", "-x")
	if _, err := compile(c, files, "wrong", nil); !errors.Is(err, gpu.ErrCompile) {
		t.Error(err)
	}
}

func TestUserCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/x")
	for value, want := range map[string]cache{"": {"/x/turbotrellis/cuda", cacheBytes}, "/y": {"/y", cacheBytes}, "off": {}} {
		t.Setenv(EnvCache, value)
		if got := userCache(); got != want {
			t.Errorf("%q: %+v", value, got)
		}
	}
}
