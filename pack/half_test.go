package pack

import (
	"fmt"
	"math"
	"math/big"
	"os"
	"testing"

	"github.com/x448/float16"
)

// format is a 16-bit binary floating-point format, for the oracle.
type format struct {
	name      string
	precision int // bits of the significand, the hidden one included
	minUnit   int // exponent of the least subnormal
	inf       uint16
	to        func(float32) uint16
	from      func(uint16) float32
}

var formats = []format{
	{"f16", 11, -24, 0x7c00, ToF16, FromF16},
	{"bf16", 8, -133, 0x7f80, ToBF16, FromBF16},
}

// value is the exact value of finite bits.
func (f format) value(h uint16) *big.Rat {
	m := int64(h) & (1<<(f.precision-1) - 1)
	exp := int(h&0x7fff) >> (f.precision - 1)
	if exp > 0 {
		m |= 1 << (f.precision - 1)
		exp--
	}
	v := new(big.Rat).Mul(new(big.Rat).SetInt64(m), pow2(exp+f.minUnit))
	if h&0x8000 != 0 {
		v.Neg(v)
	}
	return v
}

func pow2(n int) *big.Rat {
	one := big.NewInt(1)
	if n >= 0 {
		return new(big.Rat).SetInt(new(big.Int).Lsh(one, uint(n)))
	}
	return new(big.Rat).SetFrac(one, new(big.Int).Lsh(one, uint(-n)))
}

// round is x in the format, rounded in integers of unlimited size: x counted
// in units of the last place, half to even. Consecutive bit patterns are
// consecutive values, so the count and the unit give the pattern, and a carry
// out of the significand needs no case of its own.
func (f format) round(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	if math.IsInf(float64(x), 0) {
		return sign | f.inf
	}
	if x == 0 {
		return sign
	}
	frac, exp := math.Frexp(math.Abs(float64(x))) // frac in [1/2, 1), a multiple of 2^-24
	unit := max(exp-f.precision, f.minUnit)
	count := new(big.Int).SetInt64(int64(math.Ldexp(frac, 24))) // in units of 2^(exp-24)
	if shift := unit - (exp - 24); shift > 0 {
		half := new(big.Int).Lsh(big.NewInt(1), uint(shift-1))
		rem := new(big.Int).And(count, new(big.Int).Sub(new(big.Int).Lsh(half, 1), big.NewInt(1)))
		count.Rsh(count, uint(shift))
		if c := rem.Cmp(half); c > 0 || c == 0 && count.Bit(0) == 1 {
			count.Add(count, big.NewInt(1))
		}
	} else {
		count.Lsh(count, uint(-shift))
	}
	h := count.Int64() + int64(unit-f.minUnit)<<(f.precision-1)
	return sign | uint16(min(h, int64(f.inf)))
}

func (f format) isNaN(h uint16) bool { return h&0x7fff > f.inf }

// All 65,536 patterns: the value is exact, and comes back as the same bits;
// NaN stays NaN of the same sign, and is quiet.
func TestHalfEveryPattern(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			quiet := uint16(1) << (f.precision - 2)
			for i := range 1 << 16 {
				h := uint16(i)
				x := f.from(h)
				if f.isNaN(h) {
					if x == x {
						t.Fatalf("%04x became %v, not NaN", h, x)
					}
					if got := f.to(x); got != h|quiet {
						t.Fatalf("NaN %04x came back as %04x", h, got)
					}
					continue
				}
				switch {
				case h&0x7fff == f.inf:
					if want := math.Inf(1 - 2*int(h>>15)); float64(x) != want {
						t.Fatalf("%04x = %v, want %v", h, x, want)
					}
				case new(big.Rat).SetFloat64(float64(x)).Cmp(f.value(h)) != 0:
					t.Fatalf("%04x = %v, want %v", h, x, f.value(h))
				}
				if got := f.to(x); got != h {
					t.Fatalf("%04x = %v came back as %04x", h, x, got)
				}
			}
		})
	}
}

// Every rounding boundary: between each two neighbours, the largest finite
// value and the one that would follow it included, the midpoint and the
// float32 values next to it and to the ends.
func TestHalfEveryBoundary(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			n := 0
			for h := range f.inf {
				lo, hi := float64(f.from(h)), float64(f.from(h+1))
				if h+1 == f.inf {
					hi = lo + (lo - float64(f.from(h-1)))
				}
				// Exact: float32 has 13 bits more than f16 and 16 more than bf16
				// at every magnitude, subnormals included.
				mid := float32(lo + (hi-lo)/2)
				up := float32(math.Inf(1))
				if hi < math.MaxFloat32 {
					up = float32(hi)
				}
				for _, x := range []float32{
					float32(lo), math.Nextafter32(float32(lo), inf),
					math.Nextafter32(mid, 0), mid, math.Nextafter32(mid, inf),
					math.Nextafter32(up, 0), up,
				} {
					for _, x := range []float32{x, -x} {
						n++
						if got, want := f.to(x), f.round(x); got != want {
							t.Fatalf("%x became %04x, want %04x", x, got, want)
						}
						if f.name == "f16" {
							if got, want := f.to(x), float16.Fromfloat32(x).Bits(); got != want {
								t.Fatalf("%x became %04x, x448/float16 has %04x", x, got, want)
							}
						}
					}
				}
			}
			t.Logf("%d values", n)
		})
	}
}

func TestF16AgainstX448(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		got, want := FromF16(h), float16.Frombits(h).Float32()
		if math.Float32bits(got) != math.Float32bits(want) && !(got != got && want != want) {
			t.Fatalf("FromF16(%04x) = %v, x448/float16 has %v", h, got, want)
		}
	}
	step := uint32(4099) // prime: every exponent, a million low-order patterns
	if os.Getenv("TURBOTRELLIS_LONG") != "" {
		step = 1
	}
	n := 0
	for b := uint32(0); ; b += step {
		n++
		x := math.Float32frombits(b)
		got, want := ToF16(x), float16.Fromfloat32(x).Bits()
		if x != x {
			if got&0x7fff <= 0x7c00 || got>>15 != uint16(b>>31) {
				t.Fatalf("ToF16(NaN %08x) = %04x", b, got)
			}
		} else if got != want {
			t.Fatalf("ToF16(%08x) = %04x, x448/float16 has %04x", b, got, want)
		}
		if b > math.MaxUint32-step {
			break
		}
	}
	t.Logf("%d values", n)
}

func TestHalfRandomAgainstExact(t *testing.T) {
	for _, f := range formats {
		for b := uint32(0); b <= math.MaxUint32-16411; b += 16411 {
			if x := math.Float32frombits(b); x == x {
				if got, want := f.to(x), f.round(x); got != want {
					t.Fatalf("%s: %08x became %04x, want %04x", f.name, b, got, want)
				}
			}
		}
	}
}

func TestHalfNaN(t *testing.T) {
	for _, f := range formats {
		for _, sign := range []uint32{0, 1 << 31} {
			for k := range 23 {
				b := sign | 0x7f800000 | 1<<k // every payload bit alone; below 22 they signal
				for _, b := range []uint32{b, b | 0x400000} {
					h := f.to(math.Float32frombits(b))
					if !f.isNaN(h) || h>>15 != uint16(b>>31) {
						t.Errorf("%s: NaN %08x became %04x", f.name, b, h)
					}
				}
			}
		}
	}
}

// Values from the literature on broken conversions, and the ends of the range.
func TestHalfNamed(t *testing.T) {
	for _, c := range []struct {
		x    float32
		want uint16
	}{
		{0, 0}, {float32(math.Copysign(0, -1)), 0x8000}, {1, 0x3c00}, {-2, 0xc000}, {65504, 0x7bff},
		{65519.99, 0x7bff}, {65519.996, 0x7bff}, {65520, 0x7c00}, {-65520, 0xfc00}, {-7.0e4, 0xfc00}, {math.MaxFloat32, 0x7c00},
		{0x1p-14, 0x0400}, {6.1e-5, 0x0400 - 1}, {3e-5, 0x01f7}, {5.96e-8, 0x0001},
		{0x1p-24, 1}, {0x1p-25, 0}, {0x1.000002p-25, 1}, {0x1.8p-24, 2}, {-0x1p-25, 0x8000}, {0x1p-149, 0},
		{1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02}, {1 + 0x1p-11 + 0x1p-23, 0x3c01},
	} {
		if got := ToF16(c.x); got != c.want {
			t.Errorf("ToF16(%v) = %04x, want %04x", c.x, got, c.want)
		}
	}
	for _, c := range []struct {
		x    float32
		want uint16
	}{
		{0, 0}, {float32(math.Copysign(0, -1)), 0x8000}, {1, 0x3f80}, {-2, 0xc000}, {0x1p-127, 0x0040},
		{0x1p-133, 0x0001}, {0x1p-134, 0}, {0x1.8p-133, 2}, {0x1p-149, 0}, {65520, 0x4780},
		{math.MaxFloat32, 0x7f80}, {math.Float32frombits(0x7f7f7fff), 0x7f7f}, {math.Float32frombits(0x7f7f8000), 0x7f80},
		{1 + 0x1p-8, 0x3f80}, {1 + 0x3p-8, 0x3f82},
	} {
		if got := ToBF16(c.x); got != c.want {
			t.Errorf("ToBF16(%v) = %04x, want %04x", c.x, got, c.want)
		}
	}
	if got := FromBF16(1); got != 0x1p-133 {
		t.Errorf("FromBF16(0001) = %v", got)
	}
}

func BenchmarkHalf(b *testing.B) {
	x := make([]float32, benchLen)
	h := make([]uint16, benchLen)
	for i := range x {
		x[i] = float32(i-benchLen/2) * 0.013
		h[i] = ToF16(x[i])
	}
	for _, f := range formats {
		b.Run(fmt.Sprintf("to=%s", f.name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i, v := range x {
					h[i] = f.to(v)
				}
			}
			reportRate(b)
		})
		b.Run(fmt.Sprintf("from=%s", f.name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i, v := range h {
					x[i] = f.from(v)
				}
			}
			reportRate(b)
		})
	}
}
