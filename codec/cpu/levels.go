package cpu

import (
	"math"
	"sync"

	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// levels finds the index of docs/numerics.md §4, the number of boundaries b with flush(y/se) > b, without a
// division.
//
// A quotient of two float32 is never halfway between two neighbours unless it is subnormal, so its rounded value
// exceeds b exactly where y/se exceeds the midpoint of b and the float32 above it, that is, where y > mid·se.
// The midpoint has 25 bits and se 24: their product is exact in float64. A guess of y/se, cut to 1/64, names
// the one boundary that is left to compare with.
type levels struct {
	table     *lloydmax.Table
	centroids [256]float32
	mids      [256]float64 // mids[i] belongs to the boundary between i and i+1; +Inf beyond the last
	cell      [2048]uint8  // by 1024 + rint(64·y/se): the boundaries that lie below for certain
}

// The range of scales for which guess is made for: the reciprocal is normal, and so is every quotient that is
// compared with a boundary other than 0.
const (
	minScale = 1. / (1 << 20)
	maxScale = 1 << 60
)

// newLevels returns the one table of a width.
func newLevels(bits int) (*levels, error) {
	if l, ok := levelTables.Load(bits); ok {
		return l.(*levels), nil
	}
	l, err := makeLevels(bits)
	if err != nil {
		return nil, err
	}
	kept, _ := levelTables.LoadOrStore(bits, l)
	return kept.(*levels), nil
}

var levelTables sync.Map // of *levels, by bits

func makeLevels(bits int) (*levels, error) {
	t, err := lloydmax.Lookup(bits)
	if err != nil {
		return nil, err
	}
	l := &levels{table: t}
	n := t.Levels()
	for i := range n {
		l.centroids[i] = t.Centroid(i)
	}
	for i := range l.mids {
		l.mids[i] = math.Inf(1)
	}
	for i := range n - 1 {
		b := t.Boundary(i)
		l.mids[i] = (float64(b) + float64(math.Nextafter32(b, math.MaxFloat32))) / 2
		if b == 0 {
			// The quotient exceeds 0 where it rounds to 2^-126 or more: from 2^-126 − 2^-150 on. What stands here is
			// below that by less than any other quotient is.
			l.mids[i] = math.Ldexp(1<<24-1-1./(1<<26), -150)
		}
	}
	for c := range l.cell {
		// The guess is within 1/128 of the quotient's 64th and has errors far below 1/1024.
		lower := (float64(c) - 1024.51) / 64
		for int(l.cell[c]) < n-1 && l.mids[l.cell[c]] < lower {
			l.cell[c]++
		}
	}
	return l, nil
}

// divide sets each index by the rule's words: for scales that guess is not made for.
func (l *levels) divide(index []byte, y []float32, se float32) {
	for i, v := range y {
		index[i] = byte(l.table.Index(flush(v / se)))
	}
}

// guess sets each index; se is within minScale and maxScale and every |y|/se below 15.
func (l *levels) guess(index []byte, y []float32, se float32) {
	inv := 64 / se
	s := float64(se)
	for len(y) >= 4 && len(index) >= 4 {
		d, p := (*[4]byte)(index), (*[4]float32)(y)
		d[0] = l.guess1(p[0], inv, s)
		d[1] = l.guess1(p[1], inv, s)
		d[2] = l.guess1(p[2], inv, s)
		d[3] = l.guess1(p[3], inv, s)
		y, index = y[4:], index[4:]
	}
}

// squares sets q to the squared errors of y quantised with the scale s, which guess serves.
func (l *levels) squares(q, y []float32, s float32) {
	se := s + eps
	inv, wide := 64/se, float64(se)
	for len(y) >= 4 && len(q) >= 4 {
		d, p := (*[4]float32)(q), (*[4]float32)(y)
		e0 := float32(l.centroids[l.guess1(p[0], inv, wide)]*s) - p[0]
		e1 := float32(l.centroids[l.guess1(p[1], inv, wide)]*s) - p[1]
		e2 := float32(l.centroids[l.guess1(p[2], inv, wide)]*s) - p[2]
		e3 := float32(l.centroids[l.guess1(p[3], inv, wide)]*s) - p[3]
		d[0], d[1], d[2], d[3] = e0*e0, e1*e1, e2*e2, e3*e3
		y, q = y[4:], q[4:]
	}
}

// guess1 returns the index of y for the scale s and inv = 64/s.
func (l *levels) guess1(y, inv float32, s float64) uint8 {
	c := l.cell[math.Float32bits(float32(y*inv)+(magic+1024))%2048]
	return c + above(float64(y), l.mids[c]*s)
}

// above is 1 where a > b.
func above(a, b float64) uint8 {
	if a > b {
		return 1
	}
	return 0
}

// flush returns +0 for a magnitude below the smallest normal (docs/numerics.md §1).
func flush(x float32) float32 {
	if math.Float32bits(x)&0x7fffffff < 0x00800000 {
		return 0
	}
	return x
}
