package cpu

import (
	"math"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// pinned is the score of a state that the overlap excludes (docs/numerics.md §6).
const pinned float32 = -1e30

// viterbi finds the states of one block.
type viterbi struct {
	p               trellis.Params
	values, squares []float32
	score, next     []float32
	best            []float32
	back            []uint8
}

func newViterbi(c *weights) *viterbi {
	n := len(c.values)
	return &viterbi{
		p: c.p, values: c.values, squares: c.squares,
		score: make([]float32, n), next: make([]float32, n), best: make([]float32, n>>c.p.K),
		back: make([]uint8, c.p.T*n>>c.p.K),
	}
}

// encode writes the path of the samples x. It is false where a's context ended before.
func (e *viterbi) encode(states []uint16, x []float32, a *trellisCall) bool {
	if e.p.FreeEnds {
		return e.pass(states, x, 0, -1, a)
	}
	half := len(x) / 2
	if !e.pass(states, x, half, -1, a) {
		return false
	}
	overlap := int(states[len(x)-half]) >> e.p.K
	return e.pass(states, x, 0, overlap, a)
}

// pass writes the best path over x rotated left by shift. With overlap ≥ 0 it starts in a state whose upper L−K
// bits, and ends in one whose lower L−K bits, are overlap.
func (e *viterbi) pass(states []uint16, x []float32, shift, overlap int, a *trellisCall) bool {
	k := e.p.K
	groups := len(e.values) >> k
	score, next := e.score, e.next
	x2 := 2 * x[shift]
	for s, f := range e.values {
		score[s] = float32(x2*f) - e.squares[s]
		if overlap >= 0 && s>>k != overlap {
			score[s] = pinned
		}
	}
	steps := max(1, 1<<22/len(score)) // between looks at the context: some milliseconds
	for t := 1; t < len(x); t++ {
		if t%steps == 0 && a.stop() {
			return false
		}
		e.choose(e.back[t*groups:][:groups], score)
		e.emit(next, 2*x[(shift+t)%len(x)])
		score, next = next, score
	}
	final := 0
	for s := range score {
		if overlap >= 0 && s%groups != overlap {
			score[s] = pinned
		}
		if score[s] >= score[final] {
			final = s
		}
	}
	for t := len(x) - 1; ; t-- {
		states[t] = uint16(final)
		if t == 0 {
			return true
		}
		j := final >> k
		final = j + int(e.back[t*groups+j])*groups
	}
}

// choose writes the best predecessor's score to e.best and its number to back. The maximum is kept as bits: a
// conditional move of two integers costs a fraction of a branch that is taken every other time.
func (e *viterbi) choose(back []uint8, score []float32) {
	branches, groups := 1<<e.p.K, len(back)
	for j := range back {
		best, arg := math.Float32bits(score[j]), 0
		for m := 1; m < branches; m++ {
			g := score[m*groups+j]
			bits := math.Float32bits(g)
			if g >= math.Float32frombits(best) {
				best, arg = bits, m
			}
		}
		e.best[j] = math.Float32frombits(best)
		back[j] = uint8(arg)
	}
}

// emit writes to score g_t of every state, for the sample x2/2.
func (e *viterbi) emit(score []float32, x2 float32) {
	branches := 1 << e.p.K
	for j, best := range e.best {
		f := e.values[j*branches:][:branches]
		squares, g := e.squares[j*branches:][:len(f)], score[j*branches:][:len(f)]
		for b := range f {
			g[b] = (float32(x2*f[b]) - squares[b]) + best
		}
	}
}
