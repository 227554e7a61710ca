package shaders

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
)

const (
	canaryWords = 8  // what the canary writes for each triple
	canaryTail  = 34 // and behind the last: 32 tree sums, the SIMD width, the subnormal
	canaryCount = 64
	subnormal   = 0x00400000
)

// canaryProbes names the words of a triple (x, y, z), with the answers.
var canaryProbes = [canaryWords]struct {
	name string
	want func(x, y, z float32) uint32
}{
	{"rounding of (x + z) + z", func(x, _, z float32) uint32 { return math.Float32bits(float32(x+z) + z) }},
	{"contraction of x·y + z", func(x, y, z float32) uint32 { return math.Float32bits(float32(x*y) + z) }},
	{"division", func(x, y, _ float32) uint32 { return math.Float32bits(x / y) }},
	{"square root", func(x, _, _ float32) uint32 { return math.Float32bits(f32.Sqrt(max(x, -x))) }},
	{"rint", func(x, _, _ float32) uint32 { return math.Float32bits(f32.Rint(x)) }},
	{"conversion to f16", func(x, _, _ float32) uint32 { return uint32(pack.ToF16(x)) }},
	{"conversion from f16", func(x, _, _ float32) uint32 {
		return math.Float32bits(pack.FromF16(uint16(math.Float32bits(x))))
	}},
	{"fma", func(x, y, z float32) uint32 { return math.Float32bits(f32.FMA(x, y, z)) }},
}

// canaryTriples are the operands: chosen ones, then a fixed pseudo-random rest. No operand and
// no answer is a subnormal f32, and a product that is one disappears in its sum, so that a device
// that flushes them has the same answers.
func canaryTriples() [canaryCount][3]float32 {
	t := [canaryCount][3]float32{
		{1, 1, 0x1.8p-24},                          // rounds up, then to even
		{math.Float32frombits(0x3eb97ef9), 1.5, 1}, // fused: 0x3fc58f9d, not 0x3fc58f9e
		{1, 1, 0x1p-24},                            // two ties to even: 1
		{1, 3, 1},
		{2.5, 3, 1}, {-0.5, 7, 1}, {0.5, 7, 1}, {1.5, 7, 1}, {-2.5, 3, 1}, {8388607.5, 3, 1}, // rint
		{1 + 0x1p-11, 3, 1}, {1 + 0x3p-11, 3, 1}, // f16 ties
		{65519.996, 3, 1}, {65520, 3, 1}, {-65520, 3, 1}, // f16 range
		{0x1p-24, 3, 1}, {0x1p-25, 3, 1}, {0x1.8p-25, 3, 1}, {0x1.8p-24, 3, 1}, {-0x1.4p-23, 3, 1}, {0x1p-14 - 0x1p-25, 3, 1}, // f16 subnormals
		{math.Float32frombits(0x3f800001), 3, 1}, {math.Float32frombits(0x3f8003ff), 3, 1}, {math.Float32frombits(0x3f808001), 3, 1}, // from f16 subnormals
		{math.Float32frombits(0x3f807bff), 3, 1}, {math.Float32frombits(0x3f80fc00), 3, 1},
		// Behind the 32 that the tree adds: quotients and roots at the ends of the range, where a
		// reciprocal would be subnormal, and roots beside exact ones.
		32: {0x1.fffffep127, 0x1.8p126, 1}, {2, 0x1.fffffep126, 1}, {0x1.234568p1, 0x1.1p127, 1}, {-0x1.8p127, 0x1.000002p126, 1},
		{0x1.23p-126, 0.75, 1}, {0x1.000002p-126, 0x1.000002p-1, 1}, {0x1.8p-100, 0x1.8p-120, 1}, {0x1p127, 0x1p-1, 1},
		{0x1p-126, 0.5, 1}, {0x1p126, 2, 1}, {0x1.fffffcp-126, 0.5, 1},
		{9, 3, 1}, {math.Float32frombits(0x41100001), 3, 1}, {math.Float32frombits(0x410fffff), 3, 1},
	}
	x := uint64(42)
	next := func() float32 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		exponent := 127 - 20 + uint32(z>>32)%41
		return math.Float32frombits(uint32(z)&0x807fffff | exponent<<23)
	}
	for i := range t {
		if t[i][0] == 0 {
			t[i] = [3]float32{next(), next(), next()}
		}
	}
	return t
}

// CanaryInput returns the canary's input buffer and arguments. The kernel runs as one
// threadgroup of 32.
func CanaryInput() ([]byte, CanaryArgs) {
	var b []byte
	for _, t := range canaryTriples() {
		for _, v := range t {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b, CanaryArgs{Count: canaryCount, Subnormal: subnormal}
}

// isNaN looks at the bits of an f32. numerics leaves open which NaN a conversion gives.
func isNaN(bits uint32) bool { return bits&0x7fffffff > 0x7f800000 }

// CanaryLen is the size of the canary's output buffer in bytes.
const CanaryLen = 4 * (canaryWords*canaryCount + canaryTail)

// CheckCanary judges what the canary wrote: an error names the first thing that the device does
// differently from docs/numerics.md. flushes reports whether it flushes f32 subnormals,
// which is allowed.
func CheckCanary(out []byte) (flushes bool, err error) {
	if len(out) != CanaryLen {
		return false, fmt.Errorf("shaders: canary: %d bytes of output, want %d", len(out), CanaryLen)
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(out[4*i:]) }
	triples := canaryTriples()
	tail := canaryWords * canaryCount
	if width := word(tail + 32); width != 32 {
		return false, fmt.Errorf("shaders: canary: SIMD-groups of %d threads, want 32", width)
	}
	for i, t := range triples {
		for j, p := range canaryProbes {
			got, want := word(canaryWords*i+j), p.want(t[0], t[1], t[2])
			if got != want && !(isNaN(got) && isNaN(want)) {
				return false, fmt.Errorf("shaders: canary: %s: (%v, %v, %v) gives %#08x, want %#08x", p.name, t[0], t[1], t[2], got, want)
			}
		}
	}
	var sum []float32
	for _, t := range triples[:32] {
		sum = append(sum, t[0])
	}
	want := math.Float32bits(f32.TreeSum(slices.Clone(sum)))
	for lane := range 32 {
		if got := word(tail + lane); got != want {
			return false, fmt.Errorf("shaders: canary: xor tree: lane %d has %#08x, want %#08x", lane, got, want)
		}
	}
	switch got := word(tail + 33); got {
	case 0:
		return true, nil
	case 2 * subnormal:
		return false, nil
	default:
		return false, fmt.Errorf("shaders: canary: a subnormal times two gives %#08x, want %#08x or 0", got, uint32(2*subnormal))
	}
}
