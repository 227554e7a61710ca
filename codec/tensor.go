package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/turbotrellis/turbotrellis/internal/shape"
	"github.com/turbotrellis/turbotrellis/pack"
)

// DType is the element type of a tensor or of stored scales.
type DType = pack.DType

// The element types. The zero DType is none of them.
const (
	F32  = pack.F32  // IEEE 754 binary32
	F16  = pack.F16  // IEEE 754 binary16
	BF16 = pack.BF16 // the upper half of a binary32
)

// Tensor is a view of elements in memory. It owns nothing.
//
// Element (i0, i1, …) starts at byte (i0·Stride[0] + i1·Stride[1] + …)·size of
// Data, little-endian. Strides are in elements and not negative; a nil Stride
// means row-major without gaps; strides that repeat elements (0 broadcasts) are
// allowed in inputs only. Data may be longer than the elements need and
// need not be aligned. A dimension of 0 makes the tensor empty, which is no
// work and no error.
type Tensor struct {
	DType  DType
	Shape  []int
	Stride []int
	Data   []byte
}

// NewTensor returns a zeroed row-major tensor with memory of its own.
// It panics if the type is unknown or the shape is not one that memory can
// hold.
func NewTensor(d DType, shape ...int) Tensor {
	t := Tensor{DType: d, Shape: clone(shape)}
	n, err := t.count("tensor")
	if err != nil {
		panic(err)
	}
	t.Data = make([]byte, n*d.Size())
	return t
}

// FromF32 returns a row-major F32 tensor that holds a copy of x.
// It panics if the shape does not have len(x) elements.
func FromF32(x []float32, shape ...int) Tensor {
	t := NewTensor(F32, shape...)
	if len(t.Data) != 4*len(x) {
		panic(fmt.Sprintf("codec: %d elements do not fill shape %v", len(x), shape))
	}
	for i, v := range x {
		F32.Store(t.Data[4*i:], v)
	}
	return t
}

// count returns the number of elements after checking type and shape.
func (t Tensor) count(name string) (int, error) {
	if t.DType.Size() == 0 {
		return 0, &Error{Err: ErrDType, Tensor: name, Index: NoIndex, Reason: t.DType.String()}
	}
	n, err := elements(name, t.Shape)
	if err == nil && n > math.MaxInt/t.DType.Size() {
		err = &Error{Err: ErrShape, Tensor: name, Index: NoIndex, Reason: fmt.Sprintf("shape %v exceeds the address space", clone(t.Shape))}
	}
	return n, err
}

// elements returns the product of a shape, or an error if a dimension is
// negative or the product does not fit an int.
func elements(name string, dims []int) (int, error) {
	n, err := shape.Elements(dims)
	if err != nil {
		return 0, &Error{Err: ErrShape, Tensor: name, Index: NoIndex, Reason: err.Error()}
	}
	return n, nil
}

// Validate checks that the element type is known, that the shape can be
// counted, and that every element lies within Data. name goes into the error.
func (t Tensor) Validate(name string) error {
	n, err := t.count(name)
	if err != nil {
		return err
	}
	if t.Stride != nil && len(t.Stride) != len(t.Shape) {
		return &Error{Err: ErrShape, Tensor: name, Index: NoIndex, Reason: fmt.Sprintf("%d strides for %d dimensions", len(t.Stride), len(t.Shape))}
	}
	if n == 0 {
		return nil
	}
	last := uint64(n - 1) // element offset of the last element
	if t.Stride != nil {
		last = 0
		for i, s := range t.Stride {
			if s < 0 {
				return &Error{Err: ErrShape, Tensor: name, Index: NoIndex, Reason: fmt.Sprintf("negative stride %d", s)}
			}
			hi, lo := bits.Mul64(uint64(t.Shape[i]-1), uint64(s))
			sum, carry := bits.Add64(last, lo, 0)
			if hi != 0 || carry != 0 || sum > math.MaxInt {
				return &Error{Err: ErrShape, Tensor: name, Index: NoIndex, Reason: "strides reach beyond the address space"}
			}
			last = sum
		}
	}
	if last >= uint64(len(t.Data)/t.DType.Size()) {
		return &Error{Err: ErrShape, Tensor: name, Index: NoIndex,
			Reason: fmt.Sprintf("shape %v of %v needs %d elements of data, have %d bytes", clone(t.Shape), t.DType, last+1, len(t.Data))}
	}
	return nil
}

// ValidateOutput is Validate for a tensor that is written to, where no two
// elements may share a place: it also refuses a stride that does not step over
// all that the dimensions of smaller stride reach. A dimension of 1 may have
// any stride.
func (t Tensor) ValidateOutput(name string) error {
	if err := t.Validate(name); err != nil || t.Len() == 0 {
		return err
	}
	for i, s := range t.Stride {
		reach := 0
		for j, u := range t.Stride {
			if u < s || u == s && j < i {
				reach += (t.Shape[j] - 1) * u
			}
		}
		if t.Shape[i] > 1 && s <= reach {
			return &Error{Err: ErrShape, Tensor: name, Index: NoIndex,
				Reason: fmt.Sprintf("stride %d in dimension %d puts elements of an output in one place", s, i)}
		}
	}
	return nil
}

// Len returns the number of elements of a valid tensor.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Dim returns the length of the last axis, 0 for a scalar.
func (t Tensor) Dim() int {
	if len(t.Shape) == 0 {
		return 0
	}
	return t.Shape[len(t.Shape)-1]
}

// Rows returns the number of rows of a valid tensor: the product of all
// dimensions but the last.
func (t Tensor) Rows() int {
	n := 1
	for _, d := range t.Shape[:max(0, len(t.Shape)-1)] {
		n *= d
	}
	return n
}

// RowOffset returns the element offset in Data of row r of a valid tensor,
// rows counted in row-major order, and the stride between its elements.
func (t Tensor) RowOffset(r int) (offset, stride int) {
	last := len(t.Shape) - 1
	if last < 0 {
		return 0, 1 // a scalar
	}
	if t.Stride == nil {
		return r * t.Shape[last], 1
	}
	for i := last - 1; i >= 0; i-- {
		offset += r % t.Shape[i] * t.Stride[i]
		r /= t.Shape[i]
	}
	return offset, t.Stride[last]
}

// LoadRow widens row r of a valid tensor into dst, whose length is the last
// dimension.
func (t Tensor) LoadRow(dst []float32, r int) {
	if len(dst) == 0 {
		return // an empty tensor's strides may lead anywhere
	}
	off, stride := t.RowOffset(r)
	size := t.DType.Size()
	data, step := t.Data[off*size:], stride*size
	switch t.DType {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[i*step:]))
		}
	case F16:
		for i := range dst {
			dst[i] = pack.FromF16(binary.LittleEndian.Uint16(data[i*step:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = pack.FromBF16(binary.LittleEndian.Uint16(data[i*step:]))
		}
	}
}

// StoreRow rounds src to nearest even into row r of a valid output tensor
// whose last dimension is len(src).
func (t Tensor) StoreRow(r int, src []float32) {
	if len(src) == 0 {
		return
	}
	off, stride := t.RowOffset(r)
	size := t.DType.Size()
	data, step := t.Data[off*size:], stride*size
	switch t.DType {
	case F32:
		for i, x := range src {
			binary.LittleEndian.PutUint32(data[i*step:], math.Float32bits(x))
		}
	case F16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(data[i*step:], pack.ToF16(x))
		}
	case BF16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(data[i*step:], pack.ToBF16(x))
		}
	}
}

// clone keeps a shape that goes into an error text from escaping: a caller's
// literal shape then costs no allocation.
func clone(shape []int) []int { return append([]int(nil), shape...) }
