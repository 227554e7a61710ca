// Package hadamard is the normalised Walsh–Hadamard transform and the seeded
// rotation built from it (docs/numerics.md §3). The order of every sum is
// fixed, so results have the same bits on every machine.
//
// # Sizes
//
// A size d is supported where d = m·2^k with m in {1, 12, 20, 28} and 2^k from
// 1 to 8192. Below 1024 these are
//
//	1 2 4 8 16 32 64 128 256 512,
//	12 24 48 96 192 384 768,
//	20 40 80 160 320 640,
//	28 56 112 224 448 896.
//
// A d that is a power of two has m = 1; for any other, m is the one of 12, 20,
// 28 that leaves a power of two. Never both: the odd parts differ.
//
// # Order
//
// The row is m runs of n = 2^k contiguous elements. Each run goes through the
// stages h = 1, 2, 4 … n/2, where every pair (j, j+h) becomes (a+b, a−b); then
// the m×m matrix of ±1 combines the runs element by element, each output
// summed in column order from +0; then each element is multiplied by
// r = float32(1/√d), the quotient taken in float64. Every operation is rounded
// once to float32.
//
// The matrices of order 20 and 28 are not symmetric, so there the transform is
// not its own inverse: [Rotation.Inverse] combines the runs with the transpose.
package hadamard

import (
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/fault"
	"github.com/turbotrellis/turbotrellis/internal/threefry"
)

// maxPow2 is the largest power-of-two part of a size.
const maxPow2 = 8192

// signSeed is the seed of the sign vectors: part of the format.
const signSeed = 42

// Split returns m and n with d = m·n, m in {1, 12, 20, 28} and n a power of two
// from 1 to 8192, or ok false if d is not supported.
func Split(d int) (m, n int, ok bool) {
	if d <= 0 {
		return 0, 0, false
	}
	for _, m := range [...]int{1, 12, 20, 28} {
		if d%m != 0 {
			continue
		}
		if n := d / m; n&(n-1) == 0 {
			return m, n, n <= maxPow2
		}
	}
	return 0, 0, false
}

func sizeError(d int) error {
	return fault.New(fault.ErrParams, "size %d is not m·2^k with m in {1, 12, 20, 28} and 2^k in [1, %d]", d, maxPow2)
}

// Supported reports whether vectors of d elements can be transformed.
func Supported(d int) bool {
	_, _, ok := Split(d)
	return ok
}

// Transform replaces x by its normalised Walsh–Hadamard transform, without
// signs, in the order the package comment gives. It is orthogonal, and its own
// inverse up to rounding where 20 and 28 are not the m of len(x). The error
// names a length that is not supported; x is then unchanged. Transform does
// not allocate.
func Transform(x []float32) error {
	m, n, ok := Split(len(x))
	if !ok {
		return sizeError(len(x))
	}
	transform(x, n, matrixOf(m), Norm(len(x)))
	return nil
}

// AppendSigns appends the d signs, 1 or −1, of a vector of d elements: for any
// d ≥ 0, and none for a negative d. They are 1 − 2·randint(0, 2) of MLX's
// generator with key 42. Each size has its own sequence; a shorter one is not
// a prefix of a longer one.
func AppendSigns(dst []float32, d int) []float32 {
	if d <= 0 {
		return dst
	}
	words := make([]uint32, d)
	threefry.Bits(words, signSeed)
	dst = slices.Grow(dst, d)
	for _, w := range words {
		dst = append(dst, sign(w))
	}
	return dst
}

// sign returns the sign of a random word. MLX's randint(0, 2) scales
// float32(w) to [0, 2] and truncates: 1 for the words of which the conversion
// gives 2^31 or more, that is from 2^31 − 64 on.
func sign(w uint32) float32 {
	if w >= 1<<31-64 {
		return -1
	}
	return 1
}

// Rotation is the seeded orthogonal rotation of vectors of one size: signs,
// then the transform. It is immutable, so goroutines may share it.
type Rotation struct {
	signs    []float32
	n        int
	fwd, inv matrix
	r        float32
}

// New returns the rotation of vectors of d elements, or an error that names a
// d that is not supported.
func New(d int) (*Rotation, error) {
	m, n, ok := Split(d)
	if !ok {
		return nil, sizeError(d)
	}
	h := matrixOf(m)
	return &Rotation{AppendSigns(nil, d), n, h, h.transpose(), Norm(d)}, nil
}

// Dim returns the number of elements of the vectors.
func (t *Rotation) Dim() int { return len(t.signs) }

// Forward rotates x in place: x·signs, then the transform. It panics unless
// len(x) is Dim, and does not allocate.
func (t *Rotation) Forward(x []float32) {
	t.check(x)
	t.flip(x)
	transform(x, t.n, t.fwd, t.r)
}

// Inverse undoes Forward in place, up to rounding: the transposed transform,
// then ·signs. The transposed transform is the transform itself except for
// m = 20 and 28. It panics unless len(x) is Dim, and does not allocate.
func (t *Rotation) Inverse(x []float32) {
	t.check(x)
	transform(x, t.n, t.inv, t.r)
	t.flip(x)
}

func (t *Rotation) check(x []float32) {
	if len(x) != len(t.signs) {
		panic(fmt.Sprintf("hadamard: vector of %d elements for a rotation of %d", len(x), len(t.signs)))
	}
}

func (t *Rotation) flip(x []float32) {
	for i, s := range t.signs[:len(x)] {
		x[i] = float32(x[i] * s)
	}
}

// Norm returns r = 1/√d, which the transform of d elements multiplies by: the
// quotient in float64, rounded once to float32.
func Norm(d int) float32 { return float32(1 / math.Sqrt(float64(d))) }

// transform applies the stages to each run of n elements, h across the runs,
// and the factor r.
func transform(x []float32, n int, h matrix, r float32) {
	for i := 0; i < len(x); i += n {
		butterflies(x[i : i+n])
	}
	h.combine(x, n)
	for i := range x {
		x[i] = float32(x[i] * r)
	}
}

// butterflies applies the stages h = 1, 2, 4 … len(x)/2 to x, unscaled.
func butterflies(x []float32) {
	for h := 1; h < len(x); h *= 2 {
		for i := 0; i < len(x); i += 2 * h {
			for j := i; j < i+h; j++ {
				x[j], x[j+h] = x[j]+x[j+h], x[j]-x[j+h]
			}
		}
	}
}
