package ref_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/lloydmax"
)

// Tests of faults that users of such codecs met, by kind.

// fill returns n elements of value x.
func fill(n int, x float32) []float32 { return slices.Repeat([]float32{x}, n) }

// below65520 is the largest float32 below 65520, where f16 begins to round to an
// infinity.
var below65520 = math.Nextafter32(65520, 0)

func TestFaultFMAContraction(t *testing.T) {
	// Scales of the order of eps: under Search with f32 scales, rms·α feeds
	// + eps, and fusing the two changes the sum.
	fused := 0
	for i := range 200 {
		row := fill(32, 0)
		for j := range row {
			row[j] = float32(math.Ldexp(float64((i*37+j*61)%199-99), -33))
		}
		p := codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: codec.Q4_0, Values: codec.Q4_0, Group: 32, ScaleType: codec.F32, Scale: codec.Search}
		o := oracleValues(t, p, oracleRotate(t, row))
		rms := oracleValues(t, codec.KVParams{Values: codec.Q4_0, Group: 32, ScaleType: codec.F32}, o.rotated).scale[0]
		if alpha := o.scale[0] / rms; float32(math.FMA(float64(rms), float64(alpha), float64(epsilon))) != add(o.scale[0], epsilon) {
			fused++
		}
		compareValues(t, "eps", p, row, o.rotated)
	}
	if fused == 0 {
		t.Error("no row tells a fused multiply-add from two roundings")
	}
}

func TestFaultDivisionByReciprocal(t *testing.T) {
	p := codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0, Group: 32, ScaleType: codec.F32}
	told := 0
	for i := range 2000 {
		r := 1 + float32(i)/1024
		row := fill(32, 0)
		row[31] = r
		s := keyStages(t, p, row)
		if want := div(r, 15); s.Scale[0] != want {
			t.Fatalf("range %v: scale %x, want %x", r, s.Scale[0], want)
		}
		if div(r, 15) != mul(r, div(1, 15)) {
			told++
		}
	}
	if told == 0 {
		t.Error("no range tells division from multiplying by the reciprocal")
	}
	t.Logf("%d of 2000 ranges tell division from multiplying by the reciprocal", told)
}

// Elements whose x/se − zero is k + 1/2 exactly go to the even index.
func TestFaultHalfWay(t *testing.T) {
	for _, signed := range []bool{false, true} {
		p := codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: keyFormat(8, signed), Values: codec.Q3_0, Group: 32, ScaleType: codec.F16}
		ties, rows := 0, 0
		// Scale s = 2^e: s + eps rounds to s from 1/2 up, so x/se is exact.
		for _, s := range []float32{0.5, 1, 4} {
			row := make([]float32, 32)
			for i := range row {
				row[i] = s * (float32(i) + 0.5 - 16)
			}
			if row[0], row[31] = -127*s, 127*s; !signed {
				row[0], row[31] = -100*s, 155*s
			}
			o := oracleKeys(p, row)
			for i, x := range row {
				q := sub(div(x, add(o.scale[0], epsilon)), o.zero[0])
				if q == float32(math.Floor(float64(q)))+0.5 {
					ties++
					if index := int8(o.index[i]); index%2 != 0 {
						t.Fatalf("the oracle rounds %v to %d", q, index)
					}
				}
			}
			rows += compareKeys(t, "ties", p, row)
		}
		if ties < 60 {
			t.Errorf("signed %v: %d ties in %d elements", signed, ties, rows)
		}
	}
	// A zero point that is a tie: lo/se = k + 1/2.
	for _, lo := range []float32{0.5, 1.5, 2.5, -0.5, -1.5} {
		row := fill(32, lo)
		row[7] = lo + 255
		compareKeys(t, fmt.Sprint("zero point of ", lo), codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: codec.Uint8, Values: codec.Q3_0, Group: 32, ScaleType: codec.F16}, row)
	}
}

// A value on a boundary between two levels belongs to the lower one. At d = 64
// the rotation of integers is exact, so that y = k with an rms that puts
// k/(rms + eps) on the boundary to the last bit can be searched for.
func TestFaultEqualMaxima(t *testing.T) {
	for _, bits := range []int{2, 3, 4, 5, 8} {
		table, err := lloydmax.Lookup(bits)
		if err != nil {
			t.Fatal(err)
		}
		p := codec.KVParams{HeadDim: 64, ValueHeadDim: 64, Keys: codec.Uint8, Values: valueFormat(bits), Group: 64, ScaleType: codec.F32}
		found := 0
		for b, boundary := range table.AppendBoundaries(nil) {
			if boundary <= 0.1 {
				continue
			}
			y := rowOnBoundary(boundary)
			if y == nil {
				continue
			}
			x := oracleUnrotate(t, y)
			if !slices.Equal(oracleRotate(t, x), y) {
				t.Fatalf("%d bits, boundary %d: the rotation of %v is not exact", bits, b, y)
			}
			s := valueStages(t, p, x)
			if n := div(y[0], add(s.Scale[0], epsilon)); n != boundary {
				t.Fatalf("%d bits: %v is not on boundary %d, %v", bits, n, b, boundary)
			}
			if int(s.Index[0]) != b {
				t.Errorf("%d bits: a value on boundary %d has index %d", bits, b, s.Index[0])
			}
			compareValues(t, "on a boundary", p, x, y)
			found++
		}
		if found == 0 {
			t.Errorf("%d bits: no boundary was hit", bits)
		}
		t.Logf("%d bits: %d boundaries hit", bits, found)
	}
}

// rowOnBoundary returns 64 integers y with y[0]/(rms(y) + eps) = boundary in
// float32, or nil.
func rowOnBoundary(boundary float32) []float32 {
	for q := 1<<23 + 1; q < 1<<24; q += 1 {
		rms := float32(math.Sqrt(float64(float32(q) / 64)))
		k := int(math.Round(float64(boundary) * float64(rms)))
		if float32(k)/(rms+epsilon) != boundary {
			continue
		}
		y, rest := make([]float32, 64), q-k*k
		y[0] = float32(k)
		for i := 63; i > 0 && rest > 0; i-- { // far from y[0]: squares as large as fit
			r := int(math.Sqrt(float64(rest)))
			y[i] = float32(r)
			rest -= r * r
		}
		if rest == 0 {
			return y
		}
	}
	return nil
}

// ±0 are equal: only under Compat does a sign reach the zero point, and never
// a decoded magnitude.
func TestFaultSignedZero(t *testing.T) {
	minus := float32(math.Copysign(0, -1))
	for _, at := range []int{0, 15, 31} {
		row := fill(32, 0)
		row[at] = minus
		for _, policy := range []codec.Policy{codec.Finite, codec.Compat} {
			for _, signed := range []bool{true, false} {
				p := codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: keyFormat(8, signed), Values: codec.Q3_0, Group: 32, ScaleType: codec.F16, Policy: policy}
				compareKeys(t, "one −0", p, row)
				compareKeys(t, "all −0", p, fill(32, minus))
				compareValues(t, "one −0", p, row, oracleRotate(t, row))
				k, _ := encode(t, newKV(t, p), codec.FromF32(row, 32))
				plus, _ := encode(t, newKV(t, p), codec.FromF32(fill(32, 0), 32))
				if policy == codec.Finite {
					sameKeys(t, "finite: −0 beside +0", k, plus)
				}
			}
		}
	}
}

// The scale is narrowed to nearest even, and the error is half a step of the
// stored scale and what its rounding moves the element by.
func TestFaultScaleNarrowing(t *testing.T) {
	const d, rows = 128, 64
	for _, bits := range []int{2, 3, 4, 5, 8} {
		for _, dtype := range []codec.DType{codec.F16, codec.BF16, codec.F32} {
			ulp := map[codec.DType]float64{codec.F16: 0x1p-11, codec.BF16: 0x1p-8, codec.F32: 0x1p-24}[dtype]
			kv := newKV(t, codec.KVParams{HeadDim: d, Keys: keyFormat(bits, false), Values: codec.Q3_0, ScaleType: dtype})
			x := gaussian(codec.F32, rows, d)
			k, _ := encode(t, kv, x)
			y := codec.NewTensor(codec.F32, rows, d)
			if err := kv.DecodeKeys(y, k); err != nil {
				t.Fatal(err)
			}
			for i := range rows * d {
				scale := float64(dtype.Load(k.Scales[i/32*dtype.Size():]))
				in, out := float64(codec.F32.Load(x.Data[4*i:])), float64(codec.F32.Load(y.Data[4*i:]))
				// One more half step where rounding the zero point clips the ends;
				// zero points beyond 2^8 round in bf16, and the sum moves with them.
				bound := scale*(1+1e-6) + 2*ulp*(math.Abs(in)+scale*math.Abs(float64(dtype.Load(k.Zeros[i/32*dtype.Size():]))))
				if e := math.Abs(out - in); e > bound {
					t.Fatalf("%d bits, %v scales: element %d: %v decodes to %v, scale %v", bits, dtype, i, in, out, scale)
				}
			}
		}
	}
}

// Outliers beyond f16 and zero points that it cannot hold decode to finite
// numbers under Finite, or are an error.
func TestFaultZeroPointOverflow(t *testing.T) {
	row := make([]float32, 64)
	for i := range row {
		row[i] = codec.BF16.Round(float32(math.Sin(float64(i))))
	}
	row[5] = codec.BF16.Round(-7e4)
	x := codec.NewTensor(codec.BF16, 64)
	x.StoreRow(0, row)
	for _, kt := range slices.DeleteFunc(codec.KeyFormats(), codec.Format.RowCode) {
		kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: kt, Values: codec.Q4_0})
		k, v := encode(t, kv, x)
		y, z := codec.NewTensor(codec.F32, 64), codec.NewTensor(codec.F32, 64)
		if err := kv.Decode(y, z, k, v); err != nil {
			t.Fatal(err)
		}
		for i := range row {
			a, b := codec.F32.Load(y.Data[4*i:]), codec.F32.Load(z.Data[4*i:])
			if !finite(a, b) {
				t.Errorf("%s: element %d decodes to %v as a key, %v as a value", kt, i, a, b)
			}
		}
		if got := codec.F32.Load(y.Data[4*5:]); math.Abs(float64(got)-float64(row[5])) > 70 { // half a step at 8 bits is 138, the end of the range is closer
			t.Errorf("%s: the outlier decodes to %v", kt, got)
		}
	}
}

// A key scale of 65519.99… rounds to 65504; one of 65520 is an error under
// Finite and an infinity under Compat.
func TestFaultScaleOverflowKeys(t *testing.T) {
	for _, c := range []struct {
		high, scale float32
	}{{3 * 65520, 65520}, {math.Nextafter32(3*65520, 0), below65520}, {3 * 65504, 65504}, {3e6, 1e6}} {
		row := fill(96, 0)
		row[40] = c.high // in the second group
		if got := div(c.high, 3); got != c.scale {
			t.Fatalf("the range %v has scale %v, not %v", c.high, got, c.scale)
		}
		p := codec.KVParams{HeadDim: 96, Keys: codec.Q2_0, Values: codec.Q3_0}
		var k codec.Keys
		err := newKV(t, p).EncodeKeys(&k, codec.FromF32(row, 96))
		if c.scale >= 65520 {
			wantError(t, fmt.Sprint(c.scale), err, codec.ErrScaleOverflow, "keys", 32)
		} else if err != nil || k.Scales[2] != 0xff || k.Scales[3] != 0x7b {
			t.Errorf("scale %v: stored as % x, error %v", c.scale, k.Scales, err)
		}
		p.Policy = codec.Compat
		if err := newKV(t, p).EncodeKeys(&k, codec.FromF32(row, 96)); err != nil {
			t.Fatal(err)
		}
		want := uint16(0x7bff)
		if c.scale >= 65520 {
			want = 0x7c00
		}
		if got := uint16(k.Scales[2]) | uint16(k.Scales[3])<<8; got != want {
			t.Errorf("compat: scale %v stored as %#x, want %#x", c.scale, got, want)
		}
	}
}

// The same for the rms of values: at d = 64 a row of one element 8c rotates to
// ±c everywhere.
func TestFaultScaleOverflowValues(t *testing.T) {
	for _, rule := range []codec.ScaleRule{codec.RMS, codec.Search} {
		for _, c := range []float32{65520, below65520, 65504, 1e6} {
			rows := fill(3*64, 0)
			rows[64] = 8 * c // in the second row
			x := codec.FromF32(rows, 3, 64)
			p := codec.KVParams{HeadDim: 64, Keys: codec.Uint8, Values: codec.Q3_0, Scale: rule}
			want := oracleValues(t, p.WithDefaults(), oracleRotate(t, rows[64:128]))
			var v codec.Values
			err := newKV(t, p).EncodeValues(&v, x)
			if want.overflow >= 0 {
				wantError(t, fmt.Sprint(c), err, codec.ErrScaleOverflow, "values", 64)
			} else if err != nil {
				t.Errorf("%v: %v", c, err)
			}
			if overflows := rule == codec.RMS && c >= 65520; rule == codec.RMS && overflows != (want.overflow >= 0) {
				t.Errorf("%v: the oracle's overflow is %d", c, want.overflow)
			}
			p.Policy = codec.Compat
			if err := newKV(t, p).EncodeValues(&v, x); err != nil {
				t.Fatalf("compat: %v: %v", c, err)
			}
			diff(t, "compat scales", codec.F16, v.Scales[4:8], store(codec.F16, want.scale))
		}
	}
}

// f16 holds scales down to 2^-24, subnormals included; what is below decodes
// to zero, never to NaN.
func TestFaultSubnormalScale(t *testing.T) {
	for _, bits := range []int{2, 4, 8} {
		for _, span := range []float32{0.01556, 9.2e-4, 1.8e-4, 7.6e-6, 5.96e-8, 1e-12, 0x1p-63, 0x1p-64, 0x1p-65, 0x1p-126, 0x1p-149} {
			row := make([]float32, 32)
			for i := range row {
				row[i] = span * float32(i) / 31
			}
			for _, policy := range []codec.Policy{codec.Finite, codec.Compat} {
				p := codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: keyFormat(bits, false), Values: valueFormat(bits), Group: 32, ScaleType: codec.F16, Policy: policy}
				compareKeys(t, fmt.Sprint("range ", span), p, row)
				compareValues(t, fmt.Sprint("range ", span), p, row, oracleRotate(t, row))
			}
		}
	}
}

// Elements below 2^-64 are as good as zero, whatever they stand beside: a
// device that flushes subnormals gives the same bits.
func TestFaultSubnormalFlush(t *testing.T) {
	for _, tiny := range []float32{0x1.fffffep-65, 0x1p-65, 0x1p-126, 0x1p-127, 0x1p-149, -0x1p-149} {
		for _, beside := range []float32{0, 0x1p-64, -0x1p-63, 1e-8, 1, -300} {
			with, without := fill(64, beside), fill(64, beside)
			for i := 0; i < 64; i += 3 {
				with[i], without[i] = tiny, 0
			}
			kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q8_0, ScaleType: codec.F32})
			k, v := encode(t, kv, codec.FromF32(with, 64))
			wantK, wantV := encode(t, kv, codec.FromF32(without, 64))
			what := fmt.Sprintf("%v beside %v", tiny, beside)
			sameKeys(t, what, k, wantK)
			sameValues(t, what, v, wantV)
		}
	}
}

// Constant groups decode to the constant, in the scale type.
func TestFaultConstantGroup(t *testing.T) {
	for _, c := range []float32{0, float32(math.Copysign(0, -1)), 9, -9, 65504, -65504, 1e-6, 0x1p-20, -3.14159} {
		for _, kt := range slices.DeleteFunc(codec.KeyFormats(), codec.Format.RowCode) {
			kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: kt, Values: codec.Q3_0})
			var k codec.Keys
			if err := kv.EncodeKeys(&k, codec.FromF32(fill(64, c), 64)); err != nil {
				t.Fatal(err)
			}
			y := codec.NewTensor(codec.F32, 64)
			if err := kv.DecodeKeys(y, k); err != nil {
				t.Fatal(err)
			}
			// Where the zero point fits f16, |c| < 65520·eps, the scale is 0 and so
			// is what is decoded; beyond it, the constant itself.
			want := stored(codec.F16, c)
			if math.Abs(float64(c)) < 65520*1e-8 {
				want = 0
			}
			for i := range 64 {
				if got := codec.F32.Load(y.Data[4*i:]); got != want {
					t.Fatalf("%s: constant %v decodes to %v, want %v", kt, c, got, want)
				}
			}
			if strings.Trim(string(k.Codes), "\x00") != "" && c != 0 && want != 0 {
				t.Errorf("%s: constant %v has codes % x", kt, c, k.Codes[:4])
			}
		}
	}
}

// The head dimensions that models have: those that fit work and their rotation
// undoes itself; the others are refused by name.
func TestFaultHeadDimension(t *testing.T) {
	works := map[int]bool{32: true, 64: true, 96: true, 128: true, 160: true, 192: true, 224: true, 256: true, 320: true,
		384: true, 448: true, 512: true, 640: true, 768: true, 896: true, 1024: true, 8192: true}
	for _, d := range []int{1, 31, 32, 33, 48, 64, 80, 96, 100, 112, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1024, 8192, 16384} {
		kv, err := ref.New().KV(codec.KVParams{HeadDim: d, Keys: codec.Uint8, Values: codec.Q8_0})
		if !works[d] {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint("dimension ", d)) {
				t.Errorf("d = %d: %v", d, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("d = %d: %v", d, err)
			continue
		}
		x := gaussian(codec.F32, 3, d)
		k, v := encode(t, kv, x)
		y, z := codec.NewTensor(codec.F32, 3, d), codec.NewTensor(codec.F32, 3, d)
		if err := kv.Decode(y, z, k, v); err != nil {
			t.Fatal(err)
		}
		if e := relativeError(y, x); e > 1e-4 {
			t.Errorf("d = %d: relative squared error of keys %v", d, e)
		}
		if e := relativeError(z, x); e > 5e-4 {
			t.Errorf("d = %d: relative squared error of values %v", d, e)
		}
		// Inverse after forward, in f32: each of log2 d stages rounds.
		row := make([]float32, d)
		x.LoadRow(row, 1)
		s := valueStages(t, kv.Params(), row)
		back := codec.NewTensor(codec.F32, d)
		if err := kv.Unrotate(back, codec.FromF32(s.Rotated, d)); err != nil {
			t.Fatal(err)
		}
		if e := relativeError(back, codec.FromF32(row, d)); e > 1e-12 {
			t.Errorf("d = %d: the rotation and its inverse leave a relative squared error of %v", d, e)
		}
	}
}

// Key and value head dimensions differ, either way round: each side is what it
// is alone.
func TestFaultHeadDimensionsDiffer(t *testing.T) {
	for _, c := range [][2]int{{192, 128}, {64, 256}, {288, 32}, {576, 512}} {
		kv := newKV(t, codec.KVParams{HeadDim: c[0], ValueHeadDim: c[1], Keys: codec.Q4_0, Values: codec.Q3_0})
		x, y := gaussian(codec.BF16, 6, c[0]), gaussian(codec.BF16, 6, c[1])
		x.Shape, y.Shape = []int{2, 3, c[0]}, []int{2, 3, c[1]}
		var k, wantK codec.Keys
		var v, wantV codec.Values
		for _, err := range []error{
			kv.EncodeKeys(&k, x), kv.EncodeValues(&v, y),
			newKV(t, codec.KVParams{HeadDim: c[0], ValueHeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0}).EncodeKeys(&wantK, x),
			newKV(t, codec.KVParams{HeadDim: c[1], Keys: codec.Q4_0, Values: codec.Q3_0}).EncodeValues(&wantV, y),
			kv.Decode(codec.NewTensor(codec.BF16, x.Shape...), codec.NewTensor(codec.BF16, y.Shape...), k, v),
		} {
			if err != nil {
				t.Fatal(c, err)
			}
		}
		sameKeys(t, fmt.Sprint(c), k, wantK)
		sameValues(t, fmt.Sprint(c), v, wantV)
	}
}

// Every code of every width, packed by the oracle, decodes to its own level.
func TestFaultWidthHardCoded(t *testing.T) {
	for _, bits := range []int{2, 3, 4, 5, 8} {
		const d = 256
		index := make([]byte, d)
		for i := range index {
			index[i] = byte(i % (1 << bits))
		}
		codes := oraclePack(index, bits)
		for _, signed := range []bool{false, true} {
			if signed && bits != 8 {
				continue
			}
			kv := newKV(t, codec.KVParams{HeadDim: d, Keys: keyFormat(bits, signed), Values: valueFormat(bits), ScaleType: codec.F32})
			y := codec.NewTensor(codec.F32, d)
			if err := kv.DecodeKeys(y, codec.Keys{Shape: []int{d}, Codes: codes, Scales: store(codec.F32, fill(8, 1)), Zeros: store(codec.F32, fill(8, 0))}); err != nil {
				t.Fatal(err)
			}
			table, err := lloydmax.Lookup(bits)
			if err != nil {
				t.Fatal(err)
			}
			z := codec.NewTensor(codec.F32, d)
			if err := kv.DecodeValuesRotated(z, codec.Values{Shape: []int{d}, Codes: codes, Scales: store(codec.F32, fill(8, 1))}); err != nil {
				t.Fatal(err)
			}
			for i := range index {
				want := float32(i % (1 << bits))
				if signed {
					want = float32(int8(i))
				}
				if got := codec.F32.Load(y.Data[4*i:]); got != want {
					t.Fatalf("%d bits, signed %v: key code %d decodes to %v", bits, signed, index[i], got)
				}
				if got, want := codec.F32.Load(z.Data[4*i:]), table.Centroid(int(index[i])); got != want {
					t.Fatalf("%d bits: value code %d decodes to %v, want %v", bits, index[i], got, want)
				}
			}
		}
	}
}

// The sum comes first: zero·scale alone would overflow.
func TestFaultZeroTimesScaleHoisted(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0})
	y := codec.NewTensor(codec.F16, 32)
	k := codec.Keys{Shape: []int{32}, Codes: slices.Repeat([]byte{0xff}, 16), Scales: store(codec.F16, []float32{5000}), Zeros: store(codec.F16, []float32{-15})}
	if err := kv.DecodeKeys(y, k); err != nil {
		t.Fatal(err)
	}
	diff(t, "(15 − 15)·5000", codec.F16, y.Data, make([]byte, 64))
}

// The same elements in each type give the same bytes, through every entry.
func TestFaultTypeMisread(t *testing.T) {
	x := gaussian(codec.BF16, 4, 64) // f32 and, in this range, f16 hold them too
	rows := make([]float32, 64)
	kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.Q5_0, Values: codec.Q5_0})
	wide, half := codec.NewTensor(codec.F32, 4, 64), codec.NewTensor(codec.F16, 4, 64)
	for r := range 4 {
		x.LoadRow(rows, r)
		for i, v := range rows {
			if stored(codec.F16, v) != v {
				rows[i] = 0
			}
		}
		x.StoreRow(r, rows)
		wide.StoreRow(r, rows)
		half.StoreRow(r, rows)
	}
	wantK, wantV := encode(t, kv, wide)
	for _, y := range []codec.Tensor{x, half} {
		k, v := encode(t, kv, y)
		sameKeys(t, y.DType.String(), k, wantK)
		sameValues(t, y.DType.String(), v, wantV)
	}
}

// Whatever bits stand in f16 scales and zero points, decoding is the formula:
// all 65,536 patterns of each.
func TestDecodeEveryScale(t *testing.T) {
	p := codec.KVParams{HeadDim: 32, ValueHeadDim: 32, Keys: codec.Uint8, Values: codec.Q2_0, Group: 32, ScaleType: codec.F16}
	kv := newKV(t, p)
	const rows = 1 << 16
	k := codec.Keys{Shape: []int{rows, 32}, Codes: slices.Repeat([]byte{7}, rows*32)}
	v := codec.Values{Shape: []int{rows, 32}, Codes: make([]byte, rows*8)}
	for h := range rows {
		z := uint16(h) * 40503 // another order: an odd factor permutes them
		k.Scales = append(k.Scales, byte(h), byte(h>>8))
		k.Zeros = append(k.Zeros, byte(z), byte(z>>8))
	}
	v.Scales = k.Scales
	y, w := codec.NewTensor(codec.F32, rows, 32), codec.NewTensor(codec.F32, rows, 32)
	if err := kv.DecodeRotated(y, w, k, v); err != nil {
		t.Fatal(err)
	}
	table, err := lloydmax.Lookup(2)
	if err != nil {
		t.Fatal(err)
	}
	for h := range rows {
		scale, zero := codec.F16.Load(k.Scales[2*h:]), codec.F16.Load(k.Zeros[2*h:])
		got, want := codec.F32.Load(y.Data[128*h:]), mul(add(7, zero), scale)
		if got != want && (got == got || want == want) {
			t.Fatalf("scale %v, zero %v: key %v, want %v", scale, zero, got, want)
		}
		got, want = codec.F32.Load(w.Data[128*h:]), mul(table.Centroid(0), scale)
		if got != want && (got == got || want == want) {
			t.Fatalf("scale %v: value %v, want %v", scale, got, want)
		}
	}
}

// Finite keys near the largest binary16 decode to finite ones: what would round
// to an infinity is ±65504 and counted, under Finite and to f16 only.
func TestFaultDecodesToInfinity(t *testing.T) {
	x := codec.NewTensor(codec.F16, 4, 64)
	for i := range x.Len() {
		v := []float32{65504, -65504, 50000, -65472, 65280, -50000, 1}[i*i%7]
		codec.F16.Store(x.Data[2*i:], v)
	}
	told := map[codec.Format]uint64{}
	for _, f := range slices.DeleteFunc(codec.KeyFormats(), codec.Format.RowCode) {
		for _, policy := range []codec.Policy{codec.Finite, codec.Compat} {
			kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: f, Values: codec.Q2_0, Policy: policy})
			var k codec.Keys
			if err := kv.EncodeKeys(&k, x); err != nil {
				t.Fatal(err)
			}
			wide, half, brain := codec.NewTensor(codec.F32, 4, 64), codec.NewTensor(codec.F16, 4, 64), codec.NewTensor(codec.BF16, 4, 64)
			for _, y := range []codec.Tensor{wide, half, brain} {
				if err := kv.DecodeKeys(y, k); err != nil {
					t.Fatal(err)
				}
			}
			var want uint64
			for i := range x.Len() {
				v := float64(codec.F32.Load(wide.Data[4*i:]))
				got := float64(codec.F16.Load(half.Data[2*i:]))
				switch beyond := math.Abs(v) >= 65520; { // halfway between 65504 and 65536
				case beyond && policy == codec.Finite:
					want++
					if got != math.Copysign(65504, v) {
						t.Errorf("%v, %v: %v decodes to %v", f, policy, v, got)
					}
				case beyond && !math.IsInf(got, 0):
					t.Errorf("%v, %v: %v decodes to %v", f, policy, v, got)
				case !beyond && math.Abs(got-v) > 16:
					t.Errorf("%v, %v: %v decodes to %v", f, policy, v, got)
				}
				if b := float64(codec.BF16.Load(brain.Data[2*i:])); math.Abs(b-v) > math.Abs(v)/256 {
					t.Errorf("%v, %v: %v decodes to %v in bf16", f, policy, v, b)
				}
			}
			if kv.Saturated() != want {
				t.Errorf("%v, %v: %d saturated, want %d", f, policy, kv.Saturated(), want)
			}
			told[f] += want
		}
	}
	if told[codec.Q8_0] == 0 || told[codec.Q2_0] == 0 {
		t.Errorf("no key saturated: %v", told)
	}
}
