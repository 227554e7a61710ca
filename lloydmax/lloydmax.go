// Package lloydmax holds the scalar quantisers of the value codec: for 2, 3, 4,
// 5 and 8 bits, the levels (centroids) that represent a unit normal variable
// and the boundaries between them (docs/numerics.md §4).
//
// The tables are part of the format: committed bit patterns, never computed at
// run time. Package fit computes tables of the same kind and says how far
// these are from optimal.
package lloydmax

import (
	"math"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// Eps is ε of docs/numerics.md §4: values are divided by scale + Eps.
const Eps = f32.Epsilon

// SearchFactors returns the multiples of the root mean square that a searched
// scale is chosen from, in the order in which they are tried (docs/numerics.md §4).
func SearchFactors() [9]float32 {
	return [9]float32{1, 15. / 16, 17. / 16, 14. / 16, 18. / 16, 13. / 16, 19. / 16, 12. / 16, 20. / 16}
}

// Table is one quantiser: 2^bits centroids and the 2^bits − 1 boundaries that
// separate them, both in strictly ascending order. It is immutable and safe for
// concurrent use.
type Table struct {
	bits       int
	centroids  []float32
	boundaries []float32
}

var tables = [...]*Table{
	2: newTable(centroids2[:], boundaries2[:], 2),
	3: newTable(centroids3[:], boundaries3[:], 3),
	4: newTable(centroids4[:], boundaries4[:], 4),
	5: newTable(centroids5[:], boundaries5[:], 5),
	8: newTable(centroids8[:], boundaries8[:], 8),
}

func newTable(centroids, boundaries []uint32, bits int) *Table {
	return &Table{bits: bits, centroids: fromBits(centroids), boundaries: fromBits(boundaries)}
}

func fromBits(src []uint32) []float32 {
	dst := make([]float32, len(src))
	for i, b := range src {
		dst[i] = math.Float32frombits(b)
	}
	return dst
}

// Lookup returns the table for the given width in bits: 2, 3, 4, 5 or 8. Any
// other width is an error.
func Lookup(bits int) (*Table, error) {
	if bits < 0 || bits >= len(tables) || tables[bits] == nil {
		return nil, fault.New(fault.ErrParams, "no table of %d bits: there are 2, 3, 4, 5 and 8", bits)
	}
	return tables[bits], nil
}

// Bits returns the width of an index in bits.
func (t *Table) Bits() int { return t.bits }

// Levels returns the number of centroids, 2^Bits.
func (t *Table) Levels() int { return len(t.centroids) }

// Index returns the number of boundaries b with n > b, in [0, Levels). A value
// on a boundary belongs to the level below it. NaN gives 0, as no boundary is
// less.
func (t *Table) Index(n float32) int {
	i := 0
	for i < len(t.boundaries) && n > t.boundaries[i] {
		i++
	}
	return i
}

// Centroid returns level i, for i in [0, Levels).
func (t *Table) Centroid(i int) float32 { return t.centroids[i] }

// Boundary returns the boundary between levels i and i+1, for i in
// [0, Levels − 1).
func (t *Table) Boundary(i int) float32 { return t.boundaries[i] }

// AppendCentroids appends the Levels centroids to dst, lowest first, and
// returns the extended slice.
func (t *Table) AppendCentroids(dst []float32) []float32 {
	return append(dst, t.centroids...)
}

// AppendBoundaries appends the Levels − 1 boundaries to dst, lowest first, and
// returns the extended slice.
func (t *Table) AppendBoundaries(dst []float32) []float32 {
	return append(dst, t.boundaries...)
}
