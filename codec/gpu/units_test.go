package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// A Units kernel finds each element of every operand once, whatever the strides and slabs: unit_at of common.metal.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 1))
	kinds := map[string]int{}
	for trial := range 3000 {
		d := newFake()
		if trial%3 == 0 {
			d.threads = 32
		}
		b := openFake(t, d, func(o *Options) { o.stage = []int{1 << 20, 4 * 64 * 7, 4 * 64 * 6}[trial%3] })
		const dim, groups = 64, 2
		lead := []int{1 + r.IntN(3), 1 + r.IntN(3), 1 + r.IntN(6)}
		rows := product(lead)
		room := r.IntN(2) * 3
		stride := []int{lead[1] * (lead[2] + room) * dim, (lead[2] + room) * dim, dim, 1}
		if r.IntN(3) == 0 { // tokens outside heads
			stride = []int{lead[1] * lead[2] * dim, dim, lead[1] * dim, 1}
		}
		all, err := b.Alloc(2 * lead[0] * stride[0])
		if err != nil {
			t.Fatal(err)
		}
		x := codec.Tensor{DType: codec.F16, Shape: append(lead[:3:3], dim), Stride: stride, Data: all}
		scales, err := b.Alloc(2 * rows * groups)
		if err != nil {
			t.Fatal(err)
		}
		ops := []*operand{b.engine.tensor(x, false), b.engine.packed(scales, 2, groups, lead, true)}
		p, err := b.engine.plan(3, ops...)
		if err != nil {
			t.Fatal(err)
		}
		k, err := b.engine.kernels.pick(need{op: "hadamard", dim: dim})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		err = p.each(t.Context(), func(row, n int) error {
			j := b.engine.newJob()
			defer j.release()
			s, err := j.bound(p, row, n, ops)
			if err != nil {
				return err
			}
			l := s.lay(k, dim)
			kinds[fmt.Sprint(l.span.Rows == 1, int(l.span.Rows) == n)]++
			tile, unit := l.Threads[0]*4, 0
			for q := range l.Groups[0] * l.Groups[1] * tile {
				at, group := q%tile, q/tile
				x0 := group%l.Groups[0]<<l.span.Shift + at&(1<<l.span.Shift-1)
				y0 := group/l.Groups[0]*(tile>>l.span.Shift) + at>>l.span.Shift
				if x0 >= int(l.span.Width) || y0 >= int(l.span.Rows) {
					continue
				}
				number := y0*int(l.span.Width) + x0
				r, e := row+number*8/dim, number*8%dim
				off, _ := x.RowOffset(r)
				for i, want := range []int64{int64(off + e), int64(r*groups + e/32)} {
					in := x0 * 8
					if i == 1 {
						in /= 32
					}
					v := s.view[i]
					got := v.Base + int64(in)
					if l.span.Rows > 1 {
						got = viewAddress(v, l.span.Row0+uint32(y0), int(l.span.N1), int(l.span.N2), in)
					}
					if got != want {
						return fmt.Errorf("operand %d, row %d, element %d: %d, want %d", i, r, e, got, want)
					}
				}
				unit++
			}
			seen += unit
			if unit != n*dim/8 {
				return fmt.Errorf("%d units, want %d", unit, n*dim/8)
			}
			return nil
		})
		if err != nil || seen != rows*dim/8 {
			t.Fatalf("%v by %v, slabs of %d, %d units: %v", lead, stride, p.slab, seen, err)
		}
		b.Close()
	}
	if len(kinds) < 3 {
		t.Errorf("not all ways were taken: %v", kinds)
	}
	t.Log(kinds)
}

// No cell has two boundaries, and the cell of a number and its boundary say what the table says: at and beside every
// boundary and every edge of a cell.
func TestLevelCells(t *testing.T) {
	for bits := 2; bits <= 4; bits++ {
		table, err := lloydmax.Lookup(bits)
		if err != nil {
			t.Fatal(err)
		}
		data, err := tableKey{levelTable, bits, 0}.data()
		if err != nil {
			t.Fatal(err)
		}
		word := func(i int) float32 { return codec.F32.Load(data[4*i:]) }
		first := 2<<bits - 1
		if len(data) != 4*(first+2*cells) {
			t.Fatalf("%d bytes for %d bits", len(data), bits)
		}
		numbers := []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -math.MaxFloat32}
		for i := range table.Levels() - 1 {
			numbers = append(numbers, table.Boundary(i))
		}
		for i := -400; i <= 400; i++ { // edges of cells: odd multiples of 1/2, 1/4 and 2/21
			numbers = append(numbers, float32(i)/4, float32(float64(i)/10.5))
		}
		checked := 0
		for _, n := range numbers {
			for ulps := -3; ulps <= 3; ulps++ {
				near := n
				for range max(ulps, -ulps) {
					near = math.Nextafter32(near, float32(math.Inf(ulps)))
				}
				cell := cellOf(bits, near)
				got := int(word(first+cells+cell) - 3<<22)
				if near > word(first+cell) {
					got++
				}
				if bits < 4 && int(word(first+cells+cell)-3<<22) != cell-map[int]int{2: 15, 3: 13}[bits] {
					t.Fatalf("%d bits: %v boundaries before cell %d", bits, word(first+cells+cell)-3<<22, cell)
				}
				if want := table.Index(near); got != want {
					t.Fatalf("%d bits, %v: %d, want %d", bits, near, got, want)
				}
				checked++
			}
		}
		t.Logf("%d bits: %d numbers", bits, checked)
	}
	// What value_search leaves unflushed rests on this.
	for _, bits := range []int{2, 3, 4, 5, 8} {
		table, _ := lloydmax.Lookup(bits)
		for i := range table.Levels() {
			if c := table.Centroid(i); max(c, -c) < 0x1p-8 {
				t.Errorf("%d bits: centroid %d is %v", bits, i, c)
			}
		}
	}
}
