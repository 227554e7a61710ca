package gpu

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// agree compares the class, operand and index of two errors with each other and
// with what is expected.
func agree(t *testing.T, what string, got, reference, class error, index int) {
	t.Helper()
	var g, r *codec.Error
	if !errors.As(got, &g) || !errors.As(reference, &r) {
		t.Errorf("%s: %v; the reference says %v", what, got, reference)
		return
	}
	if g.Err != class || g.Index != index || g.Err != r.Err || g.Tensor != r.Tensor || g.Index != r.Index {
		t.Errorf("%s: got %v, the reference says %v, want %v at %d", what, got, reference, class, index)
	}
}

// What kernels report becomes the reference's errors: the first element that is
// not finite, else the first group that overflows, whatever the order of slabs.
func TestStatus(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	const rows, d = 40, 64
	for _, o := range []Options{{}, {stage: 3 * 4 * d}} { // all rows at a time; three, or two of the longer ones
		b := open(t, o)
		for _, d := range []int{d, 96} { // rows in registers, rows in threadgroup memory
			kvStatus(t, b, rows, d)
		}
		p := trellis.Params{L: 8, K: 2, T: 32}
		c := newWeights(t, b, p)
		r, err := ref.New().Trellis(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			name  string
			axis  int
			at    map[int]float32
			class error
			index int
		}{
			{"inf", 1, map[int]float32{1003: inf, 1700: nan}, codec.ErrNonFinite, 1003},
			{"by columns", 0, map[int]float32{3: nan, 64: inf}, codec.ErrNonFinite, 64}, // column 0 comes before column 3
			{"scale", 1, map[int]float32{10*d + 7: 1e8, 20*d + 7: 1e8}, codec.ErrScaleOverflow, 10 * d},
			{"scale of a column", 0, map[int]float32{10*d + 7: 1e8}, codec.ErrScaleOverflow, 7},
			{"scale, then inf", 1, map[int]float32{10*d + 7: 1e8, 20 * d: inf}, codec.ErrScaleOverflow, 10 * d},
			{"inf, then scale", 1, map[int]float32{10*d + 7: inf, 20 * d: 1e8}, codec.ErrNonFinite, 10*d + 7},
			{"both in a row", 1, map[int]float32{10*d + 7: 1e8, 10*d + 9: inf}, codec.ErrNonFinite, 10*d + 9},
		} {
			n := 64 // rows, whole blocks along either axis
			x := codec.NewTensor(codec.F32, n, d)
			for i, v := range test.at {
				codec.F32.Store(x.Data[4*i:], v)
			}
			g := trellis.Geometry{Axis: test.axis, Out: n, In: d}
			m := trellis.Matrix{Codes: make([]uint32, 3)}
			agree(t, test.name+" weights", c.Encode(context.Background(), &m, codec.Tensor{}, x, g), r.Encode(context.Background(), new(trellis.Matrix), codec.Tensor{}, x, g), test.class, test.index)
			if len(m.Codes)+len(m.Scales) != 0 {
				t.Errorf("%s: weights left after an error", test.name)
			}
		}
		states := make([]uint16, rows*d)
		for _, test := range []struct {
			name  string
			at    map[int]float32
			class error
			index int
		}{
			{"nan", map[int]float32{1500: nan, 1400: inf}, codec.ErrNonFinite, 1400},
			{"large", map[int]float32{1500: nan, 1400: -0x1.000002p60}, codec.ErrScaleOverflow, 1400},
			{"nan, then large", map[int]float32{1300: nan, 1400: -0x1.8p60}, codec.ErrNonFinite, 1300},
		} {
			x := codec.NewTensor(codec.F32, rows, d/32, 32)
			for i, v := range test.at {
				codec.F32.Store(x.Data[4*i:], v)
			}
			agree(t, test.name+" samples", c.EncodeBlocks(context.Background(), states, x), r.EncodeBlocks(context.Background(), states, x), test.class, test.index)
		}
		limits := codec.NewTensor(codec.F32, rows, d/32, 32)
		codec.F32.Store(limits.Data[4*3:], 0x1p60)
		codec.F32.Store(limits.Data[4*70:], -0x1p60)
		if err := c.EncodeBlocks(context.Background(), states, limits); err != nil {
			t.Errorf("samples of ±2^60: %v", err)
		}
	}
}

func kvStatus(t *testing.T, b *Backend, rows, d int) {
	t.Helper()
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, test := range []struct {
		name   string
		at     map[int]float32
		class  error
		index  int
		policy codec.Policy
	}{
		{"first", map[int]float32{0: nan}, codec.ErrNonFinite, 0, codec.Finite},
		{"last", map[int]float32{rows*d - 1: inf}, codec.ErrNonFinite, rows*d - 1, codec.Finite},
		{"several", map[int]float32{1234: nan, 1233: inf, 2000: nan}, codec.ErrNonFinite, 1233, codec.Finite},
		{"compat", map[int]float32{77: nan}, codec.ErrNonFinite, 77, codec.Compat},
		{"overflow", map[int]float32{20*d + 40: 3e38, 20*d + 41: -3e38}, codec.ErrScaleOverflow, 20*d + 32, codec.Finite},
		{"overflow before", map[int]float32{100: 3e38, 101: -3e38, 2001: nan}, codec.ErrNonFinite, 2001, codec.Finite},
		{"overflow behind", map[int]float32{2100: 3e38, 2101: -3e38, 2001: nan}, codec.ErrNonFinite, 2001, codec.Finite},
	} {
		x := codec.NewTensor(codec.F32, rows, d)
		for i, v := range test.at {
			codec.F32.Store(x.Data[4*i:], v)
		}
		p := codec.KVParams{HeadDim: d, Keys: codec.Q4_0, Values: codec.Q3_0, Policy: test.policy}
		kv := newCodec(t, b, p)
		r, err := ref.New().KV(p)
		if err != nil {
			t.Fatal(err)
		}
		k := codec.Keys{Codes: bytes.Repeat([]byte{7}, 9), Shape: []int{1}}
		agree(t, test.name+" keys", kv.EncodeKeys(&k, x), r.EncodeKeys(new(codec.Keys), x), test.class, test.index)
		if len(k.Shape)+len(k.Codes)+len(k.Scales)+len(k.Zeros) != 0 {
			t.Errorf("%s: keys left after an error", test.name)
		}
		var v codec.Values
		want := test.index
		if test.class == codec.ErrScaleOverflow {
			want = test.index / d * d // the rotation spreads it over the row
		}
		agree(t, test.name+" values", kv.EncodeValues(&v, x), r.EncodeValues(new(codec.Values), x), test.class, want)
		if len(v.Shape)+len(v.Codes)+len(v.Scales) != 0 {
			t.Errorf("%s: values left after an error", test.name)
		}
	}
}

// A call on a closed backend says so, whatever its operands.
func TestClosed(t *testing.T) {
	b := open(t, Options{})
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	c := newWeights(t, b, trellis.Params{L: 8, K: 2, T: 32})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	var x codec.Tensor
	_, errKV := b.KV(codec.KVParams{})
	_, errTrellis := b.Trellis(trellis.Params{})
	_, errAlloc := b.Alloc(8)
	_, errTensor := b.NewTensor(codec.F32, 8)
	for i, err := range []error{
		kv.EncodeKeys(new(codec.Keys), x), kv.EncodeValues(new(codec.Values), x), kv.DecodeKeys(x, codec.Keys{}), kv.DecodeValues(x, codec.Values{}),
		kv.DecodeValuesRotated(x, codec.Values{}), kv.Decode(x, x, codec.Keys{}, codec.Values{}), kv.DecodeRotated(x, x, codec.Keys{}, codec.Values{}), kv.Unrotate(x, x),
		c.EncodeBlocks(context.Background(), nil, x), c.Encode(context.Background(), new(trellis.Matrix), x, x, trellis.Geometry{}), c.Decode(x, nil, 0),
		b.Free(nil), b.Close(), errKV, errTrellis, errAlloc, errTensor,
	} {
		if !errors.Is(err, codec.ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// Operands that do not fit get the reference's errors.
func TestBadOperands(t *testing.T) {
	b := open(t, Options{})
	p := codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0}
	kv := newCodec(t, b, p)
	r, err := ref.New().KV(p)
	if err != nil {
		t.Fatal(err)
	}
	wrong := codec.NewTensor(codec.F32, 2, 32)
	half := codec.NewTensor(codec.F16, 2, 64)
	good := codec.NewTensor(codec.F32, 2, 64)
	k := codec.Keys{Shape: []int{2, 64}, Codes: make([]byte, 64), Scales: make([]byte, 8), Zeros: make([]byte, 7)}
	agree(t, "shape", kv.EncodeKeys(new(codec.Keys), wrong), r.EncodeKeys(new(codec.Keys), wrong), codec.ErrShape, codec.NoIndex)
	agree(t, "no tensor", kv.EncodeValues(new(codec.Values), codec.Tensor{}), r.EncodeValues(new(codec.Values), codec.Tensor{}), codec.ErrDType, codec.NoIndex)
	agree(t, "zeros", kv.DecodeKeys(good, k), r.DecodeKeys(good, k), codec.ErrShape, codec.NoIndex)
	agree(t, "types", kv.Unrotate(good, half), r.Unrotate(good, half), codec.ErrDType, codec.NoIndex)
	_, got := b.KV(codec.KVParams{HeadDim: 65, Keys: codec.Q4_0, Values: codec.Q3_0})
	_, want := ref.New().KV(codec.KVParams{HeadDim: 65, Keys: codec.Q4_0, Values: codec.Q3_0})
	agree(t, "parameters", got, want, codec.ErrParams, codec.NoIndex)
	_, got = b.Trellis(trellis.Params{L: 2, K: 2, T: 32})
	_, want = ref.New().Trellis(trellis.Params{L: 2, K: 2, T: 32})
	agree(t, "trellis parameters", got, want, codec.ErrParams, codec.NoIndex)
	large := trellis.Params{L: 16, K: 1, T: 1 << 11}
	c := newWeights(t, b, large)
	rt, err := ref.New().Trellis(large)
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F32, 1, 1<<11)
	agree(t, "back-pointers", c.EncodeBlocks(context.Background(), make([]uint16, 1<<11), x), rt.EncodeBlocks(context.Background(), make([]uint16, 1<<11), x), codec.ErrParams, codec.NoIndex)

	for name, err := range map[string]error{
		"not Alloc":  b.Free(make([]byte, 8)),
		"Free(nil)":  b.Free(nil),
		"any length": func() error { _, err := b.NewTensor(codec.F32, -1); return err }(),
	} {
		if !errors.Is(err, codec.ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.NewTensor(codec.F32, 1<<20, 1<<20, 1<<20); !errors.Is(err, codec.ErrUnsupported) {
		t.Errorf("huge tensor: %v", err)
	}
	big := codec.KVParams{HeadDim: 64, ValueHeadDim: 28 << 10, Keys: codec.Q4_0, Values: codec.Q3_0}
	for 4*big.ValueHeadDim <= b.Info().MaxThreadgroupMemory {
		big.ValueHeadDim *= 2
	}
	if _, err := b.KV(big); !errors.Is(err, codec.ErrUnsupported) {
		t.Errorf("a row beyond threadgroup memory: %v", err)
	}
}

// Nothing to do is no work and no error.
func TestEmpty(t *testing.T) {
	b := open(t, Options{})
	p := codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0}
	kv := newCodec(t, b, p)
	for _, shape := range [][]int{{0, 64}, {2, 0, 64}} {
		x := codec.NewTensor(codec.F16, shape...)
		k, v := codec.Keys{Codes: make([]byte, 4)}, codec.Values{}
		if err := errors.Join(kv.EncodeKeys(&k, x), kv.EncodeValues(&v, x)); err != nil || !slices.Equal(k.Shape, shape) || !slices.Equal(v.Shape, shape) || len(k.Codes) != 0 {
			t.Error(shape, k, v, err)
		}
		if err := errors.Join(kv.DecodeKeys(x, k), kv.DecodeValues(x, v), kv.DecodeValuesRotated(x, v), kv.Decode(x, x, k, v), kv.DecodeRotated(x, x, k, v), kv.Unrotate(x, x)); err != nil {
			t.Error(shape, err)
		}
	}
	for _, policy := range []trellis.Policy{trellis.Finite, trellis.Compat} {
		tp := trellis.Params{L: 8, K: 2, T: 32, Policy: policy}
		c := newWeights(t, b, tp)
		r, err := ref.New().Trellis(tp)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range []trellis.Geometry{{Axis: 1, Out: 3, In: 0}, {Axis: 1, Out: 0, In: 32}, {Axis: 0, Out: 0, In: 3}} {
			x := codec.NewTensor(codec.F32, g.Out, g.In)
			var got, want trellis.Matrix
			if err := errors.Join(c.Encode(context.Background(), &got, x, x, g), r.Encode(context.Background(), &want, x, x, g)); err != nil || !slices.Equal(got.Scales, want.Scales) || len(got.Codes) != 0 {
				t.Errorf("%+v: scales %v, want %v: %v", g, got.Scales, want.Scales, err)
			}
			if err := c.Decode(x, &got, 0); err != nil {
				t.Error(err)
			}
		}
		if err := c.EncodeBlocks(context.Background(), nil, codec.NewTensor(codec.F32, 0, 32)); err != nil {
			t.Error(err)
		}
	}
	empty, err := b.NewTensor(codec.F32, 0, 64)
	if err != nil || empty.Len() != 0 {
		t.Error(empty, err)
	}
}
