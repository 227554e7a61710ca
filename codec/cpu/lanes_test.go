package cpu_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Products are the reference's for every number of rows of x and of outputs that a tile is or is not filled by.
func TestProductTiles(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, s := range []struct {
		p          trellis.Params
		out, in, m int
		inter      bool
	}{
		{trellis.DefaultParams(2), 4, 256, 1, false}, {trellis.DefaultParams(3), 5, 512, 4, false}, {trellis.DefaultParams(4), 9, 1280, 5, false},
		{trellis.DefaultParams(3), 2, 2304, 9, false}, {trellis.DefaultParams(1), 3, 256, 3, false},
		{trellis.Params{L: 16, K: 3, T: 128}, 5, 384, 4, false}, {trellis.Params{L: 9, K: 4, T: 512}, 6, 1024, 5, true}, {trellis.Params{L: 16, K: 2, T: 1024}, 4, 2048, 1, true},
	} {
		p := s.p
		g := trellis.Geometry{Axis: 1, Out: s.out, In: s.in, Interleaved: s.inter}
		m := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, s.out)}
		for i := range m.Codes {
			m.Codes[i] = r.Uint32()
		}
		for i := range m.Scales {
			m.Scales[i] = uint16(r.IntN(0x7c02)) // infinite and NaN now and then
		}
		x := rows(r, codec.BF16, s.m, s.in)
		f := affine.RowFormat{Bits: 4, Group: []int{32, 64, 128}[r.IntN(3)]}
		w := rows(r, codec.BF16, s.out, s.in-128)
		ax := rows(r, codec.F32, s.m, s.in-128)
		product := func(b codec.Backend) [][]byte {
			var out [][]byte
			c, err := b.Trellis(p)
			if err != nil {
				t.Fatal(err)
			}
			for _, weights := range []codec.DType{codec.BF16, codec.F32, codec.F16} {
				y := codec.NewTensor(codec.F32, s.m, s.out)
				if err := c.MatMul(y, x, m, codec.ProductOptions{Weights: weights}); err != nil {
					t.Fatal(err)
				}
				out = append(out, y.Data)
			}
			a, err := b.Affine(f)
			if err != nil {
				t.Fatal(err)
			}
			var rows codec.AffineRows
			if err := a.Quantize(&rows, w); err != nil {
				t.Fatal(err)
			}
			y := codec.NewTensor(codec.F32, s.m, s.out)
			if err := a.MatMul(y, ax, rows, codec.ProductOptions{}); err != nil {
				t.Fatal(err)
			}
			return append(out, y.Data)
		}
		want := product(ref.New())
		eachLevel(t, func(t *testing.T, l cpu.Level) {
			b := cpu.New(cpu.Options{Level: l, Workers: 2})
			defer b.Close()
			for i, got := range product(b) {
				if !equal(codec.F32, got, want[i]) {
					t.Errorf("%+v, %d×%d, M=%d, group %d: product %d differs", s.p, s.out, s.in, s.m, f.Group, i)
				}
			}
		})
	}
}

// Row codes are the reference's for every number of rows that fill lanes or not, some of which have no search.
func TestRowLanes(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for _, f := range []codec.Format{codec.T2, codec.T3, codec.T4, codec.R2, codec.R3, codec.R4, codec.R5} {
		for _, dim := range []int{32, 64, 128, 256, 384} {
			n := 1 + r.IntN(35)
			x := rows(r, []codec.DType{codec.F32, codec.F16, codec.BF16}[r.IntN(3)], 1, n, dim)
			size := x.DType.Size()
			for i := range n {
				if r.IntN(5) == 0 {
					clear(x.Data[i*dim*size:][:dim*size])
				}
			}
			for _, centred := range []bool{false, true} {
				p := codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, ValueHeadDim: dim, Values: f, CentreValues: centred}
				code := func(b codec.Backend) [][]byte {
					c, err := b.KV(p)
					if err != nil {
						t.Fatal(err)
					}
					var v codec.Values
					if centred {
						if v.Centre, err = codec.NewCentre(x); err != nil {
							t.Fatal(err)
						}
					}
					if err := c.EncodeValues(&v, x); err != nil {
						t.Fatal(err)
					}
					out := [][]byte{v.Codes, v.Scales}
					for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
						y := codec.NewTensor(d, x.Shape...)
						if err := c.DecodeValues(y, v); err != nil {
							t.Fatal(err)
						}
						out = append(out, y.Data)
					}
					return out
				}
				want := code(ref.New())
				eachLevel(t, func(t *testing.T, l cpu.Level) {
					b := cpu.New(cpu.Options{Level: l, Workers: 2})
					defer b.Close()
					for i, got := range code(b) {
						if !bytes.Equal(got, want[i]) {
							t.Errorf("%v, %d rows of %d %v, centred %v: output %d differs", f, n, dim, x.DType, centred, i)
						}
					}
				})
			}
		}
	}
}
