package trellis

import (
	"math"

	"github.com/turbotrellis/turbotrellis/internal/enum"
	"github.com/turbotrellis/turbotrellis/internal/fault"
	"github.com/turbotrellis/turbotrellis/pack"
)

// maxL is the longest state.
const maxL = 16

// Code is a function from states to values of mean near 0 and variance near 1
// (docs/numerics.md §6). Its numbers are for memory only; files carry names.
type Code uint8

const (
	// OneMAD, "1mad", is QTIP's decode_1mad: the sum of the four bytes of one
	// multiply-add, centred and divided by its standard deviation.
	OneMAD Code = iota
	// ThreeInst, "3inst", is QTIP's decode_3inst with the two halves added
	// exactly, in float32.
	ThreeInst
	// Rand, "rand", is a fixed draw of independent N(0, 1) values, the paper's
	// pure-lookup code. It is there to measure the others against.
	Rand
)

var codeNames = []string{OneMAD: "1mad", ThreeInst: "3inst", Rand: "rand"}

// binary16ThreeInst is kept for QTIP's own decoder of 3inst, which adds the
// halves in binary16: 27,707 of its 65,536 values differ. It is not
// implemented, and must never be read as 3inst.
const binary16ThreeInst = "3inst-f16"

// String returns the code's name.
func (c Code) String() string { return enum.String("Code", codeNames, int(c)) }

// MarshalText returns the code's name, or an error for an unknown code.
func (c Code) MarshalText() ([]byte, error) { return enum.Marshal("Code", "code", codeNames, int(c)) }

// UnmarshalText reads the name of a code. Any other is an ErrParams that lists
// the known ones.
func (c *Code) UnmarshalText(text []byte) error {
	if string(text) == binary16ThreeInst {
		return fault.New(ErrParams, "code %q is reserved for halves added in binary16, which is not 3inst", text)
	}
	i, err := enum.Unmarshal("code", codeNames, text)
	if err == nil {
		*c = Code(i)
	}
	return err
}

func (c Code) validate() error {
	if int(c) >= len(codeNames) {
		return fault.New(ErrParams, "%v is not a code", c)
	}
	return nil
}

// value returns f(s) for s in [0, 2^16); c is valid.
func (c Code) value(s uint32) float32 {
	switch c {
	case OneMAD:
		return oneMAD(s)
	case ThreeInst:
		return threeInst(s)
	}
	return randValue(s)
}

// AppendValues appends the code's 2^L values f(0), f(1), … to dst and returns
// the extended slice. L is in 1 to 16; the values for a smaller L are the first
// of those for a larger one. An unknown code or a bad L is an error, and dst is
// then returned unchanged.
func AppendValues(dst []float32, c Code, L int) ([]float32, error) {
	if err := c.validate(); err != nil {
		return dst, err
	}
	if L < 1 || L > maxL {
		return dst, fault.New(ErrParams, "L = %d, want 1 to %d", L, maxL)
	}
	for s := range uint32(1) << L {
		dst = append(dst, c.value(s))
	}
	return dst, nil
}

// InvRMS returns f32(1/lutRMS) of the values of all states (docs/numerics.md §6):
// the mean of the squares is taken in float64, in the order of the states.
func InvRMS(values []float32) float32 {
	var sum float64
	for _, v := range values {
		sum += float64(float64(v) * float64(v))
	}
	return float32(1 / math.Sqrt(sum/float64(len(values))))
}

// oneMAD divides an integer in [−510, 510] by the standard deviation of the sum
// of four uniform bytes, which is exact in float32.
func oneMAD(s uint32) float32 {
	x := s*34038481 + 76625530
	y := int32(x&255+x>>8&255+x>>16&255+x>>24) - 510
	return float32(y) / oneMADStd
}

const oneMADStd float32 = 147.800537109375

// threeInst masks two sign-and-mantissa lanes out of one multiply-add and reads
// them as binary16 with exponents −3 to 0, so that their sum is exact.
func threeInst(s uint32) float32 {
	x := (s*89226354+64248484)&0x8fff8fff ^ 0x3b603b60
	return pack.FromF16(uint16(x>>16)) + pack.FromF16(uint16(x))
}

// randValue is one half of a Box–Muller pair: states 2i and 2i+1 share a radius
// and an angle, from numbers 2i+1 and 2i+2 of a counter-based generator.
//
// The logarithm, sine and cosine are evaluated here because math's differ
// between architectures. These are good to about a unit in the last place of
// float64; the test compares all 2^16 rounded values.
func randValue(s uint32) float32 {
	pair := s &^ 1
	r := math.Sqrt(-2 * ln(uniform(pair+1)))
	sin, cos := sinCosTurns(uniform(pair + 2))
	if s&1 == 0 {
		return float32(r * cos)
	}
	return float32(r * sin)
}

// uniform returns number n of the generator, in (0, 1): 32 random bits and a
// half.
func uniform(n uint32) float64 {
	z := 0xc0ffee + n*0x9e3779b9
	z = (z ^ z>>16) * 0x21f0aaad
	z = (z ^ z>>15) * 0x735a2d97
	return (float64(z^z>>15) + 0.5) / (1 << 32)
}

// ln returns the natural logarithm of x > 0 by the series of the inverse
// hyperbolic tangent: x = m·2^e, ln m = 2·atanh((m−1)/(m+1)), |m−1|/(m+1) < 0.172.
func ln(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	s := (m - 1) / (m + 1)
	s2 := float64(s * s)
	var p float64
	for n := 23; n >= 1; n -= 2 {
		p = float64(s2*p) + 1/float64(n)
	}
	return float64(float64(e)*math.Ln2) + float64(2*float64(s*p))
}

// sinCosTurns returns the sine and cosine of 2π·u for u in [0, 1): the nearest
// quarter turn is taken off exactly, and Taylor's series do the rest.
func sinCosTurns(u float64) (sin, cos float64) {
	q := math.Floor(float64(4*u) + 0.5)
	t := 2 * math.Pi * (u - float64(q/4))
	t2 := float64(t * t)
	sin, cos = 1, 1
	for n := 18; n >= 2; n -= 2 {
		cos = 1 - float64(t2*cos)/float64(n*(n-1))
		sin = 1 - float64(t2*sin)/float64(n*(n+1))
	}
	sin *= t
	switch int(q) & 3 {
	case 1:
		return cos, -sin
	case 2:
		return -sin, -cos
	case 3:
		return -cos, sin
	}
	return sin, cos
}
