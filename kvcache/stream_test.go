package kvcache_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

// tokensOf returns tokens first to last − 1 of x, copied.
func tokensOf(x codec.Tensor, first, last int) codec.Tensor {
	y := codec.NewTensor(x.DType, x.Shape[0], last-first, x.Shape[2])
	width := x.Shape[2] * x.DType.Size()
	for h := range x.Shape[0] {
		copy(y.Data[h*(last-first)*width:][:(last-first)*width], x.Data[(h*x.Shape[1]+first)*width:])
	}
	return y
}

// A stream's first and newest tokens are the source's bits, and the rest what the codec gives for all of them at
// once, however the tokens come in.
func TestStream(t *testing.T) {
	const heads, total = 2, 90
	k, v := codec.NewTensor(codec.BF16, heads, total, 64), codec.NewTensor(codec.BF16, heads, total, 32)
	for i := range k.Len() {
		codec.BF16.Store(k.Data[2*i:], float32(math.Sin(float64(i)))+float32(i%64))
	}
	for i := range v.Len() {
		codec.BF16.Store(v.Data[2*i:], float32(math.Cos(float64(i))))
	}
	runs := 0
	for _, p := range []codec.KVParams{
		{HeadDim: 64, ValueHeadDim: 32, Keys: codec.Q8_0, Values: codec.Q3_0},
		{HeadDim: 64, ValueHeadDim: 32, Keys: codec.R4, Values: codec.T2, CentreKeys: true},
		{HeadDim: 64, ValueHeadDim: 32, Keys: codec.T3, Values: codec.R5, CentreKeys: true, CentreValues: true},
	} {
		kv, err := ref.New().KV(p)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range 12 {
			r := rand.New(rand.NewPCG(uint64(seed), 5))
			o := kvcache.StreamOptions{First: r.IntN(5), Recent: r.IntN(20), Chunk: 1 + r.IntN(9), CentreTokens: 1 + r.IntN(30)}
			name := fmt.Sprintf("%v, %v, %+v", p.Keys, p.Values, o)
			s, err := kvcache.NewStream(kv, codec.BF16, heads, o)
			if err != nil {
				t.Fatal(err)
			}
			centred := 0 // tokens that the centre is computed from
			for n := 0; n < total; {
				m := min(total-n, r.IntN(12))
				if err := s.Append(tokensOf(k, n, n+m), tokensOf(v, n, n+m)); err != nil {
					t.Fatal(name, err)
				}
				n += m
				if centred == 0 {
					centred = s.Packed()
				}
				if s.Len() != n {
					t.Fatalf("%s: %d tokens of %d", name, s.Len(), n)
				}
				if raw := n - s.Packed() - min(o.First, n); raw < min(o.Recent, n-min(o.First, n)) || s.Packed() > 0 && raw >= o.Recent+o.Chunk {
					t.Fatalf("%s: %d of %d tokens are packed", name, s.Packed(), n)
				}
			}
			if s.Packed() == 0 {
				t.Fatal(name, "nothing is packed")
			}
			wantK, wantV := tokensOf(k, 0, total), tokensOf(v, 0, total)
			midK, midV := tokensOf(k, o.First, o.First+s.Packed()), tokensOf(v, o.First, o.First+s.Packed())
			var pk codec.Keys
			var pv codec.Values
			ck, cv := s.Centres()
			if p.CentreKeys {
				want, err := codec.NewCentre(tokensOf(k, o.First, o.First+centred))
				if err != nil || !bytes.Equal(want.Mean.Data, ck.Mean.Data) || !bytes.Equal(want.Gain.Data, ck.Gain.Data) {
					t.Fatal(name, "another centre", err)
				}
				pk.Centre = *ck
			}
			if p.CentreValues {
				pv.Centre = *cv
			}
			if err := errors.Join(kv.EncodeKeys(&pk, midK), kv.EncodeValues(&pv, midV), kv.Decode(midK, midV, pk, pv)); err != nil {
				t.Fatal(name, err)
			}
			for _, x := range [][2]codec.Tensor{{wantK, midK}, {wantV, midV}} {
				width := x[0].Shape[2] * 2
				for h := range heads {
					copy(x[0].Data[(h*total+o.First)*width:], x[1].Data[h*s.Packed()*width:][:s.Packed()*width])
				}
			}
			gotK, gotV := codec.NewTensor(codec.BF16, heads, total, 64), codec.NewTensor(codec.BF16, heads, total, 32)
			if err := s.Decode(gotK, gotV); err != nil || !bytes.Equal(gotK.Data, wantK.Data) || !bytes.Equal(gotV.Data, wantV.Data) {
				t.Fatal(name, "other rows", err)
			}
			runs++
		}
	}
	if runs == 0 {
		t.Error("nothing ran")
	}
}

// Rows may lie apart, as may their elements.
func TestStreamStrides(t *testing.T) {
	const heads, total, dim = 2, 40, 64
	kv, err := ref.New().KV(codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: codec.Q3_0})
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F16, heads, total, dim)
	for i := range x.Len() {
		codec.F16.Store(x.Data[2*i:], float32(math.Sin(float64(i*i))))
	}
	apart := func() codec.Tensor {
		y := codec.NewTensor(codec.F16, heads*total*dim*3)
		y.Shape, y.Stride = []int{heads, total, dim}, []int{dim * 3, heads * dim * 3, 3}
		return y
	}
	spread := func(y, x codec.Tensor) {
		row := make([]float32, dim)
		for r := range x.Rows() {
			x.LoadRow(row, r)
			y.StoreRow(r, row)
		}
	}
	o := kvcache.StreamOptions{First: 3, Recent: 5, Chunk: 4}
	plain, err := kvcache.NewStream(kv, codec.F16, heads, o)
	if err != nil {
		t.Fatal(err)
	}
	strided, err := kvcache.NewStream(kv, codec.F16, heads, o)
	if err != nil {
		t.Fatal(err)
	}
	k, v := apart(), apart()
	spread(k, x)
	spread(v, x)
	if err := errors.Join(plain.Append(x, x), strided.Append(k, v)); err != nil {
		t.Fatal(err)
	}
	wantK, wantV := codec.NewTensor(codec.F16, heads, total, dim), codec.NewTensor(codec.F16, heads, total, dim)
	gotK, gotV := codec.NewTensor(codec.F16, heads, total, dim), codec.NewTensor(codec.F16, heads, total, dim)
	clear(k.Data)
	clear(v.Data)
	if err := errors.Join(plain.Decode(wantK, wantV), strided.Decode(k, v)); err != nil {
		t.Fatal(err)
	}
	spread(gotK, k)
	spread(gotV, v)
	if strided.Packed() != 32 || !bytes.Equal(gotK.Data, wantK.Data) || !bytes.Equal(gotV.Data, wantV.Data) {
		t.Errorf("%d packed; other rows", strided.Packed())
	}
	for i, b := range k.Data {
		if i/2%3 != 0 && (b != 0 || v.Data[i] != 0) {
			t.Fatalf("byte %d between elements was written to", i)
		}
	}
}

// Tokens wait, raw, until there are as many as the centre is computed from, unless it is known.
func TestStreamCentre(t *testing.T) {
	kv, err := ref.New().KV(codec.KVParams{HeadDim: 64, Keys: codec.R4, Values: codec.R4, CentreKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F16, 1, 300, 64)
	for i := range x.Len() {
		codec.F16.Store(x.Data[2*i:], float32(math.Sin(float64(i*i))))
	}
	known, err := codec.NewCentre(x)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o      kvcache.StreamOptions
		packed map[int]int // by length
	}{
		{kvcache.StreamOptions{Chunk: 4, CentreTokens: 16}, map[int]int{15: 0, 16: 16, 19: 16, 20: 20}},
		{kvcache.StreamOptions{Chunk: 4, CentreTokens: 17}, map[int]int{16: 0, 19: 0, 20: 20}},
		{kvcache.StreamOptions{Chunk: 4, CentreTokens: 16, Keys: &known}, map[int]int{3: 0, 4: 4, 8: 8}},
		{kvcache.StreamOptions{}, map[int]int{127: 0, 128: 128, 159: 128, 160: 160}},
	} {
		s, err := kvcache.NewStream(kv, codec.F16, 1, c.o)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= 160; n++ {
			if err := s.Append(tokensOf(x, n-1, n), tokensOf(x, n-1, n)); err != nil {
				t.Fatal(err)
			}
			if want, ok := c.packed[n]; ok && s.Packed() != want {
				t.Errorf("%+v: %d of %d tokens are packed, want %d", c.o, s.Packed(), n, want)
			}
		}
	}
}

func TestStreamMisuse(t *testing.T) {
	kv, err := ref.New().KV(codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q3_0})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []kvcache.StreamOptions{{First: -1}, {Recent: -1}, {Chunk: -1}, {CentreTokens: -1}} {
		if _, err := kvcache.NewStream(kv, codec.F16, 1, o); !errors.Is(err, kvcache.ErrLayout) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, heads := range []int{0, -1} {
		if _, err := kvcache.NewStream(kv, codec.F16, heads, kvcache.StreamOptions{}); !errors.Is(err, kvcache.ErrLayout) {
			t.Errorf("%d heads: %v", heads, err)
		}
	}
	if _, err := kvcache.NewStream(nil, codec.F16, 1, kvcache.StreamOptions{}); !errors.Is(err, kvcache.ErrLayout) {
		t.Error(err)
	}
	s, err := kvcache.NewStream(kv, codec.F16, 2, kvcache.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	good := codec.NewTensor(codec.F16, 2, 3, 64)
	for name, kv := range map[string][2]codec.Tensor{
		"f32 keys":     {codec.NewTensor(codec.F32, 2, 3, 64), good},
		"one head":     {codec.NewTensor(codec.F16, 1, 3, 64), good},
		"narrow keys":  {codec.NewTensor(codec.F16, 2, 3, 32), good},
		"more heads":   {codec.NewTensor(codec.F16, 3, 3, 64), good},
		"wide values":  {good, codec.NewTensor(codec.F16, 2, 3, 128)},
		"four axes":    {codec.NewTensor(codec.F16, 2, 3, 64, 1), good},
		"fewer values": {good, codec.NewTensor(codec.F16, 2, 2, 64)},
		"two axes":     {codec.NewTensor(codec.F16, 6, 64), good},
		"short":        {{DType: codec.F16, Shape: []int{2, 3, 64}}, good},
	} {
		if err := s.Append(kv[0], kv[1]); !errors.As(err, new(*codec.Error)) || s.Len() != 0 {
			t.Errorf("%s: %d tokens, %v", name, s.Len(), err)
		}
	}
	if err := s.Append(good, good); err != nil {
		t.Fatal(err)
	}
	if err := s.Decode(good, codec.NewTensor(codec.F16, 2, 2, 64)); !errors.Is(err, codec.ErrShape) {
		t.Error(err)
	}
	if err := s.Decode(codec.NewTensor(codec.F32, 2, 3, 64), good); !errors.Is(err, codec.ErrDType) {
		t.Error(err)
	}
}
