package trellis

import (
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/fault"
)

const (
	// pinned is the score of a state that the overlap excludes.
	pinned float32 = -1e30

	// MaxSample bounds the size of a sample. It keeps every score of a block far above pinned: 2^25 steps of
	// 2·2^60·|f|, |f| < 8, stay below 2^89.
	MaxSample = 1 << 60

	// maxBack bounds an encoder's back-pointers, in bytes.
	maxBack = 1 << 25
)

// Encoder finds the states that reproduce samples with the least squared error
// (docs/numerics.md §6). It keeps its working memory, about 2^(L+4) + T·2^(L−K)
// bytes, and allocates nothing a block. It is not safe for concurrent use: make
// one for each goroutine.
type Encoder struct {
	p       Params
	values  []float32 // f(s)
	squares []float32 // f(s)·f(s)
	invRMS  float32   // f32(1/lutRMS)

	score, next []float32 // g_{t−1}, g_t
	best        []float32 // best_t(j) of one step
	back        []uint8   // the m of best_t(j), at t·2^(L−K) + j
	states      []uint16  // one block
	samples     []float32 // one block
	row         []float32 // one coded row, for axis 0
	codes       []uint32  // one coded row, for the interleaved layout
}

// ValidateEncoder is Validate for encoders, which need memory for
// back-pointers: it also returns an ErrParams if T·2^(L−K) bytes exceed 32 MiB.
func (p Params) ValidateEncoder() error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.T > maxBack>>(p.L-p.K) {
		return fault.New(ErrParams, "T = %d with L = %d and K = %d needs T·2^(L−K) bytes of back-pointers, over %d", p.T, p.L, p.K, maxBack)
	}
	return nil
}

// NewEncoder returns an encoder for p, or the error of ValidateEncoder.
func NewEncoder(p Params) (*Encoder, error) {
	if err := p.ValidateEncoder(); err != nil {
		return nil, err
	}
	values, err := AppendValues(nil, p.Code, p.L)
	if err != nil {
		return nil, err
	}
	return newEncoder(p, values), nil
}

func newEncoder(p Params, values []float32) *Encoder {
	e := &Encoder{
		p:       p,
		values:  values,
		squares: make([]float32, len(values)),
		invRMS:  InvRMS(values),
		score:   make([]float32, len(values)),
		next:    make([]float32, len(values)),
		best:    make([]float32, len(values)>>p.K),
		back:    make([]uint8, p.T*len(values)>>p.K),
		states:  make([]uint16, p.T),
		samples: make([]float32, p.T),
	}
	for s, f := range values {
		e.squares[s] = f * f
	}
	return e
}

var errZero = fault.New(ErrParams, "an Encoder that NewEncoder did not make")

// Params returns what the encoder was made with.
func (e *Encoder) Params() Params { return e.p }

// EncodeBlock writes to states the path of one block of samples x, weights
// already divided by the row's scale. Both have T elements. The path is
// tail-biting, by QTIP's algorithm 4, unless Params.FreeEnds is set. A sample
// that is not finite, or beyond ±2^60, is a *ValueError, and nothing is
// written.
func (e *Encoder) EncodeBlock(states []uint16, x []float32) error {
	if e.values == nil {
		return errZero
	}
	if len(x) != e.p.T || len(states) != e.p.T {
		return fault.New(ErrShape, "%d samples and %d states, want T = %d of each", len(x), len(states), e.p.T)
	}
	for i, v := range x {
		if !f32.IsFinite(v) {
			return &ValueError{Index: i, Value: v, Err: ErrNonFinite}
		}
		if v > MaxSample || v < -MaxSample {
			return &ValueError{Index: i, Value: v, Err: ErrSampleRange}
		}
	}
	e.encodeBlock(states, x)
	return nil
}

func (e *Encoder) encodeBlock(states []uint16, x []float32) {
	if e.p.FreeEnds {
		e.viterbi(states, x, 0, -1)
		return
	}
	// Algorithm 4: the block turned by half, ends free, shows which state the
	// block would like to pass through at its seam.
	half := len(x) / 2
	e.viterbi(states, x, half, -1)
	overlap := int(states[len(x)-half]) >> e.p.K
	e.viterbi(states, x, 0, overlap)
}

// viterbi writes the best path over x rotated left by shift. With overlap ≥ 0
// it starts in a state whose upper L−K bits, and ends in one whose lower L−K
// bits, are overlap. Ties go to the largest predecessor and the largest final
// state.
func (e *Encoder) viterbi(states []uint16, x []float32, shift, overlap int) {
	k := e.p.K
	groups := len(e.values) >> k // states j + m·groups share their successors
	score, next := e.score, e.next

	x2 := 2 * x[shift]
	for s, f := range e.values {
		score[s] = float32(x2*f) - e.squares[s]
		if overlap >= 0 && s>>k != overlap {
			score[s] = pinned
		}
	}
	for t := 1; t < len(x); t++ {
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
			return
		}
		j := final >> k
		final = j + int(e.back[t*groups+j])*groups
	}
}

// choose writes best_t(j) to e.best and the m that gives it to back.
func (e *Encoder) choose(back []uint8, score []float32) {
	for j := range back {
		best, arg := score[j], 0
		for m := 1; m < 1<<e.p.K; m++ {
			if g := score[m*len(back)+j]; g >= best {
				best, arg = g, m
			}
		}
		e.best[j], back[j] = best, uint8(arg)
	}
}

// emit writes to score g_t of every state, for the sample x2/2.
func (e *Encoder) emit(score []float32, x2 float32) {
	branches := 1 << e.p.K
	for j, best := range e.best {
		f := e.values[j*branches:][:branches]
		squares, g := e.squares[j*branches:][:len(f)], score[j*branches:][:len(f)]
		for b := range f {
			g[b] = (float32(x2*f[b]) - squares[b]) + best
		}
	}
}
