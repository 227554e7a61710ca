// Package mtlfake is a message sender for tests: a toy Objective-C runtime in Go with just enough
// of Metal behind it. It panics when a message is not one its receiver understands or is sent with
// another signature than the table of messages states, when an object is used after it went, and
// when Metal's rules are broken; it counts objects and can be told to fail.
package mtlfake

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// A Kernel runs one dispatch: the bound buffers from their offsets on, the constant bytes, and the
// number of threads.
type Kernel func(buffers [][]byte, args []byte, threads int)

// Fault is an NSError to come.
type Fault struct {
	Domain, Text string
	Code         int
}

// Runtime is the sender. Set the fields before use.
type Runtime struct {
	Kernels map[string]Kernel // what every library holds

	NoDefaultDevice bool // MTLCreateSystemDefaultDevice returns nil
	NoDevices       bool // and so does MTLCopyAllDevices
	OldSystem       bool // neither math modes nor architectures
	NilQueue        bool
	NilBuffer       bool
	NilContents     bool
	NilCommands     bool
	NilEncoder      bool
	Compile         *Fault // what newLibraryWithSource answers
	Load            *Fault // what newLibraryWithURL answers
	Pipeline        *Fault // what newComputePipelineState answers
	Commit          *Fault // how command buffers end
	Wait            func() // what waiting for one takes, if not nil

	Options string           // how the last library was compiled
	Loaded  string           // the path of the last library that was loaded
	Grid    string           // of the last dispatch
	Sent    map[mtl.Msg]bool // what came

	mu      sync.Mutex
	objects map[mtl.ID]*object
	last    mtl.ID
	classes map[string]mtl.ID
	pools   map[string][]mtl.ID // by goroutine
	devices [2]mtl.ID           // kept alive by the system
}

type object struct {
	class string
	refs  int
	owns  []mtl.ID // released with the object

	text    string // NSString, kernels
	memory  []byte // buffers
	code    int    // NSError
	items   []mtl.ID
	pooled  []mtl.ID // autoreleased into the pool
	options []string

	commands, pipeline      mtl.ID // encoders
	buffers                 [31]mtl.ID
	offsets                 [31]uint
	args                    []byte
	argsAt                  int
	work                    []func()
	ended, committed, ready bool
	failed                  *Fault
}

// The two devices: names, and registry ids.
var (
	Names = [2]string{"Fake M1", "Fake M2"}
	IDs   = [2]uint64{0x100000abc, 0x100000def}
)

// Limits of both devices.
const (
	MaxBuffer            = 1 << 30
	MaxThreadgroupMemory = 32 << 10
	MaxThreads           = 512 // of a pipeline
	StaticMemory         = 64  // of a pipeline
)

// Live counts the objects that are alive, by class; the system's two devices are not counted.
func (r *Runtime) Live() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	live := map[string]int{}
	for id, o := range r.objects {
		if id != r.devices[0] && id != r.devices[1] && o.class[0] != '+' {
			live[o.class]++
		}
	}
	for _, id := range r.devices {
		if id != 0 && r.objects[id].refs > 1 {
			live["MTLDevice"] += r.objects[id].refs - 1
		}
	}
	return live
}

func (r *Runtime) make(class string) (mtl.ID, *object) {
	if r.objects == nil {
		r.Sent = map[mtl.Msg]bool{}
		r.objects, r.classes, r.pools = map[mtl.ID]*object{}, map[string]mtl.ID{}, map[string][]mtl.ID{}
	}
	r.last += 16
	o := &object{class: class, refs: 1}
	r.objects[r.last] = o
	return r.last, o
}

func (r *Runtime) str(text string) mtl.ID {
	id, o := r.make("NSString")
	o.text = text
	return r.autorelease(id)
}

func (r *Runtime) nserror(f *Fault) mtl.ID {
	id, o := r.make("NSError")
	o.text, o.code = f.Text, f.Code
	o.options = []string{f.Domain}
	return r.autorelease(id)
}

func (r *Runtime) release(id mtl.ID) {
	o := r.get(id)
	if o.refs--; o.refs > 0 {
		return
	}
	delete(r.objects, id)
	clear(o.memory)
	for _, x := range o.owns {
		r.release(x)
	}
}

func (r *Runtime) retain(id mtl.ID) mtl.ID {
	r.get(id).refs++
	return id
}

// goroutine stands for the thread, which is locked wherever it matters.
func goroutine() string {
	b := make([]byte, 64)
	return strings.Fields(string(b[:runtime.Stack(b, false)]))[1]
}

func (r *Runtime) autorelease(id mtl.ID) mtl.ID {
	pools := r.pools[goroutine()]
	if len(pools) == 0 {
		panic("mtlfake: autorelease without a pool")
	}
	p := r.get(pools[len(pools)-1])
	p.pooled = append(p.pooled, id)
	return id
}

func (r *Runtime) get(id mtl.ID) *object {
	o := r.objects[id]
	if o == nil {
		panic(fmt.Sprintf("mtlfake: message to %#x: not a live object", uintptr(id)))
	}
	return o
}

// begin locks the runtime and checks the message; sig is the signature with which it came.
func (r *Runtime) begin(id mtl.ID, m mtl.Msg, sig string) (o *object, end func()) {
	r.mu.Lock()
	ok := false
	defer func() {
		if !ok {
			r.mu.Unlock() // let the panic out
		}
	}()
	o = r.get(id)
	t := m.Message()
	want := t.Signature()
	if want != sig && strings.Replace(want, "uint64_t (", "NSUInteger (", 1) != sig {
		panic(fmt.Sprintf("mtlfake: %v sent as %s, is %s", m, sig, want))
	}
	if n := strings.Count(t.Selector, ":"); n != len(t.Args) {
		panic(fmt.Sprintf("mtlfake: %v has %d arguments", m, len(t.Args)))
	}
	understood := t.Receiver == o.class || t.Receiver == "NSObject" || t.Receiver == "+NSObject" && o.class[0] == '+' ||
		t.Receiver == "MTLCommandEncoder" && o.class == "MTLComputeCommandEncoder"
	if !understood || !r.has(t) {
		panic(fmt.Sprintf("mtlfake: unrecognized selector %s sent to a %s", t.Selector, o.class))
	}
	r.Sent[m] = true
	ok = true
	return o, r.mu.Unlock
}

func (r *Runtime) has(t mtl.Message) bool {
	switch t.Selector {
	case "architecture", "setMathMode:", "setMathFloatingPointFunctions:":
		return !r.OldSystem
	}
	return true
}

func unknown(m mtl.Msg) string { return fmt.Sprintf("mtlfake: %v is not implemented", m) }

// Class is objc_getClass for the classes that the messages name.
func (r *Runtime) Class(name string) mtl.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch name {
	case "NSAutoreleasePool", "NSString", "NSURL", "MTLCompileOptions":
	default:
		return 0
	}
	if id := r.classes[name]; id != 0 {
		return id
	}
	id, _ := r.make("+" + name)
	r.classes[name] = id
	return id
}

func (r *Runtime) system() {
	for i := range r.devices {
		if r.devices[i] == 0 {
			id, o := r.make("MTLDevice")
			o.text, o.code = Names[i], i
			r.devices[i] = id
		}
	}
}

// CreateSystemDefaultDevice returns the first device.
func (r *Runtime) CreateSystemDefaultDevice() mtl.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.NoDefaultDevice {
		return 0
	}
	r.system()
	return r.retain(r.devices[0])
}

// CopyAllDevices returns both.
func (r *Runtime) CopyAllDevices() mtl.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.NoDevices {
		return 0
	}
	r.system()
	id, o := r.make("NSArray")
	for _, d := range r.devices {
		o.items = append(o.items, r.retain(d))
	}
	o.owns = o.items
	return id
}

// Void implements mtl.Sender.
func (r *Runtime) Void(id mtl.ID, m mtl.Msg) {
	o, end := r.begin(id, m, "void ()")
	defer end()
	switch m.Message().Selector {
	case "release":
		r.release(id)
	case "drain":
		g := goroutine()
		pools := r.pools[g]
		if len(pools) == 0 || pools[len(pools)-1] != id {
			panic("mtlfake: drain of a pool that is not this thread's innermost")
		}
		if r.pools[g] = pools[:len(pools)-1]; len(pools) == 1 {
			delete(r.pools, g)
		}
		o.owns = o.pooled
		r.release(id)
	case "endEncoding":
		if o.ended {
			panic("mtlfake: endEncoding twice")
		}
		o.ended = true
		c := r.get(o.commands)
		c.work, c.ready = append(c.work, o.work...), true
	case "commit":
		if o.committed || !o.ready {
			panic("mtlfake: commit twice, or before endEncoding")
		}
		if o.committed, o.failed = true, r.Commit; o.failed == nil {
			for _, f := range o.work {
				f()
			}
		}
	case "waitUntilCompleted":
		if !o.committed {
			panic("mtlfake: wait before commit")
		}
		if r.Wait != nil {
			r.mu.Unlock()
			r.Wait()
			r.mu.Lock()
		}
	default:
		panic(unknown(m))
	}
}

// VoidID implements mtl.Sender.
func (r *Runtime) VoidID(id mtl.ID, m mtl.Msg, a mtl.ID) {
	o, end := r.begin(id, m, "void (id)")
	defer end()
	if m.Message().Selector != "setComputePipelineState:" || r.get(a).class != "MTLComputePipelineState" || o.ended {
		panic(unknown(m))
	}
	o.pipeline = r.retain(a)
	o.owns = append(o.owns, a)
}

// VoidIDUintUint implements mtl.Sender.
func (r *Runtime) VoidIDUintUint(id mtl.ID, m mtl.Msg, a mtl.ID, b, c uint) {
	o, end := r.begin(id, m, "void (id, NSUInteger, NSUInteger)")
	defer end()
	if m.Message().Selector != "setBuffer:offset:atIndex:" || r.get(a).class != "MTLBuffer" || b >= uint(len(r.get(a).memory)) || o.ended {
		panic(unknown(m))
	}
	o.buffers[c], o.offsets[c] = r.retain(a), b
	o.owns = append(o.owns, a)
}

// VoidPointerUintUint implements mtl.Sender.
func (r *Runtime) VoidPointerUintUint(id mtl.ID, m mtl.Msg, a unsafe.Pointer, b, c uint) {
	o, end := r.begin(id, m, "void (const void *, NSUInteger, NSUInteger)")
	defer end()
	if m.Message().Selector != "setBytes:length:atIndex:" || b == 0 || b >= 4096 || o.ended {
		panic(unknown(m))
	}
	o.args, o.argsAt = append([]byte(nil), unsafe.Slice((*byte)(a), b)...), int(c)
}

// VoidUintUint implements mtl.Sender.
func (r *Runtime) VoidUintUint(id mtl.ID, m mtl.Msg, a, b uint) {
	o, end := r.begin(id, m, "void (NSUInteger, NSUInteger)")
	defer end()
	if m.Message().Selector != "setThreadgroupMemoryLength:atIndex:" || a == 0 || a%16 != 0 || b > 30 || o.ended {
		panic(unknown(m))
	}
}

// VoidUint implements mtl.Sender.
func (r *Runtime) VoidUint(id mtl.ID, m mtl.Msg, a uint) {
	o, end := r.begin(id, m, "void (NSUInteger)")
	defer end()
	o.options = append(o.options, fmt.Sprint(m.Message().Selector, a))
}

// VoidInt implements mtl.Sender.
func (r *Runtime) VoidInt(id mtl.ID, m mtl.Msg, a int) {
	o, end := r.begin(id, m, "void (NSInteger)")
	defer end()
	o.options = append(o.options, fmt.Sprint(m.Message().Selector, a))
}

// VoidBool implements mtl.Sender.
func (r *Runtime) VoidBool(id mtl.ID, m mtl.Msg, a bool) {
	o, end := r.begin(id, m, "void (BOOL)")
	defer end()
	o.options = append(o.options, fmt.Sprint(m.Message().Selector, a))
}

// VoidSizeSize implements mtl.Sender.
func (r *Runtime) VoidSizeSize(id mtl.ID, m mtl.Msg, a, b mtl.Size) {
	o, end := r.begin(id, m, "void (MTLSize, MTLSize)")
	defer end()
	threads := a.Width * a.Height * a.Depth * b.Width * b.Height * b.Depth
	if m.Message().Selector != "dispatchThreadgroups:threadsPerThreadgroup:" || threads == 0 || o.pipeline == 0 || o.ended {
		panic(unknown(m))
	}
	r.Grid = fmt.Sprint(a, b)
	kernel := r.Kernels[r.get(o.pipeline).text]
	var buffers [][]byte
	for i := 0; o.buffers[i] != 0 && (o.args == nil || i != o.argsAt); i++ {
		buffers = append(buffers, r.get(o.buffers[i]).memory[o.offsets[i]:])
	}
	if o.args != nil && o.argsAt != len(buffers) {
		panic("mtlfake: arguments at another index than after the buffers")
	}
	args := o.args
	o.work = append(o.work, func() { kernel(buffers, args, int(threads)) })
}

// ID implements mtl.Sender.
func (r *Runtime) ID(id mtl.ID, m mtl.Msg) mtl.ID {
	o, end := r.begin(id, m, "id ()")
	defer end()
	switch m.Message().Selector {
	case "new":
		n, _ := r.make(o.class[1:])
		if o.class == "+NSAutoreleasePool" {
			g := goroutine()
			r.pools[g] = append(r.pools[g], n)
		}
		return n
	case "retain":
		return r.retain(id)
	case "domain":
		return r.str(o.options[0])
	case "name", "localizedDescription":
		return r.str(o.text)
	case "architecture":
		a, x := r.make("MTLArchitecture")
		x.text = "fakegpu"
		return r.autorelease(a)
	case "newCommandQueue":
		if r.NilQueue {
			return 0
		}
		q, x := r.make("MTLCommandQueue")
		x.owns = []mtl.ID{r.retain(id)}
		return q
	case "commandBuffer":
		if r.NilCommands {
			return 0
		}
		c, x := r.make("MTLCommandBuffer")
		x.owns = []mtl.ID{r.retain(id)}
		return r.autorelease(c)
	case "computeCommandEncoder":
		if r.NilEncoder {
			return 0
		}
		e, x := r.make("MTLComputeCommandEncoder")
		x.owns, x.commands = []mtl.ID{r.retain(id)}, id
		return r.autorelease(e)
	case "error":
		if o.failed == nil || o.failed.Domain == "" {
			return 0
		}
		return r.nserror(o.failed)
	}
	panic(unknown(m))
}

// IDUint implements mtl.Sender.
func (r *Runtime) IDUint(id mtl.ID, m mtl.Msg, a uint) mtl.ID {
	o, end := r.begin(id, m, "id (NSUInteger)")
	defer end()
	return o.items[a]
}

// IDUintUint implements mtl.Sender.
func (r *Runtime) IDUintUint(id mtl.ID, m mtl.Msg, a, b uint) mtl.ID {
	_, end := r.begin(id, m, "id (NSUInteger, NSUInteger)")
	defer end()
	if a == 0 || b != 0 {
		panic(unknown(m))
	}
	if r.NilBuffer {
		return 0
	}
	n, o := r.make("MTLBuffer")
	o.memory, o.owns = make([]byte, a), []mtl.ID{r.retain(id)}
	return n
}

// IDString implements mtl.Sender.
func (r *Runtime) IDString(id mtl.ID, m mtl.Msg, a string) mtl.ID {
	_, end := r.begin(id, m, "id (const char *)")
	defer end()
	if strings.Contains(a, "\x00") {
		panic(unknown(m))
	}
	return r.str(a)
}

// IDID implements mtl.Sender.
func (r *Runtime) IDID(id mtl.ID, m mtl.Msg, a mtl.ID) mtl.ID {
	_, end := r.begin(id, m, "id (id)")
	defer end()
	name := r.get(a).text
	if m.Message().Selector == "fileURLWithPath:" {
		n, o := r.make("NSURL")
		o.text = name
		return r.autorelease(n)
	}
	if r.Kernels[name] == nil {
		return 0
	}
	n, o := r.make("MTLFunction")
	o.text = name
	return n
}

// IDIDError implements mtl.Sender.
func (r *Runtime) IDIDError(id mtl.ID, m mtl.Msg, a mtl.ID) (mtl.ID, mtl.ID) {
	_, end := r.begin(id, m, "id (id, NSError **)")
	defer end()
	if m.Message().Selector == "newLibraryWithURL:error:" {
		if r.Load != nil {
			return 0, r.nserror(r.Load)
		}
		r.Loaded = r.get(a).text
		n, _ := r.make("MTLLibrary")
		return n, 0
	}
	if r.Pipeline != nil {
		return 0, r.nserror(r.Pipeline)
	}
	n, o := r.make("MTLComputePipelineState")
	o.text = r.get(a).text
	return n, 0
}

// IDIDIDError implements mtl.Sender.
func (r *Runtime) IDIDIDError(id mtl.ID, m mtl.Msg, a, b mtl.ID) (mtl.ID, mtl.ID) {
	_, end := r.begin(id, m, "id (id, id, NSError **)")
	defer end()
	r.Options = strings.Join(r.get(b).options, " ")
	if r.Compile != nil {
		return 0, r.nserror(r.Compile)
	}
	n, o := r.make("MTLLibrary")
	o.text = r.get(a).text
	return n, r.nserror(&Fault{"MTLLibraryErrorDomain", "a warning", 4})
}

// Uint implements mtl.Sender.
func (r *Runtime) Uint(id mtl.ID, m mtl.Msg) uint {
	o, end := r.begin(id, m, "NSUInteger ()")
	defer end()
	switch m.Message().Selector {
	case "count":
		return uint(len(o.items))
	case "registryID":
		return uint(IDs[o.code])
	case "recommendedMaxWorkingSetSize":
		return 3 << 30
	case "maxBufferLength":
		return MaxBuffer
	case "maxThreadgroupMemoryLength":
		return MaxThreadgroupMemory
	case "maxTotalThreadsPerThreadgroup":
		return MaxThreads
	case "threadExecutionWidth":
		return 32
	case "staticThreadgroupMemoryLength":
		return StaticMemory
	case "status":
		if o.failed != nil {
			return 5
		}
		return 4
	}
	panic(unknown(m))
}

// Int implements mtl.Sender.
func (r *Runtime) Int(id mtl.ID, m mtl.Msg) int {
	o, end := r.begin(id, m, "NSInteger ()")
	defer end()
	return o.code
}

// Bool implements mtl.Sender.
func (r *Runtime) Bool(id mtl.ID, m mtl.Msg) bool {
	_, end := r.begin(id, m, "BOOL ()")
	defer end()
	return true
}

// BoolMsg implements mtl.Sender.
func (r *Runtime) BoolMsg(id mtl.ID, m mtl.Msg, a mtl.Msg) bool {
	_, end := r.begin(id, m, "BOOL (SEL)")
	defer end()
	return r.has(a.Message())
}

// Float64 implements mtl.Sender.
func (r *Runtime) Float64(id mtl.ID, m mtl.Msg) float64 {
	_, end := r.begin(id, m, "double ()")
	defer end()
	if m.Message().Selector == "GPUStartTime" {
		return 12.5
	}
	return 12.75
}

// Size implements mtl.Sender.
func (r *Runtime) Size(id mtl.ID, m mtl.Msg) mtl.Size {
	_, end := r.begin(id, m, "MTLSize ()")
	defer end()
	return mtl.Size{Width: 1024, Height: 1024, Depth: 64}
}

// String implements mtl.Sender.
func (r *Runtime) String(id mtl.ID, m mtl.Msg) string {
	o, end := r.begin(id, m, "const char * ()")
	defer end()
	return o.text
}

// Pointer implements mtl.Sender.
func (r *Runtime) Pointer(id mtl.ID, m mtl.Msg) unsafe.Pointer {
	o, end := r.begin(id, m, "void * ()")
	defer end()
	if r.NilContents {
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(o.memory))
}
