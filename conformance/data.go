package conformance

import (
	"fmt"
	"math"
	"sync"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// input says what the elements of an encoder's input are for.
type input struct {
	params codec.KVParams // with defaults
	values bool           // values, not keys
	dtype  codec.DType
	rows   int
	d      int
	s      *stream
}

// data is a kind of input.
type data struct {
	name string
	fill func(x []float32, in *input)
	// only says which inputs it is for; nil means all.
	only func(in *input) bool
}

func each(f func(in *input, i int) float32) func([]float32, *input) {
	return func(x []float32, in *input) {
		for i := range x {
			x[i] = f(in, i)
		}
	}
}

func constant(v float32) func([]float32, *input) {
	return each(func(*input, int) float32 { return v })
}

// maxFinite returns the largest number of a type.
func maxFinite(t codec.DType) float32 {
	switch t {
	case codec.F16:
		return 65504
	case codec.BF16:
		return math.Float32frombits(0x7f7f0000)
	}
	return math.MaxFloat32
}

// smallest returns the smallest positive number of a type.
func smallest(t codec.DType) float32 {
	switch t {
	case codec.F16:
		return 0x1p-24
	case codec.BF16:
		return 0x1p-133
	}
	return 0x1p-149
}

func pick(s *stream, from ...float32) float32 {
	v := from[s.intn(len(from))]
	if s.next()>>63 == 1 {
		return -v
	}
	return v
}

func keysOnly(in *input) bool   { return !in.values }
func valuesOnly(in *input) bool { return in.values }
func wideOnly(in *input) bool   { return in.dtype == codec.F32 }

var thresholds = []float32{0x1p-62, 0x1p-63, math.Float32frombits(0x1f800001), 0x1p-64, math.Float32frombits(0x1f7fffff),
	0x1p-65, 0x1p-126, math.Float32frombits(0x007fffff), 0x1p-127, 0x1p-149}

var normalData = data{name: "normal", fill: each(func(in *input, _ int) float32 { return in.s.normal() })}

// f16Edge decodes to more than f16 holds, though it was encoded from less: keys
// near the largest, values of normal distribution that is three quarters of it
// wide at three sigma, and values of one element, which coarse levels decode to
// a larger one.
var f16Edge = data{name: "f16-edge", fill: each(func(in *input, i int) float32 {
	switch {
	case !in.values:
		return pick(in.s, 65504, 65472, 60000)
	case i/in.d%2 == 0:
		return pick(in.s, 30000)
	case i%in.d == i/in.d*7%in.d:
		return -65504
	}
	return 0
})}

// kinds are the kinds of input, the plain one first.
var kinds = []data{
	normalData,
	// Magnitudes over 2^±20.
	{name: "spread", fill: each(func(in *input, _ int) float32 { return in.s.normal() * pow2(in.s.intn(32)-20) })},
	// A scale for each row.
	{name: "rows", fill: each(func(in *input, i int) float32 { return in.s.normal() * pow2(i/in.d%24-12) })},
	{name: "integers", fill: each(func(in *input, _ int) float32 { return float32(in.s.intn(31) - 15) })},
	{name: "quarters", fill: each(func(in *input, _ int) float32 { return float32(in.s.intn(17)-8) * 0.25 })},
	// Every index of an unsigned format, halves between them included.
	{name: "ramp", fill: each(func(_ *input, i int) float32 { return float32(i%512) * 0.5 })},
	{name: "alternating", fill: each(func(_ *input, i int) float32 { return float32(1 - i%2*2) })},
	{name: "zeros", fill: constant(0)},
	{name: "negative-zeros", fill: constant(float32(math.Copysign(0, -1)))},
	{name: "signed-zeros", fill: each(func(in *input, _ int) float32 { return pick(in.s, 0) })},
	{name: "zeros-and-ones", fill: each(func(in *input, _ int) float32 { return pick(in.s, 0, 1) })},
	// Groups of one value: degenerate for keys.
	{name: "constant", fill: constant(9)},
	{name: "negative-constant", fill: constant(-9)},
	{name: "small-constant", fill: constant(0x1p-10)},
	{name: "constant-groups", fill: each(func(in *input, i int) float32 {
		return []float32{9, 0, -0.1, 1000, 3e-5, 0}[i/in.params.Group%6]
	})},
	// One element of a group differs in the last place.
	{name: "nearly-constant", fill: each(func(in *input, i int) float32 {
		if i%in.params.Group == 5 {
			return in.dtype.Round(9.0625)
		}
		return 9
	})},
	// The zero point is at the edge of what binary16 holds, 65520, on either side.
	{name: "zero-edge", only: keysOnly, fill: func(x []float32, in *input) {
		for i := range x {
			lo := float32(65500 + 4*(i/in.params.Group%11))
			at := float32(i%in.params.Group) / float32(in.params.Group-1)
			x[i] = float32(at*float32(in.params.KeyFormat().MaxIndex())) - lo
		}
	}},
	{name: "outliers", fill: each(func(in *input, i int) float32 {
		x := in.s.normal()
		if in.s.intn(61) == 0 {
			x *= 2048
		}
		return x
	})},
	{name: "impulse", fill: each(func(in *input, i int) float32 {
		if i%in.d == i/in.d*7%in.d {
			return -3
		}
		return 0
	})},
	// Rows that rotate to an impulse.
	{name: "spike", only: valuesOnly, fill: func(x []float32, in *input) {
		r, err := hadamard.New(in.d)
		if err != nil {
			panic(err)
		}
		for i := 0; i < len(x); i += in.d {
			clear(x[i : i+in.d])
			x[i+i/in.d*5%in.d] = 2
			r.Inverse(x[i : i+in.d])
		}
	}},
	// Both sides of the canonical threshold, 2^-64, alone and beside large ones.
	{name: "threshold", fill: each(func(in *input, _ int) float32 { return pick(in.s, thresholds...) })},
	{name: "threshold-mixed", fill: each(func(in *input, i int) float32 {
		if in.s.intn(2) == 0 {
			return in.s.normal()
		}
		return pick(in.s, thresholds...)
	})},
	{name: "threshold-groups", fill: each(func(in *input, i int) float32 {
		return pick(in.s, thresholds[i/in.params.Group%len(thresholds)])
	})},
	{name: "subnormals", fill: each(func(in *input, _ int) float32 {
		return pick(in.s, smallest(in.dtype), 3*smallest(in.dtype), 100*smallest(in.dtype))
	})},
	{name: "tiny", fill: each(func(in *input, _ int) float32 { return in.s.normal() * 0x1p-58 })},
	// Scales that are subnormal or zero in binary16.
	{name: "small-scale", fill: each(func(in *input, i int) float32 {
		return in.s.normal() * pow2(-12-i/in.params.Group%14)
	})},
	// Around epsilon.
	{name: "epsilon", fill: each(func(in *input, _ int) float32 { return in.s.normal() * 0x1p-27 })},
	// Groups whose scales, over binary16, are at the edge of its range.
	{name: "scale-edge", fill: each(func(in *input, i int) float32 {
		m := float32(1)
		if !in.values {
			m = float32(in.params.KeyFormat().MaxIndex())
			if in.params.Keys.Signed() {
				m *= 2
			}
		}
		if i%2 == 0 {
			return 0
		}
		return (65504 + 4*float32(i/in.params.Group%5)) * m
	})},
	{name: "overflow", fill: each(func(in *input, i int) float32 {
		if i/in.params.Group%3 == 1 {
			return in.s.normal() * 0x1p60
		}
		return in.s.normal()
	})},
	{name: "max", fill: each(func(in *input, _ int) float32 { return pick(in.s, maxFinite(in.dtype)) })},
	{name: "max-constant", fill: each(func(in *input, _ int) float32 { return maxFinite(in.dtype) })},
	{name: "max-once", fill: each(func(in *input, i int) float32 {
		if i == in.d-1 {
			return -maxFinite(in.dtype)
		}
		return in.s.normal()
	})},
	// Exact ties, searched: of an index, a zero point, a boundary, a stored scale.
	{name: "index-ties", only: func(in *input) bool { return keysOnly(in) && wideOnly(in) }, fill: indexTies},
	{name: "zero-ties", only: func(in *input) bool { return keysOnly(in) && wideOnly(in) }, fill: zeroTies},
	{name: "boundary-ties", only: func(in *input) bool { return valuesOnly(in) && wideOnly(in) && in.params.Scale == codec.RMS }, fill: boundaryTies},
	{name: "scale-ties", only: wideOnly, fill: scaleTies},
	{name: "search-ties", only: func(in *input) bool { return valuesOnly(in) && wideOnly(in) && in.params.Scale == codec.Search }, fill: searchTies},
	// Not finite: an error that names the first.
	{name: "nan", fill: bad(float32(math.NaN()), 1, 2)},
	{name: "inf", fill: bad(float32(math.Inf(1)), 0, 1)},
	{name: "negative-inf", fill: bad(float32(math.Inf(-1)), 1, 1)},
	{name: "nan-last", fill: bad(float32(math.NaN()), 1, 1)},
	{name: "nan-first", fill: bad(float32(math.NaN()), 0, 1)},
	// An overflowing scale before a NaN: the NaN is reported.
	{name: "overflow-and-nan", fill: func(x []float32, in *input) {
		for i := range x {
			x[i] = pick(in.s, maxFinite(in.dtype))
		}
		if len(x) > 0 {
			x[len(x)-1] = float32(math.NaN())
		}
	}},
}

// bad returns normal data with v at the element num/den of the way, and again at
// the end.
func bad(v float32, num, den int) func([]float32, *input) {
	return func(x []float32, in *input) {
		for i := range x {
			x[i] = in.s.normal()
		}
		if len(x) > 0 {
			x[(len(x)-1)*num/den] = v
			x[len(x)-1] = v
		}
	}
}

func kindNamed(name string) data {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("conformance: no data " + name)
}

// pow2 returns 2^e for a normal result.
func pow2(e int) float32 { return math.Float32frombits(uint32(127+e) << 23) }

// eps is that of docs/numerics.md §2 and §4.
const eps = affine.Eps

// indexTies fills groups whose x/se falls on a half exactly. lo is 0, so the
// zero point is 0, and hi is chosen so that se is an ordinary number.
func indexTies(x []float32, in *input) {
	n := in.params.KeyFormat().MaxIndex()
	for g := 0; g < len(x); g += in.params.Group {
		group := x[g : g+in.params.Group]
		var hi, div float32
		lo := float32(0)
		for {
			hi = float32(n) * float32(1+in.s.intn(1000)) / 512
			div = float32(n)
			if in.params.Keys.Signed() {
				lo, div = -hi, 2*div
			}
			if se := (hi-lo)/div + eps; f32.IsFinite(se) {
				break
			}
		}
		se := (hi-lo)/div + eps
		group[0], group[1] = lo, hi
		for i := 2; i < len(group); i++ {
			for group[i] = hi; group[i] == hi; {
				want := float32(in.s.intn(n)) + 0.5
				if in.params.Keys.Signed() && in.s.intn(2) == 0 {
					want = -want
				}
				if v, ok := nearby(want*se, func(v float32) bool { return v > lo && v < hi && v/se == want }); ok {
					group[i] = v
				}
			}
		}
	}
}

// zeroTies fills groups whose zero point is a half before it is rounded.
func zeroTies(x []float32, in *input) {
	n := float32(in.params.KeyFormat().MaxIndex())
	for g := 0; g < len(x); g += in.params.Group {
		group := x[g : g+in.params.Group]
		for found := false; !found; {
			want := float32(in.s.intn(40)) - 19.5
			step := float32(1+in.s.intn(4096)) / 1024
			start := want * step
			if in.params.Keys.Signed() {
				start = float32(want*step) - float32(n*step)
			}
			group[0], found = nearby(start, func(lo float32) bool {
				if in.params.Keys.Signed() {
					hi := lo + float32(2*n*step)
					se := (hi-lo)/(2*n) + eps
					group[1] = hi
					return (hi+lo)/(2*se) == want
				}
				hi := lo + float32(n*step)
				group[1] = hi
				return lo/((hi-lo)/n+eps) == want
			})
		}
		for i := 2; i < len(group); i++ {
			t := float32(in.s.intn(257)) / 256
			group[i] = group[0] + float32((group[1]-group[0])*t)
		}
		for i := range group {
			group[i] = min(max(group[i], group[0]), group[1])
		}
	}
}

// nearby returns a number within 64 steps of x for which ok holds.
func nearby(x float32, ok func(float32) bool) (float32, bool) {
	if ok(x) {
		return x, true
	}
	a, b := x, x
	for range 64 {
		if a == 0 {
			return 0, false
		}
		a, b = up(a), down(b)
		if ok(a) {
			return a, true
		}
		if ok(b) {
			return b, true
		}
	}
	return 0, false
}

// tieRows are the rows of boundaryTies found so far, by tieKey.
var tieRows sync.Map

type tieKey struct{ d, bits, group int }

// boundaryTies fills rows that have, after rotation, an element exactly on a
// boundary other than 0.
func boundaryTies(x []float32, in *input) {
	key := tieKey{in.d, in.params.Values.Bits(), in.params.Group}
	found, ok := tieRows.Load(key)
	if !ok {
		found, _ = tieRows.LoadOrStore(key, key.search(3))
	}
	rows := found.([]float32)
	for i := range x {
		x[i] = rows[i%len(rows)]
	}
}

// search returns n rows. It rotates back a row whose first elements in each
// group are boundaries times the group's scale, as near as rounding lets it, and
// then moves elements of the input by a last place until one of them is exact.
func (k tieKey) search(n int) []float32 {
	s := seeded(fmt.Sprint(k))
	r, err := hadamard.New(k.d)
	if err != nil {
		panic(err)
	}
	table, err := lloydmax.Lookup(k.bits)
	if err != nil {
		panic(err)
	}
	rows := make([]float32, n*k.d)
	y := make([]float32, k.d)
	const aimed = 4
	boundary := make([]float32, aimed)
	for i := range n {
		row := rows[i*k.d:][:k.d]
		for j := range boundary {
			// Smaller than 2, so that the others can make up the scale.
			for boundary[j] == 0 || boundary[j] >= 2 || boundary[j] <= -2 {
				boundary[j] = table.Boundary(s.intn(table.Levels() - 1))
			}
		}
		for tries := 0; ; tries++ {
			if tries == 1<<16 {
				panic(fmt.Sprintf("conformance: no tie found for %+v", k))
			}
			if tries%256 == 0 {
				for j := range y {
					y[j] = s.normal()
				}
				for g := 0; g < k.d; g += k.group {
					// se² = (Σ (b·se)² + Σ others²) / group, solved for se.
					rest := rms(y[g+aimed : g+k.group])
					left := float32(k.group)
					for _, b := range boundary {
						left -= float32(b * b)
					}
					se := f32.Sqrt(float32(rest*rest) * float32(k.group-aimed) / left)
					for j, b := range boundary {
						y[g+j] = float32(b * se)
					}
				}
				copy(row, y)
				r.Inverse(row)
			} else if j := s.intn(k.d); row[j] != 0 {
				row[j] = up(row[j])
			}
			copy(y, row)
			for j := range y {
				y[j] = f32.Canon(y[j])
			}
			r.Forward(y)
			if boundaryTie(y, k.group, boundary) {
				break
			}
		}
		clear(boundary)
	}
	return rows
}

// boundaryTie reports whether, of a rotated row, element j of a group is
// exactly on boundary j.
func boundaryTie(y []float32, group int, boundary []float32) bool {
	for g := 0; g < len(y); g += group {
		se := rms(y[g:g+group]) + eps
		for j, b := range boundary {
			if y[g+j]/se == b {
				return true
			}
		}
	}
	return false
}

// rms is the root mean square by the tree of docs/numerics.md §4, over the
// length padded with zeros to a power of two, for elements whose squares are
// normal numbers.
func rms(y []float32) float32 {
	var q [64]float32
	for i, v := range y {
		q[i] = v * v
	}
	return f32.Sqrt(f32.TreeSum(q[:]) * (1 / float32(len(y))))
}

// scaleTies fills groups whose scale lies halfway between two numbers of the
// scale type.
func scaleTies(x []float32, in *input) {
	bit := float32(0x1p-11)
	if in.params.ScaleType == codec.BF16 {
		bit = 0x1p-8
	}
	n := float32(in.params.KeyFormat().MaxIndex())
	for g := 0; g < len(x); g += in.params.Group {
		group := x[g : g+in.params.Group]
		m := 1 + float32(2*in.s.intn(16)+1)*bit
		for i := range group {
			switch {
			case in.values:
				group[i] = m
				if in.s.intn(2) == 0 {
					group[i] = -m
				}
			case in.params.Keys.Signed():
				group[i] = m * float32(in.s.intn(255)-127)
			default:
				group[i] = m * float32(in.s.intn(int(n)+1))
			}
		}
		if !in.values {
			group[3], group[7] = 0, n*m
			if in.params.Keys.Signed() {
				group[3] = -n * m
			}
		}
	}
	if !in.values {
		return
	}
	// The rows so far are rotated ones of exact scale; powers of 4 rotate back
	// exactly, others nearly.
	r, err := hadamard.New(in.d)
	if err != nil {
		panic(err)
	}
	for i := 0; i < len(x); i += in.d {
		r.Inverse(x[i : i+in.d])
	}
}

// searchTies fills rows in which two searched scales have almost the same error:
// one element a last place further, and the other scale is chosen for the first
// group. It bisects an element between two numbers that give different choices.
func searchTies(x []float32, in *input) {
	kv := refStages(in.params)
	for r := 0; r < len(x); r += in.d {
		row := x[r : r+in.d]
		// choice returns the multiple of the rms that is stored, in sixteenths.
		choice := func() float32 {
			st, _ := kv.ValueStages(row)
			return f32.Rint(st.Scale[0] / rms(st.Rotated[:in.params.Group]) * 16)
		}
		for {
			for i := range row {
				row[i] = in.s.normal()
			}
			j := in.s.intn(in.d)
			lo, hi := math.Float32bits(0.25), math.Float32bits(4)
			at := func(b uint32) float32 {
				row[j] = math.Float32frombits(b)
				return choice()
			}
			first := at(lo)
			if at(hi) == first {
				continue
			}
			for hi-lo > 1 {
				if mid := (lo + hi) / 2; at(mid) == first {
					lo = mid
				} else {
					hi = mid
				}
			}
			row[j] = math.Float32frombits([2]uint32{lo, hi}[in.s.intn(2)])
			break
		}
	}
}
