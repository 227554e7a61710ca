package trellis

import (
	"github.com/turbotrellis/turbotrellis/internal/fault"
	"github.com/turbotrellis/turbotrellis/pack"
)

// Matrix is a coded weight matrix. Codes and Scales have the lengths that
// Geometry gives: CodesLen words and one scale, as binary16 bits, a coded row.
type Matrix struct {
	Params   Params
	Geometry Geometry
	Codes    []uint32
	Scales   []uint16
}

// Validate reports what does not fit together: invalid parameters or geometry,
// or an ErrShape for codes or scales of another length. Decoding a valid
// Matrix cannot fail, whatever its words hold.
func (m *Matrix) Validate() error {
	if err := m.Geometry.Validate(m.Params); err != nil {
		return err
	}
	if m.Params.FreeEnds {
		return fault.New(ErrParams, "free-ended blocks have no packed form")
	}
	if n := m.Geometry.CodesLen(m.Params); len(m.Codes) != n {
		return fault.New(ErrShape, "%d words of codes, want %d", len(m.Codes), n)
	}
	if n := m.Geometry.Rows(); len(m.Scales) != n {
		return fault.New(ErrShape, "%d scales, want %d", len(m.Scales), n)
	}
	return nil
}

// At returns weight (out, in), f(state)·f32(scale), one product. It reads two
// words and a scale.
func (m *Matrix) At(out, in int) (float32, error) {
	if err := m.Validate(); err != nil {
		return 0, err
	}
	if out < 0 || out >= m.Geometry.Out || in < 0 || in >= m.Geometry.In {
		return 0, fault.New(ErrIndex, "weight (%d, %d) of [%d, %d]", out, in, m.Geometry.Out, m.Geometry.In)
	}
	return m.at(out, in), nil
}

func (m *Matrix) at(out, in int) float32 {
	p, row, col := m.Params, out, in
	if m.Geometry.Axis == 0 {
		row, col = in, out
	}
	block := m.Codes[m.Geometry.blockAt(p, row, col/p.T):][:p.BlockWords()]
	return p.Code.value(stateAt(block, p, col%p.T)) * pack.FromF16(m.Scales[row])
}

// DecodeRows writes rows lo to hi−1 of the matrix, (hi−lo)·In weights,
// row-major whatever the axis. dst has exactly that length.
func (m *Matrix) DecodeRows(dst []float32, lo, hi int) error {
	if err := m.checkRows(len(dst), lo, hi); err != nil {
		return err
	}
	for i := range dst {
		dst[i] = m.at(lo+i/m.Geometry.In, i%m.Geometry.In)
	}
	return nil
}

// checkRows checks m, the row range and that it has n weights.
func (m *Matrix) checkRows(n, lo, hi int) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if lo < 0 || hi < lo || hi > m.Geometry.Out {
		return fault.New(ErrIndex, "rows [%d, %d) of %d", lo, hi, m.Geometry.Out)
	}
	if want := (hi - lo) * m.Geometry.In; n != want {
		return fault.New(ErrShape, "room for %d weights, want %d", n, want)
	}
	return nil
}
