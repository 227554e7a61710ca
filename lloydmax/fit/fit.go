// Package fit computes Lloyd–Max quantisers of a unit normal variable: those
// of least mean squared error for their number of levels (Lloyd 1957, Max
// 1960). The codec never runs it; it shows what the tables of package lloydmax
// could be and how near they are, and makes tables for other widths.
//
// All of it is float64 arithmetic with transcendental functions, good to some
// twelve digits and not the same bits everywhere.
package fit

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat/distuv"
)

// MaxLevels is the largest number of levels that Normal fits.
const MaxLevels = 1024

// Quantizer is a scalar quantiser: every value between two consecutive
// boundaries is represented by the centroid of that interval. Both slices
// ascend, and there is one boundary less than there are centroids. It need not
// be optimal.
type Quantizer struct {
	Centroids  []float64
	Boundaries []float64
}

// Normal returns the optimal quantiser of a unit normal with the given number
// of levels, 1 to MaxLevels. It is exactly symmetric: centroid i is the
// negative of centroid levels−1−i.
func Normal(levels int) (Quantizer, error) {
	if levels < 1 || levels > MaxLevels {
		return Quantizer{}, fmt.Errorf("fit: %d levels are outside 1 to %d", levels, MaxLevels)
	}
	half, err := solveHalf(levels)
	if err != nil {
		return Quantizer{}, err
	}
	var q Quantizer
	for i := len(half) - 1; i >= 0; i-- {
		q.Centroids = append(q.Centroids, -half[i])
	}
	if levels%2 == 1 {
		q.Centroids = append(q.Centroids, 0)
	}
	q.Centroids = append(q.Centroids, half...)
	for i, c := range q.Centroids[1:] {
		q.Boundaries = append(q.Boundaries, (q.Centroids[i]+c)/2)
	}
	return q, nil
}

// MSE returns the mean squared error of q on a unit normal, by the closed form
// of the integral over each interval.
func (q Quantizer) MSE() float64 {
	sum := 0.0
	for i, c := range q.Centroids {
		p, m1, m2 := moments(q.interval(i))
		sum += m2 - 2*c*m1 + c*c*p
	}
	return sum
}

// Probability returns the probability that a unit normal falls on level i.
func (q Quantizer) Probability(i int) float64 {
	p, _, _ := moments(q.interval(i))
	return p
}

func (q Quantizer) interval(i int) (a, b float64) {
	a, b = math.Inf(-1), math.Inf(1)
	if i > 0 {
		a = q.Boundaries[i-1]
	}
	if i < len(q.Boundaries) {
		b = q.Boundaries[i]
	}
	return a, b
}

// moments returns the integrals of the normal density, of x and of x² under
// it, from a to b.
func moments(a, b float64) (p, m1, m2 float64) {
	fa, fb := distuv.UnitNormal.Prob(a), distuv.UnitNormal.Prob(b)
	if a+b > 0 {
		p = distuv.UnitNormal.CDF(-a) - distuv.UnitNormal.CDF(-b) // small numbers, where digits are
	} else {
		p = distuv.UnitNormal.CDF(b) - distuv.UnitNormal.CDF(a)
	}
	m2 = p
	if fa > 0 {
		m2 += a * fa
	}
	if fb > 0 {
		m2 -= b * fb
	}
	return p, fa - fb, m2
}

const (
	// Five steps suffice at every number of levels up to MaxLevels.
	maxIterations = 10
	// Newton's error after a step is of the order of the step's square.
	lastStep = 1e-7
)

// solveHalf returns the positive centroids of the optimal quantiser, ascending.
//
// With boundaries midway between centroids, the optimum is where every centroid
// is the mean g(a, b) of its interval. Lloyd's iteration c ← g approaches it
// ever more slowly as levels are added; Newton's method on c − g = 0, whose
// Jacobian is tridiagonal, takes a handful of full steps from start. The density
// is log-concave, so there is one solution (Fleischer 1964).
func solveHalf(levels int) ([]float64, error) {
	n := levels / 2
	if n == 0 {
		return nil, nil
	}
	c := start(levels)
	// The interval of the first positive centroid starts at zero, or midway
	// from the centroid at zero where there is one.
	odd := levels%2 == 1
	for range maxIterations {
		residual := mat.NewVecDense(n, nil)
		lower, diag, upper := make([]float64, n-1), make([]float64, n), make([]float64, n-1)
		for i := range c {
			a, b := 0.0, math.Inf(1)
			if i > 0 {
				a = (c[i-1] + c[i]) / 2
			} else if odd {
				a = c[0] / 2
			}
			if i < n-1 {
				b = (c[i] + c[i+1]) / 2
			}
			p, m1, _ := moments(a, b)
			g := m1 / p
			residual.SetVec(i, c[i]-g)
			diag[i] = 1
			// Each end moves by half of what the centroid does.
			if i > 0 || odd {
				d := distuv.UnitNormal.Prob(a) * (g - a) / p / 2
				diag[i] -= d
				if i > 0 {
					lower[i-1] = -d
				}
			}
			if i < n-1 {
				d := distuv.UnitNormal.Prob(b) * (b - g) / p / 2
				diag[i] -= d
				upper[i] = -d
			}
		}
		var step mat.VecDense
		if err := mat.NewTridiag(n, lower, diag, upper).SolveVecTo(&step, false, residual); err != nil {
			return nil, fmt.Errorf("fit: %d levels: %w", levels, err)
		}
		for i := range c {
			c[i] -= step.AtVec(i)
		}
		if mat.Norm(&step, math.Inf(1)) < lastStep {
			return c, nil
		}
	}
	return nil, fmt.Errorf("fit: %d levels: no convergence in %d iterations", levels, maxIterations)
}

// start returns the positive centroids for the asymptotically best density of
// levels, the cube root of the normal's: a normal of variance 3 (Panter and
// Dite 1951).
func start(levels int) []float64 {
	wide := distuv.Normal{Mu: 0, Sigma: math.Sqrt(3)}
	c := make([]float64, levels/2)
	for i := range c {
		c[i] = wide.Quantile((float64(levels-levels/2+i) + 0.5) / float64(levels))
	}
	return c
}
