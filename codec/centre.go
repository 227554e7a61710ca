package codec

import (
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
	row, mean, spread := make([]float32, d), make([]float64, d), make([]float64, d)
	for r := range c.Mean.Rows() {
		clear(mean)
		clear(spread)
		for t := range tokens {
			x.LoadRow(row, r*tokens+t)
			for j, v := range row {
				if !f32.IsFinite(v) {
					return Centre{}, &Error{Err: ErrNonFinite, Tensor: "tokens", Index: (r*tokens+t)*d + j, Reason: "the centre of tokens needs finite elements"}
				}
				mean[j] += float64(f32.Canon(v))
			}
		}
		for j := range mean {
			if tokens > 0 {
				mean[j] /= float64(tokens)
			}
			mean[j] = roundF16(mean[j], -65504, 65504)
		}
		for t := range tokens {
			x.LoadRow(row, r*tokens+t)
			for j, v := range row {
				e := float64(f32.Canon(v)) - mean[j]
				spread[j] += float64(e * e)
			}
		}
		largest := 0.0
		for j := range spread {
			if tokens > 0 {
				spread[j] = math.Sqrt(spread[j] / float64(tokens))
			}
			largest = max(largest, spread[j])
		}
		for j := range spread {
			gain := 1.0
			if largest > 0 {
				gain = roundF16(math.Sqrt(max(spread[j], largest/1024)), 0x1p-24, 65504)
			}
			F16.Store(c.Mean.Data[(r*d+j)*2:], float32(mean[j]))
			F16.Store(c.Gain.Data[(r*d+j)*2:], float32(gain))
		}
	}
	return c, nil
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
