package cpu

import (
	"math"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// rowSearch finds the paths of several rows at once, one in each lane of a vector: the steps of a trellis of 256
// states then need no permutation, and each wait for as many others as there are states. It computes what viterbi
// does.
type rowSearch struct {
	p             trellis.Params
	lanes, groups int
	values        []float32 // f(s) in every lane
	squares       []float32

	// step writes the least costs of the groups of predecessors of the next step, given those of this step and
	// twice its samples, and which predecessors have them: of groups 4i to 4i+3 at i·4·lanes + 4·lane. free writes
	// the costs alone.
	step func(s *rowSearch, back []byte, next, least, x2 []float32)
	free func(s *rowSearch, next, least, x2 []float32)
}

// rowPaths is what one goroutine needs for a search.
type rowPaths struct {
	rows    int       // in use
	row, c0 []int     // by lane: the row, its first scale code
	y       []float32 // the rotated rows
	x2      []float32 // twice the samples, at t·lanes + lane
	costs   [2][]float32
	back    []byte   // of the steps 1 to T
	states  []uint16 // at lane·T + t
	overlap []int
}

func newRowPaths(s *rowSearch) *rowPaths {
	n, t := s.lanes, s.p.T
	w := &rowPaths{row: make([]int, n), c0: make([]int, n), y: make([]float32, n*t), x2: make([]float32, n*t),
		back: make([]byte, t*s.groups*n), states: make([]uint16, n*t), overlap: make([]int, n)}
	for i := range w.costs {
		w.costs[i] = make([]float32, s.groups*n)
	}
	return w
}

// encode writes the tail-biting paths of all lanes.
func (s *rowSearch) encode(w *rowPaths) {
	t := s.p.T
	half := t / 2
	seam := t - half
	s.pass(w, half, nil, seam)
	for l := range w.overlap {
		w.overlap[l] = int(w.states[l*t+seam]) >> s.p.K
	}
	s.pass(w, 0, w.overlap, 0)
}

// pass is viterbi.pass for every lane.
func (s *rowSearch) pass(w *rowPaths, shift int, overlap []int, from int) {
	n, t := s.lanes, s.p.T
	least, next := w.costs[0], w.costs[1]
	clear(least)
	if overlap != nil {
		for i := range least {
			if i/n != overlap[i%n] {
				least[i] = pinned
			}
		}
	}
	size := s.groups * n
	for i := range t {
		at := (shift + i) % t * n
		if i < from {
			s.free(s, next, least, w.x2[at:][:n])
		} else {
			s.step(s, w.back[i*size:][:size], next, least, w.x2[at:][:n])
		}
		least, next = next, least
	}
	for l := range w.rows {
		final := -1
		if overlap != nil {
			final = s.predecessor(w.back, t-1, overlap[l], l)
		} else {
			best := float32(math.Inf(1))
			for j := range s.groups {
				best = min(best, least[j*n+l])
			}
			for j := range s.groups {
				if least[j*n+l] == best {
					final = max(final, s.predecessor(w.back, t-1, j, l))
				}
			}
		}
		states := w.states[l*t:][:t]
		for i := t - 1; ; i-- {
			states[i] = uint16(final)
			if i == from {
				break
			}
			final = s.predecessor(w.back, i-1, final>>s.p.K, l)
		}
	}
}

// predecessor returns the state at step i that gave group j at the next its least cost, the largest of those that did.
func (s *rowSearch) predecessor(back []byte, i, j, lane int) int {
	return j + s.groups*int(back[(i*s.groups+j&^3)*s.lanes+4*lane+j&3])
}
