package ref_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// The rows that allow nothing, counted from bits set by hand.
func TestMaskEmptyRows(t *testing.T) {
	logits := codec.NewTensor(codec.F32, 4, 40)
	mask := codec.Bitmask{Rows: 4, Words: 2, Stride: 3, Data: make([]byte, 4*(3*3+2))}
	mask.Data[0] = 1       // row 0: token 0
	mask.Data[12+5] = 0x01 // row 1: bit 40, beyond the vocabulary
	mask.Data[24+4] = 0x80 // row 2: token 39
	mask.Data[12+8] = 0xff // between rows
	empty, err := ref.New().Mask(logits, logits, mask)
	if err != nil || fmt.Sprint(empty) != "[1 3]" {
		t.Error(empty, err)
	}
}

// Vocabularies of 1 to 130 tokens and of 151,936, masks of random, all and no bits, each type: the result is the
// sum logits + (0 or −Inf) as IEEE 754 says, which Go computes in f32, where no type loses anything.
func TestMaskIsASum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	special := []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1.5, -3}
	check := func(tokens int, dt codec.DType) {
		words := (tokens + 31) / 32
		x := codec.NewTensor(dt, 3, tokens)
		m := codec.Bitmask{Rows: 3, Words: words, Data: make([]byte, 12*words)}
		for i := range 3 * tokens {
			dt.Store(x.Data[i*dt.Size():], special[r.IntN(len(special))])
		}
		for i := range 4 * words { // row 0 random, row 1 all, row 2 none
			m.Data[i], m.Data[4*words+i] = byte(r.Uint32()), 0xff
		}
		dst := codec.NewTensor(dt, 3, tokens)
		empty, err := ref.New().Mask(dst, x, m)
		if err != nil || !slices.Contains(empty, 2) || slices.Contains(empty, 1) {
			t.Fatalf("%d tokens, %v: rows %v are empty (%v)", tokens, dt, empty, err)
		}
		for i := range 3 * tokens {
			row, token := i/tokens, i%tokens
			v, add := dt.Load(x.Data[i*dt.Size():]), float32(math.Inf(-1))
			if m.Data[row*4*words+token/8]>>(token%8)&1 != 0 {
				add = 0
			}
			got, want := dt.Load(dst.Data[i*dt.Size():]), v+add
			if math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
				t.Fatalf("%d tokens, %v: row %d, token %d: %v + %v = %v, want %v", tokens, dt, row, token, v, add, got, want)
			}
		}
	}
	for _, dt := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		for tokens := 1; tokens <= 130; tokens++ {
			check(tokens, dt)
		}
		check(151936, dt)
	}
}
