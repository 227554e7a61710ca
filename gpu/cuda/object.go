package cuda

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// object is what the device holds for a buffer, library or pipeline, shared by its holder and the calls
// that use it.
type object struct {
	dev      *device
	free     func() error // with the context current
	shared   *buffer      // the buffer, if it is one that outlives the context
	refs     atomic.Int32 // one for the holder until it releases, one for each call
	released atomic.Bool  // the holder has released, or the context has ended
}

func (o *object) init(d *device, free func() error) {
	o.dev, o.free = d, free
	o.refs.Store(1)
	d.stateMu.Lock()
	d.live[o] = struct{}{}
	d.stateMu.Unlock()
}

// hold keeps the object until drop. It fails once the holder has released.
func (o *object) hold() bool {
	for {
		n := o.refs.Load()
		if n == 0 || o.released.Load() {
			return false
		}
		if o.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (o *object) drop() {
	if o.refs.Add(-1) != 0 {
		return
	}
	d := o.dev
	d.stateMu.Lock()
	delete(d.live, o)
	d.stateMu.Unlock()
	d.release(o)
}

func (o *object) release() {
	if o.released.CompareAndSwap(false, true) {
		o.drop()
	}
}

func (o *object) Release() {
	o.dev.mu.RLock() // so that a Close that has returned has seen everything go
	defer o.dev.mu.RUnlock()
	o.release()
}

type buffer struct {
	object
	size  int
	at    devicePtr
	bytes []byte // of shared memory
}

// register maps shared memory for the device, and unregister undoes it. The context is current.
func (b *buffer) register(d *device) (err error) {
	b.at, err = d.driver.Register(b.bytes)
	return err
}

func (b *buffer) unregister() error {
	if b.at == 0 { // a Reset that failed
		return nil
	}
	return b.dev.driver.Unregister(b.bytes)
}

func (b *buffer) Len() int { return b.size }

func (b *buffer) Bytes() []byte {
	if b.released.Load() {
		return nil
	}
	return b.bytes
}

func (b *buffer) Upload(offset int, src []byte) error {
	return b.copy("upload", offset, len(src), func(bytes []byte) { copy(bytes, src) }, func(l lane) error {
		return b.dev.driver.Upload(b.at+devicePtr(offset), src, l.stream)
	})
}

func (b *buffer) Download(offset int, dst []byte) error {
	return b.copy("download", offset, len(dst), func(bytes []byte) { copy(dst, bytes) }, func(l lane) error {
		return b.dev.driver.Download(dst, b.at+devicePtr(offset), l.stream)
	})
}

// copy moves n bytes from offset on: of shared memory by host, of the device's by transfer.
func (b *buffer) copy(op string, offset, n int, host func([]byte), transfer func(lane) error) error {
	d := b.dev
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.mu.RUnlock()
	if !b.hold() {
		return &gpu.Error{Op: op, Err: gpu.ErrReleased, Detail: "the buffer"}
	}
	defer b.drop()
	if err := gpu.CheckCopy(op, b.size, offset, n); err != nil {
		return err
	}
	switch {
	case b.bytes != nil:
		host(b.bytes[offset:][:n])
	case n > 0:
		if err := d.onLane(transfer, nil); err != nil {
			return d.failure(op, "", gpu.ErrFailed, err)
		}
	}
	return nil
}

type library struct {
	object
	module module
}

type pipeline struct {
	object
	library      *library
	function     function
	name         string
	maxThreads   int
	staticMemory int
	parameters   int // bytes, -1 where the driver does not tell
}

func (p *pipeline) Name() string                 { return p.name }
func (p *pipeline) MaxThreads() int              { return p.maxThreads }
func (p *pipeline) ExecutionWidth() int          { return warp }
func (p *pipeline) StaticThreadgroupMemory() int { return p.staticMemory }

const (
	warp          = 32
	defaultShared = 48 << 10 // what a kernel has without asking
)

func (l *library) Pipeline(name string) (gpu.Pipeline, error) {
	const op = "pipeline"
	if strings.IndexByte(name, 0) >= 0 {
		return nil, &gpu.Error{Op: op, Err: gpu.ErrInvalid, Detail: fmt.Sprintf("NUL in the kernel's name %q", name)}
	}
	d := l.dev
	if err := d.enter(op); err != nil {
		return nil, err
	}
	defer d.mu.RUnlock()
	if !l.hold() {
		return nil, &gpu.Error{Op: op, Kernel: name, Err: gpu.ErrReleased, Detail: "the library"}
	}
	p := &pipeline{library: l, name: name}
	if err := d.current(func() error { return p.load(d) }); err != nil {
		l.drop()
		return nil, d.failure(op, name, gpu.ErrPipeline, err)
	}
	p.init(d, func() error { l.drop(); return nil }) // the module lives as long as its functions
	return p, nil
}

// load finds the kernel and what it needs. The context is current.
func (p *pipeline) load(d *device) (err error) {
	if p.function, err = d.driver.Function(p.library.module, p.name); err != nil {
		if e, ok := err.(*callError); ok && e.code == resultNotFound {
			return &gpu.Error{Op: "pipeline", Kernel: p.name, Err: gpu.ErrNoFunction}
		}
		return err
	}
	if p.maxThreads, err = d.driver.FunctionAttribute(p.function, funcMaxThreads); err != nil {
		return err
	}
	if p.staticMemory, err = d.driver.FunctionAttribute(p.function, funcStaticShared); err != nil {
		return err
	}
	if p.parameters, err = d.driver.ParameterBytes(p.function); err != nil {
		return err
	}
	if d.info.MaxThreadgroupMemory > defaultShared {
		return d.driver.SetFunctionAttribute(p.function, funcMaxDynamicShared, d.info.MaxThreadgroupMemory-p.staticMemory)
	}
	return nil
}
