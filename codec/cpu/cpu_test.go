package cpu_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// kvResult is all that one round of a KV codec gives.
type kvResult struct {
	Keys      codec.Keys
	Values    codec.Values
	Out       [][]byte
	Types     []codec.DType // of Out
	Errs      []string
	Saturated uint64
}

// exercise runs every operation of b on x, a tensor of rows, and decodes to each type.
func exercise(t testing.TB, b codec.Backend, p codec.KVParams, x codec.Tensor) *kvResult {
	t.Helper()
	c, err := b.KV(p)
	if err != nil {
		t.Fatal(err)
	}
	r := new(kvResult)
	note := func(err error) {
		if err != nil {
			r.Errs = append(r.Errs, err.Error())
		}
	}
	errK, errV := c.EncodeKeys(&r.Keys, x), c.EncodeValues(&r.Values, x)
	note(errK)
	note(errV)
	for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		k, v, u := codec.NewTensor(d, x.Shape...), codec.NewTensor(d, x.Shape...), codec.NewTensor(d, x.Shape...)
		if errK == nil {
			note(c.DecodeKeys(k, r.Keys))
		}
		if errV == nil {
			note(c.DecodeValues(v, r.Values))
			note(c.DecodeValuesRotated(u, r.Values))
		}
		if errK == nil && errV == nil {
			k2, v2 := codec.NewTensor(d, x.Shape...), codec.NewTensor(d, x.Shape...)
			note(c.Decode(k2, v2, r.Keys, r.Values))
			if !bytes.Equal(k.Data, k2.Data) || !bytes.Equal(v.Data, v2.Data) {
				t.Error("Decode differs from DecodeKeys and DecodeValues")
			}
		}
		r.Out, r.Types = append(r.Out, k.Data, v.Data, u.Data), append(r.Types, d, d, d)
	}
	y := codec.NewTensor(x.DType, x.Shape...)
	note(c.Unrotate(y, x))
	r.Out, r.Types = append(r.Out, y.Data), append(r.Types, x.DType)
	r.Saturated = c.Saturated()
	return r
}

// diff reports the first difference between two rounds. NaN equals NaN.
func diff(t testing.TB, name string, got, want *kvResult) {
	t.Helper()
	if !slices.Equal(got.Errs, want.Errs) {
		t.Fatalf("%s: errors %q, want %q", name, got.Errs, want.Errs)
	}
	for _, f := range []struct {
		part      string
		got, want []byte
	}{
		{"key codes", got.Keys.Codes, want.Keys.Codes}, {"key scales", got.Keys.Scales, want.Keys.Scales},
		{"key zeros", got.Keys.Zeros, want.Keys.Zeros},
		{"value codes", got.Values.Codes, want.Values.Codes}, {"value scales", got.Values.Scales, want.Values.Scales},
	} {
		if !bytes.Equal(f.got, f.want) {
			for i := range f.want {
				if f.got[i] != f.want[i] {
					t.Fatalf("%s: %s[%d] is %#x, want %#x", name, f.part, i, f.got[i], f.want[i])
				}
			}
			t.Fatalf("%s: %d bytes of %s, want %d", name, len(f.got), f.part, len(f.want))
		}
	}
	for i := range want.Out {
		d := want.Types[i]
		if !equal(d, got.Out[i], want.Out[i]) {
			t.Fatalf("%s: decoded tensor %d in %v differs", name, i, d)
		}
	}
	if got.Saturated != want.Saturated {
		t.Fatalf("%s: %d saturated, want %d", name, got.Saturated, want.Saturated)
	}
}

// equal compares elements.
func equal(d codec.DType, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i += d.Size() {
		if x, y := d.Load(a[i:]), d.Load(b[i:]); math.Float32bits(x) != math.Float32bits(y) && (x == x || y == y) {
			return false
		}
	}
	return true
}

// rows returns rows whose elements are normal times a power of two that each row draws.
func rows(r *rand.Rand, d codec.DType, shape ...int) codec.Tensor {
	x := codec.NewTensor(d, shape...)
	for i := range x.Rows() {
		s := math.Ldexp(1, r.IntN(20)-10)
		for j := range x.Dim() {
			d.Store(x.Data[(i*x.Dim()+j)*d.Size():], float32(r.NormFloat64()*s))
		}
	}
	return x
}

// Results are the reference's for any number of workers.
func TestWorkers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := codec.KVParams{HeadDim: 128, Keys: codec.Uint8, Values: codec.Q3_0}
	x := rows(r, codec.F32, 700, 128)
	want := exercise(t, ref.New(), p, x)
	w := trellis.DefaultParams(2)
	weights := rows(r, codec.BF16, 5, 512)
	matrix := encodeMatrix(t, ref.New(), w, weights)
	eachLevel(t, func(t *testing.T, l cpu.Level) {
		for workers := 1; workers <= 16; workers++ {
			b := cpu.New(cpu.Options{Workers: workers, Level: l})
			diff(t, fmt.Sprintf("%d workers", workers), exercise(t, b, p, x), want)
			if got := encodeMatrix(t, b, w, weights); !slices.Equal(got.Codes, matrix.Codes) || !slices.Equal(got.Scales, matrix.Scales) {
				t.Errorf("%d workers: codes or scales of weights differ", workers)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func encodeMatrix(t testing.TB, b codec.Backend, p trellis.Params, x codec.Tensor) *trellis.Matrix {
	t.Helper()
	c, err := b.Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	m := new(trellis.Matrix)
	if err := c.Encode(context.Background(), m, codec.Tensor{}, x, trellis.Geometry{Axis: 1, Out: x.Shape[0], In: x.Shape[1]}); err != nil {
		t.Fatal(err)
	}
	return m
}

// A long encode returns soon after its context ends, and nothing it started goes on.
func TestCancel(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, p := range []trellis.Params{
		trellis.DefaultParams(2),
		{L: 16, K: 1, T: 1024}, // one block takes long
	} {
		b := cpu.New(cpu.Options{Workers: 4, Level: cpu.Scalar})
		c, err := b.Trellis(p)
		if err != nil {
			t.Fatal(err)
		}
		x := codec.NewTensor(codec.F32, 4096, 4096)
		for i := range 4096 * 4096 {
			binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(float32(i%251)-125))
		}
		for name, encode := range map[string]func(context.Context) error{
			"Encode": func(ctx context.Context) error {
				return c.Encode(ctx, new(trellis.Matrix), codec.Tensor{}, x, trellis.Geometry{Axis: 1, Out: 4096, In: 4096})
			},
			"EncodeBlocks": func(ctx context.Context) error {
				y := codec.Tensor{DType: x.DType, Shape: []int{4096 * 4096 / p.T, p.T}, Data: x.Data}
				return c.EncodeBlocks(ctx, make([]uint16, 4096*4096), y)
			},
		} {
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan time.Time, 1)
			time.AfterFunc(300*time.Millisecond, func() {
				cancel()
				ended <- time.Now()
			})
			err := encode(ctx)
			returned := time.Now()
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s with L=%d: %v", name, p.L, err)
			}
			// It is 100 ms on an idle machine, which one that tests is not. To the end it would be minutes.
			if d := returned.Sub(<-ended); d > 5*time.Second {
				t.Errorf("%s with L=%d returned %v after its context ended", name, p.L, d)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// Codecs outlive the variable that held their backend.
func TestCodecKeepsItsWorkers(t *testing.T) {
	c, err := cpu.New(cpu.Options{Workers: 4}).KV(codec.KVParams{HeadDim: 128, Keys: codec.Q4_0, Values: codec.Q4_0})
	if err != nil {
		t.Fatal(err)
	}
	x := rows(rand.New(rand.NewPCG(3, 4)), codec.F32, 2000, 128)
	for range 3 {
		runtime.GC()
		var k codec.Keys
		if err := c.EncodeKeys(&k, x); err != nil {
			t.Fatal(err)
		}
	}
}

// Calls do not allocate once their destination has its size.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops objects under the race detector")
	}
	r := rand.New(rand.NewPCG(5, 6))
	x := rows(r, codec.F32, 256, 128)
	wx := rows(r, codec.F32, 2, 512)
	eachLevel(t, func(t *testing.T, l cpu.Level) {
		b := cpu.New(cpu.Options{Workers: 1, Level: l})
		defer b.Close()
		c, err := b.KV(codec.KVParams{HeadDim: 128, Keys: codec.Uint8, Values: codec.Q3_0})
		if err != nil {
			t.Fatal(err)
		}
		w, err := b.Trellis(trellis.DefaultParams(2))
		if err != nil {
			t.Fatal(err)
		}
		var k codec.Keys
		var v codec.Values
		var m trellis.Matrix
		y, wy := codec.NewTensor(codec.BF16, x.Shape...), codec.NewTensor(codec.BF16, wx.Shape...)
		g := trellis.Geometry{Axis: 1, Out: wx.Shape[0], In: wx.Shape[1]}
		ctx := context.Background()
		for name, f := range map[string]func() error{
			"EncodeKeys":   func() error { return c.EncodeKeys(&k, x) },
			"EncodeValues": func() error { return c.EncodeValues(&v, x) },
			"Encode":       func() error { return w.Encode(ctx, &m, codec.Tensor{}, wx, g) },
		} {
			count(t, name, f)
		}
		for name, f := range map[string]func() error{
			"DecodeKeys":   func() error { return c.DecodeKeys(y, k) },
			"DecodeValues": func() error { return c.DecodeValues(y, v) },
			"Decode":       func() error { return w.Decode(wy, &m, 0) },
			"Unrotate":     func() error { return c.Unrotate(x, x) },
		} {
			count(t, name, f)
		}
	})
}

func count(t *testing.T, name string, f func() error) {
	t.Helper()
	if n := testing.AllocsPerRun(20, func() {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%s: %v allocations a call", name, n)
	}
}
