package trellis

import (
	"math"
	"testing"
)

// optimal returns the least squared error of a tail-biting path over x: a
// pinned pass for each overlap. A free forward pass bounds the score that an
// overlap can reach from above, and skips those that cannot beat best.
func (e *Encoder) optimal(x []float32, best float64) (cost float64, searched int) {
	groups := len(e.values) >> e.p.K
	var energy float64
	for _, v := range x {
		energy += float64(v) * float64(v)
	}
	// The free pass again, keeping its last scores, in float64.
	score := make([]float64, len(e.values))
	next := make([]float64, len(e.values))
	for s, f := range e.values {
		score[s] = float64(2*x[0]*f - f*f)
	}
	for _, v := range x[1:] {
		for j := range groups {
			top := score[j]
			for m := j; m < len(score); m += groups {
				top = max(top, score[m])
			}
			for s := j << e.p.K; s < (j+1)<<e.p.K; s++ {
				f := e.values[s]
				next[s] = top + float64(2*v*f-f*f)
			}
		}
		score, next = next, score
	}
	states := make([]uint16, len(x))
	for overlap := range groups {
		bound := math.Inf(-1)
		for s := overlap; s < len(score); s += groups {
			bound = max(bound, score[s])
		}
		if energy-bound > best+1e-3 {
			continue
		}
		searched++
		e.viterbi(states, x, 0, overlap)
		best = min(best, e.cost(states, x))
	}
	return best, searched
}

// cost returns the squared error of a path.
func (e *Encoder) cost(states []uint16, x []float32) float64 {
	var sum float64
	for t, s := range states {
		d := float64(x[t]) - float64(e.values[s])
		sum += d * d
	}
	return sum
}

// QTIP's Table 2: at L = 12 and T = 256, algorithm 4 has the distortion of the
// optimum over all overlaps to four digits. Half the block length is a harder
// test; there only k = 1 shows a gap, under half a percent.
func TestAlgorithm4(t *testing.T) {
	for _, c := range []struct {
		k, blocks int
		gap       float64
	}{{1, 2, 0.005 * 0.28}, {2, 6, 0.00005}, {3, 4, 0.00005}, {4, 4, 0.00005}} {
		e := mustEncoder(t, Params{L: 12, K: c.k, T: 128})
		states := make([]uint16, e.p.T)
		var got, want float64
		searched, equal := 0, 0
		for b := range c.blocks {
			x := gauss(e.p.T, uint64(100*c.k+b))
			if err := e.EncodeBlock(states, x); err != nil {
				t.Fatal(err)
			}
			cost := e.cost(states, x)
			best, n := e.optimal(x, cost)
			got, want, searched = got+cost, want+best, searched+n
			if cost == best {
				equal++
			}
		}
		n := float64(c.blocks * e.p.T)
		t.Logf("k = %d: algorithm 4 %.5f, optimum %.5f; equal in %d of %d blocks, %d of %d overlaps searched, the others bounded",
			c.k, got/n, want/n, equal, c.blocks, searched, c.blocks*len(e.values)>>c.k)
		if !((got-want)/n <= c.gap) || searched == 0 {
			t.Errorf("k = %d: algorithm 4 costs %.6f more", c.k, (got-want)/n)
		}
	}
}
