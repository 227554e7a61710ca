//go:build linux

package cuda

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// fake is a CUDA driver in Go. It keeps the rules that the real one punishes or passes over: a call needs the
// context that its object belongs to on the calling thread, handles have to live, memory has to be there,
// and what is not released is counted. A kernel is a Go function, named in the module's image.
type fake struct {
	version int
	names   []string // of the devices
	cc      int
	memory  int // bytes that can be allocated

	mu      sync.Mutex
	threads map[int][]context // the contexts pushed, by thread
	next    uintptr
	live    map[string]map[uintptr]context // what kind of handle belongs to which context
	dead    map[context]int                // contexts that have ended, and by which result
	ram     map[uintptr]*fakeMemory        // of this map's key on
	images  map[module][]string
	names2  map[function]string
	used    int
	pending map[stream][]func() error
	times   map[event]float32
	clock   float32
	calls   map[string]int
	shared  map[function]int // asked for
	grids   [][6]int         // of all launches, with their origins
	misuses []string

	// strike makes the nth call of a name fail with a result.
	strike map[string]struct{ nth, code int }
}

type fakeMemory struct {
	bytes   []byte
	context context
	host    bool
}

func newFake() *fake {
	return &fake{version: 13000, names: []string{"Fake A", "Fake B", "Fake A"}, cc: 90, memory: 1 << 20, next: 0x1000,
		threads: map[int][]context{}, live: map[string]map[uintptr]context{}, dead: map[context]int{}, ram: map[uintptr]*fakeMemory{},
		images: map[module][]string{}, names2: map[function]string{}, pending: map[stream][]func() error{}, times: map[event]float32{},
		calls: map[string]int{}, shared: map[function]int{}, strike: map[string]struct{ nth, code int }{}}
}

// misuse records what no device may do.
func (f *fake) misuse(format string, args ...any) error {
	f.misuses = append(f.misuses, fmt.Sprintf(format, args...))
	return &callError{"misuse", resultInvalidValue, fmt.Sprintf(format, args...)}
}

// call begins a call: it counts, strikes, and answers for a context that has ended.
func (f *fake) call(name string) error {
	f.calls[name]++
	if s, ok := f.strike[name]; ok && f.calls[name] == s.nth {
		err := &callError{name, s.code, fmt.Sprintf("injected %d", s.code)}
		if endsContext(err) {
			f.dead[f.current()] = s.code
		}
		return err
	}
	if code, ok := f.dead[f.current()]; ok && name != "cuCtxPopCurrent" && name != "cuCtxPushCurrent" {
		return &callError{name, code, fmt.Sprintf("dead of %d", code)}
	}
	return nil
}

// enter is call for those that need a context, which it returns.
func (f *fake) enter(name string) (context, error) {
	c := f.current()
	if c == 0 {
		return 0, f.misuse("%s without a context", name)
	}
	return c, f.call(name)
}

func (f *fake) current() context {
	if s := f.threads[syscall.Gettid()]; len(s) > 0 {
		return s[len(s)-1]
	}
	return 0
}

func (f *fake) handle(kind string, c context) uintptr {
	f.next += 0x10
	if f.live[kind] == nil {
		f.live[kind] = map[uintptr]context{}
	}
	f.live[kind][f.next] = c
	return f.next
}

// owned says whether a handle lives and belongs to the current context.
func (f *fake) owned(kind string, h uintptr) error {
	c, ok := f.live[kind][h]
	if !ok {
		return f.misuse("%s %#x does not live", kind, h)
	}
	if c != f.current() {
		return f.misuse("%s %#x is of context %#x, current is %#x", kind, h, c, f.current())
	}
	return nil
}

func (f *fake) Version() (int, error) { return f.version, nil }

func (f *fake) Devices() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.names), f.call("cuDeviceGetCount")
}

func (f *fake) DeviceName(dev int) (string, error) { return f.names[dev], nil }

func (f *fake) DeviceMemory(int) (uint64, error) { return uint64(f.memory), nil }

func (f *fake) DeviceAttribute(dev int, a attribute) (int, error) {
	return map[attribute]int{attrMaxThreads: 1024, attrMaxBlockX: 1024, attrMaxBlockY: 1024, attrMaxBlockZ: 64, attrPCIBus: dev + 3,
		attrMajor: f.cc / 10, attrMinor: f.cc % 10, attrMaxSharedMemory: 227 << 10}[a], nil
}

func (f *fake) NewContext(int) (context, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("cuCtxCreate"); err != nil {
		return 0, err
	}
	return context(f.handle("context", 0)), nil
}

func (f *fake) DestroyContext(c context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.live["context"][uintptr(c)]; !ok {
		return f.misuse("context %#x does not live", c)
	}
	delete(f.live["context"], uintptr(c))
	for _, handles := range f.live {
		for h, of := range handles {
			if of == c {
				delete(handles, h)
			}
		}
	}
	for p, m := range f.ram {
		if m.context == c {
			if !m.host {
				f.used -= len(m.bytes)
			}
			delete(f.ram, p)
		}
	}
	if code, ok := f.dead[c]; ok {
		return &callError{"cuCtxDestroy", code, "was dead"}
	}
	return nil
}

func (f *fake) Push(c context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.live["context"][uintptr(c)]; !ok {
		return f.misuse("context %#x does not live", c)
	}
	if err := f.call("cuCtxPushCurrent"); err != nil {
		return err
	}
	id := syscall.Gettid()
	f.threads[id] = append(f.threads[id], c)
	return nil
}

func (f *fake) Pop() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := syscall.Gettid()
	s := f.threads[id]
	if len(s) == 0 {
		return f.misuse("cuCtxPopCurrent without a context")
	}
	f.threads[id] = s[:len(s)-1]
	return nil
}

func (f *fake) HostMemory(n int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("mmap"); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	f.live["pages"] = add(f.live["pages"], uintptr(unsafe.Pointer(&b[0])))
	return b, nil
}

func add(m map[uintptr]context, h uintptr) map[uintptr]context {
	if m == nil {
		m = map[uintptr]context{}
	}
	m[h] = 0
	return m
}

func (f *fake) FreeHostMemory(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := uintptr(unsafe.Pointer(&b[0]))
	if _, ok := f.live["pages"][at]; !ok {
		f.misuse("pages %#x are not mapped", at)
	}
	for _, m := range f.ram {
		if m.host && &m.bytes[0] == &b[0] && f.dead[m.context] == 0 {
			f.misuse("pages %#x are registered", at)
		}
	}
	delete(f.live["pages"], at)
}

func (f *fake) Alloc(n int) (devicePtr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.enter("cuMemAlloc")
	if err != nil {
		return 0, err
	}
	if f.used+n > f.memory {
		return 0, &callError{"cuMemAlloc", resultOutOfMemory, "no room"}
	}
	f.used += n
	at := f.handle("memory", c)
	f.next += uintptr(n)
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xa5
	}
	f.ram[at] = &fakeMemory{b, c, false}
	return devicePtr(at), nil
}

func (f *fake) Free(p devicePtr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter("cuMemFree"); err != nil {
		return err
	}
	if err := f.owned("memory", uintptr(p)); err != nil {
		return err
	}
	f.used -= len(f.ram[uintptr(p)].bytes)
	delete(f.live["memory"], uintptr(p))
	delete(f.ram, uintptr(p))
	return nil
}

func (f *fake) Register(mem []byte) (devicePtr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.enter("cuMemHostRegister")
	if err != nil {
		return 0, err
	}
	at := f.handle("registration", c)
	f.next += uintptr(len(mem))
	f.ram[at] = &fakeMemory{mem, c, true}
	return devicePtr(at), nil
}

func (f *fake) Unregister(mem []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.enter("cuMemHostUnregister")
	if err != nil {
		return err
	}
	for p, m := range f.ram {
		if m.host && m.context == c && &m.bytes[0] == &mem[0] {
			delete(f.ram, p)
			delete(f.live["registration"], p)
			return nil
		}
	}
	return f.misuse("memory that is not registered")
}

// span returns n bytes of device memory from p on, in the current context.
func (f *fake) span(p devicePtr, n int) ([]byte, error) {
	for at, m := range f.ram {
		if uintptr(p) >= at && uintptr(p)-at+uintptr(n) <= uintptr(len(m.bytes)) && m.context == f.current() {
			return m.bytes[uintptr(p)-at:][:n], nil
		}
	}
	return nil, f.misuse("%d bytes at %#x are not memory of context %#x", n, p, f.current())
}

// later has work done when the stream is waited for, so that who does not wait is found out.
func (f *fake) later(name string, s stream, work func() error) error {
	if _, err := f.enter(name); err != nil {
		return err
	}
	if err := f.owned("stream", uintptr(s)); err != nil {
		return err
	}
	f.pending[s] = append(f.pending[s], work)
	return nil
}

func (f *fake) Clear(p devicePtr, n int, s stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.span(p, n)
	if err != nil {
		return err
	}
	return f.later("cuMemsetD8Async", s, func() error { clear(b); return nil })
}

func (f *fake) Upload(to devicePtr, from []byte, s stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.span(to, len(from))
	if err != nil {
		return err
	}
	return f.later("cuMemcpyHtoDAsync", s, func() error { copy(b, from); return nil })
}

func (f *fake) Download(to []byte, from devicePtr, s stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.span(from, len(to))
	if err != nil {
		return err
	}
	return f.later("cuMemcpyDtoHAsync", s, func() error { copy(to, b); return nil })
}

func (f *fake) LoadModule(image []byte) (module, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.enter("cuModuleLoadData")
	if err != nil {
		return 0, err
	}
	m := module(f.handle("module", c))
	f.images[m] = strings.Fields(string(image))
	return m, nil
}

func (f *fake) UnloadModule(m module) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter("cuModuleUnload"); err != nil {
		return err
	}
	if err := f.owned("module", uintptr(m)); err != nil {
		return err
	}
	delete(f.live["module"], uintptr(m))
	return nil
}

func (f *fake) Function(m module, name string) (function, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.enter("cuModuleGetFunction")
	if err != nil {
		return 0, err
	}
	if err := f.owned("module", uintptr(m)); err != nil {
		return 0, err
	}
	if !slices.Contains(f.images[m], name) {
		return 0, &callError{"cuModuleGetFunction", resultNotFound, "not found"}
	}
	fn := function(f.next + 8)
	f.next += 0x10
	f.live["function"] = add(f.live["function"], uintptr(fn))
	f.live["function"][uintptr(fn)] = c
	f.names2[fn] = name
	return fn, nil
}

func (f *fake) FunctionAttribute(fn function, a funcAttribute) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter("cuFuncGetAttribute"); err != nil {
		return 0, err
	}
	return map[funcAttribute]int{funcMaxThreads: 256, funcStaticShared: 16}[a], f.owned("function", uintptr(fn))
}

func (f *fake) SetFunctionAttribute(fn function, a funcAttribute, v int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter("cuFuncSetAttribute"); err != nil {
		return err
	}
	if a != funcMaxDynamicShared || v > 227<<10-16 {
		return f.misuse("attribute %d = %d", a, v)
	}
	f.shared[fn] = v
	return f.owned("function", uintptr(fn))
}

// parameterBytes of the fake's kernels: buffers and arguments.
var parameterBytes = map[string]int{"add": 2*8 + 8 + launchBytes, "plain": 8 + launchBytes, "fault": launchBytes}

func (f *fake) ParameterBytes(fn function) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter("cuFuncGetParamInfo"); err != nil {
		return 0, err
	}
	return parameterBytes[f.names2[fn]], f.owned("function", uintptr(fn))
}

func (f *fake) simple(name, kind string) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.enter(name)
	if err != nil {
		return 0, err
	}
	return f.handle(kind, c), nil
}

func (f *fake) destroy(name, kind string, h uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter(name); err != nil {
		return err
	}
	if err := f.owned(kind, h); err != nil {
		return err
	}
	delete(f.live[kind], h)
	return nil
}

func (f *fake) NewStream() (stream, error) {
	h, err := f.simple("cuStreamCreate", "stream")
	return stream(h), err
}

func (f *fake) NewEvent() (event, error) {
	h, err := f.simple("cuEventCreate", "event")
	return event(h), err
}

func (f *fake) DestroyStream(s stream) error {
	return f.destroy("cuStreamDestroy", "stream", uintptr(s))
}
func (f *fake) DestroyEvent(e event) error { return f.destroy("cuEventDestroy", "event", uintptr(e)) }

func (f *fake) Record(e event, s stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.owned("event", uintptr(e)); err != nil {
		return err
	}
	return f.later("cuEventRecord", s, func() error { f.times[e] = f.clock; return nil })
}

func (f *fake) Milliseconds(start, end event) (float32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.enter("cuEventElapsedTime"); err != nil {
		return 0, err
	}
	for _, e := range []event{start, end} {
		if err := f.owned("event", uintptr(e)); err != nil {
			return 0, err
		}
	}
	return f.times[end] - f.times[start], nil
}

func (f *fake) Synchronize(s stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, failed := f.enter("cuStreamSynchronize")
	if err := f.owned("stream", uintptr(s)); err != nil {
		return err
	}
	work := f.pending[s]
	delete(f.pending, s)
	for _, w := range work {
		if err := w(); err != nil {
			f.dead[f.current()] = err.(*callError).code
			return err
		}
	}
	return failed
}

// Launch runs "add" (each thread adds the argument to a word of the first buffer, into the second), "plain"
// (each group adds one to a word), "fault".
func (f *fake) Launch(fn function, grid, block [3]int, shared int, s stream, parameters []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.owned("function", uintptr(fn)); err != nil {
		return err
	}
	name := f.names2[fn]
	if len(parameters) != parameterBytes[name] {
		return f.misuse("%s with %d bytes of parameters", name, len(parameters))
	}
	for i, n := range grid {
		if n <= 0 || i == 0 && n > maxGridX || i > 0 && n > maxGridYZ {
			return f.misuse("a grid of %v", grid)
		}
	}
	if shared > max(defaultShared, f.shared[fn]) {
		return f.misuse("%d bytes of shared memory, %d asked for", shared, f.shared[fn])
	}
	p := slices.Clone(parameters) // the driver takes them at once
	word := func(i int) int { return int(binary.LittleEndian.Uint32(p[len(p)-launchBytes+4*i:])) }
	f.grids = append(f.grids, [6]int{grid[0], grid[1], grid[2], word(0), word(1), word(2)})
	return f.later("cuLaunchKernel", s, func() error {
		f.clock += 2
		pointer := func(i int) devicePtr { return devicePtr(binary.LittleEndian.Uint64(p[8*i:])) }
		switch name {
		case "add":
			n := 4 * grid[0] * block[0]
			from, err := f.span(pointer(0)+devicePtr(4*word(0)*block[0]), n)
			if err != nil {
				return err
			}
			to, err := f.span(pointer(1)+devicePtr(4*word(0)*block[0]), n)
			if err != nil {
				return err
			}
			for i := 0; i < n; i += 4 {
				binary.LittleEndian.PutUint32(to[i:], binary.LittleEndian.Uint32(from[i:])+binary.LittleEndian.Uint32(p[16:]))
			}
		case "plain":
			b, err := f.span(pointer(0), 4)
			if err != nil {
				return err
			}
			binary.LittleEndian.PutUint32(b, binary.LittleEndian.Uint32(b)+uint32(grid[0]*grid[1]*grid[2]))
		case "fault":
			return &callError{"cuStreamSynchronize", 700, "an illegal memory access"}
		}
		return nil
	})
}

// check says what was misused, what lives on, and on which thread a context was left.
func (f *fake) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.misuses {
		t.Error("misuse: ", m)
	}
	for kind, handles := range f.live {
		if len(handles) > 0 {
			t.Errorf("%d of %s live on", len(handles), kind)
		}
	}
	for id, s := range f.threads {
		if len(s) > 0 {
			t.Errorf("thread %d keeps contexts %v", id, s)
		}
	}
	if f.used != 0 {
		t.Errorf("%d bytes in use", f.used)
	}
}

// fakeCompiler's image is the source.
type fakeCompiler struct {
	major, minor int
	archs        []int
	mu           sync.Mutex
	options      [][]string
}

func newCompiler() *fakeCompiler {
	return &fakeCompiler{major: 13, archs: []int{75, 80, 90}}
}

func (c *fakeCompiler) Version() (int, int)  { return c.major, c.minor }
func (c *fakeCompiler) Build() string        { return "fake" }
func (c *fakeCompiler) Architectures() []int { return c.archs }

func (c *fakeCompiler) Compile(source string, options []string) ([]byte, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options = append(c.options, options)
	runtime.Gosched()
	if strings.Contains(source, "wrong") {
		return nil, "wrong.cu(3): error: wrong", fmt.Errorf("NVRTC_ERROR_COMPILATION")
	}
	return []byte(source), "", nil
}

func openFake(t *testing.T, f *fake, o Options) gpu.Device {
	t.Helper()
	d, err := open(f, newCompiler(), cache{}, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
