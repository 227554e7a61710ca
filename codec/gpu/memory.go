package gpu

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
)

const (
	stageBytes = 256 << 20 // of one operand, copied at a time
	idleBytes  = 256 << 20 // kept for later calls
	feedBytes  = 64 << 20  // of input per call, as Feed asks for
)

// pool keeps buffers between calls, in sizes of powers of two.
type pool struct {
	dev   gpu.Device
	limit int
	exact bool
	max   uint64

	mu   sync.Mutex
	idle [64][]gpu.Buffer // by the logarithm of the size
	held int              // bytes idle
}

// get returns a buffer of at least n bytes, with any contents.
func (p *pool) get(n int) (gpu.Buffer, error) {
	n = max(n, 4)
	if p.exact {
		return p.dev.NewBuffer(n)
	}
	class := bits.Len(uint(max(n, 256) - 1))
	p.mu.Lock()
	if list := p.idle[class]; len(list) > 0 {
		b := list[len(list)-1]
		p.idle[class] = list[:len(list)-1]
		p.held -= b.Len()
		p.mu.Unlock()
		return b, nil
	}
	p.mu.Unlock()
	size := n
	if uint64(1)<<class <= p.max {
		size = 1 << class
	}
	b, err := p.dev.NewBuffer(size)
	if errors.Is(err, gpu.ErrOutOfMemory) && p.drain() > 0 {
		b, err = p.dev.NewBuffer(size)
	}
	return b, err
}

// put takes a buffer back.
func (p *pool) put(b gpu.Buffer) {
	n := b.Len()
	p.mu.Lock()
	keep := !p.exact && n&(n-1) == 0 && p.held+n <= p.limit
	if keep {
		class := bits.Len(uint(n - 1))
		p.idle[class] = append(p.idle[class], b)
		p.held += n
	}
	p.mu.Unlock()
	if !keep {
		b.Release()
	}
}

// drain releases what is idle and returns its bytes.
func (p *pool) drain() int {
	p.mu.Lock()
	idle, held := p.idle, p.held
	p.idle, p.held = [64][]gpu.Buffer{}, 0
	p.mu.Unlock()
	for _, list := range idle {
		for _, b := range list {
			b.Release()
		}
	}
	return held
}

// memory knows the buffers that callers own, in the order of their addresses.
type memory struct {
	mu     sync.RWMutex
	closed bool
	list   []region
}

type region struct {
	start uintptr
	buf   gpu.Buffer
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// find returns the buffer that all of data lies in, and where.
func (m *memory) find(data []byte) (gpu.Buffer, int, bool) {
	if len(data) == 0 {
		return nil, 0, false
	}
	at := address(data)
	m.mu.RLock()
	defer m.mu.RUnlock()
	i, exact := m.search(at)
	if !exact {
		i--
	}
	if i < 0 {
		return nil, 0, false
	}
	offset := int(at - m.list[i].start)
	if n := m.list[i].buf.Len(); offset >= n || len(data) > n-offset {
		return nil, 0, false
	}
	return m.list[i].buf, offset, true
}

func (m *memory) search(at uintptr) (int, bool) {
	return slices.BinarySearchFunc(m.list, at, func(r region, at uintptr) int {
		switch {
		case r.start < at:
			return -1
		case r.start > at:
			return 1
		}
		return 0
	})
}

func (m *memory) isClosed() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.closed
}

// close forgets everything. Nothing comes in any more.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.list = true, nil
}

// Alloc returns n zeroed bytes that the device and Go share, n at least 1, until Free or Close; after that they
// must not be touched. Tensors and packed data in them are read and written in place, at any offset that is a
// multiple of their element's size. It returns codec.ErrClosed after Close, and an error if n exceeds
// Info().MaxBuffer or the device has no room.
//
// The caller must not touch memory that a call was given until the call returns. If an encoder fails, what it
// leaves there is not defined.
func (b *Backend) Alloc(n int) ([]byte, error) {
	e, m := b.engine, &b.engine.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, e.closed()
	}
	buf, err := e.dev.NewShared(n)
	if errors.Is(err, gpu.ErrOutOfMemory) && e.pool.drain() > 0 {
		buf, err = e.dev.NewShared(n)
	}
	if err != nil {
		return nil, e.failed(err)
	}
	start := address(buf.Bytes())
	i, _ := m.search(start)
	m.list = slices.Insert(m.list, i, region{start, buf})
	return buf.Bytes(), nil
}

// Free gives back what Alloc returned: data, or a longer or shorter slice with the same start. For anything else
// it returns codec.ErrShape, and codec.ErrClosed after Close.
func (b *Backend) Free(data []byte) error {
	m := &b.engine.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return b.engine.closed()
	}
	i, exact := m.search(address(data))
	if len(data) == 0 || !exact {
		return &codec.Error{Err: codec.ErrShape, Tensor: "memory", Index: codec.NoIndex, Reason: "not from Alloc, or freed before"}
	}
	m.list[i].buf.Release()
	m.list = slices.Delete(m.list, i, i+1)
	return nil
}

// NewTensor returns a zeroed row-major tensor in memory from Alloc, with the errors of Alloc; Free(t.Data) gives
// the memory back. An empty tensor has no memory.
func (b *Backend) NewTensor(d codec.DType, shape ...int) (codec.Tensor, error) {
	t := codec.Tensor{DType: d, Shape: slices.Clone(shape), Stride: make([]int, len(shape))}
	if err := (codec.Tensor{DType: d, Shape: shape, Stride: t.Stride, Data: make([]byte, 4)}).Validate("tensor"); err != nil {
		return codec.Tensor{}, err
	}
	t.Stride = nil
	if t.Len() == 0 {
		return t, nil
	}
	hi, n := bits.Mul64(uint64(t.Len()), uint64(d.Size()))
	if limit := b.engine.info.MaxBuffer; hi != 0 || n > limit {
		return codec.Tensor{}, b.engine.unsupported("a tensor of shape %v is larger than the device's largest buffer, %d bytes", t.Shape, limit)
	}
	var err error
	t.Data, err = b.Alloc(int(n))
	return t, err
}
