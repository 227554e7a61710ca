package conformance

import (
	"bytes"

	"github.com/turbotrellis/turbotrellis/codec"
)

// layout is a way for a tensor of rows of d elements to lie in memory.
type layout struct {
	name   string
	lead   []int                         // leading dimensions
	stride func(d int) (s []int, at int) // strides and the element where Data starts to be used; nil for row-major
	repeat bool                          // elements share memory: not for outputs
}

// layouts are the ways that are tried. The first is the plain one.
var layouts = []layout{
	{name: "dense", lead: []int{3}},
	{name: "vector", lead: nil},
	{name: "one", lead: []int{1}},
	{name: "none", lead: []int{0}},
	{name: "none4", lead: []int{2, 0, 3}},
	{name: "heads", lead: []int{1, 3, 5}},
	{name: "deep", lead: []int{2, 1, 2, 1, 3}},
	{name: "many", lead: []int{67}},
	// Rows further apart than they are long.
	{name: "padded", lead: []int{3}, stride: func(d int) ([]int, int) { return []int{d + 7, 1}, 0 }},
	// Every second element.
	{name: "stepped", lead: []int{3}, stride: func(d int) ([]int, int) { return []int{2*d + 1, 2}, 0 }},
	// A column-major matrix.
	{name: "columns", lead: []int{5}, stride: func(d int) ([]int, int) { return []int{1, 5}, 0 }},
	// [batch, heads, tokens, d] over memory in the order [batch, tokens, heads, d].
	{name: "transposed", lead: []int{2, 3, 4}, stride: func(d int) ([]int, int) { return []int{12 * d, d, 3 * d, 1}, 0 }},
	// Tokens 3 to 7 of a cache of 16.
	{name: "ring", lead: []int{1, 2, 5}, stride: func(d int) ([]int, int) { return []int{32 * d, 16 * d, d, 1}, 3 * d }},
	// Three heads that are one.
	{name: "broadcast", lead: []int{2, 3, 2}, stride: func(d int) ([]int, int) { return []int{2 * d, 0, d, 1}, 0 }, repeat: true},
	// Rows of one repeated element.
	{name: "splat", lead: []int{3}, stride: func(d int) ([]int, int) { return []int{1, 0}, 0 }, repeat: true},
	// Rows that overlap by half.
	{name: "window", lead: []int{4}, stride: func(d int) ([]int, int) { return []int{d / 2, 1}, 0 }, repeat: true},
}

// shuffled has five leading dimensions of which no two are one: devices copy its rows.
var shuffled = layout{name: "shuffled", lead: []int{2, 2, 2, 2, 2}, stride: func(d int) ([]int, int) { return []int{d, 8 * d, 2 * d, 16 * d, 4 * d, 1}, 0 }}

func (l layout) rows() int {
	n := 1
	for _, d := range l.lead {
		n *= d
	}
	return n
}

// guard is the number of bytes on each side of a buffer that must not change.
const guard = 64

// aligns are the offsets, in bytes, at which buffers start.
var aligns = []int{0, 1, 2, 3, 4, 6, 8, 16}

// poison fills b with bytes that depend on their position and on seed.
func poison(b []byte, seed byte) {
	for i := range b {
		b[i] = seed ^ byte(i*29)
	}
}

// memory is a buffer between guards, and what it held before the call.
type memory struct {
	name   string
	all    []byte // guards included
	before []byte
	data   []byte // the buffer
}

// newMemory returns n poisoned bytes between guards, align bytes past an
// aligned address.
func newMemory(name string, n, align int, seed byte) *memory {
	m := &memory{name: name, all: make([]byte, guard+align+n+guard)}
	poison(m.all, seed)
	m.data = m.all[guard+align:][: n : n+guard] // room past the end for what must not be written
	return m
}

// freeze notes what the memory holds now.
func (m *memory) freeze() { m.before = bytes.Clone(m.all) }

// changed returns the offset, relative to the buffer, of the first byte that is
// not what it was at freeze and that mayWrite does not allow.
func (m *memory) changed(mayWrite func(offset int) bool) (offset int, ok bool) {
	if bytes.Equal(m.all, m.before) {
		return 0, false
	}
	start := len(m.all) - guard - len(m.data)
	for i := range m.all {
		if m.all[i] != m.before[i] && !(mayWrite != nil && i >= start && i < start+len(m.data) && mayWrite(i-start)) {
			return i - start, true
		}
	}
	return 0, false
}

// place returns a tensor of layout l in memory of its own, poisoned with seed.
func place(name string, l layout, t codec.DType, d, align int, seed byte) (codec.Tensor, *memory) {
	shape := append(append([]int{}, l.lead...), d)
	x := codec.Tensor{DType: t, Shape: shape}
	last, at := l.rows()*d-1, 0
	if l.stride != nil {
		x.Stride, at = l.stride(d)
		last = 0
		for i, s := range x.Stride {
			last += (shape[i] - 1) * s
		}
	}
	spare := int(seed) % 3 * 5 // Data may be longer than needed
	m := newMemory(name, (at+last+1)*t.Size()+spare, align, seed)
	x.Data = m.data[at*t.Size():]
	return x, m
}

// eachElement calls f with the byte offset in x.Data of each element in
// row-major order.
func eachElement(x codec.Tensor, f func(i, offset int)) {
	size, d := x.DType.Size(), x.Dim()
	for r := range x.Rows() {
		at, step := x.RowOffset(r)
		for j := range d {
			f(r*d+j, (at+j*step)*size)
		}
	}
}

// fill stores values in x in row-major order.
func fill(x codec.Tensor, values []float32) {
	eachElement(x, func(i, at int) { x.DType.Store(x.Data[at:], values[i]) })
}

// elements returns the bytes of the elements of x in row-major order.
func elements(x codec.Tensor) []byte {
	size := x.DType.Size()
	b := make([]byte, x.Len()*size)
	eachElement(x, func(i, at int) { copy(b[i*size:(i+1)*size], x.Data[at:]) })
	return b
}

// dense returns a row-major copy of x.
func dense(x codec.Tensor) codec.Tensor {
	return codec.Tensor{DType: x.DType, Shape: x.Shape, Data: elements(x)}
}

// within returns a function that reports whether a byte of m belongs to an
// element of x, whose Data is in m.
func within(x codec.Tensor, m *memory) func(int) bool {
	used := make([]bool, len(m.data))
	start := len(m.data) - len(x.Data)
	eachElement(x, func(_, at int) {
		for i := range x.DType.Size() {
			used[start+at+i] = true
		}
	})
	return func(offset int) bool { return used[offset] }
}
