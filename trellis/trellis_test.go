package trellis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
)

func mustEncoder(t testing.TB, p Params) *Encoder {
	t.Helper()
	e, err := NewEncoder(p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// sweep holds trellises of every K, block sizes down to one word, and the
// narrowest and widest states.
var sweep = []Params{
	{L: 2, K: 1, T: 32}, {L: 16, K: 1, T: 32, Code: ThreeInst}, {L: 12, K: 1, T: 256},
	{L: 3, K: 2, T: 16, Code: Rand}, {L: 12, K: 2, T: 256}, {L: 16, K: 2, T: 16},
	{L: 4, K: 3, T: 32}, {L: 12, K: 3, T: 96, Code: ThreeInst},
	{L: 5, K: 4, T: 8}, {L: 12, K: 4, T: 256, Code: Rand}, {L: 16, K: 4, T: 8},
	{L: 6, K: 5, T: 32}, {L: 13, K: 5, T: 32}, {L: 7, K: 6, T: 16}, {L: 12, K: 6, T: 48},
	{L: 8, K: 7, T: 32, Code: ThreeInst}, {L: 14, K: 7, T: 32},
	{L: 9, K: 8, T: 4}, {L: 16, K: 8, T: 12, Code: Rand},
}

// The refinement that backends without a division may use gives the bits of
// the division, for every sum of four bytes.
func TestOneMADRefinement(t *testing.T) {
	r := float32(1 / float64(oneMADStd))
	for y := -510; y <= 510; y++ {
		y := float32(y)
		q := y * r
		e := f32.FMA(-q, oneMADStd, y)
		got, want := f32.FMA(e, r, q), y/oneMADStd
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("y = %v: refined %x, divided %x", y, got, want)
		}
	}
}

func TestCodeText(t *testing.T) {
	for c := OneMAD; c <= Rand; c++ {
		var got Code
		if err := got.UnmarshalText([]byte(c.String())); err != nil || got != c {
			t.Errorf("%q reads as %v, %v", c.String(), got, err)
		}
	}
	for _, name := range []string{"", "1MAD", "2mad", "3inst ", "hyb", "Code(7)"} {
		var c Code
		if err := c.UnmarshalText([]byte(name)); !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), "1mad, 3inst, rand") {
			t.Errorf("%q: %v", name, err)
		}
	}
	var c Code
	if err := c.UnmarshalText([]byte("3inst-f16")); !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), "binary16") {
		t.Errorf("reserved name: %v", err)
	}
	if _, err := AppendValues(nil, 3, 12); !errors.Is(err, ErrParams) {
		t.Errorf("AppendValues of code 3: %v", err)
	}
	for _, L := range []int{-1, 0, 17} {
		if _, err := AppendValues(nil, OneMAD, L); !errors.Is(err, ErrParams) {
			t.Errorf("AppendValues at L = %d: %v", L, err)
		}
	}
}

func TestParamsValidate(t *testing.T) {
	for _, p := range sweep {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, c := range []struct {
		p    Params
		want error
		text string
	}{
		{Params{}, ErrParams, "K = 0"},
		{Params{L: 12, K: 9, T: 256}, ErrParams, "K = 9"},
		{Params{L: 12, K: -1, T: 256}, ErrParams, "K = -1"},
		{Params{L: 4, K: 4, T: 256}, ErrParams, "L = 4"},
		{Params{L: 3, K: 4, T: 256}, ErrParams, "L = 3"},
		{Params{L: 17, K: 2, T: 256}, ErrParams, "L = 17"},
		{Params{L: 12, K: 3, T: 0}, ErrParams, "T = 0"},
		{Params{L: 12, K: 3, T: -32}, ErrParams, "T = -32"},
		{Params{L: 12, K: 3, T: 48}, ErrParams, "multiple of 32"},
		{Params{L: 12, K: 2, T: 24}, ErrParams, "multiple of 16"},
		{Params{L: 12, K: 8, T: 6}, ErrParams, "multiple of 4"},
		{Params{L: 12, K: 2, T: math.MaxInt &^ 31}, ErrParams, "T = "},
		{Params{L: 12, K: 2, T: 256, Code: 3}, ErrParams, "Code(3)"},
		{Params{L: 12, K: 2, T: 256, Policy: 2}, ErrParams, "Policy(2)"},
		{Params{L: 12, K: 2, T: 256, Scale: 2}, ErrParams, "ScaleRule(2)"},
	} {
		err := c.p.Validate()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c.p, err)
		}
		if _, err := NewEncoder(c.p); err == nil {
			t.Errorf("%+v: NewEncoder accepts", c.p)
		}
	}
	if _, err := NewEncoder(Params{L: 16, K: 1, T: 2048}); !errors.Is(err, ErrParams) {
		t.Errorf("64 MiB of back-pointers: %v", err)
	}
	for _, r := range []ScaleRule{RMS, Refit} {
		var got ScaleRule
		if err := got.UnmarshalText([]byte(r.String())); err != nil || got != r {
			t.Errorf("%q reads as %v, %v", r.String(), got, err)
		}
	}
	var r ScaleRule
	if err := r.UnmarshalText([]byte("search")); !errors.Is(err, ErrParams) {
		t.Errorf("search: %v", err)
	}
}

// Every tail-biting result packs, whatever the samples: PackStates checks the
// wrap and each transition.
func TestWrap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, p := range sweep {
		e := mustEncoder(t, p)
		x, states := make([]float32, p.T), make([]uint16, p.T)
		for kind := range 6 {
			for i := range x {
				switch kind {
				case 0:
					x[i] = 0
				case 1:
					x[i] = float32(r.IntN(5)-2) / 2
				case 2:
					x[i] = float32(r.IntN(3)-1) * MaxSample
				case 3:
					x[i] = float32(r.IntN(3)-1) * math.SmallestNonzeroFloat32
				case 4:
					x[i] = float32(math.Ldexp(r.NormFloat64(), r.IntN(40)-20))
				default:
					x[i] = float32(r.NormFloat64())
				}
			}
			if err := e.EncodeBlock(states, x); err != nil {
				t.Fatal(err)
			}
			words := make([]uint32, p.BlockWords())
			if err := PackStates(words, states, p); err != nil {
				t.Fatalf("%+v, samples %d: %v", p, kind, err)
			}
			back, err := AppendUnpackStates(nil, words, p)
			if err != nil || !slices.Equal(back, states) {
				t.Fatalf("%+v, samples %d: unpacked states differ (%v)", p, kind, err)
			}
		}
	}
}

// The values of a random packed block are coded without loss. A score is
// rounded to float32, so this needs values further apart than that: 1mad's
// steps are, and so are three states in a row of the other codes (L ≥ 3K).
func TestZeroLoss(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	values, same := 0, 0
	for _, p := range slices.Concat(sweep, []Params{
		{L: 12, K: 1, T: 64, Code: Rand}, {L: 12, K: 2, T: 256, Code: ThreeInst}, {L: 16, K: 2, T: 32, Code: Rand},
	}) {
		if p.Code != OneMAD && p.L < 3*p.K {
			continue
		}
		e := mustEncoder(t, p)
		words, x := make([]uint32, p.BlockWords()), make([]float32, p.T)
		for range 3 {
			for i := range words {
				words[i] = r.Uint32()
			}
			for i := range x {
				x[i] = e.values[stateAt(words, p, i)]
			}
			states := make([]uint16, p.T)
			if err := e.EncodeBlock(states, x); err != nil {
				t.Fatal(err)
			}
			for i, s := range states {
				if e.values[s] != x[i] {
					t.Fatalf("%+v: value %d is %v, was %v", p, i, e.values[s], x[i])
				}
				if uint32(s) == stateAt(words, p, i) {
					same++
				}
			}
			values += len(x)
		}
	}
	t.Logf("%d values, %d of them from the same state", values, same)
}

func TestPackStatesRefuses(t *testing.T) {
	p := DefaultParams(2)
	two := make([]uint16, 2*p.T)
	if err := PackStates(make([]uint32, p.BlockWords()), two, p); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d words for 2 blocks, want %d", p.BlockWords(), 2*p.BlockWords())) {
		t.Errorf("words for one of two blocks: %v", err)
	}
	if err := UnpackStates(two, make([]uint32, p.BlockWords()), p); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d words for 2 blocks, want %d", p.BlockWords(), 2*p.BlockWords())) {
		t.Errorf("words of one of two blocks: %v", err)
	}
	two[p.T+3] = 1
	if err := PackStates(make([]uint32, 2*p.BlockWords()), two, p); !errors.Is(err, ErrNotTailBiting) || !strings.Contains(err.Error(), "(block 1)") {
		t.Errorf("the second block: %v", err)
	}
	words := make([]uint32, p.BlockWords())
	for i := range words {
		words[i] = 0x9e3779b9 * uint32(i+1)
	}
	states, err := AppendUnpackStates(nil, words, p)
	if err != nil {
		t.Fatal(err)
	}
	for name, mutate := range map[string]func(s []uint16){
		"seam":       func(s []uint16) { s[0] ^= 1 << 11 },
		"middle":     func(s []uint16) { s[100] ^= 4 },
		"last":       func(s []uint16) { s[255] ^= 1 << 5 },
		"too wide":   func(s []uint16) { s[7] |= 1 << 12 },
		"other kind": func(s []uint16) { slices.Reverse(s) },
	} {
		bad := slices.Clone(states)
		mutate(bad)
		dst := slices.Repeat([]uint32{0xdeadbeef}, len(words))
		if err := PackStates(dst, bad, p); !errors.Is(err, ErrNotTailBiting) {
			t.Errorf("%s: %v", name, err)
		}
		if slices.ContainsFunc(dst, func(w uint32) bool { return w != 0xdeadbeef }) {
			t.Errorf("%s: something was written", name)
		}
	}

	// Free ends do not meet, except by luck.
	free := p
	free.FreeEnds = true
	if err := mustEncoder(t, free).EncodeBlock(states, gauss(p.T, 4)); err != nil {
		t.Fatal(err)
	}
	if err := PackStates(words, states, p); !errors.Is(err, ErrNotTailBiting) || !strings.Contains(err.Error(), "t = 0") {
		t.Errorf("free ends: %v", err)
	}
	for _, n := range []int{1, 255, 257} {
		if err := PackStates(words, make([]uint16, n), p); !errors.Is(err, ErrShape) {
			t.Errorf("%d states: %v", n, err)
		}
		if err := UnpackStates(make([]uint16, n), words, p); !errors.Is(err, ErrShape) {
			t.Errorf("%d states: %v", n, err)
		}
	}
	for _, n := range []int{0, 15, 17} {
		if err := PackStates(make([]uint32, n), make([]uint16, p.T), p); !errors.Is(err, ErrShape) {
			t.Errorf("%d words: %v", n, err)
		}
		if err := UnpackStates(make([]uint16, p.T), make([]uint32, n), p); !errors.Is(err, ErrShape) {
			t.Errorf("%d words: %v", n, err)
		}
	}
	if _, err := AppendUnpackStates(nil, words[:3], p); !errors.Is(err, ErrShape) {
		t.Errorf("part of a block: %v", err)
	}
	if err := PackStates(nil, nil, p); err != nil {
		t.Errorf("no blocks: %v", err)
	}
}

// The order of a row's sums is part of the format: lanes first, then halves
// onto halves, here by hand.
func TestRowSumOrder(t *testing.T) {
	e := mustEncoder(t, Params{L: 12, K: 1, T: 32})
	r := rand.New(rand.NewPCG(7, 7))
	round := func(x float64) float64 { return float64(float32(x)) }
	moved := 0
	for n := range 400 {
		w := make([]float32, n+1)
		var lanes [32]float64
		var sum laneSum
		var plain float32
		for i := range w {
			w[i] = float32(r.Int32()) * 0x1p-31
			square := round(float64(w[i]) * float64(w[i]))
			lanes[i%32] = round(lanes[i%32] + square)
			sum.add(i, float32(square))
			plain += float32(square)
		}
		for n := 16; n > 0; n /= 2 {
			for i := range n {
				lanes[i] = round(lanes[i] + lanes[i+n])
			}
		}
		if got := sum.total(); float64(got) != lanes[0] {
			t.Fatalf("sum of %d: %x, want %x", len(w), got, lanes[0])
		}
		if float64(plain) != lanes[0] {
			moved++
		}
		want := pack.ToF16(float32(round(math.Sqrt(round(lanes[0]/float64(len(w)))))) * e.invRMS)
		if got, div, err := e.RowScale(w); err != nil || got != want || div != pack.FromF16(want) {
			t.Fatalf("RowScale = %#x, %v, %v; want %#x", got, div, err, want)
		}
	}
	if moved < 100 {
		t.Errorf("the plain order changed %d sums: too few to tell the orders apart", moved)
	}
}

func TestRowScaleRules(t *testing.T) {
	const tiny = 0x1p-26 // below binary16's range as a scale
	fill := func(v float32) []float32 { return slices.Repeat([]float32{v}, 256) }
	for _, c := range []struct {
		name          string
		w             []float32
		policy        Policy
		scale         uint16
		div           float32
		decodesToZero bool
	}{
		{"zeros", fill(0), Finite, 0, 1, true},
		{"zeros, compat", fill(0), Compat, 0x3c00, 1, false},
		{"negative zeros", fill(float32(math.Copysign(0, -1))), Finite, 0, 1, true},
		{"below 2^-64", fill(0x1p-65), Finite, 0, 1, true},
		{"below 2^-64, compat", fill(0x1p-65), Compat, 0x3c00, 1, false},
		{"2^-64", fill(0x1p-64), Finite, 0, 1, true},
		{"2^-64, compat", fill(0x1p-64), Compat, 0, 1, true},
		{"tiny", fill(tiny), Finite, 0, 1, true},
		{"tiny, compat", fill(tiny), Compat, 0, 1, true},
		{"least scale", fill(0x1p-24), Finite, 1, 0x1p-24, false},
	} {
		for _, rule := range []ScaleRule{RMS, Refit} {
			p := DefaultParams(2)
			p.Policy, p.Scale = c.policy, rule
			e := mustEncoder(t, p)
			scale, div, err := e.RowScale(c.w)
			if err != nil || scale != c.scale || div != c.div {
				t.Errorf("%s, %v: RowScale = %#x, %v, %v", c.name, rule, scale, div, err)
			}
			var m Matrix
			recon := make([]float32, 256)
			if err := e.Encode(context.Background(), &m, recon, c.w, Geometry{Axis: 1, Out: 1, In: 256}); err != nil {
				t.Fatal(err)
			}
			zero := !slices.ContainsFunc(recon, func(v float32) bool { return v != 0 })
			if zero != c.decodesToZero {
				t.Errorf("%s, %v: decodes to zeros: %v, scale %#x", c.name, rule, zero, m.Scales[0])
			}
			if rule == RMS && m.Scales[0] != c.scale {
				t.Errorf("%s: stored %#x, want %#x", c.name, m.Scales[0], c.scale)
			}
		}
	}
}

// A refitted scale is stored(num/den) of numerics.md over the states that the
// first scale gives, here from the packed words.
func TestRefit(t *testing.T) {
	alpha := map[int]float64{1: .875, 2: 1.03125, 3: 1.09375, 4: 1.140625, 5: 1}
	for k := 1; k <= 5; k++ {
		p := DefaultParams(k)
		if k == 5 {
			p.T = 64
		}
		rms := mustEncoder(t, p)
		p.Scale = Refit
		e := mustEncoder(t, p)
		w := gauss(4*p.T, uint64(k))
		codes, recon := make([]uint32, 4*p.BlockWords()), make([]float32, len(w))
		scale, err := e.EncodeRow(codes, recon, w)
		if err != nil {
			t.Fatal(err)
		}

		var sum laneSum
		for i, v := range w {
			sum.add(i, v*v)
		}
		s := float32(math.Sqrt(float64(sum.total()/float32(len(w))))) * e.invRMS
		first := pack.ToF16(s * float32(alpha[k]))
		var num, den laneSum
		values := make([]float32, len(w))
		states := make([]uint16, p.T)
		for b := range 4 {
			x := make([]float32, p.T)
			for i := range x {
				x[i] = w[b*p.T+i] / pack.FromF16(first)
			}
			if err := rms.EncodeBlock(states, x); err != nil {
				t.Fatal(err)
			}
			for i, state := range states {
				if got := stateAt(codes[b*p.BlockWords():][:p.BlockWords()], p, i); got != uint32(state) {
					t.Fatalf("k = %d: state %d of block %d is %#x, want %#x", k, i, b, got, state)
				}
				f := e.values[state]
				j := b*p.T + i
				values[j] = f
				num.add(j, w[j]*f)
				den.add(j, f*f)
			}
		}
		want := pack.ToF16(num.total() / den.total())
		if scale != want {
			t.Errorf("k = %d: scale %#x, want %#x", k, scale, want)
		}
		if got, err := RefitScale(first, w, values); err != nil || got != want {
			t.Errorf("k = %d: RefitScale = %#x, %v; want %#x", k, got, err, want)
		}
		for i, f := range values {
			if recon[i] != f*pack.FromF16(want) {
				t.Fatalf("k = %d: reconstruction %d", k, i)
			}
		}
	}
	if _, err := RefitScale(1, []float32{1, float32(math.NaN())}, make([]float32, 2)); !errors.Is(err, ErrNonFinite) {
		t.Errorf("a weight that is NaN: %v", err)
	}
	if _, err := RefitScale(1, make([]float32, 2), make([]float32, 3)); !errors.Is(err, ErrShape) {
		t.Errorf("lengths: %v", err)
	}
	// Where the quotient is not a positive finite scale, the first one stays.
	for _, c := range []struct{ w, f float32 }{{1, 0}, {-1, 1}, {1, 0x1p-20}, {0x1p-40, 1}} {
		if got, err := RefitScale(0x3c00, []float32{c.w}, []float32{c.f}); err != nil || got != 0x3c00 {
			t.Errorf("w = %v, f = %v: %#x, %v", c.w, c.f, got, err)
		}
	}
	if got, err := RefitScale(0, []float32{1}, []float32{1}); err != nil || got != 0 {
		t.Errorf("first scale 0: %#x, %v", got, err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	p := DefaultParams(2)
	e := mustEncoder(t, p)
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())

	states := make([]uint16, p.T)
	for _, c := range []struct {
		v    float32
		want error
	}{{nan, ErrNonFinite}, {inf, ErrNonFinite}, {-inf, ErrNonFinite}, {0x1.000002p60, ErrSampleRange}, {-math.MaxFloat32, ErrSampleRange}} {
		x := make([]float32, p.T)
		x[200], x[201] = c.v, nan
		var v *ValueError
		if err := e.EncodeBlock(states, x); !errors.Is(err, c.want) || !errors.As(err, &v) || v.Index != 200 {
			t.Errorf("sample %v: %v", c.v, err)
		}
	}
	for _, n := range []int{0, 255, 257} {
		if err := e.EncodeBlock(states, make([]float32, n)); !errors.Is(err, ErrShape) {
			t.Errorf("%d samples: %v", n, err)
		}
		if err := e.EncodeBlock(make([]uint16, n), make([]float32, p.T)); !errors.Is(err, ErrShape) {
			t.Errorf("%d states: %v", n, err)
		}
	}

	// A matrix of four rows of which one is bad, at every place: index named,
	// nothing written.
	for _, axis := range []int{0, 1} {
		g := Geometry{Axis: axis, Out: 4, In: 512}
		if axis == 0 {
			g.Out, g.In = 512, 4
		}
		for _, c := range []struct {
			v    float32
			want error
		}{{nan, ErrNonFinite}, {inf, ErrNonFinite}, {math.MaxFloat32, ErrScaleOverflow}, {0x1p40, ErrScaleOverflow}} {
			for _, at := range []int{0, 700, 2047} {
				w := gauss(2048, 8)
				w[at] = c.v
				old := Matrix{Codes: []uint32{1, 2, 3}, Scales: []uint16{4}}
				m := Matrix{Codes: slices.Clone(old.Codes), Scales: slices.Clone(old.Scales)}
				recon := slices.Repeat([]float32{-7}, len(w))
				err := e.Encode(context.Background(), &m, recon, w, g)
				var v *ValueError
				if !errors.Is(err, c.want) || !errors.As(err, &v) {
					t.Fatalf("axis %d, w[%d] = %v: %v", axis, at, c.v, err)
				}
				index := at
				if c.want == ErrScaleOverflow { // the row's first weight
					if index = at / 512 * 512; axis == 0 {
						index = at % 4
					}
				}
				if v.Index != index {
					t.Errorf("axis %d, w[%d] = %v: index %d", axis, at, c.v, v.Index)
				}
				if !slices.Equal(m.Codes, old.Codes) || !slices.Equal(m.Scales, old.Scales) ||
					slices.ContainsFunc(recon, func(v float32) bool { return v != -7 }) {
					t.Errorf("axis %d, w[%d] = %v: something was written", axis, at, c.v)
				}
			}
		}
	}

	var m Matrix
	for name, err := range map[string]error{
		"columns":         e.Encode(context.Background(), &m, nil, make([]float32, 300), Geometry{Axis: 1, Out: 1, In: 300}),
		"rows on axis 0":  e.Encode(context.Background(), &m, nil, make([]float32, 300), Geometry{Axis: 0, Out: 300, In: 1}),
		"axis":            e.Encode(context.Background(), &m, nil, make([]float32, 256), Geometry{Axis: 2, Out: 1, In: 256}),
		"negative":        e.Encode(context.Background(), &m, nil, nil, Geometry{Axis: 1, Out: -1, In: 256}),
		"huge":            e.Encode(context.Background(), &m, nil, nil, Geometry{Axis: 1, Out: math.MaxInt, In: 256}),
		"huge and empty":  e.Encode(context.Background(), &m, nil, nil, Geometry{Axis: 1, Out: math.MaxInt &^ 255, In: 0}),
		"odd pair":        e.Encode(context.Background(), &m, nil, make([]float32, 256), Geometry{Axis: 1, Out: 1, In: 256, Interleaved: true}),
		"weights":         e.Encode(context.Background(), &m, nil, make([]float32, 255), Geometry{Axis: 1, Out: 1, In: 256}),
		"reconstruction":  e.Encode(context.Background(), &m, make([]float32, 1), make([]float32, 256), Geometry{Axis: 1, Out: 1, In: 256}),
		"row":             errOf(e.EncodeRow(make([]uint32, 16), nil, make([]float32, 255))),
		"row codes":       errOf(e.EncodeRow(make([]uint32, 15), nil, make([]float32, 256))),
		"row reconstruct": errOf(e.EncodeRow(make([]uint32, 16), make([]float32, 255), make([]float32, 256))),
	} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.FreeEnds = true
	free := mustEncoder(t, p)
	if err := free.Encode(context.Background(), &m, nil, make([]float32, 256), Geometry{Axis: 1, Out: 1, In: 256}); !errors.Is(err, ErrParams) {
		t.Errorf("free ends: %v", err)
	}
	if _, err := free.EncodeRow(make([]uint32, 16), nil, make([]float32, 256)); !errors.Is(err, ErrParams) {
		t.Errorf("free ends: %v", err)
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestEmpty(t *testing.T) {
	e := mustEncoder(t, DefaultParams(3))
	for _, g := range []Geometry{{}, {Axis: 1}, {Axis: 1, Out: 0, In: 256}, {Axis: 1, Out: 3, In: 0}, {Axis: 0, Out: 512, In: 0, Interleaved: true}} {
		var m Matrix
		if err := e.Encode(context.Background(), &m, []float32{}, nil, g); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
		if len(m.Codes) != 0 || len(m.Scales) != g.Rows() {
			t.Errorf("%+v: %d words, %d scales", g, len(m.Codes), len(m.Scales))
		}
		if err := m.DecodeRows(nil, 0, g.Out); err != nil {
			t.Errorf("%+v: %v", g, err)
		}
	}
}

// One matrix in its four layouts: the same words, and from each the same
// weights, by weight, by rows and as bytes of each dtype.
func TestLayouts(t *testing.T) {
	p := Params{L: 8, K: 3, T: 32}
	e := mustEncoder(t, p)
	const out, in = 128, 192
	w := gauss(out*in, 6)
	transposed := make([]float32, len(w))
	for i := range w {
		transposed[i%in*out+i/in] = w[i]
	}
	for axis := range 2 {
		// The oracle: EncodeRow on each coded row.
		g := Geometry{Axis: axis, Out: out, In: in}
		rows := w
		if axis == 0 {
			rows = transposed
		}
		var codes []uint32
		var scales []uint16
		var values []float32
		for r := range g.Rows() {
			c, v := make([]uint32, g.Cols()*p.K/32), make([]float32, g.Cols())
			s, err := e.EncodeRow(c, v, rows[r*g.Cols():][:g.Cols()])
			if err != nil {
				t.Fatal(err)
			}
			codes, scales, values = append(codes, c...), append(scales, s), append(values, v...)
		}
		want := values
		if axis == 0 {
			want = make([]float32, len(values))
			for i := range want {
				want[i] = values[i%in*out+i/in]
			}
		}
		for _, interleaved := range []bool{false, true} {
			g.Interleaved = interleaved
			words := codes
			if interleaved {
				words = make([]uint32, len(codes))
				if err := Interleave(words, codes, g.Rows(), g.Cols(), p); err != nil {
					t.Fatal(err)
				}
			}
			var m Matrix
			recon := make([]float32, len(w))
			if err := e.Encode(context.Background(), &m, recon, w, g); err != nil {
				t.Fatal(err)
			}
			diffInts(t, "codes", m.Codes, words)
			diffInts(t, "scales", m.Scales, scales)
			diff(t, "reconstruction", recon, want)

			back, err := GeometryOf(g.CodesShape(p), axis, p)
			if err != nil || back != g {
				t.Errorf("GeometryOf(%v) = %+v, %v; want %+v", g.CodesShape(p), back, err, g)
			}
			n := 1
			for _, d := range g.CodesShape(p) {
				n *= d
			}
			if n != len(m.Codes) || n != g.CodesLen(p) {
				t.Errorf("shape %v of %d words", g.CodesShape(p), len(m.Codes))
			}

			for _, i := range []int{0, 1, in - 1, in, 40*in + 33, out*in - 1} {
				if got, err := m.At(i/in, i%in); err != nil || math.Float32bits(got) != math.Float32bits(want[i]) {
					t.Errorf("At(%d, %d) = %v, %v; want %v", i/in, i%in, got, err, want[i])
				}
			}
			part := make([]float32, 5*in)
			if err := m.DecodeRows(part, 17, 22); err != nil {
				t.Fatal(err)
			}
			diff(t, "rows 17 to 21", part, want[17*in:22*in])
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	p := DefaultParams(2)
	g := Geometry{Axis: 1, Out: 3, In: 512}
	good := Matrix{Params: p, Geometry: g, Codes: make([]uint32, 96), Scales: make([]uint16, 3)}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	dst := make([]float32, 3*512)
	for name, c := range map[string]struct {
		mutate func(m *Matrix)
		want   error
	}{
		"short codes":   {func(m *Matrix) { m.Codes = m.Codes[1:] }, ErrShape},
		"long codes":    {func(m *Matrix) { m.Codes = append(m.Codes[:96:96], 0) }, ErrShape},
		"short scales":  {func(m *Matrix) { m.Scales = m.Scales[1:] }, ErrShape},
		"other k":       {func(m *Matrix) { m.Params.K = 3 }, ErrShape},
		"unknown code":  {func(m *Matrix) { m.Params.Code = 9 }, ErrParams},
		"k over L":      {func(m *Matrix) { m.Params.L = 2 }, ErrParams},
		"axis":          {func(m *Matrix) { m.Geometry.Axis = 0 }, ErrShape},
		"block":         {func(m *Matrix) { m.Params.T = 1024 }, ErrShape},
		"free ends":     {func(m *Matrix) { m.Params.FreeEnds = true }, ErrParams},
		"negative size": {func(m *Matrix) { m.Geometry.Out = -3 }, ErrShape},
	} {
		m := good
		c.mutate(&m)
		if _, err := m.At(0, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: At: %v", name, err)
		}
		if err := m.DecodeRows(dst, 0, 3); !errors.Is(err, c.want) {
			t.Errorf("%s: DecodeRows: %v", name, err)
		}
	}
	for _, i := range [][2]int{{-1, 0}, {3, 0}, {0, -1}, {0, 512}, {math.MaxInt, math.MinInt}} {
		if _, err := good.At(i[0], i[1]); !errors.Is(err, ErrIndex) {
			t.Errorf("At(%v): %v", i, err)
		}
	}
	for _, r := range [][2]int{{-1, 2}, {2, 1}, {0, 4}, {4, 4}} {
		if err := good.DecodeRows(nil, r[0], r[1]); !errors.Is(err, ErrIndex) {
			t.Errorf("rows %v: %v", r, err)
		}
	}
	for name, err := range map[string]error{
		"room":      good.DecodeRows(dst[:511], 0, 1),
		"shape 2":   errOf(GeometryOf([]int{3, 31}, 1, p)),
		"shape 1":   errOf(GeometryOf([]int{32}, 1, p)),
		"shape 3":   errOf(GeometryOf([]int{1, 3, 16}, 1, p)),
		"negative":  errOf(GeometryOf([]int{-1, 32}, 1, p)),
		"negative3": errOf(GeometryOf([]int{-1, 1, 32}, 1, p)),
		"huge":      errOf(GeometryOf([]int{math.MaxInt / 4, math.MaxInt &^ 15}, 1, p)),
		"huge3":     errOf(GeometryOf([]int{math.MaxInt, 2, 32}, 1, p)),
		"axis":      errOf(GeometryOf([]int{3, 32}, -1, p)),
		"odd pair":  Interleave(make([]uint32, 48), make([]uint32, 48), 1, 768, p),
		"lengths":   Interleave(make([]uint32, 32), make([]uint32, 31), 1, 512, p),
		"lengths 2": Deinterleave(make([]uint32, 31), make([]uint32, 32), 1, 512, p),
	} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every output lies inside a larger slice whose other elements must survive,
// and inputs must not change.
func TestGuards(t *testing.T) {
	const guard = 64
	for _, p := range sweep {
		e := mustEncoder(t, p)
		n, words := 2*p.T, 2*p.BlockWords()
		w := gauss(n, 11)
		kept := slices.Clone(w)
		codes := slices.Repeat([]uint32{0xdeadbeef}, words+2*guard)
		recon := slices.Repeat([]float32{-7}, n+2*guard)
		states := slices.Repeat([]uint16{0xdead}, n+2*guard)
		twice := slices.Repeat([]uint32{0xdeadbeef}, words+2*guard)
		if _, err := e.EncodeRow(codes[guard:guard+words], recon[guard:guard+n], w); err != nil {
			t.Fatal(err)
		}
		if err := UnpackStates(states[guard:guard+n], codes[guard:guard+words], p); err != nil {
			t.Fatal(err)
		}
		if err := PackStates(twice[guard:guard+words], states[guard:guard+n], p); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(codes, twice) {
			t.Errorf("%+v: packed again, the words differ", p)
		}
		if err := Interleave(twice[guard:guard+words], codes[guard:guard+words], 1, n, p); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w, kept) {
			t.Errorf("%+v: the weights changed", p)
		}
		checkGuards(t, codes, guard, 0xdeadbeef)
		checkGuards(t, twice, guard, 0xdeadbeef)
		checkGuards(t, recon, guard, -7)
		checkGuards(t, states, guard, 0xdead)
	}
}

func checkGuards[E comparable](t *testing.T, s []E, guard int, want E) {
	t.Helper()
	for i := range guard {
		if s[i] != want || s[len(s)-1-i] != want {
			t.Fatalf("guard element %d changed", i)
		}
	}
}

func TestAllocs(t *testing.T) {
	p := Params{L: 6, K: 2, T: 64, Scale: Refit}
	e := mustEncoder(t, p)
	g := Geometry{Axis: 0, Out: 128, In: 3, Interleaved: true}
	w := gauss(g.Out*g.In, 12)
	states, codes, recon := make([]uint16, p.T), make([]uint32, 8), make([]float32, 128)
	var m Matrix
	if err := e.Encode(context.Background(), &m, nil, w, g); err != nil {
		t.Fatal(err)
	}
	all := make([]float32, len(w))
	for name, f := range map[string]func() error{
		"EncodeBlock":  func() error { return e.EncodeBlock(states, w[:p.T]) },
		"EncodeRow":    func() error { return errOf(e.EncodeRow(codes, recon, w[:128])) },
		"Encode":       func() error { return e.Encode(context.Background(), &m, all, w, g) },
		"DecodeRows":   func() error { return m.DecodeRows(all, 0, g.Out) },
		"At":           func() error { return errOf(m.At(3, 1)) },
		"UnpackStates": func() error { return UnpackStates(states, codes[:4], p) },
		"PackStates":   func() error { return PackStates(codes[:4], states, p) },
	} {
		if n := testing.AllocsPerRun(5, func() {
			if err := f(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzUnpackStates reads the states of arbitrary blocks: lengths that do not fit
// are errors, and states that fit pack to the same words.
func FuzzUnpackStates(f *testing.F) {
	f.Add(12, 2, 256, 0, make([]byte, 64))
	f.Add(16, 1, 32, 2, []byte{1, 2, 3, 4})
	f.Add(9, 8, 4, 1, []byte{0xff, 0, 0xff, 0, 7})
	f.Fuzz(func(t *testing.T, L, K, T, code int, data []byte) {
		p := Params{L: L, K: K, T: T, Code: Code(code)}
		words := make([]uint32, len(data)/4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(data[4*i:])
		}
		states, err := AppendUnpackStates(nil, words, p)
		if err != nil {
			return
		}
		for t2, s := range states {
			if int(s) >= 1<<L {
				t.Fatalf("state %d is %#x of %d bits", t2, s, L)
			}
		}
		back := make([]uint32, len(words))
		if err := PackStates(back, states, p); err != nil || !slices.Equal(back, words) {
			t.Fatalf("PackStates: %v", err)
		}
	})
}

// FuzzDecode gives decoders arbitrary parameters, geometry and lengths.
func FuzzDecode(f *testing.F) {
	f.Add(12, 2, 256, 0, 1, 1, 256, false, 0, 0, 1, 256, make([]byte, 66))
	f.Add(9, 8, 4, 1, 0, 8, 1, true, 2, 3, 8, 8, make([]byte, 20))
	f.Fuzz(func(t *testing.T, L, K, T, code, axis, out, in int, inter bool, o, lo, hi, room int, data []byte) {
		m := Matrix{
			Params:   Params{L: L, K: K, T: T, Code: Code(code)},
			Geometry: Geometry{Axis: axis, Out: out, In: in, Interleaved: inter},
		}
		rows := len(data) % 17
		for ; len(data) >= 4; data = data[4:] {
			m.Codes = append(m.Codes, binary.LittleEndian.Uint32(data))
		}
		m.Scales = make([]uint16, rows)
		room = max(0, min(room, 1<<16))
		dst := make([]float32, room)
		if err := m.DecodeRows(dst, lo, hi); err == nil && room > 0 {
			v, err := m.At(lo, 0)
			if err != nil || v != dst[0] && v == v {
				t.Fatalf("At(%d, 0) = %v, %v; want %v", lo, v, err, dst[0])
			}
		}
		m.At(o, lo)
		Interleave(make([]uint32, len(m.Codes)), m.Codes, out, in, m.Params)
		GeometryOf([]int{out, in}, axis, m.Params)
		GeometryOf([]int{out, in, room}, axis, m.Params)
	})
}

// Zero values return errors.
func TestZeroValues(t *testing.T) {
	var e Encoder
	_, err := e.EncodeRow(nil, nil, nil)
	for i, err := range []error{
		e.EncodeBlock(nil, nil), err, e.Encode(context.Background(), new(Matrix), nil, nil, Geometry{}), new(Matrix).Validate(), new(Matrix).DecodeRows(nil, 0, 0), Params{}.Validate(),
	} {
		if !errors.Is(err, ErrParams) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := new(Matrix).At(0, 0); !errors.Is(err, ErrParams) {
		t.Errorf("At: %v", err)
	}
	if s := (&ValueError{}).Error(); s == "" {
		t.Error("no text")
	}
}
