package trellis

import (
	"math"

	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// Geometry places a weight matrix [Out, In], row-major, in coded rows.
//
//	Axis 1: coded row o is weights (o, 0) … (o, In−1); codes [Out, In·K/32].
//	Axis 0: coded row i is weights (0, i) … (Out−1, i); codes [In, Out·K/32].
//
// Interleaved stores the same words in two-block groups: codes
// [cols/(2T), rows, 2·BlockWords] in place of [rows, cols·K/32].
//
// The zero value is an empty matrix coded along axis 0.
type Geometry struct {
	Axis        int // 0 or 1
	Out, In     int // output and input features, 0 to 2^28
	Interleaved bool
}

// Rows returns the number of coded rows, which is the number of scales.
func (g Geometry) Rows() int {
	if g.Axis == 0 {
		return g.In
	}
	return g.Out
}

// Cols returns the number of weights of a coded row.
func (g Geometry) Cols() int {
	if g.Axis == 0 {
		return g.Out
	}
	return g.In
}

// maxSide bounds both sides of a matrix, so that a declared shape alone, with
// the other side 0, asks for little memory.
const maxSide = 1 << 28

// Validate reports an ErrShape where the matrix cannot be coded with p: an axis
// other than 0 and 1, sizes out of their range or of more weights than memory
// holds, or coded rows that are not whole blocks (pairs of blocks where
// interleaved).
func (g Geometry) Validate(p Params) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if g.Axis != 0 && g.Axis != 1 {
		return fault.New(ErrShape, "axis %d, want 0 or 1", g.Axis)
	}
	if g.Out < 0 || g.In < 0 || g.Out > maxSide || g.In > maxSide ||
		g.In > 0 && g.Out > math.MaxInt/8/g.In {
		return fault.New(ErrShape, "matrix [%d, %d]", g.Out, g.In)
	}
	if g.Cols()%p.T != 0 {
		return fault.New(ErrShape, "coded rows of %d weights (axis %d of [%d, %d]), want a multiple of T = %d", g.Cols(), g.Axis, g.Out, g.In, p.T)
	}
	if g.Interleaved && g.Cols()/p.T%2 != 0 {
		return fault.New(ErrShape, "interleaved rows of %d weights, want a multiple of 2·T = %d", g.Cols(), 2*p.T)
	}
	return nil
}

// CodesLen returns the number of uint32 words of the codes. g is valid for p.
func (g Geometry) CodesLen(p Params) int {
	return g.Rows() * (g.Cols() / p.T) * p.BlockWords()
}

// CodesShape returns the shape of the codes. g is valid for p.
func (g Geometry) CodesShape(p Params) []int {
	blocks := g.Cols() / p.T
	if g.Interleaved {
		return []int{blocks / 2, g.Rows(), 2 * p.BlockWords()}
	}
	return []int{g.Rows(), blocks * p.BlockWords()}
}

// GeometryOf returns the geometry of codes of the given shape: two dimensions
// are plain rows, three are interleaved. It is an ErrShape for the shape to be
// one that no matrix gives.
func GeometryOf(codes []int, axis int, p Params) (Geometry, error) {
	if err := p.Validate(); err != nil {
		return Geometry{}, err
	}
	words := p.BlockWords()
	var rows, blocks int
	switch {
	case len(codes) == 2 && codes[1]%words == 0:
		rows, blocks = codes[0], codes[1]/words
	case len(codes) == 3 && codes[2] == 2*words && codes[0] <= math.MaxInt/2:
		rows, blocks = codes[1], 2*codes[0]
	default:
		return Geometry{}, fault.New(ErrShape, "codes %v, want [rows, n·%d] or [n, rows, %d]", codes, words, 2*words)
	}
	if rows < 0 || blocks < 0 || blocks > math.MaxInt/p.T {
		return Geometry{}, fault.New(ErrShape, "codes %v", codes)
	}
	g := Geometry{Axis: axis, Out: rows, In: blocks * p.T, Interleaved: len(codes) == 3}
	if axis == 0 {
		g.Out, g.In = g.In, g.Out
	}
	return g, g.Validate(p)
}

// blockAt returns the offset in the codes of a block of a coded row.
func (g Geometry) blockAt(p Params, row, block int) int {
	if g.Interleaved {
		return ((block/2*g.Rows()+row)*2 + block%2) * p.BlockWords()
	}
	return (row*(g.Cols()/p.T) + block) * p.BlockWords()
}

// weightAt returns the offset in the matrix [Out, In] of a weight of a coded
// row.
func (g Geometry) weightAt(row, col int) int {
	if g.Axis == 0 {
		return col*g.In + row
	}
	return row*g.In + col
}

// Interleave writes codes [rows, cols/T, words] to dst as
// [cols/(2T), rows, 2·words]. Both hold rows·cols·K/32 words and must not
// overlap; cols is a multiple of 2·T.
func Interleave(dst, src []uint32, rows, cols int, p Params) error {
	return relayout(dst, src, rows, cols, p, true)
}

// Deinterleave undoes Interleave.
func Deinterleave(dst, src []uint32, rows, cols int, p Params) error {
	return relayout(dst, src, rows, cols, p, false)
}

func relayout(dst, src []uint32, rows, cols int, p Params, interleaved bool) error {
	to := Geometry{Axis: 1, Out: rows, In: cols, Interleaved: interleaved}
	from := to
	from.Interleaved = !interleaved
	if err := to.Validate(p); err != nil {
		return err
	}
	if err := from.Validate(p); err != nil {
		return err
	}
	if n := to.CodesLen(p); len(dst) != n || len(src) != n {
		return fault.New(ErrShape, "%d words from %d, want %d", len(dst), len(src), n)
	}
	for b := range cols / p.T {
		for r := range rows {
			copy(dst[to.blockAt(p, r, b):][:p.BlockWords()], src[from.blockAt(p, r, b):])
		}
	}
	return nil
}
