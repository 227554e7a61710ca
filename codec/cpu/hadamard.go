package cpu

import (
	"math"

	"github.com/turbotrellis/turbotrellis/hadamard"
)

// rotation is the rotation of docs/numerics.md §3 of vectors of one size, in passes that take several stages at
// a time: that changes no operand of any operation.
type rotation struct {
	d, m, n  int      // d = m·n, n a power of two
	signs    []uint32 // 0, or the sign bit where the sign is −1
	fwd, inv []uint32 // the m×m matrix and its transpose: bit c of row j is set where element (j, c) is −1
	r        float32  // 1/√d
}

func newRotation(d int) (*rotation, error) {
	if _, err := hadamard.New(d); err != nil {
		return nil, err
	}
	t := &rotation{d: d, m: 1, n: d}
	for _, m := range []int{1, 12, 20, 28} {
		if n := d / m; d%m == 0 && n&(n-1) == 0 {
			t.m, t.n = m, n
			break
		}
	}
	for _, s := range hadamard.AppendSigns(nil, d) {
		t.signs = append(t.signs, math.Float32bits(s)&0x80000000)
	}
	// The transform of a unit vector is a column of the matrix times 1/√size.
	e := make([]float32, d)
	e[0] = 1
	if err := hadamard.Transform(e); err != nil {
		return nil, err
	}
	t.r = float32(math.Abs(float64(e[0])))
	if t.m > 1 {
		t.fwd, t.inv = make([]uint32, t.m), make([]uint32, t.m)
		for c := range t.m {
			e := make([]float32, t.m)
			e[c] = 1
			if err := hadamard.Transform(e); err != nil {
				return nil, err
			}
			for j, v := range e {
				bit := math.Float32bits(v) >> 31
				t.fwd[j] |= bit << c
				t.inv[c] |= bit << j
			}
		}
	}
	return t, nil
}

// flip multiplies x by the signs.
func (t *rotation) flip(x []float32) {
	signs := t.signs[:len(x)]
	for i, s := range signs {
		x[i] = math.Float32frombits(math.Float32bits(x[i]) ^ s)
	}
}

// forward finishes the transform of a row multiplied by the signs, to whose runs octets has been applied.
func (t *rotation) forward(x []float32) { t.finish(x, t.fwd) }

// inverse finishes the transposed transform in the same way; the caller applies the signs to the result.
func (t *rotation) inverse(x []float32) { t.finish(x, t.inv) }

// finish applies what follows octets. Runs have at least 8 elements: rows are multiples of 32.
func (t *rotation) finish(x []float32, h []uint32) {
	if t.m == 1 {
		butterflies(x, t.r)
		return
	}
	for i := 0; i < len(x); i += t.n {
		butterflies(x[i:i+t.n], 1)
	}
	combine(x, t.n, h, t.r)
}

// butterflies applies the stages 8, 16 … len(x)/2 and then multiplies by r, unless r is 1.
func butterflies(x []float32, r float32) {
	n := len(x)
	h := 8
	if n >= 64 {
		for i := 0; i < n; i += 64 {
			columns8((*[64]float32)(x[i:]))
		}
		h = 64
	}
	for ; 4*h <= n; h *= 4 {
		last := float32(1)
		if 4*h == n {
			last = r
		}
		for i := 0; i < n; i += 4 * h {
			quads(x[i:i+h], x[i+h:i+2*h], x[i+2*h:i+3*h], x[i+3*h:i+4*h], last)
		}
	}
	switch {
	case 2*h <= n:
		pairs(x[:h], x[h:], r)
	case n == 8 || n == 64: // no pass above has multiplied
		scaleBy(x, r)
	}
}

func scaleBy(x []float32, r float32) {
	if r == 1 {
		return
	}
	for i := range x {
		x[i] *= r
	}
}

// octets applies the stages 1, 2 and 4 to each 8 neighbours.
func octets(x []float32) {
	for len(x) >= 8 {
		p := (*[8]float32)(x)
		a, b, c, d := stages2(p[0], p[1], p[2], p[3])
		e, f, g, h := stages2(p[4], p[5], p[6], p[7])
		p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7] = a+e, b+f, c+g, d+h, a-e, b-f, c-g, d-h
		x = x[8:]
	}
}

// columns8 applies the stages 8, 16 and 32.
func columns8(p *[64]float32) {
	for i := uint(0); i < 8; i++ {
		a, b, c, d := stages2(p[i], p[i+8], p[i+16], p[i+24])
		e, f, g, h := stages2(p[i+32], p[i+40], p[i+48], p[i+56])
		p[i], p[i+8], p[i+16], p[i+24], p[i+32], p[i+40], p[i+48], p[i+56] = a+e, b+f, c+g, d+h, a-e, b-f, c-g, d-h
	}
}

// stages2 is two stages on four values, the nearest pairs first. It is small enough to be inlined; three stages
// are not.
func stages2(a, b, c, d float32) (_, _, _, _ float32) {
	a, b, c, d = a+b, a-b, c+d, c-d
	return a + c, b + d, a - c, b - d
}

// pairs is one stage on the pairs (x[i], y[i]), then the factor r.
func pairs(x, y []float32, r float32) {
	y = y[:len(x)]
	if r == 1 {
		for i, a := range x {
			b := y[i]
			x[i], y[i] = a+b, a-b
		}
		return
	}
	for i, a := range x {
		b := y[i]
		x[i], y[i] = (a+b)*r, (a-b)*r
	}
}

// quads is two stages on (x[i], y[i], z[i], w[i]), then the factor r.
func quads(x, y, z, w []float32, r float32) {
	y, z, w = y[:len(x)], z[:len(x)], w[:len(x)]
	if r == 1 {
		for i, a := range x {
			b, c, d := y[i], z[i], w[i]
			a, b, c, d = a+b, a-b, c+d, c-d
			x[i], y[i], z[i], w[i] = a+c, b+d, a-c, b-d
		}
		return
	}
	for i, a := range x {
		b, c, d := y[i], z[i], w[i]
		a, b, c, d = a+b, a-b, c+d, c-d
		x[i], y[i], z[i], w[i] = (a+c)*r, (b+d)*r, (a-c)*r, (b-d)*r
	}
}

// maxOrder is the largest m.
const maxOrder = 28

// combine replaces element i of the runs of n elements in x by h times the vector of them, for every i, then
// multiplies by r. Each output is summed in column order from +0.
func combine(x []float32, n int, h []uint32, r float32) {
	const block = 4 // elements at a time
	var buf [maxOrder][block]float32
	in := buf[:len(h)]
	for i := 0; i < n; i += block {
		w := min(block, n-i)
		for c := range in {
			copy(in[c][:], x[c*n+i:][:w])
		}
		for j, row := range h {
			var a, b, c, d float32
			for k := range in {
				v := &in[k]
				if row&1 == 0 {
					a, b, c, d = a+v[0], b+v[1], c+v[2], d+v[3]
				} else {
					a, b, c, d = a-v[0], b-v[1], c-v[2], d-v[3]
				}
				row >>= 1
			}
			out := [block]float32{a * r, b * r, c * r, d * r}
			copy(x[j*n+i:][:w], out[:])
		}
	}
}
