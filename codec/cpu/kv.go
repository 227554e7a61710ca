package cpu

import (
	"sync"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
)

// kv implements driver.KV.
type kv struct {
	b      *backend
	p      codec.KVParams
	keys   keyCoder
	values valueCoder

	keyCodes, keyScales     int // bytes of a packed row
	valueCodes, valueScales int

	rows  sync.Pool // of *row
	calls sync.Pool // of *kvCall
}

func newKV(b *backend, p codec.KVParams) (*kv, error) {
	c := &kv{b: b, p: p, keys: newKeyCoder(p, b.level)}
	var err error
	if c.values, err = newValueCoder(p, b.level); err != nil {
		return nil, err
	}
	c.keyCodes, c.keyScales = p.KeyRowLen()
	c.valueCodes, c.valueScales = p.ValueRowLen()
	dim := max(p.HeadDim, p.ValueHeadDim)
	c.rows.New = func() any {
		w := &row{x: make([]float32, dim), src: make([]byte, 4*dim), dst: make([]byte, 4*dim)}
		if b.level >= AVX512 {
			w.wide = newWideBatch(dim)
		}
		return w
	}
	c.calls.New = func() any { return new(kvCall) }
	return c, nil
}

// row is what one goroutine needs for the rows of a chunk.
type row struct {
	x        []float32 // a row of values
	src, dst []byte    // a row of a tensor with gaps, without them
	group    group
	batch    keyBatch   // vector kernels
	wide     *wideBatch // those of AVX-512
	pad      [128]byte
}

// group is scratch for one group of at most 64 elements.
type group struct {
	x     [maxGroup]float32
	q     [maxGroup]float32
	index [maxGroup]byte
	trial [maxGroup]byte
}

const maxGroup = 64

// kvOp is what a call does.
type kvOp uint8

const (
	encodeKeys kvOp = iota
	encodeValues
	decode // keys, values or both
	unrotate
)

// kvCall is one call as a task: chunk i is rows i·per to (i+1)·per−1.
type kvCall struct {
	c         *kv
	op        kvOp
	rows, per int
	x, y      tensor // unrotate: from x to y; encoders: x
	k         codec.Keys
	v         codec.Values
	dstK      tensor
	dstV      tensor
	rotated   bool

	nonFinite, overflow atomic.Int64 // least index found, or none
	saturated           atomic.Int64
}

// none is beyond every index.
const none = 1<<63 - 1

// tensor is a tensor and whether its rows lie without gaps.
type tensor struct {
	codec.Tensor
	dim, size  int // elements of a row, bytes of an element
	contiguous bool
}

func newTensor(t codec.Tensor) tensor {
	if t.DType == 0 {
		return tensor{}
	}
	return tensor{t, t.Dim(), t.DType.Size(), contiguous(t)}
}

// chunkBytes is the size of a chunk in the wider of its forms: large beside what handing it to another
// goroutine costs, small beside a cache.
const chunkBytes = 1 << 16

// run runs the call over rows whose wider form has the given number of bytes.
func (c *kv) run(a *kvCall, rows, rowBytes int) {
	a.c, a.rows = c, rows
	a.per = max(1, chunkBytes/rowBytes)
	a.nonFinite.Store(none)
	a.overflow.Store(none)
	a.saturated.Store(0)
	c.b.pool.run(a, (rows+a.per-1)/a.per)
}

// found returns what an encoder's call found and gives the call back.
func (c *kv) found(a *kvCall) driver.Found {
	f := driver.Found{NonFinite: driver.None, Overflow: driver.None}
	if i := a.nonFinite.Load(); i != none {
		f.NonFinite = int(i)
	}
	if i := a.overflow.Load(); i != none {
		f.Overflow = int(i)
	}
	c.put(a)
	return f
}

// put gives a call back for reuse, without the caller's memory.
func (c *kv) put(a *kvCall) {
	a.x, a.y, a.dstK, a.dstV, a.k, a.v = tensor{}, tensor{}, tensor{}, tensor{}, codec.Keys{}, codec.Values{}
	c.calls.Put(a)
}

func (c *kv) EncodeKeys(dst codec.Keys, x codec.Tensor) (driver.Found, error) {
	a := c.calls.Get().(*kvCall)
	a.op, a.k, a.x = encodeKeys, dst, newTensor(x)
	c.run(a, x.Rows(), c.p.HeadDim*a.x.size)
	return c.found(a), nil
}

func (c *kv) EncodeValues(dst codec.Values, x codec.Tensor) (driver.Found, error) {
	a := c.calls.Get().(*kvCall)
	a.op, a.v, a.x = encodeValues, dst, newTensor(x)
	c.run(a, x.Rows(), c.p.ValueHeadDim*a.x.size)
	return c.found(a), nil
}

func (c *kv) DecodeKeys(dst codec.Tensor, k codec.Keys) (int, error) {
	return c.Decode(dst, codec.Tensor{}, k, codec.Values{}, false)
}

func (c *kv) DecodeValues(dst codec.Tensor, v codec.Values, rotated bool) (int, error) {
	return c.Decode(codec.Tensor{}, dst, codec.Keys{}, v, rotated)
}

// Decode decodes both in one pass, or the one whose destination is not the zero tensor.
func (c *kv) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, rotated bool) (int, error) {
	a := c.calls.Get().(*kvCall)
	a.op, a.dstK, a.dstV, a.k, a.v, a.rotated = decode, newTensor(dstK), newTensor(dstV), k, v, rotated
	rows := dstK.Rows()
	if dstK.DType == 0 {
		rows = dstV.Rows()
	}
	c.run(a, rows, a.dstK.dim*a.dstK.size+a.dstV.dim*a.dstV.size)
	n := int(a.saturated.Load())
	c.put(a)
	return n, nil
}

func (c *kv) Unrotate(dst, x codec.Tensor) (int, error) {
	a := c.calls.Get().(*kvCall)
	a.op, a.x, a.y = unrotate, newTensor(x), newTensor(dst)
	c.run(a, x.Rows(), c.p.ValueHeadDim*a.x.size)
	n := int(a.saturated.Load())
	c.put(a)
	return n, nil
}

func (a *kvCall) chunk(i int) {
	c := a.c
	w := c.rows.Get().(*row)
	lo, hi := i*a.per, min((i+1)*a.per, a.rows)
	switch a.op {
	case encodeKeys:
		a.read(w, a.x, lo, hi, func(src []byte, lo, hi int) found {
			return c.keys.encode(w, a.k.Codes[lo*c.keyCodes:hi*c.keyCodes], a.k.Scales[lo*c.keyScales:hi*c.keyScales],
				a.k.Zeros[lo*c.keyScales:hi*c.keyScales], src, a.x.DType)
		})
	case encodeValues:
		a.read(w, a.x, lo, hi, func(src []byte, lo, hi int) found {
			return c.values.encode(w, a.v.Codes[lo*c.valueCodes:hi*c.valueCodes], a.v.Scales[lo*c.valueScales:hi*c.valueScales],
				src, a.x.DType)
		})
	case decode:
		saturated := 0
		if a.dstK.dim > 0 {
			saturated += write(w, a.dstK, lo, hi, func(dst []byte, lo, hi int) int {
				return c.keys.decode(w, dst, a.k.Codes[lo*c.keyCodes:hi*c.keyCodes], a.k.Scales[lo*c.keyScales:hi*c.keyScales],
					a.k.Zeros[lo*c.keyScales:hi*c.keyScales], a.dstK.DType)
			})
		}
		if a.dstV.dim > 0 {
			saturated += write(w, a.dstV, lo, hi, func(dst []byte, lo, hi int) int {
				return c.values.decode(w, dst, a.v.Codes[lo*c.valueCodes:hi*c.valueCodes], a.v.Scales[lo*c.valueScales:hi*c.valueScales],
					a.dstV.DType, a.rotated)
			})
		}
		a.saturated.Add(int64(saturated))
	case unrotate:
		a.saturated.Add(int64(a.unrotate(w, lo, hi)))
	}
	c.rows.Put(w)
}

// unrotate rotates rows lo to hi−1 of a.x back into a.y, which may be a.x.
func (a *kvCall) unrotate(w *row, lo, hi int) int {
	return write(w, a.y, lo, hi, func(dst []byte, lo, hi int) int {
		n := a.x.dim * a.x.size
		if a.x.contiguous {
			return a.c.values.unrotate(w, dst, a.x.Data[lo*n:hi*n], a.y.DType)
		}
		saturated := 0
		for r := lo; r < hi; r++ {
			gather(w.src[:n], a.x.Tensor, r)
			saturated += a.c.values.unrotate(w, dst[(r-lo)*n:][:n], w.src[:n], a.y.DType)
		}
		return saturated
	})
}

// found is what an encoder found in a run of rows: element indices in the run, or negative.
type found struct {
	nonFinite, overflow int
}

var clean = found{-1, -1}

// read calls f on rows lo to hi−1 of t as bytes without gaps: on all of them, or on each row where t has gaps.
// It notes what f found.
func (a *kvCall) read(w *row, t tensor, lo, hi int, f func(src []byte, lo, hi int) found) {
	n := t.dim * t.size
	if t.contiguous {
		a.note(lo*t.dim, f(t.Data[lo*n:hi*n], lo, hi))
		return
	}
	for r := lo; r < hi; r++ {
		gather(w.src[:n], t.Tensor, r)
		a.note(r*t.dim, f(w.src[:n], r, r+1))
	}
}

func (a *kvCall) note(base int, f found) {
	if f.nonFinite >= 0 {
		least(&a.nonFinite, int64(base+f.nonFinite))
	}
	if f.overflow >= 0 {
		least(&a.overflow, int64(base+f.overflow))
	}
}

// least makes v the minimum of itself and x.
func least(v *atomic.Int64, x int64) {
	for {
		old := v.Load()
		if x >= old || v.CompareAndSwap(old, x) {
			return
		}
	}
}

// write calls f to fill rows lo to hi−1 of t: all of them at once, or each row where t has gaps. It returns the
// sum of what f returns.
func write(w *row, t tensor, lo, hi int, f func(dst []byte, lo, hi int) int) int {
	n := t.dim * t.size
	if t.contiguous {
		return f(t.Data[lo*n:hi*n], lo, hi)
	}
	sum := 0
	for r := lo; r < hi; r++ {
		sum += f(w.dst[:n], r, r+1)
		scatter(t.Tensor, r, w.dst[:n])
	}
	return sum
}
