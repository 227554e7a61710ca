package ref_test

import (
	"errors"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// An operand of a product below 2^-50 counts as +0, and 2^-50 itself as it is (docs/numerics.md §7).
func TestProductThreshold(t *testing.T) {
	c, err := ref.New().Affine(affine.RowFormat{Bits: 4, Group: 32})
	if err != nil {
		t.Fatal(err)
	}
	w := codec.NewTensor(codec.F32, 1, 32)
	for i := range 32 {
		codec.F32.Store(w.Data[4*i:], float32(i-20))
	}
	var rows codec.AffineRows
	if err := c.Quantize(&rows, w); err != nil {
		t.Fatal(err)
	}
	if err := c.Dequantize(w, rows); err != nil {
		t.Fatal(err)
	}
	first := codec.F32.Load(w.Data)
	least := float32(math.Ldexp(1, -50))
	for v, want := range map[float32]float32{
		least: least * first, -least: -least * first,
		math.Nextafter32(least, 0): 0, math.Nextafter32(-least, 0): 0,
		1: first, -3: -3 * first, 0: 0,
	} {
		x, y := codec.NewTensor(codec.F32, 1, 32), codec.NewTensor(codec.F32, 1, 1)
		codec.F32.Store(x.Data, v)
		if err := c.MatMul(y, x, rows, codec.ProductOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := codec.F32.Load(y.Data); got != want {
			t.Errorf("%v·%v is %v, want %v", v, first, got, want)
		}
	}
}

// A row code names the first element that is not finite, and under Finite counts what it stores as ±65504.
func TestRowCodeElements(t *testing.T) {
	kv := newKV(t, codec.KVParams{HeadDim: 64, Keys: codec.R4, Values: codec.R4})
	x := codec.NewTensor(codec.F32, 3, 64)
	for i := range x.Len() {
		codec.F32.Store(x.Data[4*i:], float32((i*i)%64)*3e3-9e4)
	}
	var k codec.Keys
	for _, i := range []int{0, 1, 64, 191} {
		bad := codec.NewTensor(codec.F32, 3, 64)
		codec.F32.Store(bad.Data[4*i:], float32(math.NaN()))
		var e *codec.Error
		if err := kv.EncodeKeys(&k, bad); !errors.As(err, &e) || e.Err != codec.ErrNonFinite || e.Index != i {
			t.Errorf("NaN at %d: %v", i, err)
		}
	}
	if err := kv.EncodeKeys(&k, x); err != nil {
		t.Fatal(err)
	}
	wide, half := codec.NewTensor(codec.F32, 3, 64), codec.NewTensor(codec.F16, 3, 64)
	for _, y := range []codec.Tensor{wide, half} {
		if err := kv.DecodeKeys(y, k); err != nil {
			t.Fatal(err)
		}
	}
	var want uint64
	for i := range wide.Len() {
		v, got := float64(codec.F32.Load(wide.Data[4*i:])), float64(codec.F16.Load(half.Data[2*i:]))
		if math.Abs(v) >= 65520 { // halfway between 65504 and 65536
			want++
			if got != math.Copysign(65504, v) {
				t.Errorf("%v decodes to %v", v, got)
			}
		}
	}
	if want == 0 || kv.Saturated() != want {
		t.Errorf("%d saturated, want %d", kv.Saturated(), want)
	}
}
