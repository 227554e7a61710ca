// Package gpu runs every codec on any device of package gpu's kind: it plans the dispatches of package shaders,
// binds buffers, and reads what the kernels report. It computes nothing itself: every bit of an output comes
// from a kernel. It knows no particular device; codec/metal opens one over Metal.
//
// # Memory
//
// A tensor in Go memory is copied to the device and back, in slabs of rows where it is large. A tensor in
// memory from Backend.Alloc is used where it is, with its strides: encoders and decoders recognise it by its
// address.
package gpu

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Options fit a backend to its device, and observe it. The zero value is for Metal, unobserved.
type Options struct {
	// Log, if not nil, receives one debug record per dispatch: the kernel, why a more specialised one was not
	// used, rows, grid, and bytes of threadgroup memory.
	Log *slog.Logger

	// Source prints kernels of package shaders in the dialect that the device takes. Nil is shaders.Source, Metal's.
	Source func(kernels ...shaders.Variant) string

	families bool // compile whole families: for hostmetal, whose compiler takes nearly as long for one kernel
	stage    int  // in place of stageBytes
	exact    bool // buffers exactly as long as what they hold, and none kept
}

// Backend is a codec.Backend on one device, with memory that the device and Go share.
type Backend struct {
	codec.Backend
	engine *engine
}

// Open opens a device and checks, by running the canary kernel, that it does arithmetic as docs/numerics.md
// needs. name is the backend's. Open fails with codec.ErrUnavailable and the reason if open fails or the device
// fails a check of the canary.
func Open(name string, open func() (gpu.Device, error), o Options) (*Backend, error) {
	if o.Source == nil {
		o.Source = shaders.Source
	}
	if o.stage == 0 {
		o.stage = stageBytes
	}
	dev, err := open()
	if err != nil {
		return nil, unavailable(err)
	}
	e := &engine{name: name, dev: dev, info: dev.Info(), opts: o}
	e.kernels = kernels{dev: dev, info: e.info, source: o.Source, families: o.families}
	e.tables = tables{dev: dev, limit: tableBytes}
	e.tables.reset()
	e.pool = pool{dev: dev, limit: idleBytes, exact: o.exact, max: e.info.MaxBuffer}
	if e.flushes, err = e.canary(); err != nil {
		return nil, unavailable(errors.Join(fmt.Errorf("%s: %w", e.info.Name, err), dev.Close()))
	}
	return &Backend{driver.New(e), e}, nil
}

// Info describes the device.
func (b *Backend) Info() gpu.Info { return b.engine.info }

// Flushes reports whether the device flushes f32 subnormals to zero, as the canary found it. Apple's GPUs do.
// No bit of an output depends on it.
func (b *Backend) Flushes() bool { return b.engine.flushes }

// engine is the driver.Backend of a device.
type engine struct {
	name    string
	dev     gpu.Device
	info    gpu.Info
	opts    Options
	flushes bool
	kernels kernels
	tables  tables
	pool    pool
	memory  memory
	pace    pace
	renewed atomic.Bool // a lost device was brought back
}

var (
	_ driver.Backend = (*engine)(nil)
	_ driver.Renewer = (*engine)(nil)
)

// canary runs the canary kernel and judges its answers.
func (e *engine) canary() (flushes bool, err error) {
	in, args := shaders.CanaryInput()
	v, _ := shaders.Lookup("canary")
	k, err := e.kernels.get(v)
	if err != nil {
		return false, err
	}
	defer e.pool.drain()
	src, err := e.pool.get(len(in))
	if err != nil {
		return false, err
	}
	defer e.pool.put(src)
	out, err := e.pool.get(shaders.CanaryLen)
	if err != nil {
		return false, err
	}
	defer e.pool.put(out)
	answer := make([]byte, shaders.CanaryLen)
	if err := errors.Join(src.Upload(0, in), out.Upload(0, answer)); err != nil {
		return false, err
	}
	if _, err := e.dev.Run(gpu.Dispatch{
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
func (e *engine) Name() string { return e.name }

// Feed asks for calls large enough to hide what a command buffer costs, and for a second one whose copies
// overlap the first one's kernels.
func (e *engine) Feed() codec.Feed { return codec.Feed{Bytes: feedBytes, Calls: 2} }

// KV returns codec.ErrUnsupported if a row of values does not fit in the device's threadgroup memory.
func (e *engine) KV(p codec.KVParams) (driver.KV, error) {
	if _, err := shaders.RowLaunch(p.ValueHeadDim, 1, e.info.MaxThreads[0], e.info.MaxThreadgroupMemory); err != nil {
		return nil, e.unsupported("%v", err)
	}
	return &kv{e: e, p: p}, nil
}

func (e *engine) Trellis(p trellis.Params) (driver.Trellis, error) {
	values, err := trellis.AppendValues(nil, p.Code, p.L)
	if err != nil {
		return nil, err
	}
	return &weights{e: e, p: p, inverse: trellis.InvRMS(values), table: tableKey{codeTable, int(p.Code), p.L}}, nil
}

// Lost reports whether the device was lost for the first time: a second time is no accident, and calls keep
// failing with gpu.ErrLost.
func (e *engine) Lost() bool {
	r, ok := e.dev.(gpu.Resetter)
	return ok && !e.renewed.Load() && r.Lost()
}

// Renew brings a lost device back. Memory from Alloc stays as it is; kernels and tables are made anew when they
// are next needed. If the device does not come back, the next call says so.
func (e *engine) Renew() {
	if !e.Lost() {
		return
	}
	e.renewed.Store(true)
	e.kernels.reset()
	e.tables.reset()
	e.pool.drain()
	_ = e.dev.(gpu.Resetter).Reset()
}

// Close releases the device with all that came from it, memory from Alloc included.
func (e *engine) Close() error {
	e.memory.close()
	return e.failed(e.dev.Close())
}
