package fit

import (
	"fmt"
	"math"
	"sort"
	"testing"

	"gonum.org/v1/gonum/integrate/quad"

	"github.com/turbotrellis/turbotrellis/lloydmax"
)

func fitted(t testing.TB, levels int) Quantizer {
	t.Helper()
	q, err := Normal(levels)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// integral is the Gauss–Legendre integral of f under the normal density from a
// to b, the infinities cut at ±12, beyond which lies less than 1e-32.
func integral(a, b float64, f func(x float64) float64) float64 {
	a, b = max(a, -12), min(b, 12)
	density := func(x float64) float64 {
		return f(x) * math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
	}
	n := 1 + int((b-a)/0.5)
	sum := 0.0
	for i := range n {
		w := (b - a) / float64(n)
		sum += quad.Fixed(density, a+w*float64(i), a+w*float64(i+1), 12, quad.Legendre{}, 0)
	}
	return sum
}

func mseByQuadrature(q Quantizer) float64 {
	sum := 0.0
	for i, c := range q.Centroids {
		a, b := q.interval(i)
		sum += integral(a, b, func(x float64) float64 { return (x - c) * (x - c) })
	}
	return sum
}

// lloyd runs the plain iteration from a uniform start, on quadrature.
func lloyd(levels, iterations int) Quantizer {
	q := Quantizer{make([]float64, levels), make([]float64, levels-1)}
	for i := range q.Centroids {
		q.Centroids[i] = 3 * (2*float64(i) + 1 - float64(levels)) / float64(levels)
	}
	for range iterations {
		for i := range q.Boundaries {
			q.Boundaries[i] = (q.Centroids[i] + q.Centroids[i+1]) / 2
		}
		for i := range q.Centroids {
			a, b := q.interval(i)
			q.Centroids[i] = integral(a, b, func(x float64) float64 { return x }) /
				integral(a, b, func(float64) float64 { return 1 })
		}
	}
	return q
}

// Max's tables (1960), as commonly quoted: the positive levels, and the error,
// to four decimals. In their fourth significant digit the quoted errors at 3, 4
// and 5 bits, 0.03454, 0.009497 and 0.002499, are below what any quantiser can
// reach: the least possible are 0.03455, 0.009501 and 0.002505, as the plain
// iteration finds too (TestAgainstLloydIteration).
func TestMaxTables(t *testing.T) {
	for _, c := range []struct {
		levels int
		want   []float64
		mse    float64
	}{
		{1, nil, 1},
		{2, []float64{0.7980}, 0.3634},
		{3, []float64{1.224}, 0.1902},
		{4, []float64{0.4528, 1.510}, 0.1175},
		{5, []float64{0.7646, 1.724}, 0.07994},
		{8, []float64{0.2451, 0.7560, 1.344, 2.152}, 0.03454},
		{16, []float64{0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}, 0.009497},
		{32, nil, 0.002499},
	} {
		q := fitted(t, c.levels)
		if got := q.MSE(); math.Abs(got-c.mse) > 5e-5 {
			t.Errorf("%d levels: MSE %.6f, Max has %v", c.levels, got, c.mse)
		} else {
			t.Logf("%d levels: MSE %.6f, Max has %v", c.levels, got, c.mse)
		}
		for i, want := range c.want {
			if got := q.Centroids[c.levels-len(c.want)+i]; math.Abs(got-want) > 6e-4 {
				t.Errorf("%d levels: level %d is %.5f, Max has %v", c.levels, i, got, want)
			}
		}
	}
}

// The exact errors, where there is a closed form.
func TestClosedForm(t *testing.T) {
	if got := fitted(t, 1).MSE(); got != 1 {
		t.Errorf("1 level: MSE %v, want the variance, 1", got)
	}
	q := fitted(t, 2)
	if got, want := q.Centroids[1], math.Sqrt(2/math.Pi); math.Abs(got-want) > 1e-15 {
		t.Errorf("2 levels: centroid %v, want sqrt(2/π) = %v", got, want)
	}
	if got, want := q.MSE(), 1-2/math.Pi; math.Abs(got-want) > 1e-15 {
		t.Errorf("2 levels: MSE %v, want 1-2/π = %v", got, want)
	}
}

// Newton's answer is the plain iteration's, to six significant digits of the
// error and nine decimals of the levels.
func TestAgainstLloydIteration(t *testing.T) {
	for _, c := range []struct{ levels, iterations int }{{4, 100}, {5, 150}, {8, 300}, {16, 1000}, {32, 4000}} {
		if testing.Short() && c.levels > 8 {
			continue
		}
		got, want := fitted(t, c.levels), lloyd(c.levels, c.iterations)
		for i := range want.Centroids {
			if math.Abs(got.Centroids[i]-want.Centroids[i]) > 1e-9 {
				t.Errorf("%d levels: centroid %d is %v, the iteration has %v", c.levels, i, got.Centroids[i], want.Centroids[i])
			}
		}
		mse := mseByQuadrature(want)
		if math.Abs(got.MSE()/mse-1) > 1e-6 {
			t.Errorf("%d levels: MSE %v, the iteration has %v", c.levels, got.MSE(), mse)
		}
		t.Logf("%d levels: MSE %.7g", c.levels, mse)
	}
}

// Both of Lloyd's conditions, exact symmetry, no dead level, and the closed
// form of the error against quadrature, at every width and some odd counts.
func TestConditions(t *testing.T) {
	for _, levels := range []int{1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 64, 128, 255, 256, MaxLevels} {
		q := fitted(t, levels)
		if len(q.Centroids) != levels || len(q.Boundaries) != levels-1 {
			t.Fatalf("%d levels: %d centroids, %d boundaries", levels, len(q.Centroids), len(q.Boundaries))
		}
		if !sort.Float64sAreSorted(q.Centroids) {
			t.Errorf("%d levels: centroids do not ascend", levels)
		}
		total := 0.0
		for i, c := range q.Centroids {
			if c != -q.Centroids[levels-1-i] {
				t.Errorf("%d levels: centroid %d is %v, its mirror %v", levels, i, c, q.Centroids[levels-1-i])
			}
			a, b := q.interval(i)
			mass := integral(a, b, func(float64) float64 { return 1 })
			mean := integral(a, b, func(x float64) float64 { return x }) / mass
			if math.Abs(c-mean) > 1e-11 {
				t.Errorf("%d levels: centroid %d is %v, its interval's mean %v", levels, i, c, mean)
			}
			p := q.Probability(i)
			if math.Abs(p-mass) > 1e-14 {
				t.Errorf("%d levels: level %d has probability %v, want %v", levels, i, p, mass)
			}
			// The outermost interval of the cube-root density has of the order
			// of 1/levels³; a dead level has nothing.
			if p < 0.1/math.Pow(float64(levels), 3) {
				t.Errorf("%d levels: level %d is dead: probability %v", levels, i, p)
			}
			total += p
		}
		if math.Abs(total-1) > 1e-14 {
			t.Errorf("%d levels: probabilities sum to %v", levels, total)
		}
		for i, b := range q.Boundaries {
			if b != (q.Centroids[i]+q.Centroids[i+1])/2 {
				t.Errorf("%d levels: boundary %d is no midpoint", levels, i)
			}
		}
		if got, want := q.MSE(), mseByQuadrature(q); math.Abs(got/want-1) > 1e-8 {
			t.Errorf("%d levels: MSE %v, by quadrature %v", levels, got, want)
		}
	}
}

// The error falls with every bit, and towards Panter and Dite's asymptote of
// π√3/2 over the square of the number of levels, from below.
func TestErrorFallsWithBits(t *testing.T) {
	last, lastRatio := 2.0, 0.0
	for bits := range 9 {
		n := float64(uint(1) << bits)
		mse := fitted(t, int(n)).MSE()
		ratio := mse * n * n / (math.Pi * math.Sqrt(3) / 2)
		t.Logf("%d bits: MSE %.6g (%.2f dB), %.4f of the asymptote", bits, mse, -10*math.Log10(mse), ratio)
		if mse >= last {
			t.Errorf("%d bits: MSE %v is not less than %v", bits, mse, last)
		}
		if ratio <= lastRatio || ratio >= 1 {
			t.Errorf("%d bits: %v of the asymptote after %v", bits, ratio, lastRatio)
		}
		last, lastRatio = mse, ratio
	}
	if lastRatio < 0.99 {
		t.Errorf("8 bits: %v of the asymptote", lastRatio)
	}
}

// Every number of levels is fitted, and each has less error than the one before.
func TestEveryCount(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand fits")
	}
	last := 2.0
	for levels := 1; levels <= MaxLevels; levels++ {
		q := fitted(t, levels)
		if !sort.Float64sAreSorted(q.Centroids) {
			t.Errorf("%d levels: centroids do not ascend", levels)
		}
		mse := q.MSE()
		if mse >= last {
			t.Errorf("%d levels: MSE %v after %v", levels, mse, last)
		}
		last = mse
	}
}

// No small change of a level or a boundary makes the error less.
func TestLocalMinimum(t *testing.T) {
	for _, levels := range []int{4, 8, 16, 32} {
		q := fitted(t, levels)
		best := q.MSE()
		for _, part := range [][]float64{q.Centroids, q.Boundaries} {
			for i, v := range part {
				for _, d := range []float64{-1e-3, 1e-3} {
					part[i] = v + d
					if got := q.MSE(); got <= best {
						t.Errorf("%d levels: moving %v by %v gives MSE %v, not above %v", levels, v, d, got, best)
					}
				}
				part[i] = v
			}
		}
	}
}

func TestLevelsOutOfRange(t *testing.T) {
	for _, levels := range []int{math.MinInt, -1, 0, MaxLevels + 1, math.MaxInt} {
		if _, err := Normal(levels); err == nil {
			t.Errorf("%d levels: no error", levels)
		}
	}
}

// committed is a table of the format as a Quantizer.
func committed(t *testing.T, bits int) Quantizer {
	t.Helper()
	tab, err := lloydmax.Lookup(bits)
	if err != nil {
		t.Fatal(err)
	}
	var q Quantizer
	for _, c := range tab.AppendCentroids(nil) {
		q.Centroids = append(q.Centroids, float64(c))
	}
	for _, b := range tab.AppendBoundaries(nil) {
		q.Boundaries = append(q.Boundaries, float64(b))
	}
	return q
}

// How near the committed tables are. None can be better than the optimum; the
// bounds are what they are known to cost. At 8 bits the levels are spaced almost
// evenly, some 0.035 apart over all of ±4.5, and the error is 2.4 times the least.
func TestCommittedTables(t *testing.T) {
	excess := map[int]float64{2: 1e-4, 3: 1e-8, 4: 1e-3, 5: 3e-3, 8: 1.44}
	last := 1.0
	for _, bits := range []int{2, 3, 4, 5, 8} {
		q, best := committed(t, bits), fitted(t, 1<<bits)
		got, least := q.MSE(), best.MSE()
		if quadrature := mseByQuadrature(q); math.Abs(got/quadrature-1) > 1e-8 {
			t.Errorf("%d bits: MSE %v, by quadrature %v", bits, got, quadrature)
		}
		t.Logf("%d bits: MSE %.6g, optimum %.6g, %+.3g%%", bits, got, least, 100*(got/least-1))
		if got < least || got > least*(1+excess[bits]) {
			t.Errorf("%d bits: MSE %v against an optimum of %v", bits, got, least)
		}
		if got >= last {
			t.Errorf("%d bits: MSE %v is not less than at fewer bits", bits, got)
		}
		last = got
		for i := range q.Centroids {
			if p := q.Probability(i); p < 1e-7 {
				t.Errorf("%d bits: level %d is dead: probability %v", bits, i, p)
			}
		}
	}
}

func BenchmarkNormal(b *testing.B) {
	for _, levels := range []int{4, 8, 16, 32, 256, MaxLevels} {
		b.Run(fmt.Sprintf("levels=%d", levels), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fitted(b, levels)
			}
		})
	}
}
