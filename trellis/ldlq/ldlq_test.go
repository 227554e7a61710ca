package ldlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/trellis"
	"gonum.org/v1/gonum/mat"
)

// gram returns XᵀX/rows [n, n] of Gaussian inputs that are correlated along n.
func gram(r *rand.Rand, rows, n int) []float64 {
	h := make([]float64, n*n)
	x := make([]float64, n)
	for range rows {
		last := 0.0
		for i := range x {
			last = 0.8*last + r.NormFloat64()
			x[i] = last
		}
		for i := range n {
			for j := range n {
				h[i*n+j] += x[i] * x[j] / float64(rows)
			}
		}
	}
	return h
}

func identity(n int) []float64 {
	h := make([]float64, n*n)
	for i := range n {
		h[i*n+i] = 1
	}
	return h
}

// damped returns h as gonum's, with damp times its mean diagonal added.
func damped(h []float64, n int, damp float64) *mat.SymDense {
	s := mat.NewSymDense(n, slices.Clone(h))
	lambda := damp * mat.Trace(s) / float64(n)
	for i := range n {
		s.SetSym(i, i, s.At(i, i)+lambda)
	}
	return s
}

// TestFactor compares L with the one that gonum's Cholesky factor gives.
func TestFactor(t *testing.T) {
	type hessian struct {
		name string
		h    []float64
		n    int
	}
	r := rand.New(rand.NewPCG(1, 0))
	var cases []hessian
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 24, 96} {
		cases = append(cases, hessian{fmt.Sprintf("n=%d", n), gram(r, 2*n, n), n},
			hessian{fmt.Sprintf("singular n=%d", n), gram(r, (n+1)/2, n), n})
	}
	for _, l := range layers(t) {
		cases = append(cases, hessian{l.name, l.h, l.in})
	}
	for _, c := range cases {
		n := c.n
		for block := 1; block <= n; block++ {
			if n%block != 0 || n > 96 && block != 1 && block != 32 && block != 128 {
				continue
			}
			before := slices.Clone(c.h)
			f, err := Prepare(context.Background(), c.h, n, Options{Block: block})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if !slices.Equal(c.h, before) {
				t.Fatalf("%s: h changed", c.name)
			}
			if f.N() != n || f.Block() != block || f.Damp() != DefaultDamp {
				t.Fatalf("%s: N %d, Block %d, Damp %v", c.name, f.N(), f.Block(), f.Damp())
			}

			var chol mat.Cholesky
			if !chol.Factorize(damped(c.h, n, DefaultDamp)) {
				t.Fatalf("%s: gonum finds no factor", c.name)
			}
			var low mat.TriDense
			chol.LTo(&low)
			want := mat.NewDense(n, n, nil)
			for b := 0; b < n; b += block {
				var inv mat.Dense
				if err := inv.Inverse(low.T().T().(*mat.TriDense).SliceTri(b, b+block)); err != nil {
					t.Fatal(err)
				}
				full := mat.DenseCopyOf(&low)
				want.Slice(b, n, b, b+block).(*mat.Dense).Mul(full.Slice(b, n, b, b+block), &inv)
			}
			worst, size := 0.0, 1.0
			for i := range n {
				for j := range i / block * block {
					size = max(size, math.Abs(want.At(i, j)))
					worst = max(worst, math.Abs(f.a[i*n+j]-want.At(i, j)))
				}
			}
			// Two backward stable factors differ by about n roundings times
			// the condition number.
			if bound := float64(n) * 0x1p-52 * chol.Cond() * size; worst > bound {
				t.Errorf("%s, block %d: L differs from gonum's by %.3g, want at most %.3g", c.name, block, worst, bound)
			} else if n > 96 {
				t.Logf("%s, block %d: within %.2g of gonum (bound %.2g, condition %.2g)", c.name, block, worst, bound, chol.Cond())
			}

			// H is still there, undamped.
			x, y := make([]float64, n), make([]float64, n)
			for i := range x {
				x[i] = r.NormFloat64()
			}
			f.multiply(y, x)
			var exact mat.VecDense
			exact.MulVec(mat.NewDense(n, n, slices.Clone(c.h)), mat.NewVecDense(n, x))
			for i := range y {
				if math.Abs(y[i]-exact.AtVec(i)) > 1e-11*(1+mat.Norm(&exact, math.Inf(1))) {
					t.Fatalf("%s, block %d: (H·x)[%d] = %v, want %v", c.name, block, i, y[i], exact.AtVec(i))
				}
			}
		}
	}
}

// TestFactorExact: integers factor without rounding.
func TestFactorExact(t *testing.T) {
	// L·D·Lᵀ of L = [1; 2 1; −1 3 1], D = (4, 1, 9); the damping rounds away.
	h := []float64{4, 8, -4, 8, 17, -5, -4, -5, 22}
	f, err := Prepare(context.Background(), h, 3, Options{Block: 1, Damp: 1e-30})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.a, []float64{4, 8, -4, 2, 17, -5, -1, 3, 22}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPrepareErrors(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	set := func(i int, v float64) []float64 {
		h := identity(3)
		h[i] = v
		return h
	}
	for _, c := range []struct {
		name string
		h    []float64
		n    int
		o    Options
		err  error
		says string
	}{
		{"short", identity(3)[:8], 3, Options{Block: 1}, ErrShape, "8 values for n = 3"},
		{"long", identity(3), 2, Options{Block: 1}, ErrShape, "9 values for n = 2"},
		{"empty", nil, 0, Options{Block: 1}, ErrShape, "n = 0"},
		{"negative n", nil, -1, Options{Block: 1}, ErrShape, "n = -1"},
		{"huge n", nil, math.MaxInt, Options{Block: 1}, ErrShape, "n from 1 to 32768"},
		{"no block", identity(3), 3, Options{}, ErrShape, "blocks of 0"},
		{"block", identity(3), 3, Options{Block: 2}, ErrShape, "blocks of 2 columns in a Hessian [3, 3]"},
		{"large block", identity(3), 3, Options{Block: 6}, ErrShape, "blocks of 6"},
		{"negative damping", identity(3), 3, Options{Block: 1, Damp: -1}, ErrOptions, "-1"},
		{"NaN damping", identity(3), 3, Options{Block: 1, Damp: nan}, ErrOptions, "NaN"},
		{"infinite damping", identity(3), 3, Options{Block: 1, Damp: inf}, ErrOptions, "Inf"},
		{"NaN", set(5, nan), 3, Options{Block: 1}, ErrHessian, "h[1, 2] = NaN"},
		{"infinite", set(4, inf), 3, Options{Block: 1}, ErrHessian, "h[1, 1] = +Inf"},
		{"negative diagonal", set(8, -1), 3, Options{Block: 1}, ErrHessian, "h[2, 2] = -1, want a positive diagonal"},
		{"asymmetric", set(2, 0.5), 3, Options{Block: 1}, ErrHessian, "h[2, 0] = 0 and h[0, 2] = 0.5"},
		{"zero on the diagonal", set(4, 0), 3, Options{Block: 1}, ErrHessian, "h[1, 1] = 0, want a positive diagonal"},
		{"all zero", make([]float64, 9), 3, Options{Block: 1}, ErrHessian, "h[0, 0] = 0"},
		{"overflow", []float64{math.MaxFloat64, 0, 0, math.MaxFloat64}, 2, Options{Block: 1}, ErrHessian, "Inf"},
		{"indefinite", []float64{1, 5, 5, 1}, 2, Options{Block: 1}, ErrHessian, "[2, 2] is not positive definite at h[1, 1] with 1 times its mean"},
		{"indefinite, fourth", []float64{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 9, 0, 0, 9, 1}, 4, Options{Block: 2}, ErrHessian, "not positive definite at h[3, 3]"},
	} {
		f, err := Prepare(context.Background(), c.h, c.n, c.o)
		if !errors.Is(err, c.err) || strings.HasPrefix(err.Error(), "ldlq: ") || !strings.Contains(err.Error(), c.says) || f != nil {
			t.Errorf("%s: %v, %v, want %v saying %q", c.name, f, err, c.err, c.says)
		}
	}
}

// TestDamping: what lacks rank factors, what is slightly indefinite takes more
// damping, and a float32 product's asymmetry is accepted.
func TestDamping(t *testing.T) {
	ones := slices.Repeat([]float64{1}, 36)
	almost := identity(6)
	almost[1], almost[6] = 1+1e-5, 1+2e-5
	for _, c := range []struct {
		name string
		h    []float64
		o    Options
		want float64
	}{
		{"input of little weight", []float64{1, 0, 0, 5e-324}, Options{}, DefaultDamp},
		{"rank one", ones, Options{}, DefaultDamp},
		{"rank one, tiny damping", ones, Options{Damp: 1e-9}, 1e-9},
		{"asymmetric by rounding", almost, Options{}, DefaultDamp},
		{"eigenvalue −0.05", []float64{1, 1.05, 1.05, 1}, Options{}, 0.1},
		{"eigenvalue −0.5", []float64{1, 1.5, 1.5, 1}, Options{}, 1},
		{"asked for", []float64{1, 1.5, 1.5, 1}, Options{Damp: 0.75}, 0.75},
	} {
		c.o.Block = 1
		f, err := Prepare(context.Background(), c.h, int(math.Sqrt(float64(len(c.h)))), c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if math.Abs(f.Damp()/c.want-1) > 1e-12 {
			t.Errorf("%s: damping %v, want %v", c.name, f.Damp(), c.want)
		}
	}
}

func TestBlockFor(t *testing.T) {
	p := trellis.DefaultParams(3)
	if a, b := BlockFor(p, 1), BlockFor(p, 0); a != p.T || b != 1 {
		t.Errorf("BlockFor: %d, %d, want %d, 1", a, b, p.T)
	}
}

func BenchmarkPrepare(b *testing.B) {
	for _, c := range []struct{ n, block int }{{384, 128}, {384, 1}, {1024, 256}} {
		b.Run(fmt.Sprintf("n=%d/block=%d", c.n, c.block), func(b *testing.B) {
			h := gram(rand.New(rand.NewPCG(3, 0)), 8, c.n)
			for b.Loop() {
				if _, err := Prepare(context.Background(), h, c.n, Options{Block: c.block}); err != nil {
					b.Fatal(err)
				}
			}
			muls := float64(c.n) * float64(c.n) * (float64(c.n)/6 + float64(c.block)/2)
			b.ReportMetric(muls*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gmul/s")
		})
	}
}
