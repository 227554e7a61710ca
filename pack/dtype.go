package pack

import (
	"encoding/binary"
	"math"

	"github.com/turbotrellis/turbotrellis/internal/enum"
)

// DType is a type of stored floating-point elements, all little-endian.
type DType uint8

// The element types. The zero DType is none of them.
const (
	F32  DType = 1 + iota // IEEE 754 binary32
	F16                   // IEEE 754 binary16
	BF16                  // the upper half of a binary32
)

// Size returns the number of bytes of an element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	return 0
}

var dtypeNames = []string{F32: "f32", F16: "f16", BF16: "bf16"}

// String returns f32, f16 or bf16.
func (d DType) String() string { return enum.String("DType", dtypeNames, int(d)) }

// MarshalText returns what String does, or an error for an unknown type.
func (d DType) MarshalText() ([]byte, error) {
	return enum.Marshal("DType", "element type", dtypeNames, int(d))
}

// UnmarshalText reads f32, f16 or bf16.
func (d *DType) UnmarshalText(text []byte) error {
	i, err := enum.Unmarshal("element type", dtypeNames, text)
	if err == nil {
		*d = DType(i)
	}
	return err
}

// Load widens the element at the start of b, which is exact.
// It panics if b is shorter than an element or d is unknown.
func (d DType) Load(b []byte) float32 {
	switch d {
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case F16:
		return FromF16(binary.LittleEndian.Uint16(b))
	case BF16:
		return FromBF16(binary.LittleEndian.Uint16(b))
	}
	panic("pack: Load of an unknown element type")
}

// Store writes x to the start of b, rounded once to nearest even; a magnitude
// beyond the type's range becomes an infinity.
// It panics if b is shorter than an element or d is unknown.
func (d DType) Store(b []byte, x float32) {
	switch d {
	case F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(x))
	case F16:
		binary.LittleEndian.PutUint16(b, ToF16(x))
	case BF16:
		binary.LittleEndian.PutUint16(b, ToBF16(x))
	default:
		panic("pack: Store of an unknown element type")
	}
}

// Round returns x as it reads back after Store. For a type that is not F16 or
// BF16 that is x.
func (d DType) Round(x float32) float32 {
	switch d {
	case F16:
		return FromF16(ToF16(x))
	case BF16:
		return FromBF16(ToBF16(x))
	}
	return x
}
