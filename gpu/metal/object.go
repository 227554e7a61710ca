package metal

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// object is the one reference that we own to a Metal object, shared by its holder and the calls
// that use it.
type object struct {
	dev      *device
	metal    mtl.Object
	refs     atomic.Int32 // one for the holder until it releases, one for each call
	released atomic.Bool  // the holder has released
	shared   atomic.Bool  // a buffer of NewShared
}

func (o *object) init(d *device, m mtl.Object) {
	o.dev, o.metal = d, m
	o.refs.Store(1)
	d.liveMu.Lock()
	d.live[o] = struct{}{}
	d.liveMu.Unlock()
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
	d.liveMu.Lock()
	delete(d.live, o)
	d.liveMu.Unlock()
	mtl.Pool(d.s, o.metal.Release)
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
	metal mtl.Buffer
	bytes []byte
}

func (b *buffer) Len() int { return len(b.bytes) }

func (b *buffer) Bytes() []byte {
	if b.released.Load() {
		return nil
	}
	return b.bytes
}

func (b *buffer) Upload(offset int, src []byte) error {
	return b.copy("upload", offset, len(src), func(bytes []byte) { copy(bytes, src) })
}

func (b *buffer) Download(offset int, dst []byte) error {
	return b.copy("download", offset, len(dst), func(bytes []byte) { copy(dst, bytes) })
}

// copy calls move with n bytes of the buffer from offset on.
func (b *buffer) copy(op string, offset, n int, move func(bytes []byte)) error {
	if err := b.dev.enter(op); err != nil {
		return err
	}
	defer b.dev.mu.RUnlock()
	if !b.hold() {
		return &gpu.Error{Op: op, Err: gpu.ErrReleased, Detail: "the buffer"}
	}
	defer b.drop()
	if err := gpu.CheckCopy(op, len(b.bytes), offset, n); err != nil {
		return err
	}
	move(b.bytes[offset:][:n])
	return nil
}

type pipeline struct {
	object
	metal                           mtl.ComputePipelineState
	name                            string
	maxThreads, width, staticMemory int
}

func (p *pipeline) Name() string                 { return p.name }
func (p *pipeline) MaxThreads() int              { return p.maxThreads }
func (p *pipeline) ExecutionWidth() int          { return p.width }
func (p *pipeline) StaticThreadgroupMemory() int { return p.staticMemory }

type library struct {
	object
	metal mtl.Library
}

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
	defer l.drop()
	var p *pipeline
	var err error
	mtl.Pool(d.s, func() {
		f := l.metal.NewFunctionWithName(name)
		if f.IsNil() {
			err = &gpu.Error{Op: op, Kernel: name, Err: gpu.ErrNoFunction}
			return
		}
		defer f.Release()
		m, nserr := d.device.NewComputePipelineStateWithFunction(f)
		if m.IsNil() {
			err = failure(op, name, gpu.ErrPipeline, nserr)
			return
		}
		p = &pipeline{
			metal:        m,
			name:         name,
			maxThreads:   int(m.MaxTotalThreadsPerThreadgroup()),
			width:        int(m.ThreadExecutionWidth()),
			staticMemory: int(m.StaticThreadgroupMemoryLength()),
		}
		p.init(d, m.Object)
	})
	if p == nil {
		return nil, err
	}
	return p, nil
}
