package codec

import "github.com/turbotrellis/turbotrellis/affine"

// Affine quantises weight matrices in MLX's affine format and multiplies with them (docs/numerics.md §7, §8). Its
// methods are safe for concurrent use on different destinations; operands do not overlap. Only driver.New
// implements Affine.
type Affine interface {
	// Format returns the format.
	Format() affine.RowFormat

	// Quantize packs x, of shape [..., n] with n a multiple of the group, and reuses dst's slices where they are
	// large enough. On error dst is left empty. NaN or an infinity in x is ErrNonFinite with the first offending
	// element; otherwise a group whose range exceeds f32 is ErrScaleOverflow with the first element of the first
	// such group. A group whose scale or bias is a subnormal of f32 is outside the definition.
	Quantize(dst *AffineRows, x Tensor) error

	// Dequantize writes index·scale rounded to the rows' type, then + bias rounded to it. dst has a's shape and
	// type.
	Dequantize(dst Tensor, a AffineRows) error

	// MatMul writes y = x·Wᵀ for x of shape [..., In], W = a of shape [Out, In], and y of shape [..., Out], in the
	// order of docs/numerics.md §7. Any types go together. NaN and infinities propagate as IEEE 754 says.
	MatMul(y, x Tensor, a AffineRows, o ProductOptions) error
}

// AffineRows holds quantised rows. They follow each other in row-major order of the leading dimensions.
type AffineRows struct {
	Shape  []int  // shape of the tensor that was packed: [..., n]
	DType  DType  // of the scales, the biases and the rows when dequantised
	Codes  []byte // n·Bits/8 bytes per row: index i occupies Bits bits from bit i·Bits, little-endian
	Scales []byte // n/Group per row, little-endian
	Biases []byte // as Scales
}
