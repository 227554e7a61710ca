package safetensors

import "github.com/turbotrellis/turbotrellis/pack"

// DType is the type of a tensor's elements, spelled as in the header.
type DType string

// The element types of the format. Tensors of the types narrower than a byte
// fill whole bytes.
const (
	F4         DType = "F4"      // 4 bits, E2M1
	F6E2M3     DType = "F6_E2M3" // 6 bits
	F6E3M2     DType = "F6_E3M2" // 6 bits
	Bool       DType = "BOOL"
	U8         DType = "U8"
	I8         DType = "I8"
	F8E5M2     DType = "F8_E5M2"
	F8E4M3     DType = "F8_E4M3"
	F8E8M0     DType = "F8_E8M0"
	F8E4M3FNUZ DType = "F8_E4M3FNUZ"
	F8E5M2FNUZ DType = "F8_E5M2FNUZ"
	U16        DType = "U16"
	I16        DType = "I16"
	F16        DType = "F16"
	BF16       DType = "BF16"
	U32        DType = "U32"
	I32        DType = "I32"
	F32        DType = "F32"
	U64        DType = "U64"
	I64        DType = "I64"
	F64        DType = "F64"
	C64        DType = "C64" // two float32
)

// Bits returns the bits of one element, 4 to 64, or 0 for an unknown type.
func (d DType) Bits() int {
	switch d {
	case F4:
		return 4
	case F6E2M3, F6E3M2:
		return 6
	case Bool, U8, I8, F8E5M2, F8E4M3, F8E8M0, F8E4M3FNUZ, F8E5M2FNUZ:
		return 8
	case U16, I16, F16, BF16:
		return 16
	case U32, I32, F32:
		return 32
	case U64, I64, F64, C64:
		return 64
	}
	return 0
}

// Size returns the bytes of one element, 1 to 8, or 0 for a type that is
// unknown or narrower than a byte.
func (d DType) Size() int { return d.Bits() / 8 }

// Float returns the element type of the codecs that d is. It reports false
// unless d is F32, F16 or BF16.
func (d DType) Float() (pack.DType, bool) {
	switch d {
	case F32:
		return pack.F32, true
	case F16:
		return pack.F16, true
	case BF16:
		return pack.BF16, true
	}
	return 0, false
}

// DTypeOf returns the type in a file of the codecs' element type d, or "" for
// an unknown one.
func DTypeOf(d pack.DType) DType {
	switch d {
	case pack.F32:
		return F32
	case pack.F16:
		return F16
	case pack.BF16:
		return BF16
	}
	return ""
}
