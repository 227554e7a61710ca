package affine

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
)

// formats are all valid formats.
var formats = []KeyFormat{{8, true}, {2, false}, {3, false}, {4, false}, {5, false}, {8, false}}

func (f KeyFormat) name() string { return fmt.Sprintf("bits=%d,signed=%t", f.Bits, f.Signed) }

func TestValidate(t *testing.T) {
	maxIndex := map[KeyFormat]int{
		{8, true}: 127, {2, false}: 3, {3, false}: 7, {4, false}: 15, {5, false}: 31, {8, false}: 255,
	}
	for bits := -1; bits <= 17; bits++ {
		for _, signed := range []bool{false, true} {
			f := KeyFormat{bits, signed}
			want, ok := maxIndex[f]
			err := f.Validate()
			if (err == nil) != ok {
				t.Errorf("%s: Validate = %v, want valid %t", f.name(), err, ok)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("of %d bits", bits)) {
				t.Errorf("%s: error does not name the bits: %v", f.name(), err)
			}
			if ok && f.MaxIndex() != want {
				t.Errorf("%s: MaxIndex = %d, want %d", f.name(), f.MaxIndex(), want)
			}
		}
	}
}

// The model below computes docs/numerics.md §2 in big.Float: each operation is
// exact (or carries far more bits than can matter) and is then rounded once to
// float32 by big.Float itself.

const prec = 600

func exact(x float32) *big.Float { return new(big.Float).SetPrec(prec).SetFloat64(float64(x)) }

func round(z *big.Float) float32 { v, _ := z.Float32(); return v }

func add(a, b float32) float32 { return round(new(big.Float).SetPrec(prec).Add(exact(a), exact(b))) }
func sub(a, b float32) float32 { return round(new(big.Float).SetPrec(prec).Sub(exact(a), exact(b))) }
func mul(a, b float32) float32 { return round(new(big.Float).SetPrec(prec).Mul(exact(a), exact(b))) }
func div(a, b float32) float32 { return round(new(big.Float).SetPrec(prec).Quo(exact(a), exact(b))) }

// rint rounds to an integer, halves to even.
func rint(x float32) float32 {
	v := exact(x)
	floor, _ := v.Int(nil)
	if v.Sign() < 0 && !v.IsInt() {
		floor.Sub(floor, big.NewInt(1))
	}
	frac := new(big.Float).SetPrec(prec).Sub(v, new(big.Float).SetPrec(prec).SetInt(floor))
	switch c := frac.Cmp(big.NewFloat(0.5)); {
	case c > 0, c == 0 && floor.Bit(0) == 1:
		floor.Add(floor, big.NewInt(1))
	}
	return round(new(big.Float).SetPrec(prec).SetInt(floor))
}

// model is docs/numerics.md §2 for one group. Its results are finite.
func model(f KeyFormat, x []float32) (idx []int, scale, zero float32) {
	lo, hi := x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	maxv := map[int]float32{2: 3, 3: 7, 4: 15, 5: 31, 8: 255}[f.Bits]
	least := float32(0)
	if f.Signed {
		maxv, least = 127, -127
		scale = div(sub(hi, lo), 254)
	} else {
		scale = div(sub(hi, lo), maxv)
	}
	se := add(scale, 1e-8)
	if f.Signed {
		zero = rint(div(add(hi, lo), mul(2, se)))
	} else {
		zero = rint(div(lo, se))
	}
	for _, v := range x {
		q := rint(sub(div(v, se), zero))
		idx = append(idx, int(min(max(q, least), maxv)))
	}
	return idx, scale, zero
}

// checkModel compares Quantize and Dequantize with the model and returns the
// number of elements compared.
func checkModel(t *testing.T, f KeyFormat, x []float32) int {
	t.Helper()
	const guard = 0xa5
	buf := make([]byte, len(x)+2)
	for i := range buf {
		buf[i] = guard
	}
	src := append([]float32(nil), x...)
	scale, zero := f.Quantize(buf[1:len(x)+1], src)
	if buf[0] != guard || buf[len(x)+1] != guard {
		t.Fatalf("%s: wrote outside idx", f.name())
	}
	wantIdx, wantScale, wantZero := model(f, x)
	if bits(scale) != bits(wantScale) || zero != wantZero {
		t.Fatalf("%s: %v: scale, zero = %v, %v; want %v, %v", f.name(), x, scale, zero, wantScale, wantZero)
	}
	for i, want := range wantIdx {
		if bits(src[i]) != bits(x[i]) {
			t.Fatalf("%s: changed its input at %d", f.name(), i)
		}
		got := int(buf[i+1])
		if f.Signed {
			got = int(int8(buf[i+1]))
		}
		if got != want {
			t.Fatalf("%s: %v: index %d = %d, want %d", f.name(), x, i, got, want)
		}
		dec := f.Dequantize(buf[i+1], scale, zero)
		if want := mul(add(float32(want), zero), scale); dec != want {
			t.Fatalf("%s: Dequantize(%d, %v, %v) = %v, want %v", f.name(), got, scale, zero, dec, want)
		}
	}
	return len(x)
}

func bits(x float32) uint32 { return math.Float32bits(x) }

func TestModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 2))
	n := 0
	for _, f := range formats {
		for trial := range 60 {
			x := make([]float32, []int{1, 2, 7, 32, 64}[trial%5])
			magnitude := math.Ldexp(1, rng.IntN(60)-30)
			offset := rng.NormFloat64() * float64(trial%3)
			for i := range x {
				x[i] = f32.Canon(float32((rng.NormFloat64() + offset) * magnitude))
			}
			if trial%4 == 3 { // one outlier
				x[rng.IntN(len(x))] *= 1000
			}
			n += checkModel(t, f, x)
		}
	}
	t.Logf("compared %d elements", n)
}

// Canonical values near the threshold, mixed with large ones and alone.
func TestModelTinyValues(t *testing.T) {
	pow := func(e int) float32 { return float32(math.Ldexp(1, e)) }
	for _, f := range formats {
		for _, x := range [][]float32{
			{pow(-64), -pow(-64), pow(-63), 0},
			{pow(-64), 1, -1, 3.5},
			{pow(-64), pow(-64), pow(-64)},
			{pow(-26), pow(-27), 0},
			{1e-8, -1e-8, 3e-8},
			{3e38, 1e38, 0},
			{65504, -65504, 1},
		} {
			checkModel(t, f, x)
		}
	}
}

// Groups whose quotient minus zero lies exactly half way between two indices:
// the even one is taken.
func TestTies(t *testing.T) {
	for _, f := range formats {
		// Of a group [0, M·s] the scale is s, and Eps does not reach s = 1.
		m := float32(f.MaxIndex())
		var x []float32
		var want []int
		first := float32(0)
		if f.Signed {
			first = -m
		}
		for k := first; k < m; k++ {
			x = append(x, k+0.5)
			even := int(k)
			if even&1 != 0 {
				even++
			}
			want = append(want, even)
		}
		x = append(x, first, m)
		idx := make([]byte, len(x))
		scale, zero := f.Quantize(idx, x)
		if scale != 1 || zero != 0 {
			t.Fatalf("%s: scale, zero = %v, %v, want 1, 0", f.name(), scale, zero)
		}
		for i, w := range want {
			got := int(idx[i])
			if f.Signed {
				got = int(int8(idx[i]))
			}
			if got != w {
				t.Errorf("%s: %v has index %d, want %d", f.name(), x[i], got, w)
			}
		}
		checkModel(t, f, x)
	}
}

// A search for inputs on which one rounding decides: those where the quotient
// of the exact values and the rounded one round to different integers, and
// those where the fused x/se − zero would differ.
func TestModelNearTies(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 8))
	found := 0
	for _, f := range formats {
		for range 40 {
			x := make([]float32, 32)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			lo, hi := MinMax(x)
			_, scale, zero := model(f, x)
			se := scale + Eps
			for i := range x {
				if x[i] == lo || x[i] == hi {
					continue
				}
				// Aim at half way between two indices, then step one ulp.
				k := float64(rng.IntN(f.MaxIndex())) + float64(zero) + 0.5
				v := float32(k * float64(se))
				switch rng.IntN(3) {
				case 0:
					v = math.Nextafter32(v, 10)
				case 1:
					v = math.Nextafter32(v, -10)
				}
				if v > lo && v < hi {
					x[i] = v
					if q := float32(v/se) - zero; q != float32(math.Floor(float64(q))) && 2*q == float32(math.Floor(float64(2*q))) {
						found++
					}
				}
			}
			checkModel(t, f, x)
		}
	}
	t.Logf("%d elements exactly half way after rounding", found)
	if found == 0 {
		t.Error("the search found no tie")
	}
}

func TestConstantGroups(t *testing.T) {
	for _, f := range formats {
		for _, c := range []float32{0, 9, -9, 65504, -65504, 1e-3, 1.5e-19} {
			x := make([]float32, 32)
			for i := range x {
				x[i] = c
			}
			checkModel(t, f, x)
			idx := make([]byte, len(x))
			scale, zero := f.Quantize(idx, x)
			if scale != 0 {
				t.Errorf("%s: constant %v: scale %v", f.name(), c, scale)
			}
			if want := rint(div(c, 1e-8)); zero != want {
				t.Errorf("%s: constant %v: zero %v, want %v", f.name(), c, zero, want)
			}
			for i, v := range idx {
				if v != 0 {
					t.Errorf("%s: constant %v: index %d is %d", f.name(), c, i, v)
				}
			}
			// (0 + 1)·scale is how a group is stored under the finite policy.
			if got := f.Dequantize(0, c, 1); got != c {
				t.Errorf("%s: (0 + 1)·%v = %v", f.name(), c, got)
			}
			if lo, hi := MinMax(x); Midpoint(lo, hi) != c {
				t.Errorf("Midpoint(%v, %v) = %v", lo, hi, Midpoint(lo, hi))
			}
		}
	}
}

// A range past float32 and a quotient past it do not panic; indices are 0.
func TestOverflow(t *testing.T) {
	const huge = math.MaxFloat32
	for _, f := range formats {
		for _, x := range [][]float32{{-huge, huge}, {huge, huge}, {-huge, -huge}} {
			idx := []byte{7, 7}
			scale, zero := f.Quantize(idx, x)
			if idx[0] != 0 || idx[1] != 0 {
				t.Errorf("%s: %v: indices %v", f.name(), x, idx)
			}
			if f32.IsFinite(scale) && f32.IsFinite(zero) {
				t.Errorf("%s: %v: scale %v and zero %v are both finite", f.name(), x, scale, zero)
			}
		}
	}
}

func TestMinMaxMidpoint(t *testing.T) {
	negZero := float32(math.Copysign(0, -1))
	for _, x := range [][]float32{{0, negZero}, {negZero, 0}, {negZero, 0, negZero}} {
		if lo, hi := MinMax(x); bits(lo) != bits(x[0]) || bits(hi) != bits(x[0]) {
			t.Errorf("MinMax(%v) = %v, %v", x, lo, hi)
		}
	}
	for _, c := range []struct {
		x           []float32
		lo, hi, mid float32
	}{
		{[]float32{3}, 3, 3, 3},
		{[]float32{1, -2, 4}, -2, 4, 1},
		{[]float32{5, 4, 3}, 3, 5, 4},
		{[]float32{-1, -7}, -7, -1, -4},
		{[]float32{1, 1 + 0x1p-23}, 1, 1 + 0x1p-23, 1}, // tie to even
		{[]float32{1 + 0x1p-23, 1 + 0x1p-22}, 1 + 0x1p-23, 1 + 0x1p-22, 1 + 0x1p-22},
		{[]float32{-1, 1e9}, -1, 1e9, 499999999.5 + 0.5},
	} {
		lo, hi := MinMax(c.x)
		if lo != c.lo || hi != c.hi {
			t.Errorf("MinMax(%v) = %v, %v", c.x, lo, hi)
		}
		want := add(lo, mul(sub(hi, lo), 0.5))
		if want != c.mid {
			t.Errorf("case %v: the model gives %v, the table %v", c.x, want, c.mid)
		}
		if got := Midpoint(lo, hi); got != want {
			t.Errorf("Midpoint(%v, %v) = %v, want %v", lo, hi, got, want)
		}
	}
}

// Signed and unsigned bytes are read differently.
func TestDequantize(t *testing.T) {
	s, u := KeyFormat{8, true}, KeyFormat{8, false}
	for i := range 256 {
		if got, want := s.Dequantize(byte(i), 0.5, -3), (float32(int8(i))-3)*0.5; got != want {
			t.Errorf("signed %d: %v, want %v", i, got, want)
		}
		if got, want := u.Dequantize(byte(i), 0.5, -3), (float32(i)-3)*0.5; got != want {
			t.Errorf("unsigned %d: %v, want %v", i, got, want)
		}
	}
	// The sum is rounded before the product.
	if got := u.Dequantize(1, 3, 0x1p24); got != 0x1p24*3 {
		t.Errorf("(1 + 2^24)·3 = %v, want %v", got, float32(0x1p24*3))
	}
	if got := u.Dequantize(0, 1, float32(math.Inf(1))); !math.IsInf(float64(got), 1) {
		t.Errorf("an infinite zero point gives %v", got)
	}
	if got := u.Dequantize(0, 0, float32(math.Inf(1))); got == got {
		t.Errorf("an infinite zero point with scale 0 gives %v, want NaN", got)
	}
}

func TestAllocs(t *testing.T) {
	x, idx := make([]float32, 32), make([]byte, 32)
	f := KeyFormat{8, true}
	if n := testing.AllocsPerRun(100, func() { f.Quantize(idx, x) }); n != 0 {
		t.Errorf("Quantize allocates %v times", n)
	}
}

// types are the named formats of the vectors.
var types = map[string]KeyFormat{
	"q8_0": {8, true}, "uint8": {8, false}, "q5_0": {5, false}, "q4_0": {4, false}, "uint2": {2, false},
}

// TestKeyVector compares codes, scales, zeros and decoded values with those of
// vllm-metal under MLX (compat) and of an independent model of the text
// (finite), every format, group size and input dtype.
func TestKeyVector(t *testing.T) {
	total := map[string]int{}
	keys, _ := vectors.KV(t)
	for _, c := range keys {
		keyVector(t, c, total)
	}
	t.Logf("compared %v", total)
	for _, part := range []string{"codes", "scales", "zeros", "decoded", "constant groups"} {
		if total[part] == 0 {
			t.Errorf("no %s compared", part)
		}
	}
}

func keyVector(t *testing.T, c vectors.KeyCase, total map[string]int) {
	t.Helper()
	f, ok := types[c.Type]
	if !ok {
		t.Fatalf("%s: unknown type %s", c.Name, c.Type)
	}
	x, finite := widen(t, c.X), c.Policy == "finite"
	scales, zeros := c.Scales.U16(t), c.Zeros.U16(t)
	want := make([]byte, len(x))
	if err := pack.Unpack(want, c.Codes.Data, f.Bits); err != nil {
		t.Fatalf("%s: codes: %v", c.Name, err)
	}
	if len(scales) != len(x)/c.Group || len(zeros) != len(scales) {
		t.Fatalf("%s: %d scales and %d zeros for %d elements", c.Name, len(scales), len(zeros), len(x))
	}
	var decoded []float32
	if c.Decoded.Data != nil {
		decoded = c.Decoded.F32(t)
	}
	canonical, idx := make([]float32, c.Group), make([]byte, c.Group)
	for g := range scales {
		at := g * c.Group
		for i := range canonical {
			canonical[i] = f32.Canon(x[at+i])
			if canonical[i] == 0 && !finite {
				canonical[i] = float32(math.Copysign(0, float64(x[at+i])))
			}
		}
		scale, zero := f.Quantize(idx, canonical)
		s, z := pack.ToF16(scale), pack.ToF16(zero)
		if finite && !f32.IsFinite(pack.FromF16(z)) {
			lo, hi := MinMax(canonical)
			s, z = pack.ToF16(Midpoint(lo, hi)), pack.ToF16(1)
			clear(idx)
			total["constant groups"]++
		}
		if s != scales[g] || z != zeros[g] {
			t.Fatalf("%s group %d: scale %#04x zero %#04x, want %#04x %#04x", c.Name, g, s, z, scales[g], zeros[g])
		}
		for i, v := range idx {
			if v != want[at+i] {
				t.Fatalf("%s element %d: index %#02x, want %#02x", c.Name, at+i, v, want[at+i])
			}
			if decoded != nil {
				got := f.Dequantize(v, pack.FromF16(s), pack.FromF16(z))
				if w := decoded[at+i]; bits(got) != bits(w) && !(got != got && w != w) {
					t.Fatalf("%s element %d: decoded %v, want %v", c.Name, at+i, got, w)
				}
				total["decoded"]++
			}
		}
		total["codes"] += c.Group
		total["scales"]++
		total["zeros"]++
	}
}

// widen returns a tensor of F32, F16 or BF16 in float32.
func widen(t *testing.T, x vectors.Tensor) []float32 {
	t.Helper()
	if x.DType == "F32" {
		return x.F32(t)
	}
	from := pack.FromF16
	if x.DType == "BF16" {
		from = pack.FromBF16
	}
	var out []float32
	for _, v := range x.U16(t) {
		out = append(out, from(v))
	}
	return out
}

func FuzzQuantize(f *testing.F) {
	f.Add(uint8(0), []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x80})
	f.Add(uint8(3), []byte{0, 0, 0x7f, 0x7f, 0, 0, 0x7f, 0xff, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		format := formats[int(which)%len(formats)]
		var x []float32
		for ; len(data) >= 4; data = data[4:] {
			v := math.Float32frombits(uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24)
			if f32.IsFinite(v) {
				x = append(x, f32.Canon(v))
			}
		}
		if len(x) == 0 {
			return
		}
		idx := make([]byte, len(x))
		scale, zero := format.Quantize(idx, x)
		least := 0
		if format.Signed {
			least = -format.MaxIndex()
		}
		for i, v := range idx {
			q := int(v)
			if format.Signed {
				q = int(int8(v))
			}
			if q < least || q > format.MaxIndex() {
				t.Fatalf("%s: %v: index %d is %d", format.name(), x, i, q)
			}
		}
		lo, hi := MinMax(x)
		largest := max(math.Abs(float64(lo)), math.Abs(float64(hi)))
		if f32.IsFinite(scale) && f32.IsFinite(zero) && largest < 1e38 {
			// Within half a step, one more for the rounding of zero, and the
			// float32 roundings of values as large as the group's.
			bound := 1.5*(float64(scale)+float64(Eps)) + largest*0x1p-20
			for i, v := range idx {
				if got := float64(format.Dequantize(v, scale+Eps, zero)); math.Abs(got-float64(x[i])) > bound {
					t.Fatalf("%s: %v: element %d decodes to %v, bound %v", format.name(), x, i, got, bound)
				}
			}
		}
	})
}

func BenchmarkQuantize(b *testing.B) {
	x, idx := benchGroup(), make([]byte, 32)
	for _, f := range formats {
		b.Run(f.name(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.Quantize(idx, x)
			}
			b.ReportMetric(float64(len(x))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}

func BenchmarkDequantize(b *testing.B) {
	x, idx := benchGroup(), make([]byte, 32)
	for _, f := range formats {
		scale, zero := f.Quantize(idx, x)
		b.Run(f.name(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i, v := range idx {
					x[i] = f.Dequantize(v, scale, zero)
				}
			}
			b.ReportMetric(float64(len(x))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}

func benchGroup() []float32 {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 32)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}
