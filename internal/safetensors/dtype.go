package safetensors

// DType is the type of a tensor's elements, spelled as in the header.
type DType string

// The element types of a whole number of bytes.
const (
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

// Size returns the bytes of one element, 1 to 8, or 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case Bool, U8, I8, F8E5M2, F8E4M3, F8E8M0, F8E4M3FNUZ, F8E5M2FNUZ:
		return 1
	case U16, I16, F16, BF16:
		return 2
	case U32, I32, F32:
		return 4
	case U64, I64, F64, C64:
		return 8
	}
	return 0
}
