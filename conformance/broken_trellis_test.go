package conformance

import (
	"context"
	"math/bits"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// mutantTrellis is the reference weight codec with one fault.
type mutantTrellis struct {
	codec.Backend // the reference
	emission      func(x, f float32) float32
	later         func(best, g float32) bool // whether a later equal or better one is taken
	encoded       func(m *trellis.Matrix)
	scale         func(s uint16) uint16
	load          func(x codec.Tensor) codec.Tensor
	words         func(m *trellis.Matrix) // before decoding, on a copy
	decoded       func(dst codec.Tensor, before []byte)
	sum           func(f, s float32) float32
}

func (b *mutantTrellis) Trellis(p trellis.Params) (codec.Trellis, error) {
	t, err := b.Backend.Trellis(p)
	if err != nil {
		return nil, err
	}
	return &mutantCodec{t, b}, nil
}

type mutantCodec struct {
	codec.Trellis
	b *mutantTrellis
}

// viterbi is docs/numerics.md §6 with this mutant's emission and ties. pin is
// the overlap at both ends, or -1.
func (c *mutantCodec) viterbi(x []float32, pin int) []uint16 {
	p := c.Params()
	f, err := trellis.AppendValues(nil, p.Code, p.L)
	if err != nil {
		panic(err)
	}
	s, j := 1<<p.L, 1<<(p.L-p.K)
	g, next := make([]float32, s), make([]float32, s)
	back := make([][]int, len(x))
	for n := range g {
		if g[n] = c.b.emission(x[0], f[n]); pin >= 0 && n>>p.K != pin {
			g[n] = -1e30
		}
	}
	for t := 1; t < len(x); t++ {
		back[t] = make([]int, j)
		for q := range j {
			m := 0
			for i := 1; i < 1<<p.K; i++ {
				if c.b.later(g[q+m*j], g[q+i*j]) {
					m = i
				}
			}
			back[t][q] = m
			for n := q << p.K; n < (q+1)<<p.K; n++ {
				next[n] = c.b.emission(x[t], f[n]) + g[q+m*j]
			}
		}
		g, next = next, g
	}
	last := 0
	for n := range g {
		if pin >= 0 && n%j != pin {
			g[n] = -1e30
		}
		if c.b.later(g[last], g[n]) {
			last = n
		}
	}
	states := make([]uint16, len(x))
	for t := len(x) - 1; t >= 0; t-- {
		states[t] = uint16(last)
		if t > 0 {
			last = last>>p.K + back[t][last>>p.K]*j
		}
	}
	return states
}

func (c *mutantCodec) block(x []float32) []uint16 {
	p := c.Params()
	if p.FreeEnds {
		return c.viterbi(x, -1)
	}
	h := p.T / 2
	first := c.viterbi(append(slices.Clone(x[h:]), x[:h]...), -1)
	return c.viterbi(x, int(first[p.T-h]>>p.K))
}

func (c *mutantCodec) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) error {
	if err := c.Trellis.EncodeBlocks(ctx, states, x); err != nil || c.b.emission == nil {
		return err
	}
	row := make([]float32, x.Dim())
	for r := range x.Rows() {
		x.LoadRow(row, r)
		copy(states[r*len(row):], c.block(row))
	}
	return nil
}

func (c *mutantCodec) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error {
	if c.b.load != nil {
		x = c.b.load(x)
	}
	if err := c.Trellis.Encode(ctx, dst, recon, x, g); err != nil {
		return err
	}
	p := c.Params()
	if c.b.emission != nil && p.Scale == trellis.RMS && g.Axis == 1 && !g.Interleaved {
		row := make([]float32, g.In)
		for r := range g.Out {
			x.LoadRow(row, r)
			enc, err := trellis.NewEncoder(p)
			if err != nil {
				return err
			}
			_, div, err := enc.RowScale(row)
			if err != nil {
				return err
			}
			for i, v := range row {
				row[i] = f32.Canon(v) / div
			}
			for b := 0; b < g.In; b += p.T {
				at := (r*g.In + b) * p.K / 32
				if err := trellis.PackStates(dst.Codes[at:at+p.BlockWords()], c.block(row[b:b+p.T]), p); err != nil {
					return err
				}
			}
		}
	}
	if c.b.scale != nil {
		for i, s := range dst.Scales {
			dst.Scales[i] = c.b.scale(s)
		}
	}
	if c.b.encoded != nil {
		c.b.encoded(dst)
	}
	return nil
}

func (c *mutantCodec) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	before := slices.Clone(dst.Data)
	use := m
	if c.b.words != nil && m != nil {
		use = &trellis.Matrix{Params: m.Params, Geometry: m.Geometry, Codes: slices.Clone(m.Codes), Scales: m.Scales}
		c.b.words(use)
	}
	if err := c.Trellis.Decode(dst, use, first); err != nil {
		return err
	}
	if c.b.sum != nil {
		unit := *m
		unit.Scales = slices.Repeat([]uint16{0x3c00}, len(m.Scales))
		values := codec.NewTensor(codec.F32, dst.Shape...)
		if err := c.Trellis.Decode(values, &unit, first); err != nil {
			return err
		}
		if m.Geometry.Axis == 1 {
			eachElement(dst, func(i, at int) {
				s := codec.F16.Load([]byte{byte(m.Scales[first+i/dst.Dim()]), byte(m.Scales[first+i/dst.Dim()] >> 8)})
				dst.DType.Store(dst.Data[at:], c.b.sum(codec.F32.Load(values.Data[4*i:]), s))
			})
		}
	}
	if c.b.decoded != nil {
		c.b.decoded(dst, before)
	}
	return nil
}

func plainEmission(x, f float32) float32 { return float32(float32(2*x)*f) - float32(f*f) }

func TestBrokenTrellis(t *testing.T) {
	t.Parallel()
	largest := func(best, g float32) bool { return g >= best }
	tests := []struct {
		name   string
		filter string
		mutant mutantTrellis
		want   []Stage
	}{
		{"none", "Encode(L=7", mutantTrellis{Backend: ref.New(), emission: plainEmission, later: largest}, nil},
		{"fused multiply-add", "EncodeBlocks", mutantTrellis{Backend: ref.New(), later: largest, emission: func(x, f float32) float32 {
			return f32.FMA(2*x, f, -float32(f*f))
		}}, []Stage{States}},
		{"wrong tie", "EncodeBlocks", mutantTrellis{Backend: ref.New(), emission: plainEmission, later: func(best, g float32) bool { return g > best }}, []Stage{States}},
		{"swapped nibbles", "Encode(L=7", mutantTrellis{Backend: ref.New(), encoded: func(m *trellis.Matrix) {
			for i, w := range m.Codes {
				m.Codes[i] = w&0x0f0f0f0f<<4 | w>>4&0x0f0f0f0f
			}
		}}, []Stage{States}},
		{"big-endian words", "Encode(L=7", mutantTrellis{Backend: ref.New(), encoded: func(m *trellis.Matrix) {
			for i, w := range m.Codes {
				m.Codes[i] = bits.ReverseBytes32(w)
			}
		}}, []Stage{States}},
		{"scale rounded up", "Encode(L=7", mutantTrellis{Backend: ref.New(), scale: func(s uint16) uint16 { return s + 1 }}, []Stage{Scale}},
		{"dropped tail", "DecodeMatrix", mutantTrellis{Backend: ref.New(), decoded: func(dst codec.Tensor, before []byte) {
			eachElement(dst, func(i, at int) {
				if i >= dst.Len()-3 {
					copy(dst.Data[at:at+dst.DType.Size()], before[at:])
				}
			})
		}}, []Stage{Dequantize}},
		{"stale word past the end", "Encode(L=7", mutantTrellis{Backend: ref.New(), encoded: func(m *trellis.Matrix) {
			if n := len(m.Codes); cap(m.Codes) > n {
				m.Codes[:n+1][n]++
			}
		}}, []Stage{Bounds}},
		{"off-by-one stride", "Encode(L=7", mutantTrellis{Backend: ref.New(), load: func(x codec.Tensor) codec.Tensor {
			if x.Validate("") == nil && len(x.Stride) == 2 && x.Stride[0] > 1 {
				x.Stride = []int{x.Stride[0] - 1, x.Stride[1]}
			}
			return x
		}}, []Stage{Scale, States, Error}},
		{"swapped nibbles, decoder", "DecodeMatrix", mutantTrellis{Backend: ref.New(), words: func(m *trellis.Matrix) {
			for i, w := range m.Codes {
				m.Codes[i] = w&0x0f0f0f0f<<4 | w>>4&0x0f0f0f0f
			}
		}}, []Stage{Dequantize}},
		{"half an ulp in the product", "data=codes", mutantTrellis{Backend: ref.New(), sum: func(f, s float32) float32 { return up(float32(f*s) + 0x1p-20) }}, []Stage{Dequantize}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := plainly(test.filter)
			r := Run(t.Context(), &test.mutant, o)
			if test.want == nil {
				if err := r.Err(); err != nil {
					t.Error(err)
				}
				return
			}
			if r.Failed == 0 {
				t.Fatalf("%d cases, none failed", r.Cases)
			}
			stages := map[Stage]int{}
			wrong := 0
			for _, f := range r.Failures {
				stages[f.Stage]++
				if !slices.Contains(test.want, f.Stage) {
					if wrong++; wrong <= 3 {
						t.Errorf("want stage %v: %v", test.want, f)
					}
				}
			}
			t.Logf("%d of %d cases failed: %v", r.Failed, r.Cases, stages)
		})
	}
}
