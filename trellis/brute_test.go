package trellis

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The oracles below enumerate every path of a tiny trellis; neither keeps the
// best path to a state as it goes, which is what Viterbi does.

// score adds a step to a path's score with the three roundings of an emission
// and one of the sum, each taken from float64, where the operation is exact or
// innocuously rounded.
func bruteScore(g float32, first bool, x, f float32) float32 {
	product := float32(2 * float64(x) * float64(f))
	square := float32(float64(f) * float64(f))
	e := float32(float64(product) - float64(square))
	if first {
		return e
	}
	return float32(float64(e) + float64(g))
}

// An oracle returns the path that numerics.md singles out and whether a tie had
// to be broken for it. overlap < 0 leaves the ends free.
type oracle func(p Params, values, x []float32, overlap int) (states []uint16, tied bool)

// bruteRounded applies the tie rules to the best score of all rounded path
// prefixes that end in each state at each time.
func bruteRounded(p Params, values, x []float32, overlap int) (states []uint16, tied bool) {
	n, mask := len(x), len(values)-1
	type cell struct {
		g  float32
		ok bool
	}
	best := make([][]cell, n)
	for t := range best {
		best[t] = make([]cell, len(values))
	}
	var walk func(t, s int, g float32)
	walk = func(t, s int, g float32) {
		g = bruteScore(g, t == 0, x[t], values[s])
		if c := &best[t][s]; !c.ok || g > c.g {
			*c = cell{g, true}
		}
		if t+1 < n {
			for b := range 1 << p.K {
				walk(t+1, (s<<p.K|b)&mask, g)
			}
		}
	}
	for s := range values {
		if overlap < 0 || s>>p.K == overlap {
			walk(0, s, 0)
		}
	}
	groups := len(values) >> p.K
	states = make([]uint16, n)
	// candidates are visited in ascending order, so that >= keeps the largest.
	pick := func(t int, candidates func(yield func(int) bool)) int {
		top, equal := -1, false
		for s := range candidates {
			if c := best[t][s]; c.ok && (top < 0 || c.g >= best[t][top].g) {
				equal = top >= 0 && c.g == best[t][top].g
				top = s
			}
		}
		tied = tied || equal
		return top
	}
	s := pick(n-1, func(yield func(int) bool) {
		for s := range values {
			if (overlap < 0 || s%groups == overlap) && !yield(s) {
				return
			}
		}
	})
	states[n-1] = uint16(s)
	for t := n - 2; t >= 0; t-- {
		j := s >> p.K
		s = pick(t, func(yield func(int) bool) {
			for m := range 1 << p.K {
				if !yield(j + m*groups) {
					return
				}
			}
		})
		states[t] = uint16(s)
	}
	return states, tied
}

// bruteExact returns, for integer samples and values, the path of the least
// squared error among all; among equals the one whose last state is largest,
// then its last but one, and so on.
func bruteExact(p Params, values, x []float32, overlap int) (best []uint16, tied bool) {
	n, mask, groups := len(x), len(values)-1, len(values)>>p.K
	var path []uint16
	bestCost := 0
	var walk func(t, s, cost int)
	walk = func(t, s, cost int) {
		d := int(x[t]) - int(values[s])
		cost += d * d
		path = append(path, uint16(s))
		defer func() { path = path[:len(path)-1] }()
		if t+1 < n {
			for b := range 1 << p.K {
				walk(t+1, (s<<p.K|b)&mask, cost)
			}
			return
		}
		if overlap >= 0 && s%groups != overlap {
			return
		}
		switch {
		case best == nil || cost < bestCost:
			best, bestCost, tied = slices.Clone(path), cost, false
		case cost == bestCost:
			tied = true
			if laterReversed(path, best) {
				best = slices.Clone(path)
			}
		}
	}
	for s := range values {
		if overlap < 0 || s>>p.K == overlap {
			walk(0, s, 0)
		}
	}
	return best, tied
}

// laterReversed reports whether a is after b, compared from the end.
func laterReversed(a, b []uint16) bool {
	for t := len(a) - 1; t >= 0; t-- {
		if a[t] != b[t] {
			return a[t] > b[t]
		}
	}
	return false
}

// bruteTail is algorithm 4 over an oracle.
func bruteTail(p Params, values, x []float32, path oracle) (states []uint16, tied bool) {
	half := len(x) / 2
	turned, tiedSeam := path(p, values, append(slices.Clone(x[half:]), x[:half]...), -1)
	states, tied = path(p, values, x, int(turned[len(x)-half])>>p.K)
	return states, tied || tiedSeam
}

func TestBruteForce(t *testing.T) {
	trellises := []Params{
		{L: 2, K: 1, T: 5}, {L: 3, K: 1, T: 6}, {L: 4, K: 1, T: 7}, {L: 5, K: 1, T: 5},
		{L: 3, K: 2, T: 4}, {L: 4, K: 2, T: 4}, {L: 5, K: 2, T: 3}, {L: 4, K: 3, T: 3}, {L: 5, K: 4, T: 2},
	}
	r := rand.New(rand.NewPCG(5, 5))
	cases, ties := 0, 0
	check := func(kind string, p Params, values, x []float32, path oracle) {
		t.Helper()
		e := newEncoder(p, values)
		got := make([]uint16, p.T)
		want, tiedFree := path(p, values, x, -1)
		if e.viterbi(got, x, 0, -1); !slices.Equal(got, want) {
			t.Fatalf("%s, %+v, x = %v, f = %v: free ends %v, want %v", kind, p, x, values, got, want)
		}
		want, tiedTail := bruteTail(p, values, x, path)
		if e.encodeBlock(got, x); !slices.Equal(got, want) {
			t.Fatalf("%s, %+v, x = %v, f = %v: tail-biting %v, want %v", kind, p, x, values, got, want)
		}
		if err := checkPath(got, p); err != nil {
			t.Fatalf("%s, %+v: %v", kind, p, err)
		}
		cases++
		if tiedFree || tiedTail {
			ties++
		}
	}
	for i := range 12_000 {
		p := trellises[i%len(trellises)]
		x := make([]float32, p.T)
		var values []float32
		if i%2 == 0 {
			// Small integers: every sum is exact and ties abound.
			for range 1 << p.L {
				values = append(values, float32(r.IntN(5)-2))
			}
			for t := range x {
				x[t] = float32(r.IntN(7) - 3)
			}
			check("exact", p, values, x, bruteExact)
			continue
		}
		p.Code = Code(i / 2 % 3)
		values, err := AppendValues(nil, p.Code, p.L)
		if err != nil {
			t.Fatal(err)
		}
		for t := range x {
			switch i / 2 % 4 {
			case 0: // zeros
			case 1: // quarter steps
				x[t] = float32(r.IntN(17)-8) / 4
			case 2: // large: the sums lose most of every emission
				x[t] = float32(r.NormFloat64()) * (1 << 20)
			default:
				x[t] = float32(r.NormFloat64())
			}
		}
		check("rounded", p, values, x, bruteRounded)
	}
	t.Logf("%d cases, each free and tail-biting; a tie was broken in %d", cases, ties)
	if cases < 10_000 || ties < 1_000 {
		t.Fatal("too few cases")
	}
}
