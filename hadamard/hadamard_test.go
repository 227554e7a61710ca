package hadamard

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	mathbits "math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/vectors"
)

// sizes are all supported sizes, ascending.
var sizes = func() []int {
	var s []int
	for _, m := range []int{1, 12, 20, 28} {
		for k := range 14 {
			s = append(s, m<<k)
		}
	}
	slices.Sort(s)
	return s
}()

func small(s []int) []int {
	i, _ := slices.BinarySearch(s, 2000)
	return s[:i]
}

func random(rng *rand.Rand, d int) []float32 {
	x := make([]float32, d)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// differ returns the first index where a and b differ in a bit, or −1. NaN
// equals NaN.
func differ(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && !(a[i] != a[i] && b[i] != b[i]) {
			return i
		}
	}
	return -1
}

// naive is the transform as docs/numerics.md §3 words it.
func naive(x []float32) {
	m, n, _ := Split(len(x))
	for base := 0; base < len(x); base += n {
		for h := 1; h < n; h *= 2 {
			for j := range n {
				if j/h%2 == 0 {
					a, b := x[base+j], x[base+j+h]
					x[base+j], x[base+j+h] = a+b, a-b
				}
			}
		}
	}
	if m > 1 {
		in := slices.Clone(x)
		for j := range m {
			for i := range n {
				var sum float32
				for c := range m {
					if matrixOf(m)[j]>>c&1 == 1 {
						sum -= in[c*n+i]
					} else {
						sum += in[c*n+i]
					}
				}
				x[j*n+i] = sum
			}
		}
	}
	r := float32(1 / math.Sqrt(float64(len(x))))
	for i := range x {
		x[i] = float32(x[i] * r)
	}
}

// TestTransformVector compares with MLX's hadamard_transform, bit for bit.
func TestTransformVector(t *testing.T) {
	f := vectors.Load(t, "hadamard.safetensors")
	elements, count := 0, 0
	for _, name := range f.Names() {
		d, err := strconv.Atoi(strings.TrimPrefix(name, "x"))
		if err != nil {
			continue
		}
		x, want := f.F32(t, name), f.F32(t, fmt.Sprint("y", d))
		if len(x) == 0 || len(x)%d != 0 || len(want) != len(x) {
			t.Fatalf("%s: %d elements, %d expected", name, len(x), len(want))
		}
		for row := 0; row < len(x); row += d {
			if err := Transform(x[row : row+d]); err != nil {
				t.Fatal(err)
			}
		}
		if i := differ(x, want); i >= 0 {
			t.Errorf("d=%d: row %d element %d is %v (%#08x), want %v (%#08x)", d, i/d, i%d,
				x[i], math.Float32bits(x[i]), want[i], math.Float32bits(want[i]))
		}
		elements += len(x)
		count++
	}
	t.Logf("compared %d elements of %d sizes", elements, count)
	if count == 0 {
		t.Error("no size compared")
	}
}

func TestMatrixVector(t *testing.T) {
	f := vectors.Load(t, "hadamard.safetensors")
	elements := 0
	for _, m := range []int{12, 20, 28} {
		want := f.I8(t, fmt.Sprint("h", m))
		h := matrixOf(m)
		if len(h) != m || len(want) != m*m {
			t.Fatalf("order %d: %d rows, %d elements expected", m, len(h), len(want))
		}
		for i, w := range want {
			got := int8(1)
			if h[i/m]>>(i%m)&1 == 1 {
				got = -1
			}
			if got != w {
				t.Errorf("order %d: element (%d, %d) is %d, want %d", m, i/m, i%m, got, w)
			}
		}
		for j, row := range h {
			if row>>m != 0 {
				t.Errorf("order %d: row %d has bits past its end", m, j)
			}
		}
		elements += len(want)
	}
	t.Logf("compared %d elements", elements)
	if elements == 0 {
		t.Error("no element compared")
	}
}

// Rows are orthogonal, and so are those of the transpose.
func TestMatrixOrthogonal(t *testing.T) {
	for _, m := range []int{12, 20, 28} {
		for _, h := range []matrix{matrixOf(m), matrixOf(m).transpose()} {
			for i := range h {
				for j := range i {
					if n := mathbits.OnesCount32(h[i] ^ h[j]); n != m/2 {
						t.Errorf("order %d: rows %d and %d differ in %d columns", m, i, j, n)
					}
				}
			}
		}
	}
}

// element is the element (j, c) of the ±1 matrix of order d: the Kronecker
// product of the m×m matrix and Sylvester's.
func element(d, j, c int) int64 {
	m, n, _ := Split(d)
	s := int64(1 - 2*(mathbits.OnesCount(uint(j%n&(c%n)))&1))
	if m > 1 && matrixOf(m)[j/n]>>(c/n)&1 == 1 {
		s = -s
	}
	return s
}

// On small integers every sum is exact, so only the last product rounds. The
// expected value is the explicit matrix product in integers, times 1/√d to 200
// bits rounded to float64 and to float32.
func TestExplicitMatrix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for _, d := range small(sizes) {
		root := new(big.Float).SetPrec(200).Sqrt(new(big.Float).SetPrec(200).SetInt64(int64(d)))
		inverse, _ := new(big.Float).SetPrec(200).Quo(big.NewFloat(1), root).Float64()
		r := big.NewFloat(float64(float32(inverse)))
		x := make([]float32, d)
		for i := range x {
			x[i] = float32(rng.IntN(2001) - 1000)
		}
		in := slices.Clone(x)
		if err := Transform(x); err != nil {
			t.Fatal(err)
		}
		for j, got := range x {
			var sum int64
			for c, v := range in {
				sum += element(d, j, c) * int64(v)
			}
			want, _ := new(big.Float).SetPrec(200).Mul(big.NewFloat(float64(sum)), r).Float32()
			if got != want {
				t.Fatalf("d=%d: output %d is %v, want %d/√%d = %v", d, j, got, sum, d, want)
			}
		}
	}
}

func TestOrderOfOperations(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 3))
	elements := 0
	for _, d := range sizes {
		x := random(rng, d)
		for i := range x { // magnitudes that make every order of sums round differently
			x[i] *= float32(math.Ldexp(1, rng.IntN(24)))
		}
		want := slices.Clone(x)
		naive(want)
		if err := Transform(x); err != nil {
			t.Fatal(err)
		}
		if i := differ(x, want); i >= 0 {
			t.Errorf("d=%d: element %d is %v, want %v", d, i, x[i], want[i])
		}
		elements += d
	}
	t.Logf("compared %d elements of %d sizes", elements, len(sizes))
}

func TestSmallSizes(t *testing.T) {
	const r2 = 0.70710678118654752440
	negZero := float32(math.Copysign(0, -1))
	for _, c := range []struct{ x, want []float32 }{
		{[]float32{3.25}, []float32{3.25}},
		{[]float32{negZero}, []float32{negZero}},
		{[]float32{3, 1}, []float32{float32(4 * float32(r2)), float32(2 * float32(r2))}},
		{[]float32{negZero, negZero}, []float32{negZero, 0}},
		{[]float32{1, 2, 3, 4}, []float32{5, -1, -2, 0}},
		{[]float32{0, 1, 0, 0}, []float32{0.5, -0.5, 0.5, -0.5}},
		// A sum starts from +0, so −0 does not survive the matrix.
		{slices.Repeat([]float32{negZero}, 12), make([]float32, 12)},
	} {
		x := slices.Clone(c.x)
		if err := Transform(x); err != nil {
			t.Fatal(err)
		}
		if differ(x, c.want) >= 0 {
			t.Errorf("%v becomes %v, want %v", c.x, x, c.want)
		}
	}
}

func TestNorm(t *testing.T) {
	for d, want := range map[int]uint32{1: 0x3f800000, 64: 0x3e000000, 128: 0x3db504f3, 256: 0x3d800000, 512: 0x3d3504f3} {
		if got := math.Float32bits(Norm(d)); got != want {
			t.Errorf("Norm(%d) = %#08x, want %#08x", d, got, want)
		}
	}
}

func TestSupported(t *testing.T) {
	n := 0
	for d := -4; d <= 28*8192+4; d++ {
		_, want := slices.BinarySearch(sizes, d)
		if Supported(d) != want {
			t.Errorf("Supported(%d) = %t", d, !want)
		}
		if want {
			n++
		}
	}
	if n != 4*14 {
		t.Errorf("%d sizes are supported, want 56", n)
	}
	for _, d := range []int{math.MinInt, math.MaxInt, 1 << 30, 12 << 27} {
		if Supported(d) {
			t.Errorf("Supported(%d)", d)
		}
	}
}

func TestUnsupported(t *testing.T) {
	for _, d := range []int{-1, 0, 3, 6, 36, 60, 72, 100, 576, 1000, 16384, 12 * 16384} {
		want := fmt.Sprintf("size %d ", d)
		if _, err := New(d); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("New(%d): error %v does not name it", d, err)
		}
		if d < 0 {
			continue
		}
		x := slices.Repeat([]float32{1.5}, d)
		if err := Transform(x); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Transform of %d: error %v does not name it", d, err)
		}
		for i, v := range x {
			if v != 1.5 {
				t.Fatalf("Transform of %d elements failed and changed element %d", d, i)
			}
		}
	}
}

func signString(s []float32) string {
	var b strings.Builder
	for _, v := range s {
		switch v {
		case 1:
			b.WriteByte('+')
		case -1:
			b.WriteByte('-')
		default:
			fmt.Fprintf(&b, "(%v)", v)
		}
	}
	return b.String()
}

func TestSigns(t *testing.T) {
	for d, want := range publishedSigns {
		if len(want) != d {
			t.Fatalf("the table of %d has %d signs", d, len(want))
		}
		if got := signString(AppendSigns(nil, d)); got != want {
			t.Errorf("signs of %d:\n%s, want\n%s", d, got, want)
		}
	}
	// From the words MLX gives for 5: bad56946 de837c89 3249c374 354ba891 2fc69b62.
	if got := signString(AppendSigns([]float32{-1}, 5)); got != "---+++" {
		t.Errorf("signs of 5 after one: %s", got)
	}
	for _, d := range []int{0, -1} {
		if got := AppendSigns([]float32{1}, d); len(got) != 1 {
			t.Errorf("%d signs appended for d = %d", len(got)-1, d)
		}
	}
	// The four blocks of counters differ with d.
	if strings.HasPrefix(publishedSigns[128], publishedSigns[64]) ||
		strings.HasPrefix(signString(AppendSigns(nil, 128)), signString(AppendSigns(nil, 64))) {
		t.Error("the signs of 64 are a prefix of those of 128")
	}
}

func TestSignsVector(t *testing.T) {
	var notes struct{ Signs map[string]string }
	if err := json.Unmarshal(vectors.ReadFile(t, "kv/notes.json"), &notes); err != nil {
		t.Fatal(err)
	}
	total := 0
	for key, want := range notes.Signs {
		d, err := strconv.Atoi(key)
		if err != nil || len(want) != d {
			t.Fatalf("%d signs of %q", len(want), key)
		}
		if got := signString(AppendSigns(nil, d)); got != want {
			t.Errorf("signs of %d:\n%s, want\n%s", d, got, want)
		}
		total += d
	}
	t.Logf("compared %d signs of %d sizes", total, len(notes.Signs))
	if total == 0 {
		t.Error("no sign compared")
	}
}

// randint(0, 2) by way of MLX's uniform: float32(w)/2^32, at most 1 − 2^-24,
// times 2, truncated.
func TestSignWord(t *testing.T) {
	for _, w := range []uint32{
		0, 1, 1<<31 - 129, 1<<31 - 128, 1<<31 - 65, 1<<31 - 64, 1<<31 - 63, 1<<31 - 1, 1 << 31, 1<<31 + 1, math.MaxUint32,
	} {
		u := min(float32(w)/0x1p32, 1-0x1p-24)
		if want := float32(1 - 2*int(u*2)); sign(w) != want {
			t.Errorf("sign(%#08x) = %v, want %v", w, sign(w), want)
		}
	}
}

func TestRotation(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 3))
	for _, d := range sizes {
		rot, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		if rot.Dim() != d {
			t.Errorf("Dim = %d, want %d", rot.Dim(), d)
		}
		x := random(rng, d)
		y := slices.Clone(x)
		rot.Forward(y)

		// Forward is signs, then transform.
		want := AppendSigns(nil, d)
		for i := range want {
			want[i] *= x[i]
		}
		naive(want)
		if i := differ(y, want); i >= 0 {
			t.Errorf("d=%d: Forward: element %d is %v, want %v", d, i, y[i], want[i])
		}

		// Norms are kept and Inverse undoes it. A stage adds at most half an
		// ulp to each element; the sums of 28 add 27.
		rot.Inverse(y)
		var diff, norm float64
		for i := range x {
			e := float64(y[i]) - float64(x[i])
			diff += e * e
			norm += float64(x[i]) * float64(x[i])
		}
		if rel := math.Sqrt(diff / norm); !(rel <= 4e-7) {
			t.Errorf("d=%d: Inverse of Forward is off by %.3g", d, rel)
		}
	}
}

// Inverse is the transform, then signs, wherever the matrix is symmetric, and
// the transpose exactly where it is not.
func TestInverseOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 3))
	for _, d := range small(sizes) {
		rot, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		x := random(rng, d)
		same := slices.Clone(x)
		naive(same)
		for i, s := range AppendSigns(nil, d) {
			same[i] *= s
		}
		exact := make([]float32, d) // of integers, by explicit transposed matrix
		for i := range exact {
			exact[i] = float32(rng.IntN(201) - 100)
		}
		want := make([]float32, d)
		for c, s := range AppendSigns(nil, d) {
			var sum int64
			for j, v := range exact {
				sum += element(d, j, c) * int64(v)
			}
			want[c] = float32(float32(sum)*Norm(d)) * s
		}
		rot.Inverse(x)
		rot.Inverse(exact)
		m, _, _ := Split(d)
		if symmetric := m == 1 || m == 12; symmetric != (differ(x, same) < 0) {
			t.Errorf("d=%d: Inverse equals the transform: %t, want %t", d, !symmetric, symmetric)
		}
		for i := range exact {
			if exact[i] != want[i] { // zeros of either sign are equal
				t.Fatalf("d=%d: Inverse: element %d is %v, want %v", d, i, exact[i], want[i])
			}
		}
	}
}

func TestGuardWords(t *testing.T) {
	const guard = 12345.5
	for _, d := range small(sizes) {
		rot, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		for offset := 1; offset <= 4; offset++ {
			buf := slices.Repeat([]float32{guard}, d+8)
			x := buf[offset : offset+d]
			for i := range x {
				x[i] = float32(i)
			}
			rot.Forward(x)
			rot.Inverse(x)
			if err := Transform(x); err != nil {
				t.Fatal(err)
			}
			for i, v := range buf {
				if (i < offset || i >= offset+d) && v != guard {
					t.Fatalf("d=%d: wrote %d elements from the start", d, i-offset)
				}
			}
		}
	}
}

func TestWrongLengthPanics(t *testing.T) {
	rot, err := New(64)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []func([]float32){rot.Forward, rot.Inverse} {
		for _, n := range []int{0, 63, 65, 128} {
			func() {
				defer func() {
					want := fmt.Sprintf("hadamard: vector of %d elements for a rotation of 64", n)
					if got := recover(); got != want {
						t.Errorf("length %d: panic %v, want %q", n, got, want)
					}
				}()
				f(make([]float32, n))
			}()
		}
	}
}

func TestAllocs(t *testing.T) {
	for _, d := range []int{128, 112} {
		rot, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, d)
		for name, f := range map[string]func(){
			"Forward":   func() { rot.Forward(x) },
			"Inverse":   func() { rot.Inverse(x) },
			"Transform": func() { _ = Transform(x) },
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("d=%d: %s allocates %v times", d, name, n)
			}
		}
	}
}

func TestConcurrent(t *testing.T) {
	rot, err := New(112)
	if err != nil {
		t.Fatal(err)
	}
	x := random(rand.New(rand.NewPCG(6, 3)), 112)
	want := slices.Clone(x)
	rot.Forward(want)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				y := slices.Clone(x)
				rot.Forward(y)
				if i := differ(y, want); i >= 0 {
					t.Errorf("element %d is %v, want %v", i, y[i], want[i])
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzTransform(f *testing.F) {
	f.Add(0, []byte{})
	f.Add(1, []byte{0, 0, 0x80, 0x3f})
	f.Add(12, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(100, []byte{0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, n int, data []byte) {
		x := make([]float32, uint(n)%4096)
		for i := range x {
			if len(data) >= 4 {
				at := 4 * (i % (len(data) / 4))
				x[i] = math.Float32frombits(uint32(data[at]) | uint32(data[at+1])<<8 | uint32(data[at+2])<<16 | uint32(data[at+3])<<24)
			}
		}
		in := slices.Clone(x)
		err := Transform(x)
		if (err == nil) != Supported(len(x)) {
			t.Fatalf("size %d: error %v", len(x), err)
		}
		if err == nil {
			naive(in)
		}
		if i := differ(x, in); i >= 0 {
			t.Fatalf("size %d: element %d is %v, want %v (error %v)", len(x), i, x[i], in[i], err)
		}
	})
}
