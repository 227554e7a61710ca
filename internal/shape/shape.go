// Package shape counts the elements of shapes that callers give.
package shape

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Elements returns the product of a shape's dimensions, 1 for none. It fails if one is negative or the product
// of those that are not 0 does not fit an int.
func Elements(shape []int) (int, error) {
	n, empty := 1, false
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("negative dimension in shape %v", slices.Clone(shape)) // a clone: shape does not escape
		}
		if d == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(uint64(n), uint64(d))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("shape %v has more elements than an int can count", slices.Clone(shape))
		}
		n = int(lo)
	}
	if empty {
		return 0, nil
	}
	return n, nil
}
