package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/turbotrellis/turbotrellis/gpu"
)

type device struct {
	driver   driver
	compiler compiler
	files    cache
	number   int
	arch     string // NVRTC's -arch
	flush    bool
	info     gpu.Info

	// mu is held for reading by every call that uses context, and for writing by Close and Reset.
	mu      sync.RWMutex
	closed  bool
	context context

	stateMu sync.Mutex
	live    map[*object]struct{} // not released
	idle    []lane
	lost    *gpu.Error // what ended the context
}

// A lane is what one Run or copy needs of the device for itself.
type lane struct {
	stream     stream
	start, end event
}

const errorDomain = "CUDA"

func (d *device) Info() gpu.Info { return d.info }

// enter begins a call; leave with d.mu.RUnlock unless it fails.
func (d *device) enter(op string) error {
	d.mu.RLock()
	err := d.usable(op)
	if err != nil {
		d.mu.RUnlock()
	}
	return err
}

func (d *device) usable(op string) error {
	if d.closed {
		return &gpu.Error{Op: op, Err: gpu.ErrClosed}
	}
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	if d.lost != nil {
		e := *d.lost
		e.Op = op
		return &e
	}
	return nil
}

// current calls f on a thread on which the device's context is current, and leaves the thread as it was.
func (d *device) current(f func() error) error {
	if d.context == 0 {
		return errors.New("no context")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.driver.Push(d.context); err != nil {
		return err
	}
	err := f()
	if e := d.driver.Pop(); err == nil {
		err = e
	}
	return err
}

// failure is the error of a call to the driver, of the given class unless the result says more. It
// remembers what ended the context.
func (d *device) failure(op, kernel string, class, err error) error {
	var own *gpu.Error
	if errors.As(err, &own) {
		return err
	}
	e := &gpu.Error{Op: op, Kernel: kernel, Err: class, Detail: err.Error(), Domain: errorDomain}
	var call *callError
	if errors.As(err, &call) {
		e.Code = call.code
	}
	switch {
	case endsContext(err):
		e.Err = gpu.ErrLost
		d.stateMu.Lock()
		if d.lost == nil {
			d.lost = e
		}
		d.stateMu.Unlock()
	case e.Code == resultOutOfMemory:
		e.Err = gpu.ErrOutOfMemory
	}
	return e
}

// lane returns an idle lane or a new one. The context is current.
func (d *device) lane() (lane, error) {
	d.stateMu.Lock()
	if n := len(d.idle); n > 0 {
		l := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.stateMu.Unlock()
		return l, nil
	}
	d.stateMu.Unlock()
	var l lane
	var err error
	if l.stream, err = d.driver.NewStream(); err != nil {
		return lane{}, err
	}
	if l.start, err = d.driver.NewEvent(); err == nil {
		if l.end, err = d.driver.NewEvent(); err == nil {
			return l, nil
		}
		d.driver.DestroyEvent(l.start)
	}
	d.driver.DestroyStream(l.stream)
	return lane{}, err
}

// onLane calls f with a lane, waits for what f gave it to do, calls then, if it is not nil and nothing
// failed, and keeps the lane for later. The context is made current.
func (d *device) onLane(f, then func(l lane) error) error {
	return d.current(func() error {
		l, err := d.lane()
		if err != nil {
			return err
		}
		err = f(l)
		if e := d.driver.Synchronize(l.stream); err == nil {
			err = e
		}
		if err == nil && then != nil {
			err = then(l)
		}
		d.stateMu.Lock()
		d.idle = append(d.idle, l)
		d.stateMu.Unlock()
		return err
	})
}

// release frees what o stands for. Where the context has ended, that went with it. Memory that the driver
// does not let go stays mapped.
func (d *device) release(o *object) {
	err := d.current(o.free)
	if o.shared != nil && (err == nil || d.Lost()) {
		d.driver.FreeHostMemory(o.shared.bytes)
	}
}

// allocate checks size and returns a buffer that make has filled in, with the context current.
func (d *device) allocate(size int, make func(b *buffer) error) (gpu.Buffer, error) {
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
	b := &buffer{size: size}
	if err := make(b); err != nil {
		return nil, d.failure(op, "", gpu.ErrFailed, err)
	}
	return b, nil
}

func (d *device) NewBuffer(size int) (gpu.Buffer, error) {
	return d.allocate(size, func(b *buffer) error {
		return d.current(func() (err error) {
			if b.at, err = d.driver.Alloc(size); err != nil {
				return err
			}
			free := func() error { return d.driver.Free(b.at) }
			if err := d.onLane(func(l lane) error { return d.driver.Clear(b.at, size, l.stream) }, nil); err != nil {
				_ = free()
				return err
			}
			b.init(d, free)
			return nil
		})
	})
}

func (d *device) NewShared(size int) (gpu.Buffer, error) {
	return d.allocate(size, func(b *buffer) (err error) {
		if b.bytes, err = d.driver.HostMemory(size); err != nil {
			return &gpu.Error{Op: "new buffer", Err: gpu.ErrOutOfMemory, Detail: err.Error()}
		}
		if err := d.current(func() error { return b.register(d) }); err != nil {
			d.driver.FreeHostMemory(b.bytes)
			return err
		}
		b.shared = b
		b.init(d, b.unregister)
		return nil
	})
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
	image, err := compile(d.compiler, d.files, source, compileOptions(d.compiler, d.arch, d.flush, o))
	if err != nil {
		return nil, err
	}
	l := &library{}
	if err := d.current(func() error {
		m, err := d.driver.LoadModule(image)
		if err == nil {
			l.module = m
			l.init(d, func() error { return d.driver.UnloadModule(m) })
		}
		return err
	}); err != nil {
		return nil, d.failure(op, "", gpu.ErrCompile, err)
	}
	return l, nil
}

// Lost reports whether the context has ended.
func (d *device) Lost() bool {
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	return d.lost != nil
}

// Reset makes a new context in place of one that has ended.
func (d *device) Reset() error {
	const op = "reset"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &gpu.Error{Op: op, Err: gpu.ErrClosed}
	}
	if !d.Lost() {
		return &gpu.Error{Op: op, Err: gpu.ErrInvalid, Detail: "the device is not lost"}
	}
	if d.context != 0 {
		// The driver may answer with what ended the context, which goes all the same.
		_ = d.driver.DestroyContext(d.context)
		d.context = 0
	}
	shared := d.forget()
	for _, b := range shared {
		b.at = 0
	}
	fresh, err := d.driver.NewContext(d.number)
	if err != nil {
		return d.failure(op, "", gpu.ErrLost, err)
	}
	d.context = fresh
	d.stateMu.Lock()
	d.lost = nil
	d.stateMu.Unlock()
	err = d.current(func() error {
		for _, b := range shared {
			if err := b.register(d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		e := d.failure(op, "", gpu.ErrLost, err)
		d.stateMu.Lock()
		d.lost = e.(*gpu.Error)
		d.stateMu.Unlock()
		return e
	}
	return nil
}

// forget marks as released what goes with the context, and returns the shared buffers, which do not.
func (d *device) forget() []*buffer {
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	var shared []*buffer
	for o := range d.live {
		if o.shared != nil {
			shared = append(shared, o.shared)
			continue
		}
		o.released.Store(true)
		delete(d.live, o)
	}
	d.idle = nil
	return shared
}

func (d *device) Close() error {
	const op = "close"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return &gpu.Error{Op: op, Err: gpu.ErrClosed}
	}
	d.closed = true
	for _, b := range d.forget() {
		b.release()
	}
	if d.context == 0 { // Reset failed
		return nil
	}
	lost := d.Lost()
	if err := d.driver.DestroyContext(d.context); err != nil && !lost {
		return d.failure(op, "", gpu.ErrFailed, err)
	}
	return nil
}
