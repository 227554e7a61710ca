package trellis

import (
	"context"
	"fmt"
	"math"
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
	n := 0
	for _, c := range vectors.Packed(t) {
		p := Params{L: 12, K: c.K, T: c.T}
		got := make([]uint32, len(c.Words))
		if err := PackStates(got, c.States, p); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		diffInts(t, c.Name+" words", got, c.Words)
		back, err := AppendUnpackStates(nil, c.Words, p)
		if err != nil {
			t.Fatal(err)
		}
		diffInts(t, c.Name+" states", back, c.States)

		m := Matrix{
			Params:   p,
			Geometry: Geometry{Axis: 1, Out: 3, In: p.T},
			Codes:    c.Words,
			Scales:   []uint16{pack.ToF16(0.75), pack.ToF16(0.75), pack.ToF16(0.75)},
		}
		dec := make([]float32, 3*p.T)
		if err := m.DecodeRows(dec, 0, 3); err != nil {
			t.Fatal(err)
		}
		diff(t, c.Name+" decoded", dec, c.Decoded.F32(t))
		n += len(c.Words) + 2*len(c.States) + len(dec)
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
	n := 0
	for _, c := range vectors.Paths(t) {
		var code Code
		err := code.UnmarshalText([]byte(c.Code))
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewEncoder(Params{L: c.L, K: c.K, T: c.T, Code: code, FreeEnds: c.FreeEnds})
		if err != nil {
			t.Fatal(err)
		}
		x := c.X.F32(t)
		got := make([]uint16, len(x))
		for b := 0; b < len(x); b += c.T {
			if err := e.EncodeBlock(got[b:b+c.T], x[b:b+c.T]); err != nil {
				t.Fatal(err)
			}
			if err := checkPath(got[b:b+c.T], e.p); err != nil && !c.FreeEnds {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
		diffInts(t, c.Name, got, c.States)
		n += len(got)
	}
	counted(t, n)
}

func TestVectorRows(t *testing.T) {
	n := 0
	for _, c := range vectors.Matrices(t) {
		p := DefaultParams(c.K)
		p.Policy = Compat
		if c.T != 0 {
			p.T = c.T
		}
		e, err := NewEncoder(p)
		if err != nil {
			t.Fatal(err)
		}
		w, want, shape := c.W.F32(t), c.Decoded.F32(t), c.W.Shape
		var m Matrix
		recon := make([]float32, len(w))
		if err := e.Encode(context.Background(), &m, recon, w, Geometry{Axis: 1, Out: shape[0], In: shape[1]}); err != nil {
			t.Fatal(err)
		}
		dec := make([]float32, len(w))
		if err := m.DecodeRows(dec, 0, shape[0]); err != nil {
			t.Fatal(err)
		}
		diffInts(t, c.Name+" codes", m.Codes, c.Codes)
		diffInts(t, c.Name+" scales", m.Scales, c.Scales)
		diff(t, c.Name+" decoded", dec, want)
		diff(t, c.Name+" reconstruction", recon, want)
		n += len(m.Codes) + len(m.Scales) + 2*len(dec)
	}
	counted(t, n)
}
