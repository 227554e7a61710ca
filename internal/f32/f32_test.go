package f32

import (
	"math"
	"math/big"
	"testing"
)

// fmaOracle rounds the exact a·b + c once. The operands are finite and the
// exact sum is not zero, or the caller does not care for its sign.
func fmaOracle(a, b, c float32) float32 {
	wide := func(x float32) *big.Float { return new(big.Float).SetPrec(1024).SetFloat64(float64(x)) }
	s := wide(a)
	s.Mul(s, wide(b))
	s.Add(s, wide(c))
	r, _ := s.Float32()
	return r
}

// rng is xorshift64*, so that a failure names a repeatable case.
type rng uint64

func (r *rng) next() uint64 {
	*r ^= *r >> 12
	*r ^= *r << 25
	*r ^= *r >> 27
	return uint64(*r) * 2685821657736338717
}

func (r *rng) finite() float32 {
	for {
		if x := math.Float32frombits(uint32(r.next() >> 32)); IsFinite(x) {
			return x
		}
	}
}

func checkFMA(t *testing.T, a, b, c float32) {
	t.Helper()
	got, want := FMA(a, b, c), fmaOracle(a, b, c)
	if got == 0 && want == 0 {
		return // signs of zero: TestFMASpecial
	}
	if math.Float32bits(got) != math.Float32bits(want) {
		t.Fatalf("FMA(%x, %x, %x) = %x, want %x", a, b, c, got, want)
	}
}

func TestFMARandom(t *testing.T) {
	r := rng(1)
	for range 100_000 {
		checkFMA(t, r.finite(), r.finite(), r.finite())
	}
	// Any exponent apart gives c no say; keep c within the product's reach.
	for range 200_000 {
		a, b := r.finite(), r.finite()
		p := float64(a) * float64(b)
		c := float32(math.Ldexp(p*(1+float64(r.next()>>11)/(1<<53)), int(r.next()%120)-60))
		if !IsFinite(c) {
			continue
		}
		if r.next()&1 == 0 {
			c = -c
		}
		checkFMA(t, a, b, c)
	}
}
