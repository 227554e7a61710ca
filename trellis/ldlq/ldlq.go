// Package ldlq codes weights with error feedback from a Hessian. It minimises
// the proxy loss tr((W − Ŵ)·H·(W − Ŵ)ᵀ), where H = XᵀX/n are the second moments
// of the layer's inputs; package trellis minimises |W − Ŵ|². The codes and
// scales have the same format; only the encoder's choice differs. The paths are
// found by any backend (Blocks). The method is LDLQ (QuIP, arXiv:2307.13304; with trellis codes, QTIP, arXiv:2406.11235).
//
// With H = L·D·Lᵀ, L unit lower block triangular and D block diagonal, the loss
// of E = W − Ŵ is tr((E·L)·D·(E·L)ᵀ). The column blocks are coded from last to
// first, and block b not from W but from
//
//	W_b + Σ_{c > b} E_c · L_{c,b}
//
// so that block b of E·L is the error of its own coding alone.
//
// # Blocks and axes
//
// A path of the trellis is found for T weights at once, so where it runs along
// the inputs (axis 1) the blocks have T columns and a smaller T feeds back more.
// Where it runs along the outputs (axis 0) each input is a coded row of its own
// and the blocks are single columns, whatever T. BlockFor gives the size.
//
// # Scales
//
// Each row's first scale is Encoder.RowScale of the row itself, not of what is
// fed back. Under the Refit rule the stored scale of an output's row (axis 1)
// is the least-squares one for H, (w·H·fᵀ)/(f·H·fᵀ), f the code values; that of an
// input's row (axis 0) is the least-squares one for the row with its feedback,
// taken before the row's own error is fed back. Both are trellis.RefitScale
// where H is the identity.
//
// # The guard
//
// A badly conditioned H feeds back so much that targets leave the code's range.
// Encode therefore also codes without
// feedback and keeps what has the smaller loss: row by row on axis 1, where
// each output has its own part of the loss, and all or nothing on axis 0. The
// result is never worse than unweighted coding, and the Report says what was
// kept. It costs a second encode.
//
// # Arithmetic
//
// Everything that decides a byte is IEEE arithmetic in a stated order and
// without FMA, so all GOARCHes write the same bytes. That is why the
// factorisation is here and not gonum's, whose kernels add in one order in
// assembly on amd64 and in another, contracted to FMAs where the compiler may,
// elsewhere; the tests check against it. H, L and every sum are float64; the
// target, the error w − ŵ and ŵ itself are float32.
package ldlq

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// What is wrong with an input, by class. The errors returned wrap one of these
// or one of package trellis, and say more.
var (
	ErrOptions = errors.New("invalid options")
	ErrShape   = errors.New("shape mismatch")
	ErrHessian = errors.New("not a Gram matrix")
)

// DefaultDamp is QTIP's.
const DefaultDamp = 0.01

const (
	// MaxN bounds the order of a Hessian: 8 GiB of float64.
	MaxN = 1 << 15

	// asymmetry is allowed between h_ij and h_ji, in units of h_ii + h_jj: far
	// above what a float32 product rounds, far below a mistake.
	asymmetry = 1e-4

	// dampings are tried before a Hessian is refused.
	dampings = 3
)

// Options says how a Hessian is factored.
type Options struct {
	// Block is the number of columns coded at once: a divisor of n. See
	// BlockFor.
	Block int

	// Damp is added to the diagonal, in units of its mean. It bounds the
	// feedback of a badly conditioned or singular Hessian. Zero is DefaultDamp;
	// negative, infinite and NaN are an ErrOptions.
	Damp float64
}

// BlockFor returns the Options.Block for coding with p along axis: T where
// coded rows run along the inputs (1), and 1 where they run along the outputs
// (0).
func BlockFor(p trellis.Params, axis int) int {
	if axis == 0 {
		return 1
	}
	return p.T
}

// Feedback is a Hessian and its block factor L. It holds 8·n² bytes, does not
// change, and is safe for concurrent use: weights with the same inputs, such as
// a layer's query, key and value, share one.
type Feedback struct {
	n, block int
	damp     float64
	// a is L, but for its unit diagonal, below the diagonal blocks of [n, n],
	// and H in them and above; H mirrors what L takes.
	a []float64
}

// Check returns the ErrHessian that Prepare returns before it factors h [n, n]: an
// entry that is not finite, an element of the diagonal that is not positive, or a
// matrix that is not symmetric. It returns ctx.Err() soon after ctx ends.
func Check(ctx context.Context, h []float64, n int) error {
	if n < 1 || n > MaxN || len(h) != n*n {
		return fmt.Errorf("%w: Hessian of %d values for n = %d, want n² with n from 1 to %d", ErrShape, len(h), n, MaxN)
	}
	_, err := check(ctx, h, n)
	return err
}

// Prepare factors the Hessian h [n, n], row-major, the XᵀX/n (or any positive
// multiple) of inputs X. h is neither kept nor changed; its lower triangle is
// what counts. It takes about n³/6 + n²·Block/2 multiplications.
//
// A Hessian without full rank is made definite by the damping. Where that is
// not enough (rounding took an eigenvalue below zero) ten and a hundred times
// the damping are tried; then it is an ErrHessian, as are an entry that is not
// finite, an element of the diagonal that is not positive, and a matrix that is
// not symmetric. An input that was zero in all of X has a zero there: give it a
// positive element, as GPTQ does with 1. Sizes that do not fit together or
// exceed MaxN are an ErrShape. Prepare returns ctx.Err() soon after ctx ends.
func Prepare(ctx context.Context, h []float64, n int, o Options) (*Feedback, error) {
	if o.Damp == 0 {
		o.Damp = DefaultDamp
	}
	if !(o.Damp > 0) || math.IsInf(o.Damp, 0) {
		return nil, fmt.Errorf("%w: damping %v, want a positive number", ErrOptions, o.Damp)
	}
	if n < 1 || n > MaxN || len(h) != n*n {
		return nil, fmt.Errorf("%w: Hessian of %d values for n = %d, want n² with n from 1 to %d", ErrShape, len(h), n, MaxN)
	}
	if o.Block < 1 || n%o.Block != 0 {
		return nil, fmt.Errorf("%w: blocks of %d columns in a Hessian [%d, %d]", ErrShape, o.Block, n, n)
	}
	mean, err := check(ctx, h, n)
	if err != nil {
		return nil, err
	}

	f := &Feedback{n: n, block: o.Block, a: make([]float64, n*n)}
	diag := make([]float64, n)
	for i := range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		diag[i] = h[i*n+i]
		for j := range i + 1 {
			f.a[j*n+i] = h[i*n+j]
		}
	}
	f.damp = o.Damp
	bad := 0
	for try := range dampings {
		if try > 0 {
			f.damp *= 10
		}
		lambda := float64(f.damp * mean)
		for i := range n {
			for j := range i {
				f.a[i*n+j] = f.a[j*n+i]
			}
			f.a[i*n+i] = diag[i] + lambda
		}
		if bad = cholesky(ctx, f.a, n); bad == n {
			bad = f.divide(ctx)
		}
		if bad == n {
			f.restore(diag)
			return f, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: [%d, %d] is not positive definite at h[%d, %d] with %v times its mean diagonal added", ErrHessian, n, n, bad, bad, f.damp)
}

// check returns the mean of the diagonal, in order.
func check(ctx context.Context, h []float64, n int) (mean float64, err error) {
	for i, v := range h {
		if i%n == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, fmt.Errorf("%w: h[%d, %d] = %v", ErrHessian, i/n, i%n, v)
		}
	}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		d := h[i*n+i]
		if d <= 0 {
			return 0, fmt.Errorf("%w: h[%d, %d] = %v, want a positive diagonal", ErrHessian, i, i, d)
		}
		mean += d
		for j := range i {
			x, y := h[i*n+j], h[j*n+i]
			if math.Abs(x-y) > asymmetry*(d+h[j*n+j]) {
				return 0, fmt.Errorf("%w: h[%d, %d] = %v and h[%d, %d] = %v", ErrHessian, i, j, x, j, i, y)
			}
		}
	}
	mean /= float64(n)
	if math.IsInf(mean, 0) {
		return 0, fmt.Errorf("%w: mean of the diagonal is %v", ErrHessian, mean)
	}
	return mean, nil
}

// N returns the order of the Hessian, the number of input features.
func (f *Feedback) N() int { return f.n }

// Block returns the number of columns coded at once.
func (f *Feedback) Block() int { return f.block }

// Damp returns the damping used: the one asked for, or ten or a hundred times
// that.
func (f *Feedback) Damp() float64 { return f.damp }

// cholesky replaces the lower triangle of a [n, n] by C with C·Cᵀ = a. Each
// element is a_ij − c_i0·c_j0 − c_i1·c_j1 … from left to right, then divided.
// It returns n, or the row of the first pivot that is not positive and finite; it
// gives up when ctx ends.
func cholesky(ctx context.Context, a []float64, n int) (bad int) {
	// Four columns at a time: four sums that do not wait for each other.
	const width = 4
	for j := 0; j < n; j += width {
		for i := j; i < n; i++ {
			if i%64 == 0 && ctx.Err() != nil {
				return i
			}
			row, done := a[i*n:][:n], 0
			if i >= j+width {
				subtract4(row, a[j*n:], n, j)
				done = j
			}
			for c := j; c < min(j+width, i+1); c++ {
				col, s := a[c*n:][:n], row[c]
				for k := done; k < c; k++ {
					s -= float64(row[k] * col[k])
				}
				if c < i {
					row[c] = s / col[c]
					continue
				}
				if !(s > 0) || math.IsInf(s, 0) {
					return c
				}
				row[c] = math.Sqrt(s)
			}
		}
	}
	return n
}

// subtract4 takes from row[j:j+4] the products of row[:j] with the first j
// elements of four rows of length n.
func subtract4(row, rows []float64, n, j int) {
	x := row[:j]
	c0, c1 := rows[:n][:len(x)], rows[n : 2*n][:len(x)]
	c2, c3 := rows[2*n : 3*n][:len(x)], rows[3*n : 4*n][:len(x)]
	out := row[j:][:4]
	s0, s1, s2, s3 := out[0], out[1], out[2], out[3]
	for k, v := range x {
		s0 -= float64(v * c0[k])
		s1 -= float64(v * c1[k])
		s2 -= float64(v * c2[k])
		s3 -= float64(v * c3[k])
	}
	out[0], out[1], out[2], out[3] = s0, s1, s2, s3
}

// divide turns the Cholesky factor C into L: each block below a diagonal block
// C_bb is multiplied by its inverse from the right. It returns n, or the first row
// of L found that is not finite; it gives up when ctx ends.
func (f *Feedback) divide(ctx context.Context) (bad int) {
	for b := 0; b < f.n; b += f.block {
		for i := b + f.block; i < f.n; i++ {
			if i%64 == 0 && ctx.Err() != nil {
				return i
			}
			x := f.a[i*f.n+b:][:f.block]
			for j := f.block - 1; j >= 0; j-- {
				c := f.a[(b+j)*f.n+b:][:j+1]
				x[j] /= c[j]
				if math.IsNaN(x[j]) || math.IsInf(x[j], 0) {
					return i
				}
				for m := range c[:j] {
					x[m] -= float64(x[j] * c[m])
				}
			}
		}
	}
	return f.n
}

// restore puts H back into the diagonal blocks.
func (f *Feedback) restore(diag []float64) {
	for i := range f.n {
		for j := i - i%f.block; j < i; j++ {
			f.a[i*f.n+j] = f.a[j*f.n+i]
		}
		f.a[i*f.n+i] = diag[i]
	}
}

// multiply writes H·x to y. Sum i takes h_i0·x_0 first.
func (f *Feedback) multiply(y, x []float64) {
	clear(y)
	for i := range f.n {
		h := f.a[i*f.n+i:][:f.n-i]
		xi, s := x[i], y[i]
		tail, out := x[i:][:len(h)], y[i:][:len(h)]
		for j, v := range h {
			s += float64(v * tail[j])
			out[j] += float64(v * xi)
		}
		y[i] = s
	}
}
