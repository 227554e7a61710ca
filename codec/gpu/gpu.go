// Package gpu runs every codec on a device of package gpu's kind: it plans the dispatches of package shaders,
// binds buffers, and turns what the kernels report into errors. It computes nothing itself: every bit of an
// output comes from a kernel. It knows no particular device; codec/metal opens one over Metal.
//
// # Memory
//
// A tensor in Go memory is copied to the device and back, in pieces where it is
// large. One that lies in memory from Backend.Alloc is used where it is, strides
// and all: encoders and decoders recognise it by its address.
package gpu

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Options observe a backend. The zero value does not.
type Options struct {
	// Log, if not nil, gets a debug record for each dispatch: the kernel, why a
	// more special one was passed over, rows, grid and bytes of threadgroup memory.
	Log *slog.Logger

	source func(family string) (string, error) // in place of shaders.FamilySource
	stage  int                                 // in place of stageBytes
	exact  bool                                // buffers exactly as long as what they hold, and none kept
}

// Backend runs every codec on one device.
type Backend struct {
	name    string
	dev     gpu.Device
	info    gpu.Info
	opts    Options
	flushes bool
	kernels kernels
	tables  tables
	pool    pool
	memory  memory

	// mu is held for reading by every call, since calls read and write memory
	// that Close takes away.
	mu     sync.RWMutex
	closed bool
}

var _ codec.Backend = (*Backend)(nil)

// Open opens a device and makes sure, by running the canary kernel, that it does
// arithmetic as docs/numerics.md needs. name is the backend's. It fails with codec.ErrUnavailable,
// naming the reason, where open fails and where the device fails a check of the canary.
func Open(name string, open func() (gpu.Device, error), o Options) (*Backend, error) {
	if o.source == nil {
		o.source = shaders.FamilySource
	}
	if o.stage == 0 {
		o.stage = stageBytes
	}
	dev, err := open()
	if err != nil {
		return nil, unavailable(err)
	}
	b := &Backend{name: name, dev: dev, info: dev.Info(), opts: o}
	b.kernels = kernels{dev: dev, source: o.source, libraries: map[string]gpu.Library{}, pipelines: map[string]gpu.Pipeline{}}
	b.tables = tables{dev: dev, limit: tableBytes, entries: map[tableKey]*table{}}
	b.pool = pool{dev: dev, limit: idleBytes, exact: o.exact, max: b.info.MaxBuffer}
	if b.flushes, err = b.canary(); err != nil {
		return nil, unavailable(errors.Join(fmt.Errorf("%s: %w", b.info.Name, err), dev.Close()))
	}
	return b, nil
}

// canary runs the canary kernel and judges its answers.
func (b *Backend) canary() (flushes bool, err error) {
	in, args := shaders.CanaryInput()
	v, _ := shaders.Lookup("canary")
	k, err := b.kernels.get(v)
	if err != nil {
		return false, err
	}
	defer b.pool.drain()
	src, err := b.pool.get(len(in))
	if err != nil {
		return false, err
	}
	defer b.pool.put(src)
	out, err := b.pool.get(shaders.CanaryLen)
	if err != nil {
		return false, err
	}
	defer b.pool.put(out)
	answer := make([]byte, shaders.CanaryLen)
	if err := errors.Join(src.Upload(0, in), out.Upload(0, answer)); err != nil {
		return false, err
	}
	if _, err := b.dev.Run(gpu.Dispatch{
		Pipeline:  k.pipeline,
		Buffers:   []gpu.Binding{{Buffer: src}, {Buffer: out}},
		Args:      shaders.Append(nil, &args),
		Groups:    [3]int{1, 1, 1},
		GroupSize: [3]int{simdWidth, 1, 1},
	}); err != nil {
		return false, err
	}
	if err := out.Download(0, answer); err != nil {
		return false, err
	}
	return shaders.CheckCanary(answer)
}

// Name returns the name that Open was given.
func (b *Backend) Name() string { return b.name }

// Feed asks for one large piece at a time: each call is a command buffer and copies of its own.
func (b *Backend) Feed() codec.Feed { return codec.Feed{Bytes: 64 << 20, Calls: 1} }

// Info describes the device.
func (b *Backend) Info() gpu.Info { return b.info }

// Flushes reports whether the device flushes f32 subnormals to zero, as the
// canary found it. Apple's GPUs do. No bit of an output depends on it.
func (b *Backend) Flushes() bool { return b.flushes }

// KV returns the KV cache codec with parameters p as a *KV. It returns
// codec.ErrParams if p is invalid and codec.ErrUnsupported if a row of values
// does not fit in the device's threadgroup memory.
func (b *Backend) KV(p codec.KVParams) (codec.KV, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	kv, err := newKV(b, p)
	if err != nil {
		return nil, err
	}
	return kv, nil
}

// Trellis returns the weight codec with parameters p as a *Trellis, or
// codec.ErrParams.
func (b *Backend) Trellis(p trellis.Params) (codec.Trellis, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	t, err := newTrellis(b, p)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Close waits for the calls in progress and releases the device with all that
// came from it, memory from Alloc included. Every later call returns
// codec.ErrClosed.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errClosed
	}
	b.closed = true
	b.memory.forget()
	if err := b.dev.Close(); err != nil {
		return failed(err)
	}
	return nil
}

// enter begins a call; leave ends it.
func (b *Backend) enter() error {
	b.mu.RLock()
	if b.closed {
		b.mu.RUnlock()
		return errClosed
	}
	return nil
}

func (b *Backend) leave() { b.mu.RUnlock() }
