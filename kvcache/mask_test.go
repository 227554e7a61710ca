package kvcache_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

// TestMask compares every small mask with its definition in terms of tokens: query token i of a sequence attends to
// token j where j ≤ i, and, with a window, where i − j is below it or j is a sink.
func TestMask(t *testing.T) {
	masks := 0
	for width := range 7 {
		for queries := range width + 1 {
			for window := range 5 {
				for sinks := range 4 {
					for pad := range width + 1 {
						p := kvcache.MaskParams{Width: width, Queries: queries, Padding: []int{pad, 0}, Window: window, Sinks: sinks}
						mask, err := p.Bool()
						if err != nil {
							t.Fatal(err)
						}
						for s, pad := range p.Padding {
							for q := range queries {
								for c := range width {
									i, j := width-queries+q-pad, c-pad
									want := i >= 0 && j >= 0 && j <= i
									if window > 0 && want {
										want = i-j < window || j < sinks
									}
									if got := mask[(s*queries+q)*width+c]; got != want {
										t.Fatalf("%+v: sequence %d, query %d, column %d: %t", p, s, q, c, got)
									}
								}
							}
						}
						for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
							x, err := p.Additive(d)
							if err != nil || fmt.Sprint(x.Shape) != fmt.Sprint([]int{2, 1, queries, width}) {
								t.Fatal(x.Shape, err)
							}
							for i, ok := range mask {
								if v := float64(d.Load(x.Data[i*d.Size():])); ok && (v != 0 || math.Signbit(v)) || !ok && !math.IsInf(v, -1) {
									t.Fatalf("%+v, %v: element %d is %v", p, d, i, v)
								}
							}
						}
						masks++
					}
				}
			}
		}
	}
	if masks == 0 {
		t.Error("no masks")
	}
	for _, p := range []kvcache.MaskParams{{Width: -1}, {Width: 2, Queries: 3}, {Queries: -1}, {Window: -1}, {Sinks: -1}, {Width: 2, Padding: []int{0, 3}}, {Padding: []int{-1}}} {
		if _, err := p.Bool(); !errors.Is(err, kvcache.ErrIndex) {
			t.Errorf("%+v: %v", p, err)
		}
		if _, err := p.Additive(codec.F32); !errors.Is(err, kvcache.ErrIndex) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := (kvcache.MaskParams{}).Additive(0); !errors.Is(err, kvcache.ErrLayout) {
		t.Error(err)
	}
}

// TestOffsets gives each row of a batch the position that it would have alone.
func TestOffsets(t *testing.T) {
	f := kvcache.Raw(codec.F16, 1)
	l := kvcache.Layout{Heads: 1, Keys: f, Window: 3, Sinks: 1}
	add := func(b *kvcache.Batch, n int) {
		t.Helper()
		if err := b.Append(kvcache.Data{Tokens: n, Planes: [][]byte{make([]byte, 2*n*b.Len())}}, kvcache.Data{}); err != nil {
			t.Fatal(err)
		}
	}
	var rows []*kvcache.Batch
	for _, n := range []int{2, 9, 0} {
		b, err := kvcache.New(l, 1)
		if err != nil {
			t.Fatal(err)
		}
		add(b, n)
		rows = append(rows, b)
	}
	b, err := kvcache.Merge(rows...)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		add(b, 1)
		for i, r := range rows {
			add(r, 1)
			if got, want := b.Offsets()[i], r.Offsets()[0]; got != want {
				t.Errorf("row %d: offset %d, alone %d", i, got, want)
			}
		}
	}
	if got := fmt.Sprint(b.Offsets(), b.Padding()); got != "[5 12 3] [0 0 1]" {
		t.Error(got)
	}
}

// Every misuse has its error, and changes nothing.
func TestMisuse(t *testing.T) {
	f := kvcache.Raw(codec.F16, 2)
	for _, l := range []kvcache.Layout{{Heads: -1}, {Window: -1}, {Sinks: -1}, {Step: -1}, {Sinks: 1}, {Keys: kvcache.Format{Planes: []kvcache.Plane{{RowLen: -1}}}}, {Values: kvcache.Format{Planes: []kvcache.Plane{{RowLen: math.MaxInt}}}}} {
		if b, err := kvcache.New(l, 1); b != nil || !errors.Is(err, kvcache.ErrLayout) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	l := kvcache.Layout{Heads: 2, Keys: f, Values: f}
	if _, err := kvcache.New(l, -1); !errors.Is(err, kvcache.ErrIndex) {
		t.Error(err)
	}
	b, err := kvcache.New(l, 3)
	if err != nil {
		t.Fatal(err)
	}
	good := kvcache.Data{Tokens: 1, Planes: [][]byte{make([]byte, 3*2*4)}}
	if err := b.Append(good, good); err != nil {
		t.Fatal(err)
	}
	for name, kv := range map[string][2]kvcache.Data{
		"no planes":         {{Tokens: 1}, good},
		"short":             {{Tokens: 1, Planes: [][]byte{make([]byte, 23)}}, good},
		"negative":          {{Tokens: -1, Planes: [][]byte{nil}}, good},
		"fewer values":      {good, {Tokens: 0, Planes: [][]byte{nil}}},
		"two planes":        {good, {Tokens: 1, Planes: [][]byte{make([]byte, 24), nil}}},
		"values too short ": {good, {Tokens: 1, Planes: [][]byte{make([]byte, 20)}}},
	} {
		if err := b.Append(kv[0], kv[1]); !errors.Is(err, kvcache.ErrData) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other, err := kvcache.New(kvcache.Layout{Heads: 1, Keys: f, Values: f}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var k, v kvcache.Data
	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"Extend":          {b.Extend(other), kvcache.ErrLayout},
		"Filter 3":        {b.Filter([]int{0, 3}), kvcache.ErrIndex},
		"Filter -1":       {b.Filter([]int{-1}), kvcache.ErrIndex},
		"Trim 2":          {b.Trim(2), kvcache.ErrIndex},
		"Trim -1":         {b.Trim(-1), kvcache.ErrIndex},
		"Truncate -1":     {b.Truncate(-1), kvcache.ErrIndex},
		"Read past":       {b.Read(&k, &v, 1, 1), kvcache.ErrIndex},
		"Read before":     {b.Read(&k, &v, -1, 1), kvcache.ErrIndex},
		"Read negative":   {b.Read(&k, &v, 0, -1), kvcache.ErrIndex},
		"Merge nothing":   {second(kvcache.Merge()), kvcache.ErrIndex},
		"Merge different": {second(kvcache.Merge(b, other)), kvcache.ErrLayout},
		"Extract":         {second(b.Extract(3)), kvcache.ErrIndex},
		"Share":           {second(b.Share(-1, 1)), kvcache.ErrIndex},
		"Share -1 tokens": {second(b.Share(0, -1)), kvcache.ErrIndex},
	} {
		if !errors.Is(test.err, test.want) {
			t.Errorf("%s: %v", name, test.err)
		}
	}
	if b.Len() != 3 || b.Width() != 1 {
		t.Errorf("%d sequences of width %d", b.Len(), b.Width())
	}
}

func second[T any](_ T, err error) error { return err }

// The mask of a batch says of every token of every sequence, by its position, whether the newest attend to it.
func TestBatchMask(t *testing.T) {
	const n = 2
	for window := range 6 {
		for sinks := range 3 {
			if window == 0 && sinks > 0 || window > 0 && window < n {
				continue
			}
			l := kvcache.Layout{Heads: 1, Keys: kvcache.Raw(codec.F32, 1), Window: window, Sinks: sinks, Step: 2}
			lengths := []int{3, 9, 6}
			var rows []*kvcache.Batch
			for _, tokens := range lengths {
				b, err := kvcache.New(l, 1)
				if err != nil {
					t.Fatal(err)
				}
				for range tokens { // one at a time, so that the newest have what they attend to
					if err := b.Append(kvcache.TensorData(codec.NewTensor(codec.F32, 1, 1, 1)), kvcache.Data{}); err != nil {
						t.Fatal(err)
					}
				}
				rows = append(rows, b)
			}
			b, err := kvcache.Merge(rows...)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.Layout(); got.Window != window || got.Sinks != sinks || got.Step != 2 {
				t.Errorf("layout %+v", got)
			}
			got, err := b.Mask(n).Bool()
			if err != nil {
				t.Fatal(err)
			}
			for i, tokens := range lengths {
				var held []int // positions of the sequence's tokens in the batch
				for p := range tokens {
					if window == 0 || p < sinks || p >= tokens-window {
						held = append(held, p)
					}
				}
				pad := b.Width() - len(held)
				for q := range n {
					at := tokens - n + q
					for c := range b.Width() {
						want := c >= pad
						if want {
							p := held[c-pad]
							want = p <= at && (window == 0 || p < sinks || at-p < window)
						}
						if got[(i*n+q)*b.Width()+c] != want {
							t.Errorf("window %d, sinks %d, sequence %d, position %d, column %d: %t", window, sinks, i, at, c, !want)
						}
					}
				}
			}
		}
	}
}
