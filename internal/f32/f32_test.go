package f32

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

// rng is xorshift64*, so that every run tries the same cases.
type rng uint64

func (r *rng) next() uint64 {
	*r ^= *r >> 12
	*r ^= *r << 25
	*r ^= *r >> 27
	return uint64(*r) * 2685821657736338717
}

// finite returns a number of uniform bit pattern.
func (r *rng) finite() float32 {
	for {
		if x := math.Float32frombits(uint32(r.next() >> 32)); IsFinite(x) {
			return x
		}
	}
}

// significand returns a number in [1, 2) with a random significand.
func (r *rng) significand() float32 {
	return math.Float32frombits(0x3f800000 | uint32(r.next()>>41))
}

// fmaOracle rounds the exact a·b + c once, for finite operands.
func fmaOracle(a, b, c float32) float32 {
	wide := func(x float32) *big.Float { return new(big.Float).SetPrec(1024).SetFloat64(float64(x)) }
	s := wide(a)
	s.Mul(s, wide(b))
	s.Add(s, wide(c))
	if s.Sign() == 0 {
		// An exact zero is -0 only where both addends are.
		if math.Signbit(float64(a)) != math.Signbit(float64(b)) && math.Signbit(float64(c)) {
			return float32(math.Copysign(0, -1))
		}
		return 0
	}
	r, _ := s.Float32()
	return r
}

func checkFMA(t *testing.T, a, b, c float32) {
	t.Helper()
	got, want := FMA(a, b, c), fmaOracle(a, b, c)
	if math.Float32bits(got) != math.Float32bits(want) {
		t.Fatalf("FMA(%x, %x, %x) = %x, want %x", a, b, c, got, want)
	}
}

func TestFMARandom(t *testing.T) {
	r := rng(1)
	for range 50_000 {
		checkFMA(t, r.finite(), r.finite(), r.finite())
	}
	// Any two exponents are mostly too far apart; keep c within the product's reach.
	for range 100_000 {
		a, b := r.finite(), r.finite()
		c := float32(math.Ldexp(float64(a)*float64(b)*float64(r.significand()), int(r.next()%120)-60))
		if !IsFinite(c) {
			continue
		}
		checkFMA(t, a, b, c)
		checkFMA(t, a, b, -c)
	}
}

// Sums a hair from the midpoint of two float32 values, where rounding to
// float64 first lands on the midpoint: the addend, the product, a subnormal
// result and the largest finite value each in turn decide the scale.
func TestFMADoubleRounding(t *testing.T) {
	r := rng(2)
	twice := 0
	try := func(a, b, c float32) {
		t.Helper()
		checkFMA(t, a, b, c)
		checkFMA(t, -a, b, -c)
		if float32(math.FMA(float64(a), float64(b), float64(c))) != FMA(a, b, c) {
			twice++
		}
	}
	for range 5_000 {
		// c's half ulp, times (1+u)(1-v) a little either side of one.
		c := r.significand()
		if r.next()&1 == 0 {
			c = -c
		}
		u := float32(1 + float64(r.next()%8)*0x1p-23)
		v := float32(1 - float64(r.next()%8)*0x1p-24)
		try(u*0x1p-12, v*0x1p-12, c)
		try(u*0x1p-12, -v*0x1p-12, c)
		// Subnormal: units of 2^-149, a half unit from the product.
		try(u*0x1p-75, v*0x1p-75, float32(r.next()%(1<<23))*0x1p-149)
		// Overflow's midpoint, 2^128 - 2^103.
		try(u*0x1p51, v*0x1p52, math.MaxFloat32)
	}
	for n := 0; n < 5_000; {
		// A product with exactly half an ulp below bit 24, and a far smaller c.
		a := float32(r.next()%(1<<13) | 1)
		b := float32(r.next()%(1<<13) | 1)
		if p := uint64(a) * uint64(b); p < 1<<24 || p >= 1<<25 {
			continue // not 25 bits; an odd product's last bit is the half
		}
		n++
		try(a, b, 0)
		try(a, b, 0x1p-40)
		try(a, b, -0x1p-40)
		try(a, b, math.SmallestNonzeroFloat32)
		try(a, b, -math.SmallestNonzeroFloat32)
	}
	if twice == 0 {
		t.Error("no case rounds differently twice: the test tests nothing")
	}
	t.Logf("%d cases round wrongly through float64", twice)
}

func TestFMASpecial(t *testing.T) {
	inf := float32(math.Inf(1))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 1.5, math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, inf, -inf, float32(math.NaN())}
	for _, a := range values {
		for _, b := range values {
			for _, c := range values {
				if IsFinite(a) && IsFinite(b) && IsFinite(c) {
					checkFMA(t, a, b, c)
					continue
				}
				// Infinities and NaN do not round: the float64 operation serves.
				want := math.FMA(float64(a), float64(b), float64(c))
				if got := float64(FMA(a, b, c)); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
					t.Errorf("FMA(%v, %v, %v) = %v, want %v", a, b, c, got, want)
				}
			}
		}
	}
}

func FuzzFMA(f *testing.F) {
	f.Add(uint32(0x3f800001), uint32(0x33800000), uint32(0x3f800000))
	f.Fuzz(func(t *testing.T, a, b, c uint32) {
		x, y, z := math.Float32frombits(a), math.Float32frombits(b), math.Float32frombits(c)
		if IsFinite(x) && IsFinite(y) && IsFinite(z) {
			checkFMA(t, x, y, z)
		}
	})
}

func TestCanon(t *testing.T) {
	check := func(b uint32) {
		x := math.Float32frombits(b)
		want := b
		if math.Abs(float64(x)) < 0x1p-64 {
			want = 0
		}
		if got := math.Float32bits(Canon(x)); got != want {
			t.Errorf("Canon(%08x) = %08x, want %08x", b, got, want)
		}
	}
	for _, sign := range []uint32{0, 1 << 31} {
		for exp := range uint32(256) {
			for _, m := range []uint32{0, 1, 0x3fffff, 0x400000, 0x7fffff} {
				check(sign | exp<<23 | m)
			}
		}
	}
	for _, x := range []float64{0x1p-63, 0x1p-64, 0x1p-65, 0x1p-126, 0x1p-149} {
		check(math.Float32bits(float32(x)))
		check(math.Float32bits(float32(-x)))
	}
}

func TestIsFinite(t *testing.T) {
	for _, c := range []struct {
		b    uint32
		want bool
	}{
		{0, true}, {0x80000000, true}, {1, true}, {0x7f7fffff, true}, {0xff7fffff, true},
		{0x7f800000, false}, {0xff800000, false}, {0x7f800001, false}, {0x7fc00000, false}, {0xffffffff, false},
	} {
		if got := IsFinite(math.Float32frombits(c.b)); got != c.want {
			t.Errorf("IsFinite(%08x) = %v, want %v", c.b, got, c.want)
		}
	}
}

// rintOracle rounds in exact rational arithmetic.
func rintOracle(x float32) float32 {
	r := new(big.Rat).SetFloat64(math.Abs(float64(x)))
	num, den := r.Num(), r.Denom()
	q, rem := new(big.Int).QuoRem(num, den, new(big.Int))
	switch rem.Lsh(rem, 1).Cmp(den) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		q.Add(q, new(big.Int).And(q, big.NewInt(1)))
	}
	f, _ := new(big.Float).SetInt(q).Float32()
	return float32(math.Copysign(float64(f), float64(x)))
}

func TestRint(t *testing.T) {
	check := func(x float32) {
		if got, want := Rint(x), rintOracle(x); math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("Rint(%v) = %v, want %v", x, got, want)
		}
	}
	inf := float32(math.Inf(1))
	for k := range 600 {
		half := float32(k) + 0.5
		for _, x := range []float32{float32(k), math.Nextafter32(half, 0), half, math.Nextafter32(half, inf)} {
			check(x)
			check(-x)
		}
	}
	r := rng(3)
	for range 10_000 {
		check(r.finite())
		check(r.significand() * float32(uint32(1)<<(r.next()%25)))
	}
	for _, x := range []float32{inf, -inf} {
		if got := Rint(x); got != x {
			t.Errorf("Rint(%v) = %v", x, got)
		}
	}
	if x := Rint(float32(math.NaN())); x == x {
		t.Errorf("Rint(NaN) = %v", x)
	}
}

func TestSqrt(t *testing.T) {
	check := func(x float32) {
		want, _ := new(big.Float).SetPrec(200).Sqrt(new(big.Float).SetPrec(200).SetFloat64(float64(x))).Float32()
		if got := Sqrt(x); math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("Sqrt(%x) = %x, want %x", x, got, want)
		}
	}
	r := rng(4)
	inf := float32(math.Inf(1))
	for range 20_000 {
		x := math.Float32frombits(math.Float32bits(r.finite()) &^ (1 << 31))
		check(x)
		// The squares of midpoints between float32 values are the hard cases.
		m := float64(r.significand()) + 0x1p-24
		near := float32(m * m)
		check(near)
		check(math.Nextafter32(near, 0))
		check(math.Nextafter32(near, inf))
	}
	check(0)
	check(math.SmallestNonzeroFloat32)
	check(math.MaxFloat32)
	if got := Sqrt(-1); got == got {
		t.Errorf("Sqrt(-1) = %v", got)
	}
	if got := Sqrt(inf); got != inf {
		t.Errorf("Sqrt(+Inf) = %v", got)
	}
	if got := Sqrt(float32(math.Copysign(0, -1))); math.Float32bits(got) != 1<<31 {
		t.Errorf("Sqrt(-0) = %v", got)
	}
}

// The tree from its root: the even places, then the odd ones.
func treeOracle(q []float32, start, stride int) float32 {
	if stride == len(q) {
		return q[start]
	}
	return treeOracle(q, start, 2*stride) + treeOracle(q, start+stride, 2*stride)
}

func TestTreeSum(t *testing.T) {
	r := rng(5)
	for n := 1; n <= 128; n *= 2 {
		moved := false
		for range 100 {
			q := make([]float32, n)
			var running float32
			for i := range q {
				q[i] = r.significand() * float32(uint32(1)<<(r.next()%20))
				running += q[i]
			}
			want := treeOracle(q, 0, 1)
			if got := TreeSum(q); math.Float32bits(got) != math.Float32bits(want) {
				t.Fatalf("n=%d: TreeSum = %x, want %x", n, got, want)
			}
			moved = moved || want != running
		}
		if n > 2 && !moved {
			t.Errorf("n=%d: no sum depends on the order", n)
		}
	}
	q := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	if got := TreeSum(q); got != 36 {
		t.Errorf("TreeSum(1..8) = %v", got)
	}
}

func TestTreeSumPanics(t *testing.T) {
	for _, n := range []int{0, 3, 5, 6, 7, 12, 33} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic for %d elements", n)
				}
			}()
			TreeSum(make([]float32, n))
		})
	}
}

func TestAllocs(t *testing.T) {
	q := make([]float32, 64)
	x := float32(1.25)
	if n := testing.AllocsPerRun(100, func() {
		q[0] = FMA(Canon(x), Rint(x), Sqrt(x))
		q[0] = TreeSum(q)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func benchmark(b *testing.B, f func(x []float32)) {
	r := rng(6)
	x := make([]float32, 4096)
	for i := range x {
		x[i] = r.significand()
	}
	b.ReportAllocs()
	for b.Loop() {
		f(x)
	}
	b.ReportMetric(float64(b.N)*float64(len(x))/b.Elapsed().Seconds()/1e6, "Melem/s")
}

func BenchmarkFMA(b *testing.B) {
	var acc [4]float32
	benchmark(b, func(x []float32) {
		for i, v := range x {
			acc[i%4] = FMA(v, 0.5, acc[i%4])
		}
	})
}

func BenchmarkCanon(b *testing.B) {
	benchmark(b, func(x []float32) {
		for i, v := range x {
			x[i] = Canon(v)
		}
	})
}

func BenchmarkTreeSum32(b *testing.B) {
	var q [32]float32
	benchmark(b, func(x []float32) {
		for len(x) > 0 {
			copy(q[:], x)
			TreeSum(q[:])
			x = x[32:]
		}
	})
}

// Flush keeps the smallest normal number and everything above it, and flushes everything below it to +0.
func TestFlush(t *testing.T) {
	for _, c := range []struct{ x, want uint32 }{
		{0x00800000, 0x00800000}, {0x80800000, 0x80800000}, // ±2^-126
		{0x00800001, 0x00800001}, {0x80800001, 0x80800001},
		{0x007fffff, 0}, {0x807fffff, 0}, {1, 0}, {0x80000001, 0}, {0x80000000, 0}, {0, 0},
		{0x3f800000, 0x3f800000}, {0xff7fffff, 0xff7fffff}, {0x7f800000, 0x7f800000}, {0xff800000, 0xff800000}, {0x7fc12345, 0x7fc12345},
	} {
		if got := math.Float32bits(Flush(math.Float32frombits(c.x))); got != c.want {
			t.Errorf("Flush(%#08x) = %#08x, want %#08x", c.x, got, c.want)
		}
	}
}
