package shaders

import "encoding/binary"

// The structs below are the constant arguments of the kernels, field for field what
// layout.metal declares. Fields are in 8-byte then 4-byte order and every struct's size
// is a multiple of 8, so that neither compiler pads; Pad is never read.

// Data types as the kernels number them.
const (
	TypeF32  uint32 = 0
	TypeF16  uint32 = 1
	TypeBF16 uint32 = 2
)

// Policies for groups and rows that their format cannot hold (docs/numerics.md §2, §6).
const (
	PolicyFinite uint32 = 0
	PolicyCompat uint32 = 1
)

// Trellis codes. CodeLUT reads the table buffer.
const (
	Code1MAD  uint32 = 0
	Code3INST uint32 = 1
	CodeLUT   uint32 = 2
)

// A decoder of keys or values adds to its word `limited` how many results it limited to ±65504
// under PolicyFinite (docs/numerics.md §2); it leaves the buffer alone where its outputs are not
// f16 or the policy is another.
//
// An encoder's status buffer is StatusWords uint32, each StatusClear before the dispatch.
// A word then holds the smallest offending index of the dispatch: for StatusNonFinite
// local row · dim + column, for StatusScaleOverflow local row · groups per row + group
// (the local row for row scales). Row0 is local row 0, so rows · dim must be below 2^32.
const (
	StatusNonFinite     = 0
	StatusScaleOverflow = 1
	StatusWords         = 2
	StatusClear         = ^uint32(0)
)

// View addresses the rows of an operand: element [i0, i1, i2, j] lies at
// Base + i0·S0 + i1·S1 + i2·S2 + j·S3, in elements of the operand (bytes for packed
// codes, uint32 words of trellis codes). A row number r splits as
// i2 = r mod N2, i1 = r/N2 mod N1, i0 = r/N2/N1.
type View struct {
	Base, S0, S1, S2, S3 int64
}

// Span says which rows a dispatch has, from local row Row0 on, and how a Units kernel takes them: as Rows rows of
// Width units of eight elements, in tiles of 2^Shift units of a row (UnitGrid). One row begins at the Base of every
// view, whatever Row0.
type Span struct {
	N1, N2, Row0, Rows, Width, Shift uint32
}

// In the structs with a Span, bit i of Wide promises of view i that its S3 is 1, and, from a buffer start aligned to 16 bytes,
// that its Base and other strides are multiples of eight elements or, of codes, of 8 bytes where they have 8 bits
// and of 4 where they have fewer. Codes and scales have an S3 of 1. GroupShift is log2 of the units of a group.

// HadamardArgs: Norm is f32(1/sqrt(Dim)); Dim = Factor · 2^k. Units kernels do not read Factor and ThreadsPerRow.
type HadamardArgs struct {
	X, Y                             View
	Span                             Span
	Dim, Factor, ThreadsPerRow, Wide uint32
	XType, YType, Policy             uint32
	Norm                             float32
}

// KeysEncodeArgs: codes are bytes; scales and zeros are ScaleType.
type KeysEncodeArgs struct {
	X, Codes, Scales, Zeros       View
	Span                          Span
	GroupShift, Wide              uint32
	XType, ScaleType, Policy, Pad uint32
}

// KeysDecodeArgs is the way back.
type KeysDecodeArgs struct {
	Codes, Scales, Zeros, Out       View
	Span                            Span
	GroupShift, Wide                uint32
	ScaleType, OutType, Policy, Pad uint32
}

// ValuesEncodeArgs: Norm, Factor, ThreadsPerRow as in HadamardArgs.
type ValuesEncodeArgs struct {
	X, Codes, Scales           View
	Span                       Span
	Dim, Factor, ThreadsPerRow uint32
	GroupShift, Wide           uint32
	XType, ScaleType           uint32
	Norm                       float32
}

// ValuesDecodeArgs serves values_decode and values_inverse, which alone reads Norm, Factor and ThreadsPerRow, as in
// HadamardArgs.
type ValuesDecodeArgs struct {
	Codes, Scales, Out         View
	Span                       Span
	Dim, Factor, ThreadsPerRow uint32
	GroupShift, Wide           uint32
	ScaleType, OutType, Policy uint32
	Norm                       float32
	Pad                        uint32
}

// CopyArgs: both views in elements of the size the kernel's name gives.
type CopyArgs struct {
	X, Y                         View
	N1, N2, Row0, Rows, Dim, Pad uint32
}

// TrellisScalesArgs serves trellis_scales and trellis_refit. Rows are on stride S2.
// InverseCodeRMS is f32(1/lutRMS), Factor numerics §6's α (1 without refitting).
type TrellisScalesArgs struct {
	W, Scales, States               View
	Row0, Rows, Cols, WType, Policy uint32
	InverseCodeRMS, Factor          float32
	Pad                             uint32
}

// TrellisEncodeArgs: block b of the dispatch is block Block0 + b of the matrix, row by row,
// RowBlocks per row. SlotBytes is TrellisLaunch's. Scaled 0 takes the samples as they are;
// its status words index sample Block·b + t, StatusScaleOverflow one beyond ±2^60.
// States are uint16. Rounds is TrellisLaunch's.
type TrellisEncodeArgs struct {
	W, Scales, Codes, States  View
	SlotBytes                 uint64
	Blocks, Block0, RowBlocks uint32
	Block, StateBits, Bits    uint32
	WType, Scaled, TailBiting uint32
	WriteCodes, WriteStates   uint32
	Rounds                    uint32
}

// TrellisExpandArgs serves trellis_expand*. Interleaved codes are
// [Cols/(2·Block), rows, 2·words] on Codes.S1, S2, S3. Columns are Col0 to Col0+Cols−1 of a
// row; trellis_expand8_* need Col0 and Cols to be multiples of 8, and Block to be 1 << Shift, 8 or more.
// Wide: Out's last stride is 1 and eight elements of it are aligned to 16 bytes.
type TrellisExpandArgs struct {
	Codes, Scales, Out                       View
	Row0, Rows, Cols, Block, StateBits, Bits uint32
	Code, OutType, Interleaved, Shift        uint32
	Wide, Col0                               uint32
}

// ProductInputArgs: rows of x to canonical f32 in tiles of Tile rows: [⌈Rows/Tile⌉, ⌈Dim/128⌉, Tile, 128].
type ProductInputArgs struct {
	X                              View
	N1, N2, Row0, Rows, Dim, XType uint32
	Tile, Pad                      uint32
}

// Floats returns how long the tiles of rows of dim are.
func (a ProductInputArgs) Floats() int {
	return ceil(int(a.Rows), int(a.Tile)) * int(a.Tile) * ceil(int(a.Dim), 128) * 128
}

// ProductArgs: x is what ProductInputArgs made, Rows rows of Cols; rows of Y are Row0 on. The dispatch has
// Tiles tiles of rows from tile Tile0 on, each of the kernel's height, the last of which may be short, for all
// Outputs. Codes and scales are those of a whole matrix, as in TrellisExpandArgs for trellis weights; for affine
// ones Codes counts uint32 words and WeightType is the type of the scales and biases, rows on stride S2. Cols is a
// multiple of 4, except for weights that are coded along the outputs.
type ProductArgs struct {
	Codes, Scales, Biases, Y              View
	N1, N2, Row0, Rows, Outputs, Cols     uint32
	Tile0, Tiles                          uint32
	Block, StateBits, Bits, Code          uint32
	Interleaved, Group, WeightType, YType uint32
}

// AffineArgs: X is the input of affine_quantize and the output of affine_dequantize, for which Wide is as in
// KeysDecodeArgs. Codes are bytes; Type is that of all else.
type AffineArgs struct {
	X, Codes, Scales, Biases View
	N1, N2, Row0, Rows       uint32
	Dim, Group, Bits, Type   uint32
	Wide, Pad                uint32
}

// MaskArgs: Words is at most ⌈Dim/32⌉. mask_any writes a word per row, not 0 if the row allows a token.
type MaskArgs struct {
	X, Mask, Y         View
	N1, N2, Row0, Rows uint32
	Dim, Words, Type   uint32
	Pad                uint32
}

// RowCodeArgs serves rowcode_*. X is the input and Y the output of rows; Codes are bytes, for rowcode_refine words.
// Mean and Gain, binary16, are read where Centred is not 0; to kernels over units its bits 1 and 2
// say that consecutive rows share a mean, a gain. Mass is read where rowcode_unrotate has a centre. Norm, Factor and
// ThreadsPerRow as in HadamardArgs; UnitShift is log2(Dim/8) where Factor is 1; an overflow is reported by local row.
type RowCodeArgs struct {
	X, Y, Codes, Scales, Mean, Gain, Mass View
	Span                                  Span
	Dim, Factor, ThreadsPerRow, UnitShift uint32
	Bits, Centred, Wide                   uint32
	XType, YType, MassType, Policy        uint32
	Norm                                  float32
}

// CanaryArgs: Count triples of f32 bit patterns; Subnormal is 0x00400000.
type CanaryArgs struct {
	Count, Subnormal uint32
}

// Append appends the little-endian bytes of an argument struct, as setBytes wants them.
// args is a pointer to one of the structs above.
func Append(dst []byte, args any) []byte {
	out, err := binary.Append(dst, binary.LittleEndian, args)
	if err != nil {
		panic("shaders: not an argument struct: " + err.Error())
	}
	return out
}
