package ref_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// fuzzKV returns the codec of parameters made from arbitrary numbers, or nil.
func fuzzKV(t *testing.T, dim, valueDim, group int, bits, scaleType uint8, signed bool) codec.KV {
	p := codec.KVParams{HeadDim: dim, ValueHeadDim: valueDim, Group: group, Keys: keyFormat(int(bits), signed), Values: valueFormat(int(bits)),
		ScaleType: codec.DType(scaleType)}
	kv, err := ref.New().KV(p)
	if (err == nil) != (p.Validate() == nil) {
		t.Fatalf("NewKV: %v, Validate: %v", err, p.Validate())
	}
	if err != nil {
		if !errors.Is(err, codec.ErrParams) {
			t.Fatal(err)
		}
		return nil
	}
	if p.WithDefaults().HeadDim > 1<<16 {
		return nil // a row of gigabytes
	}
	return kv
}

// checkDecode wants success exactly where every length is right, and dst
// untouched otherwise.
func checkDecode(t *testing.T, err error, right bool, dst codec.Tensor) {
	t.Helper()
	if right != (err == nil) {
		t.Fatalf("lengths right: %v, error: %v", right, err)
	}
	if err != nil {
		if !errors.Is(err, codec.ErrShape) {
			t.Fatal(err)
		}
		if slices.ContainsFunc(dst.Data, func(b byte) bool { return b != guard }) {
			t.Fatal("dst written on an error")
		}
	}
}

// fits reports whether n is rows·rowLen for the rows of a shape.
func fits(n int, a, b, dim, d, rowLen int) bool {
	return a >= 0 && b >= 0 && dim == d && (a == 0 || b <= math.MaxInt/a/max(d, rowLen)) && n == a*b*rowLen
}

// fuzzOutput returns an output of the shape, filled with guard, if it is small.
func fuzzOutput(shape []int) (codec.Tensor, bool) {
	n := 1
	for _, d := range shape {
		if d < 0 || d > 1<<12 {
			return codec.Tensor{}, false
		}
		n *= d
	}
	if n > 1<<16 {
		return codec.Tensor{}, false
	}
	return codec.Tensor{DType: codec.F32, Shape: shape, Data: slices.Repeat([]byte{guard}, 4*n)}, true
}

// Arbitrary packed keys under arbitrary parameters: an error or a decoded
// tensor, never a panic.
func FuzzDecodeKeys(f *testing.F) {
	f.Add(32, 32, 32, uint8(4), uint8(2), false, 1, 2, 32, make([]byte, 32), make([]byte, 4), make([]byte, 4))
	f.Add(64, 0, 64, uint8(8), uint8(1), true, 1, 1, 64, make([]byte, 64), make([]byte, 4), []byte{0, 0, 0xc0, 0xff})
	f.Add(96, 64, 0, uint8(5), uint8(0), false, 0, 7, 96, []byte{}, []byte{}, []byte{})
	f.Add(32, 32, 32, uint8(2), uint8(3), false, math.MaxInt, 2, 32, []byte{1}, []byte{}, []byte{})
	f.Add(100, 0, 0, uint8(4), uint8(2), false, 1, 1, 100, []byte{1}, []byte{2}, []byte{3})
	f.Fuzz(func(t *testing.T, dim, valueDim, group int, bits, scaleType uint8, signed bool, a, b, d int, codes, scales, zeros []byte) {
		kv := fuzzKV(t, dim, valueDim, group, bits, scaleType, signed)
		if kv == nil {
			return
		}
		k := codec.Keys{Shape: []int{a, b, d}, Codes: codes, Scales: scales, Zeros: zeros}
		codesLen, scalesLen := kv.Params().KeyRowLen()
		right := fits(len(codes), a, b, d, dim, codesLen) && fits(len(scales), a, b, d, dim, scalesLen) && fits(len(zeros), a, b, d, dim, scalesLen)
		dst, ok := fuzzOutput(k.Shape)
		if !ok {
			dst = codec.Tensor{DType: codec.F32, Shape: []int{0}}
			right = false
		}
		checkDecode(t, kv.DecodeKeys(dst, k), right, dst)
	})
}

// The same for values, rotated back and not.
func FuzzDecodeValues(f *testing.F) {
	f.Add(32, 32, 32, uint8(4), uint8(2), 1, 2, 32, make([]byte, 32), make([]byte, 4))
	f.Add(64, 0, 64, uint8(3), uint8(1), 1, 1, 64, make([]byte, 24), []byte{0, 0, 0x80, 0x7f})
	f.Add(96, 160, 32, uint8(5), uint8(3), 1, 1, 160, make([]byte, 100), make([]byte, 10))
	f.Add(96, 64, 0, uint8(5), uint8(0), 0, 7, 64, []byte{}, []byte{})
	f.Add(32, 32, 32, uint8(2), uint8(3), math.MaxInt, 2, 32, []byte{1}, []byte{})
	f.Fuzz(func(t *testing.T, dim, valueDim, group int, bits, scaleType uint8, a, b, d int, codes, scales []byte) {
		kv := fuzzKV(t, dim, valueDim, group, bits, scaleType, false)
		if kv == nil {
			return
		}
		v := codec.Values{Shape: []int{a, b, d}, Codes: codes, Scales: scales}
		codesLen, scalesLen := kv.Params().ValueRowLen()
		want := kv.Params().ValueHeadDim
		right := fits(len(codes), a, b, d, want, codesLen) && fits(len(scales), a, b, d, want, scalesLen)
		for _, decode := range []func(codec.Tensor, codec.Values) error{kv.DecodeValues, kv.DecodeValuesRotated} {
			dst, ok := fuzzOutput(v.Shape)
			if !ok {
				dst = codec.Tensor{DType: codec.F32, Shape: []int{0}}
				right = false
			}
			checkDecode(t, decode(dst, v), right, dst)
		}
	})
}

// Arbitrary rows: an error of the right class, or codes that decode to finite
// numbers under the default policy.
func FuzzEncode(f *testing.F) {
	f.Add(make([]byte, 128), uint8(4), uint8(2), false)
	f.Add(slices.Repeat([]byte{0xff, 0xff, 0x7f, 0x7f}, 32), uint8(2), uint8(1), true)
	f.Add(slices.Repeat([]byte{0, 0, 0x20, 0x41}, 32), uint8(8), uint8(3), false)
	f.Fuzz(func(t *testing.T, data []byte, bits, scaleType uint8, search bool) {
		p := codec.KVParams{HeadDim: 32, Keys: keyFormat(int(bits), false), Values: valueFormat(int(bits)), ScaleType: codec.DType(scaleType)}
		if search {
			p.Scale = codec.Search
		}
		if p.Validate() != nil {
			return
		}
		x := codec.Tensor{DType: codec.F32, Shape: []int{len(data) / 128, 32}, Data: data}
		allFinite := true
		for i := range x.Len() {
			allFinite = allFinite && finite(codec.F32.Load(data[4*i:]))
		}
		kv := newKV(t, p)
		var k codec.Keys
		var v codec.Values
		errK, errV := kv.EncodeKeys(&k, x), kv.EncodeValues(&v, x)
		for _, err := range []error{errK, errV} {
			switch {
			case errors.Is(err, codec.ErrNonFinite) != !allFinite:
				t.Fatalf("all finite: %v, error: %v", allFinite, err)
			case err != nil && allFinite && !errors.Is(err, codec.ErrScaleOverflow):
				t.Fatal(err)
			}
		}
		if errK != nil || kv.Params().ScaleType != codec.F16 {
			return // a product with a scale near the end of f32 may overflow
		}
		y := codec.NewTensor(codec.F32, x.Shape...)
		if err := kv.DecodeKeys(y, k); err != nil {
			t.Fatal(err)
		}
		for i := range y.Len() {
			if v := codec.F32.Load(y.Data[4*i:]); !finite(v) {
				t.Fatalf("element %d, %v, decodes to %v", i, codec.F32.Load(data[4*i:]), v)
			}
		}
	})
}
