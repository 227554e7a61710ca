// Package metal implements gpu.Device over Metal's objects. Messages go through the sender that the build tags
// chose: darwinkit (cgo) or purego (without). Only the files send_*.go import one.
//
// Every call runs inside an autorelease pool on a locked thread; nothing autoreleased outlives it.
// Ownership is explicit: each object that Metal hands out owned is released exactly once, by its
// own Release or by the device's Close.
package metal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// open opens the device that o chooses. driver is the sender's name, for Info.
func open(s mtl.Sender, driver string, o gpu.Options) (gpu.Device, error) {
	if !utf8.ValidString(o.Prebuilt) || strings.IndexByte(o.Prebuilt, 0) >= 0 {
		return nil, &gpu.Error{Op: "open", Err: gpu.ErrInvalid, Detail: fmt.Sprintf("the folder of libraries %q is not UTF-8", o.Prebuilt)}
	}
	var d *device
	err := error(&gpu.Error{Op: "open", Err: gpu.ErrUnavailable, Detail: wanted(o)})
	each(s, func(m mtl.Device) bool {
		info := describe(m, driver)
		if o.Name != "" && o.Name != info.Name || o.RegistryID != 0 && o.RegistryID != info.RegistryID {
			return false
		}
		queue := m.NewCommandQueue()
		if queue.IsNil() {
			err = &gpu.Error{Op: "open", Err: gpu.ErrUnavailable, Detail: info.Name + " gives no command queue"}
			return false
		}
		d = &device{s: s, device: m, queue: queue, info: info, prebuilt: o.Prebuilt, timeout: o.Timeout, live: map[*object]struct{}{}}
		if d.timeout <= 0 {
			d.timeout = defaultTimeout
		}
		return true
	})
	if d == nil {
		return nil, err
	}
	return d, nil
}

func wanted(o gpu.Options) string {
	b := "no Metal device"
	if o.Name != "" {
		b += fmt.Sprintf(" named %q", o.Name)
	}
	if o.RegistryID != 0 {
		b += fmt.Sprintf(" with registry id %#x", o.RegistryID)
	}
	return b
}

// list describes every device, each once.
func list(s mtl.Sender, driver string) []gpu.Info {
	var infos []gpu.Info
	seen := map[uint64]bool{}
	each(s, func(m mtl.Device) bool {
		info := describe(m, driver)
		if !seen[info.RegistryID] {
			seen[info.RegistryID] = true
			infos = append(infos, info)
		}
		return false
	})
	return infos
}

// each calls f, inside a pool, with all devices and then with the default one, until f keeps one by
// returning true: its ownership is then f's. The default comes last because in a program without a
// window server, in a terminal or a service, the system may give none and log a complaint.
func each(s mtl.Sender, f func(mtl.Device) bool) {
	mtl.Pool(s, func() {
		if all := mtl.CopyAllDevices(s); !all.IsNil() {
			defer all.Release()
			for i := range all.Count() {
				m := all.ObjectAtIndex(i)
				m.Retain()
				if f(m) {
					return
				}
				m.Release()
			}
		}
		if m := mtl.CreateSystemDefaultDevice(s); !m.IsNil() && !f(m) {
			m.Release()
		}
	})
}

func describe(m mtl.Device, driver string) gpu.Info {
	threads := m.MaxThreadsPerThreadgroup()
	return gpu.Info{
		Driver:               driver,
		Name:                 m.Name(),
		Architecture:         m.Architecture(),
		RegistryID:           m.RegistryID(),
		UnifiedMemory:        m.HasUnifiedMemory(),
		WorkingSet:           m.RecommendedMaxWorkingSetSize(),
		MaxBuffer:            uint64(m.MaxBufferLength()),
		MaxThreadgroupMemory: int(m.MaxThreadgroupMemoryLength()),
		MaxThreads:           [3]int{int(threads.Width), int(threads.Height), int(threads.Depth)},
		MatrixUnits:          true, // every Apple GPU that Metal 3 serves
	}
}

const defaultTimeout = 5 * time.Minute // gpu.Options

type device struct {
	s      mtl.Sender
	device mtl.Device
	info   gpu.Info

	prebuilt string        // gpu.Options
	timeout  time.Duration // gpu.Options

	// mu is held for reading by every call that uses device or queue, and for writing by Close and Reset.
	mu     sync.RWMutex
	closed bool
	queue  mtl.CommandQueue
	lost   atomic.Bool // from ErrLost to Reset

	liveMu sync.Mutex
	live   map[*object]struct{} // what Close has to release
}

func (d *device) Info() gpu.Info { return d.info }

// enter begins a call; leave with d.mu.RUnlock unless it fails.
func (d *device) enter(op string) error {
	d.mu.RLock()
	err := gpu.ErrClosed
	switch {
	case !d.closed && !d.lost.Load():
		return nil
	case !d.closed:
		err = gpu.ErrLost
	}
	d.mu.RUnlock()
	return &gpu.Error{Op: op, Err: err}
}

func (d *device) NewBuffer(size int) (gpu.Buffer, error) {
	const op = "new buffer"
	if size <= 0 {
		return nil, &gpu.Error{Op: op, Err: gpu.ErrInvalid, Detail: fmt.Sprintf("%d bytes", size)}
	}
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.mu.RUnlock()
	if uint64(size) > d.info.MaxBuffer {
		detail := fmt.Sprintf("%d bytes, more than the device's limit of %d", size, d.info.MaxBuffer)
		return nil, &gpu.Error{Op: op, Err: gpu.ErrOutOfMemory, Detail: detail}
	}
	var b *buffer
	mtl.Pool(d.s, func() {
		m := d.device.NewBufferWithLength(uint(size), mtl.ResourceStorageModeShared)
		if m.IsNil() {
			return
		}
		p := m.Contents()
		if p == nil {
			m.Release()
			return
		}
		b = &buffer{metal: m, bytes: unsafe.Slice((*byte)(p), size)}
		b.init(d, m.Object)
	})
	if b == nil {
		return nil, &gpu.Error{Op: op, Err: gpu.ErrOutOfMemory, Detail: fmt.Sprintf("%d bytes", size)}
	}
	return b, nil
}

// NewShared is NewBuffer, whose buffers are all in shared storage, but Reset keeps what it returns.
func (d *device) NewShared(size int) (gpu.Buffer, error) {
	b, err := d.NewBuffer(size)
	if err == nil {
		b.(*buffer).shared.Store(true)
	}
	return b, err
}

func (d *device) NewLibrary(source string, o gpu.CompileOptions) (gpu.Library, error) {
	const op = "compile"
	if i := strings.IndexByte(source, 0); i >= 0 {
		return nil, &gpu.Error{Op: op, Err: gpu.ErrInvalid, Detail: fmt.Sprintf("NUL in the source at byte %d", i)}
	}
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.mu.RUnlock()
	if d.prebuilt != "" && !o.FastMath {
		name := gpu.PrebuiltName(source)
		path := filepath.Join(d.prebuilt, name+".metallib")
		if _, err := os.Stat(path); err == nil {
			l, err := d.loadLibrary(path, name)
			if !errors.Is(err, errRefused) {
				return l, err
			}
		}
	}
	var l *library
	var err error
	mtl.Pool(d.s, func() {
		options := mtl.NewCompileOptions(d.s)
		defer options.Release()
		options.SetLanguageVersion(mtl.LanguageVersion3_0)
		switch {
		case !options.HasMathMode():
			options.SetFastMathEnabled(o.FastMath)
		case o.FastMath:
			options.SetMathMode(mtl.MathModeFast)
			options.SetMathFloatingPointFunctions(mtl.MathFloatingPointFunctionsFast)
		default:
			options.SetMathMode(mtl.MathModeSafe)
			options.SetMathFloatingPointFunctions(mtl.MathFloatingPointFunctionsPrecise)
		}
		m, nserr := d.device.NewLibraryWithSource(source, options)
		if m.IsNil() {
			err = failure(op, "", gpu.ErrCompile, nserr)
			return
		}
		l = &library{metal: m}
		l.init(d, m.Object)
	})
	if l == nil {
		return nil, err
	}
	return l, nil
}

// errRefused says that the system did not load a library: it may be for a later system.
var errRefused = errors.New("refused")

// loadLibrary loads a compiled library, which must hold the named kernel.
func (d *device) loadLibrary(path, kernel string) (gpu.Library, error) {
	const op = "load"
	var l *library
	var err error
	mtl.Pool(d.s, func() {
		m, _ := d.device.NewLibraryWithURL(path)
		if m.IsNil() {
			err = errRefused
			return
		}
		proof := m.NewFunctionWithName(kernel)
		if proof.IsNil() {
			m.Release()
			err = &gpu.Error{Op: op, Err: gpu.ErrCompile, Detail: path + " was compiled from another source than its name says"}
			return
		}
		proof.Release()
		l = &library{metal: m}
		l.init(d, m.Object)
	})
	if l == nil {
		return nil, err
	}
	return l, nil
}

// Lost reports whether the device waits for Reset: it did not answer in time, or the system ignores what the
// queue submits.
func (d *device) Lost() bool { return d.lost.Load() }

// Reset makes the queue anew and releases everything but buffers of NewShared.
func (d *device) Reset() error {
	const op = "reset"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &gpu.Error{Op: op, Err: gpu.ErrClosed}
	}
	d.releaseAll(true)
	var err error
	mtl.Pool(d.s, func() {
		queue := d.device.NewCommandQueue()
		if queue.IsNil() {
			err = &gpu.Error{Op: op, Err: gpu.ErrLost, Detail: "the device gives no command queue"}
			return
		}
		d.queue.Release()
		d.queue = queue
		d.lost.Store(false)
	})
	return err
}

// releaseAll releases every object, or all but shared buffers.
func (d *device) releaseAll(keepShared bool) {
	d.liveMu.Lock()
	var rest []*object
	for o := range d.live {
		if !keepShared || !o.shared.Load() {
			rest = append(rest, o)
		}
	}
	d.liveMu.Unlock()
	for _, o := range rest {
		o.release()
	}
}

// Run encodes, commits and waits.
func (d *device) Run(list ...gpu.Dispatch) (time.Duration, error) {
	const op = "run"
	if err := d.enter(op); err != nil {
		return 0, err
	}
	defer d.mu.RUnlock()
	var held []*object
	drop := func() {
		for _, o := range held {
			o.drop()
		}
	}
	running := false
	defer func() {
		if !running {
			drop()
		}
	}()
	var work []*gpu.Dispatch
	for i := range list {
		if err := list[i].Check(d.info); err != nil {
			return 0, err
		}
		objects, err := d.hold(&list[i], held)
		held = objects
		if err != nil {
			return 0, err
		}
		if !list[i].Empty() {
			work = append(work, &list[i])
		}
	}
	if len(work) == 0 {
		return 0, nil
	}

	// Metal cannot wait with a limit, so another goroutine waits. When the run is given up, its objects
	// stay alive until that goroutine returns, if ever: the kernels may still be running.
	type outcome struct {
		spent time.Duration
		err   error
	}
	done := make(chan outcome, 1)
	queue := d.queue
	queue.Retain() // Reset may release it before run is back
	running = true
	go func() {
		var o outcome
		mtl.Pool(d.s, func() {
			o.spent, o.err = run(queue, work)
			queue.Release()
		})
		drop()
		done <- o
	}()
	limit := time.NewTimer(d.timeout)
	defer limit.Stop()
	select {
	case o := <-done:
		if errors.Is(o.err, gpu.ErrLost) {
			d.lost.Store(true)
		}
		return o.spent, o.err
	case <-limit.C:
		d.lost.Store(true)
		return 0, &gpu.Error{Op: op, Kernel: kernels(work), Err: gpu.ErrLost, Detail: fmt.Sprintf("no answer in %v", d.timeout)}
	}
}

// hold keeps the objects of x alive and appends them to held. It fails if one was released, or
// comes from elsewhere.
func (d *device) hold(x *gpu.Dispatch, held []*object) ([]*object, error) {
	bad := func(err error, detail string) error {
		return &gpu.Error{Op: "run", Kernel: x.Pipeline.Name(), Err: err, Detail: detail}
	}
	p, ok := x.Pipeline.(*pipeline)
	if !ok || p.dev != d {
		return held, bad(gpu.ErrInvalid, "the pipeline is another device's")
	}
	if !p.hold() {
		return held, bad(gpu.ErrReleased, "the pipeline")
	}
	held = append(held, &p.object)
	for i := range x.Buffers {
		b, ok := x.Buffers[i].Buffer.(*buffer)
		if !ok || b.dev != d {
			return held, bad(gpu.ErrInvalid, fmt.Sprintf("buffer %d is another device's", i))
		}
		if !b.hold() {
			return held, bad(gpu.ErrReleased, fmt.Sprintf("buffer %d", i))
		}
		held = append(held, &b.object)
	}
	return held, nil
}

func run(queue mtl.CommandQueue, work []*gpu.Dispatch) (time.Duration, error) {
	const op = "run"
	commands := queue.CommandBuffer()
	if commands.IsNil() {
		return 0, &gpu.Error{Op: op, Err: gpu.ErrFailed, Detail: "the queue gives no command buffer"}
	}
	for _, x := range work { // an encoder each, so that nothing bound for one is left for the next; encoders run in order
		encoder := commands.ComputeCommandEncoder()
		if encoder.IsNil() {
			return 0, &gpu.Error{Op: op, Kernel: x.Pipeline.Name(), Err: gpu.ErrFailed, Detail: "the command buffer gives no encoder"}
		}
		encoder.SetComputePipelineState(x.Pipeline.(*pipeline).metal)
		for i, b := range x.Buffers {
			encoder.SetBuffer(b.Buffer.(*buffer).metal, uint(b.Offset), uint(i))
		}
		if len(x.Args) > 0 {
			encoder.SetBytes(x.Args, uint(len(x.Buffers)))
		}
		for i, n := range x.ThreadgroupMemory {
			encoder.SetThreadgroupMemoryLength(uint(n), uint(i))
		}
		encoder.DispatchThreadgroups(size(x.Groups), size(x.GroupSize))
		encoder.EndEncoding()
	}
	commands.Commit()
	commands.WaitUntilCompleted()
	if nserr := commands.Error(); !nserr.IsNil() || commands.Status() != mtl.CommandBufferStatusCompleted {
		return 0, failure(op, kernels(work), gpu.ErrFailed, nserr)
	}
	return time.Duration((commands.GPUEndTime() - commands.GPUStartTime()) * float64(time.Second)), nil
}

func size(n [3]int) mtl.Size {
	return mtl.Size{Width: uint64(n[0]), Height: uint64(n[1]), Depth: uint64(n[2])}
}

// kernels names what a list runs, in order, each kernel once.
func kernels(work []*gpu.Dispatch) string {
	var names []string
	seen := map[string]bool{}
	for _, x := range work {
		if n := x.Pipeline.Name(); !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

// failure reads e, which may be nil, while its pool lives.
func failure(op, kernel string, class error, e mtl.NSError) *gpu.Error {
	out := &gpu.Error{Op: op, Kernel: kernel, Err: class, Detail: "the system gave no reason"}
	if e.IsNil() {
		return out
	}
	out.Domain, out.Code, out.Detail = e.Domain(), e.Code(), e.LocalizedDescription()
	if out.Domain == mtl.CommandBufferErrorDomain {
		switch out.Code {
		case mtl.CommandBufferErrorInternal:
			// How macOS says that a buffer kept the screen waiting.
			if strings.Contains(out.Detail, "0000000e") || strings.Contains(out.Detail, "ImpactingInteractivity") {
				out.Err = gpu.ErrTimeout
			}
		case mtl.CommandBufferErrorTimeout:
			out.Err = gpu.ErrTimeout
		case mtl.CommandBufferErrorPageFault:
			out.Err = gpu.ErrPageFault
		case mtl.CommandBufferErrorAccessRevoked: // "Ignored (for causing prior/excessive GPU errors)"
			out.Err = gpu.ErrLost
		case mtl.CommandBufferErrorOutOfMemory:
			out.Err = gpu.ErrOutOfMemory
		}
	}
	return out
}

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &gpu.Error{Op: "close", Err: gpu.ErrClosed}
	}
	d.closed = true
	d.releaseAll(false)
	mtl.Pool(d.s, func() {
		d.queue.Release()
		d.device.Release()
	})
	return nil
}
