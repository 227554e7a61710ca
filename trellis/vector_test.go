package trellis

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
)

// diff compares bits and reports the first difference and their number.
func diff(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	bad, first := 0, 0
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			if bad == 0 {
				first = i
			}
			bad++
		}
	}
	if bad > 0 {
		t.Errorf("%s: %d of %d differ, first at %d: got %x, want %x", what, bad, len(want), first, got[first], want[first])
	}
}

func diffInts[E uint16 | uint32](t *testing.T, what string, got, want []E) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	bad, first := 0, 0
	for i := range want {
		if got[i] != want[i] {
			if bad == 0 {
				first = i
			}
			bad++
		}
	}
	if bad > 0 {
		t.Errorf("%s: %d of %d differ, first at %d: got %#x, want %#x", what, bad, len(want), first, got[first], want[first])
	}
}

// counted fails a vector test that compared nothing and logs what it did.
func counted(t *testing.T, n int) {
	t.Helper()
	if n == 0 {
		t.Fatal("no vectors compared")
	}
	t.Logf("compared %d values", n)
}

// param reads the integer that follows a letter in one of a vector's dotted
// name parts, such as 12 in "L12".
func param(t *testing.T, name, letter string) int {
	t.Helper()
	for part := range strings.SplitSeq(name, ".") {
		if n, err := strconv.Atoi(strings.TrimPrefix(part, letter)); err == nil && strings.HasPrefix(part, letter) {
			return n
		}
	}
	t.Fatalf("no %s in %q", letter, name)
	return 0
}

func toStates(t *testing.T, v []int32) []uint16 {
	t.Helper()
	s := make([]uint16, len(v))
	for i, x := range v {
		if x < 0 || x > math.MaxUint16 {
			t.Fatalf("state %d", x)
		}
		s[i] = uint16(x)
	}
	return s
}

func TestVectorCodes(t *testing.T) {
	f := vectors.Load(t, "trellis/codes.safetensors")
	n := 0
	for c := OneMAD; c <= Rand; c++ {
		want := f.F32(t, fmt.Sprintf("code.%v.L16", c))
		for L := 1; L <= maxL; L++ {
			got, err := AppendValues(nil, c, L)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, fmt.Sprintf("%v, L = %d", c, L), got, want[:1<<L])
			n += len(got)
		}
	}
	counted(t, n)
}

func TestVectorPack(t *testing.T) {
	f := vectors.Load(t, "trellis/pack.safetensors")
	n := 0
	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".states")
		if !ok {
			continue
		}
		p := Params{L: 12, K: param(t, base, "k"), T: param(t, base, "T")}
		states, words := toStates(t, f.I32(t, name)), f.U32(t, base+".words")

		got, err := AppendPackStates(nil, states, p)
		if err != nil {
			t.Fatalf("%s: %v", base, err)
		}
		diffInts(t, base+" words", got, words)
		back, err := AppendUnpackStates(nil, words, p)
		if err != nil {
			t.Fatal(err)
		}
		diffInts(t, base+" states", back, states)

		for i, want := range states {
			s, err := StateAt(words[i/p.T*p.BlockWords():][:p.BlockWords()], p, i%p.T)
			if err != nil || s != want {
				t.Fatalf("%s: StateAt(%d) = %#x, %v; want %#x", base, i, s, err, want)
			}
		}

		m := Matrix{
			Params:   p,
			Geometry: Geometry{Axis: 1, Out: 3, In: p.T},
			Codes:    words,
			Scales:   []uint16{pack.ToF16(0.75), pack.ToF16(0.75), pack.ToF16(0.75)},
		}
		dec := make([]float32, 3*p.T)
		if err := m.DecodeRows(dec, 0, 3); err != nil {
			t.Fatal(err)
		}
		diff(t, base+" decoded", dec, f.F32(t, base+".decoded"))
		n += len(words) + 2*len(states) + len(dec)
	}
	counted(t, n)
}

func TestVectorInterleave(t *testing.T) {
	f := vectors.Load(t, "trellis/pack.safetensors")
	in, out := f.U32(t, "interleave.in"), f.U32(t, "interleave.out")
	shape := f.Shape("interleave.in")
	p := DefaultParams(3)
	rows, cols := shape[0], shape[1]*32/p.K

	got := make([]uint32, len(in))
	if err := Interleave(got, in, rows, cols, p); err != nil {
		t.Fatal(err)
	}
	diffInts(t, "interleave", got, out)
	if err := Deinterleave(got, out, rows, cols, p); err != nil {
		t.Fatal(err)
	}
	diffInts(t, "deinterleave", got, in)
	counted(t, len(in)+len(out))
}

func TestVectorEncode(t *testing.T) {
	f := vectors.Load(t, "trellis/encode.safetensors")
	n := 0
	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".x")
		if !ok {
			continue
		}
		code, err := ParseCode(strings.Split(base, ".")[4])
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewEncoder(Params{
			L: param(t, base, "L"), K: param(t, base, "k"), T: param(t, base, "T"),
			Code: code, FreeEnds: strings.HasSuffix(base, ".free"),
		})
		if err != nil {
			t.Fatal(err)
		}
		x, want := f.F32(t, name), toStates(t, f.I32(t, base+".states"))
		got := make([]uint16, len(x))
		for b := 0; b < len(x); b += e.p.T {
			if err := e.EncodeBlock(got[b:b+e.p.T], x[b:b+e.p.T]); err != nil {
				t.Fatal(err)
			}
			if err := checkPath(got[b:b+e.p.T], e.p); err != nil && !e.p.FreeEnds {
				t.Errorf("%s: %v", base, err)
			}
		}
		diffInts(t, base, got, want)
		n += len(got)
	}
	counted(t, n)
}

func TestVectorRows(t *testing.T) {
	f := vectors.Load(t, "trellis/rows.safetensors")
	n := 0
	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".w")
		if !ok {
			continue
		}
		p := DefaultParams(param(t, base, "k"))
		p.Policy = Compat
		if strings.Contains(base, ".T") {
			p.T = param(t, base, "T")
		}
		e, err := NewEncoder(p)
		if err != nil {
			t.Fatal(err)
		}
		w, shape := f.F32(t, name), f.Shape(name)
		var m Matrix
		recon := make([]float32, len(w))
		if err := e.Encode(&m, recon, w, Geometry{Axis: 1, Out: shape[0], In: shape[1]}); err != nil {
			t.Fatal(err)
		}
		dec := make([]float32, len(w))
		if err := m.DecodeRows(dec, 0, shape[0]); err != nil {
			t.Fatal(err)
		}
		diffInts(t, base+" codes", m.Codes, f.U32(t, base+".codes"))
		diffInts(t, base+" scales", m.Scales, f.U16(t, base+".scales"))
		diff(t, base+" decoded", dec, f.F32(t, base+".decoded"))
		diff(t, base+" reconstruction", recon, f.F32(t, base+".decoded"))
		n += len(m.Codes) + len(m.Scales) + 2*len(dec)
	}
	counted(t, n)
}
