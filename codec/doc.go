// Package codec says what a turbotrellis codec is: the tensors it reads, the
// parameters it takes, the packed form it writes, the errors it returns, and
// the interfaces that every backend implements.
//
// # The contract
//
// A backend may be plain and slow (codec/ref) or a GPU (codec/metal); it may
// not differ by one bit. For the same parameters and the same input every
// backend writes the same bytes, on every platform, and returns an error of the
// same class naming the same tensor and index. The one thing left open is the
// payload of a NaN. The arithmetic is docs/numerics.md; the bytes are
// docs/format.md.
//
// # Words
//
//   - Head dimension: the length of the last axis of a key or value tensor.
//   - Row: one vector along the last axis. A tensor of shape [..., d] has as
//     many rows as the product of its leading dimensions.
//   - Group: consecutive elements of a row that share a scale (32 or 64).
//   - Scale, zero point: the affine parameters of a group of keys, which
//     decode as (index + zero)·scale.
//   - Centroid, boundary: the levels of a Lloyd–Max table and the thresholds
//     between them; a value decodes as centroid[index]·scale.
//   - Rotation: sign flips and a Walsh–Hadamard transform along the row, which
//     make the values of any row look normally distributed.
//   - State, symbol: the L bits of a trellis decoder and the k bits that move
//     it one step.
//
// # Using it
//
// A backend gives a codec for parameters, and the codec packs and unpacks; the
// examples of codec/ref show both. auto.Open returns the fastest backend that
// runs here.
//
// Importing codec or codec/ref brings in the standard library and nothing else.
package codec
