package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
)

// relativeError returns |got − want|² / |want|² of two f32 tensors.
func relativeError(got, want codec.Tensor) float64 {
	var num, den float64
	for i := 0; i < len(want.Data); i += 4 {
		g, w := float64(codec.F32.Load(got.Data[i:])), float64(codec.F32.Load(want.Data[i:]))
		num, den = num+(g-w)*(g-w), den+w*w
	}
	return num / den
}

// rowErrors returns the mean and the standard error of the squared error an
// element, rows being independent.
func rowErrors(got, want codec.Tensor) (mean, stderr float64) {
	d := want.Dim()
	var sum, sum2 float64
	for r := range want.Rows() {
		var e float64
		for i := r * d * 4; i < (r+1)*d*4; i += 4 {
			x := float64(codec.F32.Load(got.Data[i:])) - float64(codec.F32.Load(want.Data[i:]))
			e += x * x / float64(d)
		}
		sum, sum2 = sum+e, sum2+e*e
	}
	n := float64(want.Rows())
	mean = sum / n
	return mean, math.Sqrt((sum2/n - mean*mean) / n)
}

// expected integrates what a table makes of N(0,1) groups of n elements: the
// squared error an element and the probability of each level. A group over its
// rms is uniform on a sphere, whatever the rms, so that an element of it, t, has
// a density proportional to (1 − t²/n)^((n−3)/2).
func expected(table *lloydmax.Table, n float64) (mse float64, p []float64) {
	const steps = 400000
	p = make([]float64, table.Levels())
	var mass float64
	for i := range steps {
		t := math.Sqrt(n) * (2*(float64(i)+0.5)/steps - 1)
		f := math.Pow(1-t*t/n, (n-3)/2)
		level := table.Index(float32(t))
		e := t - float64(table.Centroid(level))
		mse, mass, p[level] = mse+e*e*f, mass+f, p[level]+f
	}
	for i := range p {
		p[i] /= mass
	}
	return mse / mass, p
}

// The squared error of N(0,1) values is what the table makes of them in theory,
// within 5 standard errors, whatever their size; and every level is used as
// often as it should be. (Optimal quantisers of N(0,1) itself have errors of
// 0.1175, 0.03454, 0.009497 and 0.002499 at 2 to 5 bits; dividing a group by its
// own rms takes some 5 % off.)
func TestFaultNormNotExtracted(t *testing.T) {
	const rows, d, group = 2048, 128, 32
	x := gaussian(codec.F32, rows, d)
	for bits, optimal := range map[int]float64{2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499} {
		table, err := lloydmax.Lookup(bits)
		if err != nil {
			t.Fatal(err)
		}
		theory, p := expected(table, group)
		for _, factor := range []float32{1, 1e-3, 1e3} {
			scaled := codec.NewTensor(codec.F32, rows, d)
			for i := 0; i < len(x.Data); i += 4 {
				codec.F32.Store(scaled.Data[i:], codec.F32.Load(x.Data[i:])*factor)
			}
			kv := newKV(t, codec.KVParams{HeadDim: d, Keys: codec.Uint8, Values: valueFormat(bits)})
			var v codec.Values
			if err := kv.EncodeValues(&v, scaled); err != nil {
				t.Fatal(err)
			}
			y := codec.NewTensor(codec.F32, rows, d)
			if err := kv.DecodeValues(y, v); err != nil {
				t.Fatal(err)
			}
			mean, stderr := rowErrors(y, scaled)
			mean, stderr = mean/float64(factor*factor), stderr/float64(factor*factor)
			if math.Abs(mean-theory) > 5*stderr {
				t.Errorf("%d bits, N(0, %v²): squared error %.6f ± %.6f, theory %.6f", bits, factor, mean, stderr, theory)
			}
			if factor != 1 {
				continue
			}
			t.Logf("%d bits: squared error %.6f ± %.6f, theory %.6f, optimum for N(0,1) %.6f", bits, mean, stderr, theory, optimal)
			if theory > optimal || theory < 0.9*optimal {
				t.Errorf("%d bits: theory %.6f is far from the optimum for N(0,1), %.6f", bits, theory, optimal)
			}
			index := make([]byte, rows*d)
			if err := pack.Unpack(index, v.Codes, bits); err != nil {
				t.Fatal(err)
			}
			counts := make([]float64, len(p))
			for _, level := range index {
				counts[level]++
			}
			for level, p := range p {
				n := float64(len(index))
				if sigma := math.Sqrt(n * p * (1 - p)); math.Abs(counts[level]-n*p) > 5*sigma {
					t.Errorf("%d bits: level %d used %v times, want %.0f ± %.0f", bits, level, counts[level], n*p, sigma)
				}
			}
		}
	}
}

// Searching the scale lowers the error of every width, on N(0,1) too.
func TestSearchLowersError(t *testing.T) {
	const rows, d = 512, 128
	x := gaussian(codec.F32, rows, d)
	for _, bits := range []int{2, 3, 4, 5, 8} {
		var mean [2]float64
		for rule := codec.RMS; rule <= codec.Search; rule++ {
			kv := newKV(t, codec.KVParams{HeadDim: d, Keys: codec.Uint8, Values: valueFormat(bits), Scale: rule})
			var v codec.Values
			if err := kv.EncodeValues(&v, x); err != nil {
				t.Fatal(err)
			}
			y := codec.NewTensor(codec.F32, rows, d)
			if err := kv.DecodeValues(y, v); err != nil {
				t.Fatal(err)
			}
			mean[rule], _ = rowErrors(y, x)
		}
		t.Logf("%d bits: search changes the squared error by %+.1f %%", bits, 100*(mean[codec.Search]/mean[codec.RMS]-1))
		if mean[codec.Search] >= mean[codec.RMS] {
			t.Errorf("%d bits: searched %v, rms %v", bits, mean[codec.Search], mean[codec.RMS])
		}
	}
}

// Keys are a uniform quantiser: the error is step²/12 where steps are small,
// the mean square of the steps being that of the stored scales.
func TestKeyError(t *testing.T) {
	const rows, d = 1024, 128
	x := gaussian(codec.F32, rows, d)
	for _, bits := range []int{4, 5, 8} {
		kv := newKV(t, codec.KVParams{HeadDim: d, Keys: keyFormat(bits, false), Values: codec.Q3_0, ScaleType: codec.F32})
		var k codec.Keys
		if err := kv.EncodeKeys(&k, x); err != nil {
			t.Fatal(err)
		}
		y := codec.NewTensor(codec.F32, rows, d)
		if err := kv.DecodeKeys(y, k); err != nil {
			t.Fatal(err)
		}
		var step2 float64
		for i := 0; i < len(k.Scales); i += 4 {
			s := float64(codec.F32.Load(k.Scales[i:]))
			step2 += s * s / float64(len(k.Scales)/4)
		}
		mean, stderr := rowErrors(y, x)
		want := step2 / 12
		// The two ends of a group, 2 elements of 32, have an error of their own:
		// that of rounding the zero point. It is as uniform.
		if math.Abs(mean-want) > 0.02*want+4*stderr {
			t.Errorf("%d bits: squared error %.3g ± %.2g, step²/12 = %.3g", bits, mean, stderr, want)
		}
		t.Logf("%d bits: squared error %.4g ± %.2g, step²/12 = %.4g", bits, mean, stderr, want)
	}
}

// What the row codes leave of Gaussian rows of 128, in dB, is not below what they were designed to.
func TestRowCodeNoise(t *testing.T) {
	const rows, d = 400, 128
	r := rand.New(rand.NewPCG(7, 128))
	x := codec.NewTensor(codec.F32, rows, d)
	for i := range rows * d {
		codec.F32.Store(x.Data[4*i:], float32(r.NormFloat64()))
	}
	for f, least := range map[codec.Format]float64{codec.R2: 9.35, codec.R3: 14.9, codec.R4: 20.85, codec.T2: 11.0, codec.T3: 16.6, codec.T4: 22.2} {
		kv := newKV(t, codec.KVParams{HeadDim: d, Keys: f, Values: codec.Q4_0})
		var k codec.Keys
		if err := kv.EncodeKeys(&k, x); err != nil {
			t.Fatal(err)
		}
		out := codec.NewTensor(codec.F32, rows, d)
		if err := kv.DecodeKeys(out, k); err != nil {
			t.Fatal(err)
		}
		if got := -10 * math.Log10(relativeError(out, x)); got < least {
			t.Errorf("%v: %.2f dB, want %.2f", f, got, least)
		} else {
			t.Logf("%v: %.2f dB", f, got)
		}
	}
}
