package trellis

import (
	"context"
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/fault"
	"github.com/turbotrellis/turbotrellis/pack"
)

// laneSum adds a row's terms in the order of docs/numerics.md §6: term i goes
// to lane i mod 32, and the lanes are summed by the tree of §4.
type laneSum [32]float32

func (s *laneSum) add(i int, term float32) { s[i%len(s)] += term }

func (s *laneSum) total() float32 { return f32.TreeSum(s[:]) }

// RefitFactor returns α of docs/numerics.md §6, by which the Refit rule
// multiplies the first scale at K bits per weight, K from 1 to 8.
func RefitFactor(K int) float32 { return refitFactor[K] }

var refitFactor = [9]float32{1, 7. / 8, 33. / 32, 35. / 32, 73. / 64, 1, 1, 1, 1}

// RowScale returns the scale, as binary16 bits, with which the row w is coded,
// and what its samples are divided by: the same value, or 1 for a row whose
// scale is 0. Under the Refit rule the scale is the first of two; RefitScale gives
// the stored one.
//
// A weight that is not finite, and a scale that overflows binary16, is a
// *ValueError. An empty row has scale 0.
func (e *Encoder) RowScale(w []float32) (scale uint16, div float32, err error) {
	var sum laneSum
	zero := true
	for i, v := range w {
		if !f32.IsFinite(v) {
			return 0, 0, &ValueError{Index: i, Value: v, Err: ErrNonFinite}
		}
		v = f32.Canon(v)
		zero = zero && v == 0
		sum.add(i, float32(v*v))
	}
	if zero {
		return e.p.ZeroScale(), 1, nil
	}
	s := f32.Sqrt(sum.total()/float32(len(w))) * e.invRMS
	if e.p.Scale == Refit {
		s *= refitFactor[e.p.K]
	}
	scale = pack.ToF16(s)
	div = pack.FromF16(scale)
	switch {
	case !f32.IsFinite(div):
		return 0, 0, &ValueError{Index: 0, Value: s, Err: ErrScaleOverflow}
	case div == 0:
		div = 1
	}
	return scale, div, nil
}

// EncodeRow codes one row of whole blocks: the packed words go to codes,
// len(w)·K/32 of them, and the scale is returned as binary16 bits. Where recon
// is not nil it has the length of w and receives the weights that decoding
// gives, f(state)·f32(scale).
//
// A weight that is not finite, and a scale that overflows binary16, is a
// *ValueError that indexes w. On any error nothing is written. No slice may
// overlap another. Free-ended parameters are an ErrParams.
func (e *Encoder) EncodeRow(codes []uint32, recon, w []float32) (scale uint16, err error) {
	return e.encodeRow(context.Background(), codes, recon, w)
}

func (e *Encoder) encodeRow(ctx context.Context, codes []uint32, recon, w []float32) (scale uint16, err error) {
	if err := e.checkTail(); err != nil {
		return 0, err
	}
	p := e.p
	if len(w)%p.T != 0 {
		return 0, fault.New(ErrShape, "a row of %d weights, want a multiple of T = %d", len(w), p.T)
	}
	if n := len(w) / p.T * p.BlockWords(); len(codes) != n {
		return 0, fault.New(ErrShape, "%d words for a row of %d weights, want %d", len(codes), len(w), n)
	}
	if recon != nil && len(recon) != len(w) {
		return 0, fault.New(ErrShape, "reconstruction of %d for a row of %d weights", len(recon), len(w))
	}
	first, div, err := e.RowScale(w)
	if err != nil {
		return 0, err
	}

	var num, den laneSum
	for b := range len(w) / p.T {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		block := w[b*p.T:][:p.T]
		for t, v := range block {
			e.samples[t] = f32.Canon(v) / div
		}
		e.encodeBlock(e.states, e.samples)
		packBlock(codes[b*p.BlockWords():][:p.BlockWords()], e.states, p)
		for t, v := range block {
			i, f := b*p.T+t, e.values[e.states[t]]
			num.add(i, float32(f32.Canon(v)*f))
			den.add(i, float32(f*f))
			if recon != nil {
				recon[i] = f
			}
		}
	}
	scale = first
	if p.Scale == Refit {
		scale = refit(first, num.total(), den.total())
	}
	s := pack.FromF16(scale)
	for i := range recon {
		recon[i] *= s
	}
	return scale, nil
}

// refit returns the stored num/den, the least-squares scale, or first where
// that is not positive and finite. A row with first = 0 keeps it, so that rows
// below binary16's range decode to exact zeros.
func refit(first uint16, num, den float32) uint16 {
	s := pack.ToF16(num / den)
	if v := pack.FromF16(s); first == 0 || !(v > 0) || !f32.IsFinite(v) {
		return first
	}
	return s
}

// checkTail refuses encoders that code no rows: free-ended ones, and the zero
// Encoder.
func (e *Encoder) checkTail() error {
	if e.values == nil {
		return errZero
	}
	if e.p.FreeEnds {
		return fault.New(ErrParams, "free-ended blocks have no packed form")
	}
	return nil
}

// RefitScale returns the scale to store for the row w, as binary16 bits, given the
// scale that RowScale returned for it and the code values f of the states
// chosen: the least-squares scale, or first where that is not positive and
// finite or first is 0. Another length of f is an ErrShape, and a weight that is
// not finite a *ValueError.
func RefitScale(first uint16, w, f []float32) (uint16, error) {
	if len(w) != len(f) {
		return 0, fault.New(ErrShape, "%d weights and %d values", len(w), len(f))
	}
	var num, den laneSum
	for i, v := range w {
		if !f32.IsFinite(v) {
			return 0, &ValueError{Index: i, Value: v, Err: ErrNonFinite}
		}
		num.add(i, float32(f32.Canon(v)*f[i]))
		den.add(i, float32(f[i]*f[i]))
	}
	return refit(first, num.total(), den.total()), nil
}

// Encode codes the matrix w [Out, In], row-major, into dst, whose codes and
// scales are reused where they are large enough. Where recon is not nil it has
// the length of w and receives the decoded weights.
//
// Errors are those of Geometry.Validate and of EncodeRow; a *ValueError indexes
// w. The whole matrix is checked before anything is written. If ctx ends before
// the last block, Encode returns ctx.Err() and the contents of dst are
// unspecified.
func (e *Encoder) Encode(ctx context.Context, dst *Matrix, recon, w []float32, g Geometry) error {
	if err := e.checkTail(); err != nil {
		return err
	}
	if err := g.Validate(e.p); err != nil {
		return err
	}
	if len(w) != g.Out*g.In {
		return fault.New(ErrShape, "%d weights for [%d, %d]", len(w), g.Out, g.In)
	}
	if recon != nil && len(recon) != len(w) {
		return fault.New(ErrShape, "reconstruction of %d for %d weights", len(recon), len(w))
	}
	if g.Rows() == 0 { // whatever the length of a row
		*dst = Matrix{Params: e.p, Geometry: g, Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
		return nil
	}
	e.row = slices.Grow(e.row[:0], g.Cols())[:g.Cols()]
	for r := range g.Rows() {
		e.gather(w, g, r)
		if _, _, err := e.RowScale(e.row); err != nil {
			if v, ok := err.(*ValueError); ok {
				v.Index = g.weightAt(r, v.Index)
			}
			return err
		}
	}

	n := g.CodesLen(e.p)
	*dst = Matrix{
		Params:   e.p,
		Geometry: g,
		Codes:    slices.Grow(dst.Codes[:0], n)[:n],
		Scales:   slices.Grow(dst.Scales[:0], g.Rows())[:g.Rows()],
	}
	words := e.p.BlockWords()
	e.codes = slices.Grow(e.codes[:0], g.Cols()/e.p.T*words)[:g.Cols()/e.p.T*words]
	for r := range g.Rows() {
		e.gather(w, g, r)
		scale, err := e.encodeRow(ctx, e.codes, nil, e.row)
		if err != nil {
			return err
		}
		dst.Scales[r] = scale
		for b := range g.Cols() / e.p.T {
			copy(dst.Codes[g.blockAt(e.p, r, b):][:words], e.codes[b*words:])
		}
	}
	if recon != nil {
		return dst.DecodeRows(recon, 0, g.Out)
	}
	return nil
}

// gather copies coded row r of w into e.row.
func (e *Encoder) gather(w []float32, g Geometry, r int) {
	for c := range e.row {
		e.row[c] = w[g.weightAt(r, c)]
	}
}
