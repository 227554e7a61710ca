package gpu

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// counter counts allocations and the bytes of them.
type counter struct {
	gpu.Device
	buffers, bytes int
}

func (c *counter) wrap(d gpu.Device) (gpu.Device, error) {
	c.Device = d
	return c, nil
}

func (c *counter) NewBuffer(n int) (gpu.Buffer, error) {
	c.buffers++
	c.bytes += n
	return c.Device.NewBuffer(n)
}

func (c *counter) NewShared(n int) (gpu.Buffer, error) {
	c.buffers++
	c.bytes += n
	return c.Device.NewShared(n)
}

// part is n bytes of device memory at an offset that suits elements of any size,
// with a guard on both sides.
type part struct{ all, data []byte }

func (e *exercise) part(n int) part {
	e.t.Helper()
	all, err := e.b.Alloc(n + 32)
	e.must(err)
	for i := range all {
		all[i] = 0xa5
	}
	return part{all, all[16 : 16+n : 16+n]}
}

func (p part) check(t *testing.T, what string, got []byte) {
	t.Helper()
	if len(got) > 0 && unsafe.SliceData(got) != unsafe.SliceData(p.data) {
		t.Errorf("%s: not in the memory that was given", what)
	}
	for i, b := range p.all {
		if (i < 16 || i >= len(p.all)-16) && b != 0xa5 {
			t.Fatalf("%s: byte %d before or behind it changed", what, i-16)
		}
	}
}

// Operands in the backend's memory are used where they are: a call allocates what
// it needs besides, and no more.
func TestOwnedMemory(t *testing.T) {
	var n counter
	b := open(t, Options{exact: true}, n.wrap)
	e := newExercise(t, b)
	p := codec.KVParams{HeadDim: 128, Keys: codec.Q5_0, Values: codec.Q3_0}
	kv := newCodec(t, b, p)
	r, err := ref.New().KV(p)
	e.must(err)
	host := tensor(codec.F16, samples(40, 128, 1), 40, 128)
	x, err := b.NewTensor(codec.F16, 40, 128)
	e.must(err)
	copy(x.Data, host.Data)
	e.must(kv.EncodeValues(new(codec.Values), x)) // constants
	kc, ks := p.KeyRowLen()
	vc, vs := p.ValueRowLen()
	codes, scales, zeros := e.part(40*kc), e.part(40*ks), e.part(40*ks)
	vcodes, vscales := e.part(40*vc), e.part(40*vs)
	allocated := func(what string, want int, f func() error) {
		t.Helper()
		n.bytes = 0
		e.must(f())
		if n.bytes != want {
			t.Errorf("%s allocated %d bytes, want %d", what, n.bytes, want)
		}
	}
	const statusLen = 8
	k := codec.Keys{Codes: codes.data[:0], Scales: scales.data[:0], Zeros: zeros.data[:0]}
	v := codec.Values{Codes: vcodes.data[:3], Scales: vscales.data[:0]}
	allocated("EncodeKeys", statusLen, func() error { return kv.EncodeKeys(&k, x) })
	allocated("EncodeValues", statusLen, func() error { return kv.EncodeValues(&v, x) })
	var wantK codec.Keys
	var wantV codec.Values
	e.must(r.EncodeKeys(&wantK, host))
	e.must(r.EncodeValues(&wantV, host))
	e.same("key codes", 0, k.Codes, wantK.Codes)
	e.same("key scales", 0, k.Scales, wantK.Scales)
	e.same("key zeros", 0, k.Zeros, wantK.Zeros)
	e.same("value codes", 0, v.Codes, wantV.Codes)
	e.same("value scales", 0, v.Scales, wantV.Scales)
	codes.check(t, "key codes", k.Codes)
	scales.check(t, "key scales", k.Scales)
	zeros.check(t, "key zeros", k.Zeros)
	vcodes.check(t, "value codes", v.Codes)
	vscales.check(t, "value scales", v.Scales)

	y, err := b.NewTensor(codec.F32, 40, 128)
	e.must(err)
	z, err := b.NewTensor(codec.F32, 40, 128)
	e.must(err)
	allocated("Decode", 0, func() error { return kv.Decode(y, z, k, v) })
	wantY, wantZ := codec.NewTensor(codec.F32, 40, 128), codec.NewTensor(codec.F32, 40, 128)
	e.must(r.Decode(wantY, wantZ, wantK, wantV))
	e.same("keys", codec.F32, y.Data, wantY.Data)
	e.same("values", codec.F32, z.Data, wantZ.Data)
	allocated("DecodeRotated", 0, func() error { return kv.DecodeRotated(y, z, k, v) })
	allocated("Unrotate", 0, func() error { return kv.Unrotate(z, z) })

	tp := trellis.Params{L: 8, K: 3, T: 32}
	c := newWeights(t, b, tp)
	g := trellis.Geometry{Axis: 1, Out: 40, In: 128}
	var want trellis.Matrix
	rt, err := ref.New().Trellis(tp)
	e.must(err)
	e.must(rt.Encode(context.Background(), &want, wantY, host, g))
	words, halves := e.part(4*len(want.Codes)), e.part(2*len(want.Scales))
	m := trellis.Matrix{Codes: wordsOf(words.data)[:0], Scales: halvesOf(halves.data)[:0]}
	e.must(c.Encode(context.Background(), &m, y, x, g))
	e.same("weight codes", 0, bytesOf(m.Codes), bytesOf(want.Codes))
	e.same("weight scales", 0, bytesOf(m.Scales), bytesOf(want.Scales))
	e.same("reconstruction", codec.F32, y.Data, wantY.Data)
	words.check(t, "weight codes", bytesOf(m.Codes))
	halves.check(t, "weight scales", bytesOf(m.Scales))
	clear(y.Data)
	allocated("Decode weights", 0, func() error { return c.Decode(y, &m, 0) })
	e.same("weights", codec.F32, y.Data, wantY.Data)
}

func wordsOf(b []byte) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func halvesOf(b []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

// Memory is found by its address, from its first byte to its last and no further.
func TestFindMemory(t *testing.T) {
	b := open(t, Options{})
	var all [][]byte
	for _, n := range []int{1, 64, 5000, 3} {
		data, err := b.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) != n || !bytes.Equal(data, make([]byte, n)) {
			t.Errorf("Alloc(%d): %d bytes, or not zero", n, len(data))
		}
		all = append(all, data)
	}
	for _, data := range all {
		for _, at := range []int{0, len(data) / 2, len(data) - 1} {
			buf, offset, ok := b.engine.memory.find(data[at:])
			if !ok || offset != at || unsafe.SliceData(buf.Bytes()) != unsafe.SliceData(data) {
				t.Errorf("byte %d of %d: %t, offset %d", at, len(data), ok, offset)
			}
		}
		beyond := unsafe.Slice(unsafe.SliceData(data), len(data)+1)
		if _, _, ok := b.engine.memory.find(beyond); ok {
			t.Errorf("found %d bytes of %d", len(beyond), len(data))
		}
	}
	if _, _, ok := b.engine.memory.find(make([]byte, 8)); ok {
		t.Error("found memory of Go's")
	}
	if _, _, ok := b.engine.memory.find(nil); ok {
		t.Error("found nothing")
	}
	for _, i := range []int{2, 0, 3, 1} {
		if err := b.Free(all[i][:1]); err != nil {
			t.Error(err)
		}
		if err := b.Free(all[i]); !errors.Is(err, codec.ErrShape) {
			t.Errorf("freed twice: %v", err)
		}
	}
}

// The constants on the device stay within their bound, but for what is in use.
func TestTablesAreBounded(t *testing.T) {
	b := open(t, Options{})
	b.engine.tables.limit = 3000
	use := func(dims ...int) []*table {
		var in []*table
		for _, d := range dims {
			e, err := b.engine.tables.get(tableKey{signTable, d, 0})
			if err != nil {
				t.Fatal(err)
			}
			in = append(in, e)
		}
		return in
	}
	held := use(8192, 4096, 8192) // 1024, 512 bytes
	for d := 32; d <= 2048; d += 32 {
		for _, e := range use(d) {
			b.engine.tables.put(e)
		}
		if b.engine.tables.bytes > b.engine.tables.limit {
			t.Fatalf("%d bytes after d = %d", b.engine.tables.bytes, d)
		}
	}
	for _, e := range held {
		if err := e.buf.Download(0, nil); err != nil {
			t.Error("a table in use went:", err)
		}
	}
	more := use(4080, 4088, 4072, 8160, 8128, 8096) // more than fits, all in use
	if b.engine.tables.bytes <= b.engine.tables.limit {
		t.Errorf("%d bytes with all in use", b.engine.tables.bytes)
	}
	for _, e := range slices.Concat(held, more) {
		b.engine.tables.put(e)
	}
	for _, e := range use(32) {
		b.engine.tables.put(e)
	}
	sum := 0
	for _, e := range b.engine.tables.entries {
		sum += e.buf.Len()
	}
	if b.engine.tables.bytes > b.engine.tables.limit || sum != b.engine.tables.bytes {
		t.Errorf("%d bytes, %d counted", sum, b.engine.tables.bytes)
	}
}

// What the pool keeps stays within its bound and serves again.
func TestPool(t *testing.T) {
	var n counter
	b := open(t, Options{}, n.wrap)
	b.engine.pool.limit = 4096
	get := func(size int) gpu.Buffer {
		buf, err := b.engine.pool.get(size)
		if err != nil || buf.Len() < size {
			t.Fatal(size, buf, err)
		}
		return buf
	}
	n.buffers = 0
	for _, size := range []int{1, 256, 257, 1000, 2048} {
		buf := get(size)
		b.engine.pool.put(buf)
		if again := get(size); again != buf {
			t.Errorf("%d bytes: another buffer", size)
		} else {
			b.engine.pool.put(again)
		}
	}
	if n.buffers != 4 { // 1 and 256 share a size
		t.Errorf("%d buffers made", n.buffers)
	}
	large := get(5000)
	b.engine.pool.put(large)
	if large.Bytes() != nil || b.engine.pool.held > b.engine.pool.limit {
		t.Errorf("%d bytes kept", b.engine.pool.held)
	}
	if got := b.engine.pool.drain(); got != 256+512+1024+2048 || b.engine.pool.held != 0 {
		t.Errorf("%d bytes drained", got)
	}
}
