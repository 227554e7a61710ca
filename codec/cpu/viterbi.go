package cpu

import (
	"math"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// pinned is the cost of a state that the overlap excludes (docs/numerics.md §6).
const pinned float32 = 1e30

// viterbi finds the states of one block (docs/numerics.md §6).
//
// It minimises a cost, the negative of the score that the page maximises: rounding is symmetric, so every
// number is the page's with the other sign. Of a step it keeps the least cost of each group of predecessors,
// nothing else: the costs of a step go straight into the minima of the next, and which predecessor gave a
// minimum is found on the way back, for the states of the path alone.
//
// Where that would take too much memory, wide keeps a byte for each group of predecessors in place of their
// cost.
type viterbi struct {
	c      *weights
	groups int       // states n that share their predecessors: n>>K = j
	least  []float32 // least cost of the predecessors of group j at step t, 0 to T, at t·groups + j
	wide   *wide
}

// maxLeast bounds least, in bytes.
const maxLeast = 8 << 20

func newViterbi(c *weights) *viterbi {
	e := &viterbi{c: c, groups: len(c.values) >> c.p.K}
	if c.steps == nil || (c.p.T+1)*e.groups*4 > maxLeast {
		e.wide = newWide(c)
		return e
	}
	e.least = make([]float32, (c.p.T+1)*e.groups)
	return e
}

// encode writes the path of the samples x. It is false where a's context ended before.
func (e *viterbi) encode(states []uint16, x []float32, a *trellisCall) bool {
	pass := e.pass
	if e.wide != nil {
		pass = e.wide.pass
	}
	if e.c.p.FreeEnds {
		return pass(states, x, 0, -1, 0, a)
	}
	// Algorithm 4: the block turned by half, ends free, shows which state the block would like to pass through at
	// its seam.
	half := len(x) / 2
	seam := len(x) - half
	if !pass(states, x, half, -1, seam, a) {
		return false
	}
	overlap := int(states[seam]) >> e.c.p.K
	return pass(states, x, 0, overlap, 0, a)
}

// lookEvery is the number of states between looks at the context: some milliseconds.
const lookEvery = 1 << 19

// pass writes the states from..T−1 of the best path over x rotated left by shift. With overlap ≥ 0 it starts in
// a state whose upper L−K bits, and ends in one whose lower L−K bits, are overlap. It is false where a's context
// ended before.
func (e *viterbi) pass(states []uint16, x []float32, shift, overlap, from int, a *trellisCall) bool {
	c, k, groups := e.c, e.c.p.K, e.groups
	// The cost of a state at step 0 is what it emits. A pinned start costs 1e30 more, which no emission is large
	// enough to change.
	row := e.least[:groups]
	for j := range row {
		row[j] = 0
		if overlap >= 0 && j != overlap {
			row[j] = pinned
		}
	}
	look := max(1, lookEvery/len(c.values))
	for t := 1; t <= len(x); t++ {
		if t%look == 0 && a.stop() {
			return false
		}
		next := e.least[t*groups:][:groups]
		c.steps(c, next, row, 2*x[(shift+t-1)%len(x)])
		row = next
	}

	// Of the last states with the least cost, the largest. The last step's groups are those of states with the
	// same lower L−K bits.
	last := len(x) - 1
	final := 0
	if overlap >= 0 {
		final = e.predecessor(overlap, len(x), x[(shift+last)%len(x)])
	} else {
		best := float32(math.Inf(1))
		for _, g := range row {
			if g < best {
				best = g
			}
		}
		for j, g := range row {
			if g == best {
				final = max(final, e.predecessor(j, len(x), x[(shift+last)%len(x)]))
			}
		}
	}
	for t := last; ; t-- {
		states[t] = uint16(final)
		if t == from {
			return true
		}
		final = e.predecessor(final>>k, t, x[(shift+t-1)%len(x)])
	}
}

// predecessor returns the state at step t−1, of sample x, that gave group j at step t its least cost: the largest
// of those that did.
func (e *viterbi) predecessor(j, t int, x float32) int {
	c, k := e.c, e.c.p.K
	want := e.least[t*e.groups+j]
	least := e.least[(t-1)*e.groups:][:e.groups]
	x2 := 2 * x
	n := j + len(c.values) - e.groups
	for n > j && (c.squares[n]-float32(x2*c.values[n]))+least[n>>k] != want {
		n -= e.groups
	}
	return n
}

// steps writes the least costs of the groups of predecessors of the next step, given those of this step and twice
// its sample.
type steps func(c *weights, next, least []float32, x2 float32)

// branches is one group of groups: for q, its 2^K groups j = q·2^K + i of the next step have the predecessors
// j + m·2^(L−K), which are the successors of groups q + m·2^(L−2K). values and squares of them lie at
// (q·2^K + m)·2^K + i of byBranch.
//
// stepsFor returns the portable steps for p, or nil for short states.
func stepsFor(p trellis.Params) steps {
	switch {
	case 2*p.K > p.L || p.L < 3:
		return nil
	case p.K == 1:
		return steps1
	case p.K == 2:
		return steps2
	}
	return stepsAny
}

// byBranch returns v in the order that steps read it.
func byBranch(v []float32, p trellis.Params) []float32 {
	branches, groups := 1<<p.K, len(v)>>p.K
	out := make([]float32, 0, len(v))
	for q := range groups / branches {
		for m := range branches {
			out = append(out, v[m*groups+q*branches:][:branches]...)
		}
	}
	return out
}

func steps1(c *weights, next, least []float32, x2 float32) {
	half := len(least) / 2
	lo, hi := least[:half], least[half:][:half]
	for q := 0; q+2 <= half; q += 2 {
		f, s := (*[8]float32)(c.branchValues[4*q:]), (*[8]float32)(c.branchSquares[4*q:])
		a, b, d := (*[2]float32)(lo[q:]), (*[2]float32)(hi[q:]), (*[4]float32)(next[2*q:])
		d[0] = min((s[0]-float32(x2*f[0]))+a[0], (s[2]-float32(x2*f[2]))+b[0])
		d[1] = min((s[1]-float32(x2*f[1]))+a[0], (s[3]-float32(x2*f[3]))+b[0])
		d[2] = min((s[4]-float32(x2*f[4]))+a[1], (s[6]-float32(x2*f[6]))+b[1])
		d[3] = min((s[5]-float32(x2*f[5]))+a[1], (s[7]-float32(x2*f[7]))+b[1])
	}
}

func steps2(c *weights, next, least []float32, x2 float32) {
	n := len(least) / 4
	l0, l1, l2, l3 := least[:n], least[n:][:n], least[2*n:][:n], least[3*n:][:n]
	for q, a := range l0 {
		f, s := (*[16]float32)(c.branchValues[16*q:]), (*[16]float32)(c.branchSquares[16*q:])
		d := (*[4]float32)(next[4*q:])
		b, e, g := l1[q], l2[q], l3[q]
		d[0] = min(min((s[0]-float32(x2*f[0]))+a, (s[4]-float32(x2*f[4]))+b), min((s[8]-float32(x2*f[8]))+e, (s[12]-float32(x2*f[12]))+g))
		d[1] = min(min((s[1]-float32(x2*f[1]))+a, (s[5]-float32(x2*f[5]))+b), min((s[9]-float32(x2*f[9]))+e, (s[13]-float32(x2*f[13]))+g))
		d[2] = min(min((s[2]-float32(x2*f[2]))+a, (s[6]-float32(x2*f[6]))+b), min((s[10]-float32(x2*f[10]))+e, (s[14]-float32(x2*f[14]))+g))
		d[3] = min(min((s[3]-float32(x2*f[3]))+a, (s[7]-float32(x2*f[7]))+b), min((s[11]-float32(x2*f[11]))+e, (s[15]-float32(x2*f[15]))+g))
	}
}

// stepsAny is for K from 3 on: four i at a time.
func stepsAny(c *weights, next, least []float32, x2 float32) {
	k := c.p.K & 15
	n := len(least) >> k
	for q := range n {
		for i := 0; i < 1<<k; i += 4 {
			f, s := c.branchValues[q<<k<<k+i:], c.branchSquares[q<<k<<k+i:]
			d0, d1, d2, d3 := cost4((*[4]float32)(f), (*[4]float32)(s), x2, least[q])
			for at := n + q; at < len(least); at += n {
				f, s = f[1<<k:], s[1<<k:]
				e0, e1, e2, e3 := cost4((*[4]float32)(f), (*[4]float32)(s), x2, least[at])
				d0, d1, d2, d3 = min(d0, e0), min(d1, e1), min(d2, e2), min(d3, e3)
			}
			d := (*[4]float32)(next[q<<k+i:])
			d[0], d[1], d[2], d[3] = d0, d1, d2, d3
		}
	}
}

// cost4 returns the costs of four successors of a group of least cost g.
func cost4(f, s *[4]float32, x2, g float32) (_, _, _, _ float32) {
	return (s[0] - float32(x2*f[0])) + g, (s[1] - float32(x2*f[1])) + g, (s[2] - float32(x2*f[2])) + g, (s[3] - float32(x2*f[3])) + g
}

// wide is viterbi for states so many that the costs of all steps take too much memory, or so few that one symbol
// replaces more than half of a state.
type wide struct {
	c          *weights
	cost, next []float32
	least      []float32 // of one step
	back       []uint8   // the predecessor that gave it, at t·groups + j
}

func newWide(c *weights) *wide {
	n := len(c.values)
	return &wide{c, make([]float32, n), make([]float32, n), make([]float32, n>>c.p.K), make([]uint8, c.p.T*n>>c.p.K)}
}

// pass is viterbi.pass.
func (e *wide) pass(states []uint16, x []float32, shift, overlap, from int, a *trellisCall) bool {
	c, k := e.c, e.c.p.K
	groups := len(c.values) >> k
	cost, next := e.cost, e.next
	x2 := 2 * x[shift]
	for n, f := range c.values {
		cost[n] = c.squares[n] - float32(x2*f)
		if overlap >= 0 && n>>k != overlap {
			cost[n] = pinned
		}
	}
	look := max(1, lookEvery/len(cost))
	for t := 1; t < len(x); t++ {
		if t%look == 0 && a.stop() {
			return false
		}
		e.choose(e.back[t*groups:][:groups], cost)
		e.emit(next, 2*x[(shift+t)%len(x)])
		cost, next = next, cost
	}
	final, best := 0, float32(math.Inf(1))
	for n, g := range cost {
		if (overlap < 0 || n%groups == overlap) && g <= best {
			final, best = n, g
		}
	}
	for t := len(x) - 1; ; t-- {
		states[t] = uint16(final)
		if t == from {
			return true
		}
		j := final >> k
		final = j + int(e.back[t*groups+j])*groups
	}
}

// choose writes the least cost of each group of predecessors to e.least and the number of the one that has it, of
// equals the largest, to back. The minimum is kept as bits: a conditional move of two integers costs a fraction
// of a branch that is taken every other time.
func (e *wide) choose(back []uint8, cost []float32) {
	branches, groups := 1<<e.c.p.K, len(back)
	for j := range back {
		best, arg := math.Float32bits(cost[j]), 0
		for m := 1; m < branches; m++ {
			g := cost[m*groups+j]
			bits := math.Float32bits(g)
			if g <= math.Float32frombits(best) {
				best, arg = bits, m
			}
		}
		e.least[j] = math.Float32frombits(best)
		back[j] = uint8(arg)
	}
}

// emit writes the costs of all states of a step, for the sample x2/2.
func (e *wide) emit(cost []float32, x2 float32) {
	branches := 1 << e.c.p.K
	for j, least := range e.least {
		f := e.c.values[j*branches:][:branches]
		s, g := e.c.squares[j*branches:][:len(f)], cost[j*branches:][:len(f)]
		for b := range f {
			g[b] = (s[b] - float32(x2*f[b])) + least
		}
	}
}
