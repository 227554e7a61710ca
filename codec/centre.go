package codec

import (
	"fmt"
	"iter"
	"math"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
)

// Centre is the mean and the gain of each channel of centred row codes (docs/numerics.md §10). Both are F16 tensors of
// one shape, [..., head dimension], which broadcasts to that of the rows: a leading dimension is the rows' or 1, and
// there may be fewer. Means are finite, gains finite and positive.
type Centre struct {
	Mean, Gain Tensor
}

// NewCentre returns the usual centre of rows x, of shape [..., tokens, d]: of shape [..., 1, d], for each of the
// leading dimensions its own. It computes in float64, in the order of the tokens, and rounds once. An element that
// is not finite is ErrNonFinite.
func NewCentre(x Tensor) (Centre, error) {
	if err := x.Validate("tokens"); err != nil {
		return Centre{}, err
	}
	if len(x.Shape) < 2 {
		return Centre{}, &Error{Err: ErrShape, Tensor: "tokens", Index: NoIndex, Reason: "fewer than 2 dimensions, want [..., tokens, d]"}
	}
	last := len(x.Shape) - 1
	tokens, d := x.Shape[last-1], x.Shape[last]
	shape := clone(x.Shape)
	shape[last-1] = 1
	c := Centre{Mean: NewTensor(F16, shape...), Gain: NewTensor(F16, shape...)}
	if c.Mean.Len() == 0 {
		return c, nil
	}
	s, row := newCentreSums(d), make([]float32, d)
	for r := range c.Mean.Rows() {
		err := s.centre(c.Mean.Data[r*d*2:], c.Gain.Data[r*d*2:], func(yield func([]float32, error) bool) {
			for t := range tokens {
				x.LoadRow(row, r*tokens+t)
				if !yield(row, nil) {
					return
				}
			}
		})
		if e, ok := err.(*Error); ok {
			return Centre{}, e.At("tokens", r*tokens*d)
		}
	}
	return c, nil
}

// CentreOf is NewCentre for rows that are not in memory at once: rows yields the rows of one centre, of d elements
// each, in the order of the tokens. It is run twice, must yield the same both times, and ends at an error, which
// CentreOf returns. The centre is of shape [1, d].
func CentreOf(d int, rows iter.Seq2[[]float32, error]) (Centre, error) {
	if d < 1 || d > MaxHeadDim {
		return Centre{}, paramsError("a centre of %d elements, want 1 to %d", d, MaxHeadDim)
	}
	c := Centre{Mean: NewTensor(F16, 1, d), Gain: NewTensor(F16, 1, d)}
	if err := newCentreSums(d).centre(c.Mean.Data, c.Gain.Data, rows); err != nil {
		return Centre{}, err
	}
	return c, nil
}

// centreSums are the sums for one centre.
type centreSums struct{ mean, spread []float64 }

func newCentreSums(d int) *centreSums { return &centreSums{make([]float64, d), make([]float64, d)} }

// centre writes the mean and the gain of rows as binary16.
func (s *centreSums) centre(mean, gain []byte, rows iter.Seq2[[]float32, error]) error {
	clear(s.mean)
	clear(s.spread)
	n, d := 0, len(s.mean)
	for row, err := range rows {
		if err != nil {
			return err
		}
		if len(row) != d {
			return &Error{Err: ErrShape, Tensor: "tokens", Index: NoIndex, Reason: fmt.Sprintf("a row of %d elements, want %d", len(row), d)}
		}
		for j, v := range row {
			if !f32.IsFinite(v) {
				return &Error{Err: ErrNonFinite, Tensor: "tokens", Index: n*d + j, Reason: "the centre of tokens needs finite elements"}
			}
			s.mean[j] += float64(f32.Canon(v))
		}
		n++
	}
	for j := range s.mean {
		if n > 0 {
			s.mean[j] /= float64(n)
		}
		s.mean[j] = roundF16(s.mean[j], -65504, 65504)
	}
	again := 0
	for row, err := range rows {
		if err != nil {
			return err
		}
		if again++; again > n || len(row) != d {
			break
		}
		for j, v := range row {
			e := float64(f32.Canon(v)) - s.mean[j]
			s.spread[j] += float64(e * e)
		}
	}
	if again != n {
		return &Error{Err: ErrShape, Tensor: "tokens", Index: NoIndex, Reason: fmt.Sprintf("other rows at the second reading than the %d of the first", n)}
	}
	largest := 0.0
	for j := range s.spread {
		if n > 0 {
			s.spread[j] = math.Sqrt(s.spread[j] / float64(n))
		}
		largest = max(largest, s.spread[j])
	}
	for j := range s.spread {
		g := 1.0
		if largest > 0 {
			g = roundF16(math.Sqrt(max(s.spread[j], largest/1024)), 0x1p-24, 65504)
		}
		F16.Store(mean[j*2:], float32(s.mean[j]))
		F16.Store(gain[j*2:], float32(g))
	}
	return nil
}

// roundF16 returns x rounded once to the nearest binary16, ties to even, within lo and hi.
func roundF16(x, lo, hi float64) float64 {
	x = min(max(x, lo), hi)
	// Rounding to float32 first would round twice: round it to odd, which leaves the second rounding right.
	f := float32(x)
	if float64(f) != x && math.Float32bits(f)&1 == 0 {
		if (float64(f) < x) == (x > 0) {
			f = math.Float32frombits(math.Float32bits(f) + 1)
		} else {
			f = math.Float32frombits(math.Float32bits(f) - 1)
		}
	}
	return float64(min(max(pack.FromF16(pack.ToF16(f)), float32(lo)), float32(hi)))
}
