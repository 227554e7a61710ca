package ref_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// The oracle is docs/numerics.md §1–§5 in numbers of unlimited size: every
// operation is computed exactly and rounded once. It shares no arithmetic with
// the package under test, only the tables: centroids, boundaries and signs.
// The vectors cover f16 scales and powers of two; this covers the rest.

// exactPrec holds any sum or product of two float32 values.
const exactPrec = 640

func exact(x float32) *big.Float { return big.NewFloat(float64(x)) }

func finite(xs ...float32) bool {
	for _, x := range xs {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return false
		}
	}
	return true
}

func round32(x *big.Float) float32 {
	f, _ := x.Float32() // to nearest even, subnormal, or an infinity
	return f
}

// Where an operand is not finite there is nothing to round, and the operation
// is IEEE 754's.

func add(a, b float32) float32 {
	if !finite(a, b) {
		return a + b
	}
	x, y := float64(a), float64(b)
	if s := x + y; s-x == y && s-y == x { // nothing was lost
		return float32(s)
	}
	return round32(new(big.Float).SetPrec(exactPrec).Add(exact(a), exact(b)))
}

func sub(a, b float32) float32 { return add(a, -b) }

func mul(a, b float32) float32 {
	if !finite(a, b) {
		return a * b
	}
	return float32(float64(a) * float64(b)) // 48 bits: the product is exact
}

func div(a, b float32) float32 {
	if !finite(a, b) || a == 0 || b == 0 {
		return a / b
	}
	// Numbers of 24 bits have no quotient within 2^-49 of a midpoint, but on it.
	return round32(new(big.Float).SetPrec(128).Quo(exact(a), exact(b)))
}

func sqrt(a float32) float32 {
	if !finite(a) || a <= 0 {
		return float32(math.Sqrt(float64(a)))
	}
	return round32(new(big.Float).SetPrec(128).Sqrt(exact(a)))
}

// rint rounds to the nearest integer, halves to even, keeping the sign of zero.
func rint(a float32) float32 {
	if !finite(a) || a == 0 || a >= 1<<24 || a <= -1<<24 {
		return a
	}
	n := nearest(exact(a))
	if n.Sign() == 0 {
		return float32(math.Copysign(0, float64(a)))
	}
	return round32(new(big.Float).SetInt(n))
}

// nearest returns the integer nearest to x, halves to even.
func nearest(x *big.Float) *big.Int {
	n, _ := x.Int(nil) // towards zero
	rest := new(big.Float).SetPrec(exactPrec).Sub(x, new(big.Float).SetInt(n))
	c := rest.Abs(rest).Cmp(big.NewFloat(0.5))
	if c > 0 || c == 0 && n.Bit(0) == 1 {
		n.Add(n, big.NewInt(int64(x.Sign())))
	}
	return n
}

// stored rounds to the scale type by counting units in the last place.
func stored(t codec.DType, x float32) float32 {
	precision, least, max := 11, -24, float32(65504)
	switch t {
	case codec.F32:
		return x
	case codec.BF16:
		precision, least, max = 8, -133, math.Float32frombits(0x7f7f0000)
	}
	if !finite(x) || x == 0 {
		return x
	}
	unit := exact(x).MantExp(nil) - precision
	if unit < least {
		unit = least
	}
	n := nearest(new(big.Float).SetPrec(exactPrec).SetMantExp(exact(x), -unit))
	y := round32(new(big.Float).SetPrec(exactPrec).SetMantExp(new(big.Float).SetInt(n), unit))
	switch {
	case y > max || y < -max:
		return float32(math.Inf(exact(x).Sign()))
	case y == 0:
		return float32(math.Copysign(0, float64(x)))
	}
	return y
}

func canonOf(x float32, keepSign bool) float32 {
	if math.Abs(float64(x)) >= 0x1p-64 {
		return x
	}
	if keepSign {
		return float32(math.Copysign(0, float64(x)))
	}
	return 0
}

func flushed(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return 0
	}
	return x
}

// epsilon is eps of docs/numerics.md, from its decimal.
var epsilon = func() float32 {
	r, _ := new(big.Rat).SetString("1e-8")
	f, _ := r.Float32()
	return f
}()

// oracleRow is one encoded row, as the oracle has it.
type oracleRow struct {
	rotated, scale, zero []float32
	index                []byte
	overflow             int // first group whose scale overflows under Finite, or -1
}

func oracleKeys(p codec.KVParams, row []float32) oracleRow {
	o := oracleRow{overflow: -1}
	maxv := float32(int(1)<<p.Keys.Bits() - 1)
	minv := float32(0)
	if p.Keys.Signed() {
		maxv = float32(int(1)<<(p.Keys.Bits()-1) - 1)
		minv = -maxv
	}
	for g := 0; g < len(row); g += p.Group {
		x := make([]float32, p.Group)
		for i := range x {
			x[i] = canonOf(row[g+i], p.Policy == codec.Compat)
		}
		lo, hi := x[0], x[0]
		for _, v := range x {
			if v < lo {
				lo = v
			}
			if v > hi {
				hi = v
			}
		}
		var scale, zero, se float32
		if p.Keys.Signed() {
			scale = div(sub(hi, lo), mul(2, maxv))
			se = add(scale, epsilon)
			zero = rint(div(add(hi, lo), mul(2, se)))
		} else {
			scale = div(sub(hi, lo), maxv)
			se = add(scale, epsilon)
			zero = rint(div(lo, se))
		}
		index := make([]byte, p.Group)
		for i, v := range x {
			q := rint(sub(div(v, se), zero))
			switch {
			case math.IsNaN(float64(q)):
				q = 0
			case q > maxv:
				q = maxv
			case q < minv:
				q = minv
			}
			index[i] = byte(int(q))
		}
		if p.Policy == codec.Finite {
			if finite(stored(p.ScaleType, scale)) && !finite(stored(p.ScaleType, zero)) {
				scale, zero = add(lo, mul(sub(hi, lo), 0.5)), 1
				clear(index)
			}
			if !finite(stored(p.ScaleType, scale)) && o.overflow < 0 {
				o.overflow = g / p.Group
			}
		}
		o.scale, o.zero, o.index = append(o.scale, scale), append(o.zero, zero), append(o.index, index...)
	}
	return o
}

func oracleDecodeKeys(p codec.KVParams, index []byte, scales, zeros []float32) []float32 {
	out := make([]float32, len(index))
	for i, b := range index {
		q := float32(b)
		if p.Keys.Signed() {
			q = float32(int8(b))
		}
		out[i] = mul(add(q, zeros[i/p.Group]), scales[i/p.Group])
	}
	return out
}

// oracleTransform is the transform of §3 with its order of operations. The ±1
// matrix of m = 12, 20, 28 is read off the transform of unit vectors.
func oracleTransform(t testing.TB, x []float32, inverse bool) {
	t.Helper()
	n := len(x) & -len(x) // the power of two: m/4 is odd, so m's factor 4 moves over
	m := len(x) / n
	if m > 1 {
		n, m = n/4, m*4
	}
	for run := 0; run < len(x); run += n {
		for h := 1; h < n; h *= 2 {
			for i := 0; i < n; i += 2 * h {
				for j := run + i; j < run+i+h; j++ {
					a, b := x[j], x[j+h]
					x[j], x[j+h] = add(a, b), sub(a, b)
				}
			}
		}
	}
	if m > 1 {
		matrix := make([][]float32, m)
		for i := range matrix {
			matrix[i] = make([]float32, m)
		}
		for col := range m {
			unit := make([]float32, m)
			unit[col] = 1
			if err := hadamard.Transform(unit); err != nil {
				t.Fatal(err)
			}
			for r, v := range unit {
				s := float32(math.Copysign(1, float64(v)))
				if inverse {
					matrix[col][r] = s
				} else {
					matrix[r][col] = s
				}
			}
		}
		y := make([]float32, len(x))
		for r := range m {
			for j := range n {
				var sum float32
				for c := range m {
					sum = add(sum, mul(matrix[r][c], x[c*n+j]))
				}
				y[r*n+j] = sum
			}
		}
		copy(x, y)
	}
	r := float32(1 / math.Sqrt(float64(len(x))))
	for i := range x {
		x[i] = mul(x[i], r)
	}
}

func oracleTree(q []float32) float32 {
	q = append([]float32(nil), q...)
	for s := len(q) / 2; s > 0; s /= 2 {
		for i := range s {
			q[i] = add(q[i], q[i+s])
		}
	}
	return q[0]
}

func oracleIndex(table *lloydmax.Table, n float32) byte {
	index := 0
	for _, b := range table.AppendBoundaries(nil) {
		if n > b {
			index++
		}
	}
	return byte(index)
}

func oracleRotate(t testing.TB, row []float32) []float32 {
	t.Helper()
	y := make([]float32, len(row))
	for i, s := range hadamard.AppendSigns(nil, len(row)) {
		y[i] = mul(canonOf(row[i], false), s)
	}
	oracleTransform(t, y, false)
	return y
}

func oracleUnrotate(t testing.TB, row []float32) []float32 {
	t.Helper()
	x := append([]float32(nil), row...)
	oracleTransform(t, x, true)
	for i, s := range hadamard.AppendSigns(nil, len(x)) {
		x[i] = mul(x[i], s)
	}
	return x
}

// oracleValues encodes a row that is already rotated.
func oracleValues(t testing.TB, p codec.KVParams, rotated []float32) oracleRow {
	t.Helper()
	table, err := lloydmax.Lookup(p.Values.Bits())
	if err != nil {
		t.Fatal(err)
	}
	o := oracleRow{overflow: -1, rotated: rotated}
	for g := 0; g < len(rotated); g += p.Group {
		y := rotated[g : g+p.Group]
		q := make([]float32, len(y))
		for i, v := range y {
			q[i] = flushed(mul(v, v))
		}
		rms := sqrt(flushed(mul(oracleTree(q), div(1, float32(len(y))))))
		quantize := func(scale float32) []byte {
			index := make([]byte, len(y))
			se := add(scale, epsilon)
			for i, v := range y {
				index[i] = oracleIndex(table, flushed(div(v, se)))
			}
			return index
		}
		scale, index := rms, quantize(rms)
		if p.Scale == codec.Search {
			var bestErr float32
			found := false
			for _, sixteenths := range []float32{16, 15, 17, 14, 18, 13, 19, 12, 20} {
				s := stored(p.ScaleType, mul(rms, sixteenths/16))
				if !finite(s) {
					continue
				}
				trial := quantize(s)
				for i, v := range y {
					e := sub(mul(table.Centroid(int(trial[i])), s), v)
					q[i] = flushed(mul(e, e))
				}
				if e := oracleTree(q); !found || e < bestErr {
					scale, index, bestErr, found = s, trial, e, true
				}
			}
		}
		if p.Policy == codec.Finite && !finite(stored(p.ScaleType, scale)) && o.overflow < 0 {
			o.overflow = g / p.Group
		}
		o.scale, o.index = append(o.scale, scale), append(o.index, index...)
	}
	return o
}

// oraclePack writes element i at bit i·bits of one big integer.
func oraclePack(index []byte, bits int) []byte {
	stream := new(big.Int)
	for i, v := range index {
		stream.Or(stream, new(big.Int).Lsh(big.NewInt(int64(v)), uint(i*bits)))
	}
	big := stream.FillBytes(make([]byte, len(index)*bits/8))
	for i, j := 0, len(big)-1; i < j; i, j = i+1, j-1 {
		big[i], big[j] = big[j], big[i]
	}
	return big
}

// storeDecoded is store for a decoder's result, which saturates under Finite.
func storeDecoded(p codec.KVParams, t codec.DType, xs []float32) []byte {
	b := store(t, xs)
	if p.Policy == codec.Finite && t == codec.F16 {
		for i, x := range xs {
			if h := binary.LittleEndian.Uint16(b[2*i:]); h&0x7fff == 0x7c00 && !math.IsInf(float64(x), 0) {
				binary.LittleEndian.PutUint16(b[2*i:], h-1)
			}
		}
	}
	return b
}

// store is the bytes of xs in a type, by stored.
func store(t codec.DType, xs []float32) []byte {
	var b []byte
	for _, x := range xs {
		bits := math.Float32bits(stored(t, x))
		switch t {
		case codec.F32:
			b = binary.LittleEndian.AppendUint32(b, bits)
		case codec.BF16:
			b = binary.LittleEndian.AppendUint16(b, uint16(bits>>16))
		case codec.F16:
			b = binary.LittleEndian.AppendUint16(b, halfBits(stored(t, x)))
		}
	}
	return b
}

// halfBits returns the binary16 pattern of a value that is one.
func halfBits(x float32) uint16 {
	sign := uint16(0)
	if math.Signbit(float64(x)) {
		sign, x = 0x8000, -x
	}
	switch {
	case x == 0:
		return sign
	case math.IsNaN(float64(x)):
		return sign | 0x7e00
	case math.IsInf(float64(x), 0):
		return sign | 0x7c00
	case x < 0x1p-14:
		return sign | uint16(x*0x1p24)
	}
	frac, exp := math.Frexp(float64(x)) // frac·2^11 is an integer in [1024, 2048)
	return sign | uint16(exp+14)<<10 | uint16(frac*2048)&0x3ff
}

// adversary names a kind of row that reaches a rare path and writes one.
var adversaries = []struct {
	name string
	fill func(rng *rand.Rand, x []float32)
}{
	{"normal", func(rng *rand.Rand, x []float32) {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}},
	{"zero", func(_ *rand.Rand, x []float32) { clear(x) }},
	{"negative zero", func(rng *rand.Rand, x []float32) {
		clear(x)
		x[rng.IntN(len(x))] = float32(math.Copysign(0, -1))
	}},
	{"constant", func(rng *rand.Rand, x []float32) {
		c := []float32{9, -9, 65504, 1e-6, -6e-4}[rng.IntN(5)]
		for i := range x {
			x[i] = c
		}
	}},
	{"outlier", func(rng *rand.Rand, x []float32) {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		x[rng.IntN(len(x))] = -7e4
	}},
	{"offset", func(rng *rand.Rand, x []float32) { // zero points that overflow f16 in some groups
		for i := range x {
			x[i] = float32(300 + 0.01*rng.NormFloat64()*float64(i/32%3))
		}
	}},
	{"subnormal", func(rng *rand.Rand, x []float32) {
		for i := range x {
			x[i] = []float32{0x1p-63, -0x1p-64, 0x1p-65, 0x1p-126, -0x1p-149, 0x1.8p-64, 1, -3}[rng.IntN(8)]
		}
	}},
	{"tiny", func(rng *rand.Rand, x []float32) { // scales near eps, where fusing with it shows
		for i := range x {
			x[i] = float32(1e-8 * rng.NormFloat64())
		}
	}},
	{"tiny squares", func(rng *rand.Rand, x []float32) { // mean squares near 2^-126
		for i := range x {
			x[i] = float32(0x1p-63 * rng.NormFloat64())
		}
	}},
	{"heavy tail", func(rng *rand.Rand, x []float32) {
		for i := range x {
			x[i] = float32(math.Ldexp(rng.NormFloat64(), rng.IntN(60)-40))
		}
	}},
	{"integers", func(rng *rand.Rand, x []float32) { // many exact ties
		for i := range x {
			x[i] = float32(rng.IntN(31)-15) / 2
		}
	}},
	{"large", func(rng *rand.Rand, x []float32) { // f16 scales overflow, squares stay finite
		for i := range x {
			x[i] = float32(3e5 * rng.NormFloat64())
		}
	}},
	{"huge", func(rng *rand.Rand, x []float32) { // squares, ranges and rotations overflow f32
		for i := range x {
			x[i] = float32(math.Copysign(3e38, rng.NormFloat64()))
		}
	}},
}

// TestOracle compares every stage of the encoders and the decoders with the
// oracle: head dimensions of every form, both groups, the scale types, both
// policies, both scale rules, every format, and rows of every kind.
func TestOracle(t *testing.T) {
	dims := []int{32, 64, 96, 160, 128, 224, 256, 640}
	if testing.Short() {
		dims = dims[:4]
	}
	compared := 0
	for i, dim := range dims {
		for _, group := range []int{32, 64} {
			if dim%group != 0 {
				continue
			}
			for j, scaleType := range []codec.DType{codec.F16, codec.BF16, codec.F32} {
				for _, policy := range []codec.Policy{codec.Finite, codec.Compat} {
					p := codec.KVParams{HeadDim: dim, ValueHeadDim: dim, Group: group, ScaleType: scaleType, Policy: policy}
					t.Run(fmt.Sprintf("d=%d/group=%d/scale=%v/%v", dim, group, scaleType, policy), func(t *testing.T) {
						seed := uint64(i*16 + j)
						rng := rand.New(rand.NewPCG(seed, uint64(group)))
						row := make([]float32, dim)
						for a, kind := range adversaries {
							kind.fill(rng, row)
							// Small rows meet every format; large ones take turns.
							rotated := oracleRotate(t, row)
							for f, bits := range []int{2, 3, 4, 5, 8} {
								if dim > 64 && (a+f+i+j)%5 != 0 {
									continue
								}
								p.Keys, p.Values = keyFormat(bits, bits == 8 && a%2 == 0), valueFormat(bits)
								p.Scale = codec.RMS
								compared += compareKeys(t, kind.name, p, row)
								compared += compareValues(t, kind.name, p, row, rotated)
								if p.Scale = codec.Search; dim <= 64 && (a+f)%2 == 0 || (a+f)%5 == i%5 {
									compared += compareValues(t, kind.name, p, row, rotated)
								}
							}
						}
					})
				}
			}
		}
	}
	if compared == 0 {
		t.Fatal("nothing compared")
	}
	t.Logf("compared %d elements", compared)
}

func compareKeys(t *testing.T, kind string, p codec.KVParams, row []float32) int {
	t.Helper()
	what := fmt.Sprintf("%s: %d-bit keys, signed %v, %v: ", kind, p.Keys.Bits(), p.Keys.Signed(), p.Policy)
	kv := newKV(t, p)
	want := oracleKeys(p, row)
	if want.overflow >= 0 {
		wantError(t, what, kv.EncodeKeys(new(codec.Keys), codec.FromF32(row, len(row))), codec.ErrScaleOverflow, "keys", want.overflow*p.Group)
		return len(row)
	}
	got := keyStages(t, p, row)
	same32(t, what+"scale", got.Scale, want.scale)
	same32(t, what+"zero", got.Zero, want.zero)
	diff(t, what+"index", 0, got.Index, want.index)
	diff(t, what+"codes", 0, got.Codes, oraclePack(want.index, p.Keys.Bits()))
	diff(t, what+"scales", p.ScaleType, got.Scales, store(p.ScaleType, want.scale))
	diff(t, what+"zeros", p.ScaleType, got.Zeros, store(p.ScaleType, want.zero))

	k := codec.Keys{Shape: []int{p.HeadDim}, Codes: got.Codes, Scales: got.Scales, Zeros: got.Zeros}
	decoded := oracleDecodeKeys(p, want.index, storedAll(p.ScaleType, want.scale), storedAll(p.ScaleType, want.zero))
	back := stages(t, p).KeyDecodeStages(k, 0)
	diff(t, what+"unpacked index", 0, back.Index, want.index)
	same32(t, what+"decoded", back.Decoded, decoded)
	for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		out := codec.NewTensor(d, p.HeadDim)
		if err := kv.DecodeKeys(out, k); err != nil {
			t.Fatalf("%s%v", what, err)
		}
		diff(t, what+"decoded to "+d.String(), d, out.Data, storeDecoded(p, d, decoded))
	}
	return len(row)
}

func compareValues(t *testing.T, kind string, p codec.KVParams, row, rotated []float32) int {
	t.Helper()
	what := fmt.Sprintf("%s: %d-bit values, %v, %v: ", kind, p.Values.Bits(), p.Scale, p.Policy)
	kv := newKV(t, p)
	want := oracleValues(t, p, rotated)
	if want.overflow >= 0 {
		wantError(t, what, kv.EncodeValues(new(codec.Values), codec.FromF32(row, len(row))), codec.ErrScaleOverflow, "values", want.overflow*p.Group)
		return len(row)
	}
	got := valueStages(t, p, row)
	same32(t, what+"rotated", got.Rotated, want.rotated)
	same32(t, what+"scale", got.Scale, want.scale)
	diff(t, what+"index", 0, got.Index, want.index)
	diff(t, what+"codes", 0, got.Codes, oraclePack(want.index, p.Values.Bits()))
	diff(t, what+"scales", p.ScaleType, got.Scales, store(p.ScaleType, want.scale))

	v := codec.Values{Shape: []int{p.ValueHeadDim}, Codes: got.Codes, Scales: got.Scales}
	table, err := lloydmax.Lookup(p.Values.Bits())
	if err != nil {
		t.Fatal(err)
	}
	decoded := make([]float32, len(row))
	for i, index := range want.index {
		decoded[i] = mul(table.Centroid(int(index)), stored(p.ScaleType, want.scale[i/p.Group]))
	}
	unrotated := oracleUnrotate(t, decoded)
	back := stages(t, p).ValueDecodeStages(v, 0)
	same32(t, what+"decoded, rotated", back.Rotated, decoded)
	same32(t, what+"decoded", back.Unrotated, unrotated)
	for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		out := codec.NewTensor(d, p.ValueHeadDim)
		if err := kv.DecodeValuesRotated(out, v); err != nil {
			t.Fatalf("%s%v", what, err)
		}
		diff(t, what+"rotated to "+d.String(), d, out.Data, storeDecoded(p, d, decoded))
		if err := kv.DecodeValues(out, v); err != nil {
			t.Fatalf("%s%v", what, err)
		}
		diff(t, what+"decoded to "+d.String(), d, out.Data, storeDecoded(p, d, unrotated))
	}
	return len(row)
}

func storedAll(t codec.DType, xs []float32) []float32 {
	ys := make([]float32, len(xs))
	for i, x := range xs {
		ys[i] = stored(t, x)
	}
	return ys
}

// same32 fails the test at the first element that differs in its bits.
func same32(t *testing.T, what string, got, want []float32) {
	t.Helper()
	bytes := func(xs []float32) []byte {
		var b []byte
		for _, x := range xs {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		return b
	}
	diff(t, what, codec.F32, bytes(got), bytes(want))
}
