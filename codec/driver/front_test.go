package driver_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// fake is a driver that records its calls and finds what it is told. It computes nothing.
type fake struct {
	calls     int
	found     driver.Found
	saturated int
	err       error
	closed    int
	keys      func(codec.Keys)
	matrix    func(*trellis.Matrix)
}

func (f *fake) Name() string                                   { return "fake" }
func (f *fake) Feed() codec.Feed                               { return codec.Feed{Bytes: 3, Calls: 4} }
func (f *fake) KV(codec.KVParams) (driver.KV, error)           { return (*fakeKV)(f), nil }
func (f *fake) Trellis(trellis.Params) (driver.Trellis, error) { return (*fakeTrellis)(f), nil }
func (f *fake) Close() error                                   { f.closed++; return nil }
func (f *fake) call() (driver.Found, error)                    { f.calls++; return f.found, f.err }
func (f *fake) decode() (int, error)                           { f.calls++; return f.saturated, f.err }

type fakeKV fake

func (k *fakeKV) EncodeKeys(dst codec.Keys, _ codec.Tensor) (driver.Found, error) {
	if k.keys != nil {
		k.keys(dst)
	}
	return (*fake)(k).call()
}
func (k *fakeKV) EncodeValues(codec.Values, codec.Tensor) (driver.Found, error) {
	return (*fake)(k).call()
}
func (k *fakeKV) DecodeKeys(codec.Tensor, codec.Keys) (int, error) { return (*fake)(k).decode() }
func (k *fakeKV) DecodeValues(codec.Tensor, codec.Values, bool) (int, error) {
	return (*fake)(k).decode()
}
func (k *fakeKV) Decode(_, _ codec.Tensor, _ codec.Keys, _ codec.Values, _ bool) (int, error) {
	return (*fake)(k).decode()
}
func (k *fakeKV) Unrotate(_, _ codec.Tensor) (int, error) { return (*fake)(k).decode() }

type fakeTrellis fake

func (t *fakeTrellis) EncodeBlocks(context.Context, []uint16, codec.Tensor) (driver.Found, error) {
	return (*fake)(t).call()
}
func (t *fakeTrellis) Encode(_ context.Context, m *trellis.Matrix, _, _ codec.Tensor) (driver.Found, error) {
	if t.matrix != nil {
		t.matrix(m)
	}
	return (*fake)(t).call()
}
func (t *fakeTrellis) Decode(codec.Tensor, *trellis.Matrix, int) error {
	_, err := (*fake)(t).call()
	return err
}

var (
	params  = codec.KVParams{HeadDim: 96, ValueHeadDim: 64, Keys: codec.Q5_0, Values: codec.Q3_0}
	wparams = trellis.Params{L: 8, K: 2, T: 32}
	bg      = context.Background()
)

func newFake(t testing.TB) (*fake, codec.Backend, codec.KV, codec.Trellis) {
	t.Helper()
	f := &fake{found: driver.Nothing}
	b := driver.New(f)
	kv, err := b.KV(params)
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.Trellis(wparams)
	if err != nil {
		t.Fatal(err)
	}
	return f, b, kv, w
}

// want fails the test unless err is a *codec.Error of that class, operand and index with a reason.
func want(t *testing.T, what string, err, class error, operand string, index int) {
	t.Helper()
	var e *codec.Error
	if !errors.As(err, &e) || e.Err != class || e.Tensor != operand || e.Index != index || e.Reason == "" {
		t.Errorf("%s: %v, want %q of %q at %d", what, err, class, operand, index)
	}
}

// operands are what the operations of a KV take: x and out are for the encoders and Unrotate.
type operands struct {
	x, out, dstK, dstV codec.Tensor
	k                  codec.Keys
	v                  codec.Values
}

const (
	encodeKeys = 1 << iota
	encodeValues
	unrotate
	decodeKeys
	decodeValues
	decodeBoth
	inputs    = encodeKeys | encodeValues | unrotate
	keySide   = decodeKeys | decodeBoth
	valueSide = decodeValues | decodeBoth
)

// kvFaults are ways for operands to be refused, and the error: {x} stands for the operation's input.
var kvFaults = []struct {
	name    string
	ops     int
	set     func(o *operands)
	class   error
	operand string
}{
	{"dtype", inputs, func(o *operands) { o.x.DType = 0 }, codec.ErrDType, "{x}"},
	{"unknown dtype", inputs, func(o *operands) { o.x.DType = 77 }, codec.ErrDType, "{x}"},
	{"scalar", inputs, func(o *operands) { o.x.Shape = nil }, codec.ErrShape, "{x}"},
	{"head dimension", inputs, func(o *operands) { o.x.Shape = []int{3, 32} }, codec.ErrShape, "{x}"},
	{"head dimension, empty", inputs, func(o *operands) { o.x.Shape = []int{0, 128} }, codec.ErrShape, "{x}"},
	{"no head dimension", inputs, func(o *operands) { o.x.Shape = []int{2, 0} }, codec.ErrShape, "{x}"},
	{"negative", inputs, func(o *operands) { o.x.Shape = []int{-3, o.x.Shape[1]} }, codec.ErrShape, "{x}"},
	{"huge", inputs, func(o *operands) { o.x.Shape = []int{math.MaxInt / 2, 8, o.x.Shape[1]} }, codec.ErrShape, "{x}"},
	{"product wraps", inputs, func(o *operands) { o.x.Shape = []int{math.MaxInt, math.MaxInt, o.x.Shape[1]} }, codec.ErrShape, "{x}"},
	{"short", inputs, func(o *operands) { o.x.Data = o.x.Data[:len(o.x.Data)-1] }, codec.ErrShape, "{x}"},
	{"no data", inputs, func(o *operands) { o.x.Data = nil }, codec.ErrShape, "{x}"},
	{"strides", inputs, func(o *operands) { o.x.Stride = []int{1} }, codec.ErrShape, "{x}"},
	{"negative stride", inputs, func(o *operands) { o.x.Stride = []int{-1, 1} }, codec.ErrShape, "{x}"},
	{"far stride", inputs, func(o *operands) { o.x.Stride = []int{math.MaxInt, 1} }, codec.ErrShape, "{x}"},
	{"out dtype", unrotate, func(o *operands) { o.out.DType = codec.BF16 }, codec.ErrDType, "dst values"},
	{"out unknown dtype", unrotate, func(o *operands) { o.out.DType = 9 }, codec.ErrDType, "dst values"},
	{"out shape", unrotate, func(o *operands) { o.out.Shape = []int{1, 3, 64} }, codec.ErrShape, "dst values"},
	{"out short", unrotate, func(o *operands) { o.out.Data = o.out.Data[1:] }, codec.ErrShape, "dst values"},
	{"out overlap", unrotate, func(o *operands) { o.out.Stride = []int{1, 1} }, codec.ErrShape, "dst values"},
	{"out broadcast", unrotate, func(o *operands) { o.out.Stride = []int{0, 1} }, codec.ErrShape, "dst values"},
	{"key rows", keySide, func(o *operands) { o.k.Shape = []int{2, 96} }, codec.ErrShape, "key codes"},
	{"key dimension", keySide, func(o *operands) { o.k.Shape = []int{3, 192} }, codec.ErrShape, "keys"},
	{"no key shape", keySide, func(o *operands) { o.k.Shape = nil }, codec.ErrShape, "keys"},
	{"negative keys", keySide, func(o *operands) { o.k.Shape = []int{-1, 96} }, codec.ErrShape, "keys"},
	{"huge keys", keySide, func(o *operands) { o.k.Shape = []int{math.MaxInt, 2, 96} }, codec.ErrShape, "keys"},
	{"key rows wrap", keySide, func(o *operands) { o.k.Shape = []int{math.MaxInt / 96, 96} }, codec.ErrShape, "key codes"},
	{"key codes", keySide, func(o *operands) { o.k.Codes = o.k.Codes[1:] }, codec.ErrShape, "key codes"},
	{"more key codes", keySide, func(o *operands) { o.k.Codes = append(o.k.Codes, 0) }, codec.ErrShape, "key codes"},
	{"key scales", keySide, func(o *operands) { o.k.Scales = o.k.Scales[1:] }, codec.ErrShape, "key scales"},
	{"key zeros", keySide, func(o *operands) { o.k.Zeros = nil }, codec.ErrShape, "key zeros"},
	{"dst keys shape", keySide, func(o *operands) { o.dstK.Shape = []int{96, 3} }, codec.ErrShape, "dst keys"},
	{"dst keys dtype", keySide, func(o *operands) { o.dstK.DType = 9 }, codec.ErrDType, "dst keys"},
	{"dst keys short", keySide, func(o *operands) { o.dstK.Data = o.dstK.Data[2:] }, codec.ErrShape, "dst keys"},
	{"dst keys overlap", keySide, func(o *operands) { o.dstK.Stride = []int{2, 1} }, codec.ErrShape, "dst keys"},
	{"value rows", valueSide, func(o *operands) { o.v.Shape = []int{4, 64} }, codec.ErrShape, "value codes"},
	{"value dimension", valueSide, func(o *operands) { o.v.Shape = []int{3, 96} }, codec.ErrShape, "values"},
	{"value codes", valueSide, func(o *operands) { o.v.Codes = o.v.Codes[:0] }, codec.ErrShape, "value codes"},
	{"value scales", valueSide, func(o *operands) { o.v.Scales = append(o.v.Scales, 1, 2) }, codec.ErrShape, "value scales"},
	{"dst values shape", valueSide, func(o *operands) { o.dstV.Shape = o.dstV.Shape[1:] }, codec.ErrShape, "dst values"},
	{"dst values dtype", valueSide, func(o *operands) { o.dstV.DType = 0 }, codec.ErrDType, "dst values"},
	{"dst values broadcast", valueSide, func(o *operands) { o.dstV.Stride = []int{0, 1} }, codec.ErrShape, "dst values"},
	{"dst dtypes", decodeBoth, func(o *operands) { o.dstV.DType = codec.BF16 }, codec.ErrDType, "dst values"},
	{"leading shape", decodeBoth, func(o *operands) { o.v.Shape = []int{1, 3, 64}; o.dstV.Shape = o.v.Shape }, codec.ErrShape, "values"},
	{"both", decodeBoth, func(o *operands) { o.k.Codes, o.v.Codes = nil, nil }, codec.ErrShape, "key codes"},
}

// Operands that do not fit get the error of their kind, nothing is written, and the driver is not called.
func TestKVFaults(t *testing.T) {
	f, _, kv, _ := newFake(t)
	for _, op := range []struct {
		kind  int
		input string // {x}
		dim   int
		call  func(k *codec.Keys, v *codec.Values, o operands) error
	}{
		{encodeKeys, "keys", 96, func(k *codec.Keys, _ *codec.Values, o operands) error { return kv.EncodeKeys(k, o.x) }},
		{encodeValues, "values", 64, func(_ *codec.Keys, v *codec.Values, o operands) error { return kv.EncodeValues(v, o.x) }},
		{unrotate, "values", 64, func(_ *codec.Keys, _ *codec.Values, o operands) error { return kv.Unrotate(o.out, o.x) }},
		{decodeKeys, "", 96, func(_ *codec.Keys, _ *codec.Values, o operands) error { return kv.DecodeKeys(o.dstK, o.k) }},
		{decodeValues, "", 64, func(_ *codec.Keys, _ *codec.Values, o operands) error { return kv.DecodeValues(o.dstV, o.v) }},
		{decodeValues, "", 64, func(_ *codec.Keys, _ *codec.Values, o operands) error { return kv.DecodeValuesRotated(o.dstV, o.v) }},
		{decodeBoth, "", 64, func(_ *codec.Keys, _ *codec.Values, o operands) error { return kv.Decode(o.dstK, o.dstV, o.k, o.v) }},
		{decodeBoth, "", 64, func(_ *codec.Keys, _ *codec.Values, o operands) error {
			return kv.DecodeRotated(o.dstK, o.dstV, o.k, o.v)
		}},
	} {
		fresh := func() operands {
			return operands{
				x: codec.NewTensor(codec.F16, 3, op.dim), out: codec.NewTensor(codec.F16, 3, 64),
				dstK: codec.NewTensor(codec.F16, 3, 96), dstV: codec.NewTensor(codec.F16, 3, 64),
				k: codec.Keys{Shape: []int{3, 96}, Codes: make([]byte, 3*60), Scales: make([]byte, 3*6), Zeros: make([]byte, 3*6)},
				v: codec.Values{Shape: []int{3, 64}, Codes: make([]byte, 3*24), Scales: make([]byte, 3*4)},
			}
		}
		f.calls = 0
		if err := op.call(new(codec.Keys), new(codec.Values), fresh()); err != nil || f.calls != 1 {
			t.Fatalf("no fault: %v, %d calls of the driver", err, f.calls)
		}
		f.calls = 0
		for _, fault := range kvFaults {
			if fault.ops&op.kind == 0 {
				continue
			}
			o := fresh()
			fault.set(&o)
			k, v := codec.Keys{Shape: []int{1}, Codes: []byte{1}, Scales: []byte{1}, Zeros: []byte{1}}, codec.Values{Shape: []int{1}, Codes: []byte{1}, Scales: []byte{1}}
			operand := fault.operand
			if operand == "{x}" {
				operand = op.input
			}
			want(t, fault.name, op.call(&k, &v, o), fault.class, operand, codec.NoIndex)
			if op.kind == encodeKeys && len(k.Shape)+len(k.Codes)+len(k.Scales)+len(k.Zeros) != 0 || op.kind == encodeValues && len(v.Shape)+len(v.Codes)+len(v.Scales) != 0 {
				t.Errorf("%s: dst is not empty after the error: %+v, %+v", fault.name, k, v)
			}
		}
		if f.calls != 0 {
			t.Errorf("%s: the driver was called %d times with operands that do not fit", op.input, f.calls)
		}
	}
}

// A stride of 0 makes an input of any size from a few bytes: one that no output has room for is refused.
func TestBroadcastBeyondMemory(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("no such shape")
	}
	f, _, kv, w := newFake(t)
	rows := math.MaxInt >> 20
	x := codec.Tensor{DType: codec.F16, Shape: []int{rows, 96}, Stride: []int{0, 1}, Data: make([]byte, 192)}
	y := codec.Tensor{DType: codec.F16, Shape: []int{rows, 64}, Stride: []int{0, 1}, Data: make([]byte, 192)}
	want(t, "keys", kv.EncodeKeys(new(codec.Keys), x), codec.ErrShape, "keys", codec.NoIndex)
	want(t, "values", kv.EncodeValues(new(codec.Values), y), codec.ErrShape, "values", codec.NoIndex)
	y.Shape = []int{rows, 32}
	want(t, "samples", w.EncodeBlocks(bg, nil, y), codec.ErrShape, "samples", codec.NoIndex)
	if f.calls != 0 {
		t.Errorf("the driver was called %d times", f.calls)
	}
}

func TestTrellisFaults(t *testing.T) {
	f, b, _, w := newFake(t)
	g := trellis.Geometry{Axis: 1, Out: 3, In: 64}
	x := func(shape ...int) codec.Tensor { return codec.NewTensor(codec.F32, shape...) }
	matrix := func(set func(*trellis.Matrix)) *trellis.Matrix {
		m := &trellis.Matrix{Params: wparams, Geometry: g, Codes: make([]uint32, g.CodesLen(wparams)), Scales: make([]uint16, 3)}
		set(m)
		return m
	}
	free := wparams
	free.FreeEnds = true
	large := trellis.Params{L: 16, K: 1, T: 2048}
	encode := func(p trellis.Params, recon, x codec.Tensor, g trellis.Geometry) error {
		c, err := b.Trellis(p)
		if err != nil {
			return err
		}
		m := trellis.Matrix{Codes: []uint32{1}, Scales: []uint16{1}}
		err = c.Encode(bg, &m, recon, x, g)
		if len(m.Codes)+len(m.Scales) != 0 {
			t.Errorf("matrix after %v: %+v", err, m)
		}
		return err
	}
	blocks := func(p trellis.Params, states int, x codec.Tensor) error {
		c, err := b.Trellis(p)
		if err != nil {
			return err
		}
		return c.EncodeBlocks(bg, make([]uint16, states), x)
	}
	none := codec.Tensor{}
	for _, c := range []struct {
		name    string
		err     error
		class   error
		operand string
	}{
		{"L", encode(trellis.Params{L: 2, K: 2, T: 32}, none, x(3, 64), g), codec.ErrParams, ""},
		{"code", encode(trellis.Params{L: 8, K: 2, T: 32, Code: 3}, none, x(3, 64), g), codec.ErrParams, ""},
		{"axis", encode(wparams, none, x(3, 64), trellis.Geometry{Axis: 2, Out: 3, In: 64}), codec.ErrShape, "weights"},
		{"blocks", encode(wparams, none, x(3, 48), trellis.Geometry{Axis: 1, Out: 3, In: 48}), codec.ErrShape, "weights"},
		{"pairs", encode(wparams, none, x(3, 96), trellis.Geometry{Axis: 1, Out: 3, In: 96, Interleaved: true}), codec.ErrShape, "weights"},
		{"negative", encode(wparams, none, x(3, 64), trellis.Geometry{Axis: 1, Out: -3, In: 64}), codec.ErrShape, "weights"},
		{"shape", encode(wparams, none, x(64, 3), g), codec.ErrShape, "weights"},
		{"dtype", encode(wparams, none, codec.Tensor{Shape: []int{3, 64}, Data: make([]byte, 768)}, g), codec.ErrDType, "weights"},
		{"short", encode(wparams, none, codec.Tensor{DType: codec.F16, Shape: []int{3, 64}, Data: make([]byte, 383)}, g), codec.ErrShape, "weights"},
		{"recon shape", encode(wparams, x(3, 32), x(3, 64), g), codec.ErrShape, "reconstruction"},
		{"recon without a type", encode(wparams, codec.Tensor{Shape: []int{3, 64}}, x(3, 64), g), codec.ErrDType, "reconstruction"},
		{"recon overlap", encode(wparams, codec.Tensor{DType: codec.F32, Shape: []int{3, 64}, Stride: []int{0, 1}, Data: make([]byte, 768)}, x(3, 64), g), codec.ErrShape, "reconstruction"},
		{"free ends", encode(free, none, x(3, 64), g), codec.ErrParams, ""},
		{"back-pointers", encode(large, none, x(1, 2048), trellis.Geometry{Axis: 1, Out: 1, In: 2048}), codec.ErrParams, ""},
		{"nil matrix", w.Decode(x(3, 64), nil, 0), codec.ErrShape, "codes"},
		{"other L", w.Decode(x(3, 64), matrix(func(m *trellis.Matrix) { m.Params.L = 9 }), 0), codec.ErrParams, "codes"},
		{"other code", w.Decode(x(3, 64), matrix(func(m *trellis.Matrix) { m.Params.Code = trellis.Rand }), 0), codec.ErrParams, "codes"},
		{"codes", w.Decode(x(3, 64), matrix(func(m *trellis.Matrix) { m.Codes = m.Codes[1:] }), 0), codec.ErrShape, "codes"},
		{"scales", w.Decode(x(3, 64), matrix(func(m *trellis.Matrix) { m.Scales = append(m.Scales, 1) }), 0), codec.ErrShape, "codes"},
		{"matrix axis", w.Decode(x(3, 64), matrix(func(m *trellis.Matrix) { m.Geometry.Axis = 3 }), 0), codec.ErrShape, "codes"},
		{"dst shape", w.Decode(x(3, 32), matrix(func(*trellis.Matrix) {}), 0), codec.ErrShape, "dst weights"},
		{"dst axes", w.Decode(x(192), matrix(func(*trellis.Matrix) {}), 0), codec.ErrShape, "dst weights"},
		{"rows", w.Decode(x(3, 64), matrix(func(*trellis.Matrix) {}), 1), codec.ErrShape, "dst weights"},
		{"first", w.Decode(x(1, 64), matrix(func(*trellis.Matrix) {}), -1), codec.ErrShape, "dst weights"},
		{"first wraps", w.Decode(x(1, 64), matrix(func(*trellis.Matrix) {}), math.MaxInt), codec.ErrShape, "dst weights"},
		{"dst overlap", w.Decode(codec.Tensor{DType: codec.F32, Shape: []int{3, 64}, Stride: []int{1, 1}, Data: make([]byte, 768)}, matrix(func(*trellis.Matrix) {}), 0), codec.ErrShape, "dst weights"},
		{"samples", blocks(wparams, 64, x(64)), codec.ErrShape, "samples"},
		{"no samples", blocks(wparams, 0, codec.Tensor{}), codec.ErrDType, "samples"},
		{"states", blocks(wparams, 63, x(2, 32)), codec.ErrShape, "states"},
		{"more states", blocks(wparams, 65, x(2, 32)), codec.ErrShape, "states"},
		{"sample dtype", blocks(wparams, 64, codec.Tensor{DType: 8, Shape: []int{2, 32}, Data: make([]byte, 256)}), codec.ErrDType, "samples"},
		{"short samples", blocks(wparams, 64, codec.Tensor{DType: codec.F32, Shape: []int{2, 32}, Data: make([]byte, 255)}), codec.ErrShape, "samples"},
		{"back-pointers of samples", blocks(large, 2048, x(1, 2048)), codec.ErrParams, ""},
	} {
		want(t, c.name, c.err, c.class, c.operand, codec.NoIndex)
	}
	if f.calls != 0 {
		t.Errorf("the driver was called %d times with operands that do not fit", f.calls)
	}
	for name, err := range map[string]error{
		"free ends": blocks(free, 64, x(2, 32)), "Encode": w.Encode(bg, new(trellis.Matrix), none, x(3, 64), g), "Decode": w.Decode(x(2, 64), matrix(func(*trellis.Matrix) {}), 1),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f.calls != 3 {
		t.Errorf("%d calls of the driver, want 3", f.calls)
	}
}

// What an encoder finds becomes the error of the first element or row; what it wrote is not left.
func TestFound(t *testing.T) {
	f, b, kv, w := newFake(t)
	nan := float32(math.NaN())
	x := codec.NewTensor(codec.F32, 2, 96)
	codec.F32.Store(x.Data[4*100:], nan)
	for _, c := range []struct {
		found driver.Found
		class error
		index int
	}{
		{driver.Found{NonFinite: 100, Overflow: driver.None}, codec.ErrNonFinite, 100},
		{driver.Found{NonFinite: driver.None, Overflow: 32}, codec.ErrScaleOverflow, 32},
		{driver.Found{NonFinite: 100, Overflow: 0}, codec.ErrNonFinite, 100},
		{driver.Found{NonFinite: driver.None, Overflow: 0}, codec.ErrScaleOverflow, 0},
	} {
		f.found = c.found
		k := codec.Keys{Codes: make([]byte, 1000)}
		want(t, "keys", kv.EncodeKeys(&k, x), c.class, "keys", c.index)
		if len(k.Shape)+len(k.Codes)+len(k.Scales)+len(k.Zeros) != 0 {
			t.Errorf("keys left: %+v", k)
		}
		v := codec.Values{Codes: make([]byte, 1000)}
		want(t, "values", kv.EncodeValues(&v, codec.NewTensor(codec.F16, 3, 64)), c.class, "values", c.index)
		if len(v.Shape)+len(v.Codes)+len(v.Scales) != 0 {
			t.Errorf("values left: %+v", v)
		}
	}
	none := driver.None
	for _, c := range []struct {
		axis                int
		nonFinite, overflow int
		class               error
		index               int
	}{
		{1, 70, none, codec.ErrNonFinite, 70},
		{1, none, 64, codec.ErrScaleOverflow, 64},
		{1, 70, 64, codec.ErrNonFinite, 70}, // the same row
		{1, 130, 64, codec.ErrScaleOverflow, 64},
		{1, 0, 64, codec.ErrNonFinite, 0},
		{0, 64, 1, codec.ErrNonFinite, 64}, // column 0 before column 1
		{0, 65, 0, codec.ErrScaleOverflow, 0},
		{0, 129, 1, codec.ErrNonFinite, 129},
	} {
		f.found = driver.Found{NonFinite: c.nonFinite, Overflow: c.overflow}
		g := trellis.Geometry{Axis: c.axis, Out: 64, In: 64}
		m := trellis.Matrix{Codes: make([]uint32, 1000)}
		want(t, "weights", w.Encode(bg, &m, codec.Tensor{}, codec.NewTensor(codec.BF16, 64, 64), g), c.class, "weights", c.index)
		if len(m.Codes)+len(m.Scales) != 0 {
			t.Errorf("matrix left: %+v", m)
		}
	}
	for _, c := range []struct {
		nonFinite, overflow int
		class               error
		index               int
	}{
		{3, none, codec.ErrNonFinite, 3}, {none, 40, codec.ErrScaleOverflow, 40}, {0, none, codec.ErrNonFinite, 0}, {none, 0, codec.ErrScaleOverflow, 0},
		{40, 3, codec.ErrScaleOverflow, 3}, {3, 40, codec.ErrNonFinite, 3},
	} {
		f.found = driver.Found{NonFinite: c.nonFinite, Overflow: c.overflow}
		want(t, "samples", w.EncodeBlocks(bg, make([]uint16, 64), codec.NewTensor(codec.F32, 2, 32)), c.class, "samples", c.index)
	}
	// A driver's own failure passes through, and leaves nothing either.
	f.found, f.err = driver.Nothing, errors.New("device lost")
	k, m := codec.Keys{}, trellis.Matrix{}
	for _, err := range []error{kv.EncodeKeys(&k, x), w.Encode(bg, &m, codec.Tensor{}, codec.NewTensor(codec.F32, 1, 64), trellis.Geometry{Axis: 1, Out: 1, In: 64}),
		w.EncodeBlocks(bg, make([]uint16, 32), codec.NewTensor(codec.F32, 1, 32))} {
		if !errors.Is(err, f.err) {
			t.Errorf("got %v", err)
		}
	}
	if len(k.Codes)+len(m.Codes) != 0 {
		t.Error("output left after a failure")
	}
	if b.Feed() != (codec.Feed{Bytes: 3, Calls: 4}) || b.Name() != "fake" {
		t.Error(b.Feed(), b.Name())
	}
}

// Destinations reach the driver with their exact lengths, in the memory that the caller gave.
func TestSizes(t *testing.T) {
	f, _, kv, w := newFake(t)
	mem := make([]byte, 200)
	k := codec.Keys{Shape: make([]int, 1, 4), Codes: mem[:3], Scales: make([]byte, 5)}
	f.keys = func(got codec.Keys) {
		if !slices.Equal(got.Shape, []int{1, 3, 96}) || len(got.Codes) != 3*60 || &got.Codes[0] != &mem[0] || len(got.Scales) != 3*6 || len(got.Zeros) != 3*6 {
			t.Errorf("keys of %d, %d, %d bytes, shape %v", len(got.Codes), len(got.Scales), len(got.Zeros), got.Shape)
		}
		got.Codes[179] = 0x5a
	}
	if err := kv.EncodeKeys(&k, codec.NewTensor(codec.F16, 1, 3, 96)); err != nil || len(k.Codes) != 180 || k.Codes[179] != 0x5a || !slices.Equal(k.Shape, []int{1, 3, 96}) {
		t.Errorf("%v: %+v", err, k)
	}
	g := trellis.Geometry{Axis: 0, Out: 64, In: 3}
	words := make([]uint32, 100)
	m := trellis.Matrix{Codes: words[:0]}
	f.matrix = func(m *trellis.Matrix) {
		if m.Params != wparams || m.Geometry != g || len(m.Codes) != 12 || &m.Codes[0] != &words[0] || len(m.Scales) != 3 {
			t.Errorf("matrix %+v", m)
		}
	}
	if err := w.Encode(bg, &m, codec.Tensor{}, codec.NewTensor(codec.F32, 64, 3), g); err != nil || len(m.Codes) != 12 {
		t.Errorf("%v: %+v", err, m)
	}
}

// Empty tensors succeed without the driver. Rows without weights have the scale of a row of zeros.
func TestEmpty(t *testing.T) {
	f, b, kv, w := newFake(t)
	x, y := codec.NewTensor(codec.BF16, 2, 0, 96), codec.NewTensor(codec.BF16, 2, 0, 64)
	var k codec.Keys
	var v codec.Values
	for _, err := range []error{
		kv.EncodeKeys(&k, x), kv.EncodeValues(&v, y), kv.DecodeKeys(x, k), kv.DecodeValues(y, v), kv.DecodeValuesRotated(y, v),
		kv.Decode(x, y, k, v), kv.DecodeRotated(x, y, k, v), kv.Unrotate(y, y), w.EncodeBlocks(bg, nil, codec.NewTensor(codec.F32, 0, 32)),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(k.Shape, x.Shape) || !slices.Equal(v.Shape, y.Shape) || len(k.Codes)+len(v.Codes) != 0 {
		t.Errorf("%+v, %+v", k, v)
	}
	want(t, "a code of no row", kv.DecodeKeys(x, codec.Keys{Shape: x.Shape, Codes: []byte{0}}), codec.ErrShape, "key codes", codec.NoIndex)
	for policy, scale := range map[trellis.Policy]uint16{trellis.Finite: 0, trellis.Compat: 0x3c00} {
		p := wparams
		p.Policy = policy
		w, err := b.Trellis(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range []trellis.Geometry{{Axis: 1, Out: 3}, {Axis: 1, In: 64}, {Axis: 0, In: 3}, {Axis: 0}} {
			m := trellis.Matrix{Scales: []uint16{7, 7, 7, 7}}
			if err := w.Encode(bg, &m, codec.NewTensor(codec.F32, g.Out, g.In), codec.NewTensor(codec.F32, g.Out, g.In), g); err != nil {
				t.Fatal(err)
			}
			if len(m.Codes) != 0 || len(m.Scales) != g.Rows() || slices.ContainsFunc(m.Scales, func(s uint16) bool { return s != scale }) || m.Geometry != g || m.Params != p {
				t.Errorf("%+v: %+v", g, m)
			}
			if err := w.Decode(codec.NewTensor(codec.F32, g.Out, g.In), &m, 0); err != nil {
				t.Error(err)
			}
		}
	}
	if f.calls != 0 {
		t.Errorf("the driver was called %d times", f.calls)
	}
}

// Decoders' counts add up; failed calls count nothing.
func TestSaturated(t *testing.T) {
	f, _, kv, _ := newFake(t)
	f.saturated = 5
	k := codec.Keys{Shape: []int{1, 96}, Codes: make([]byte, 60), Scales: make([]byte, 6), Zeros: make([]byte, 6)}
	v := codec.Values{Shape: []int{1, 64}, Codes: make([]byte, 24), Scales: make([]byte, 4)}
	x, y := codec.NewTensor(codec.F16, 1, 96), codec.NewTensor(codec.F16, 1, 64)
	for i, call := range []func() error{
		func() error { return kv.DecodeKeys(x, k) }, func() error { return kv.DecodeValues(y, v) }, func() error { return kv.DecodeValuesRotated(y, v) },
		func() error { return kv.Decode(x, y, k, v) }, func() error { return kv.DecodeRotated(x, y, k, v) }, func() error { return kv.Unrotate(y, y) },
	} {
		if err := call(); err != nil || kv.Saturated() != uint64(5*(i+1)) {
			t.Errorf("call %d: %v, %d saturated", i, err, kv.Saturated())
		}
	}
	f.err = errors.New("lost")
	if err := kv.DecodeKeys(x, k); err == nil || kv.Saturated() != 30 {
		t.Errorf("%v, %d saturated after a failed call", err, kv.Saturated())
	}
}

// After Close every call of the backend and its codecs is ErrClosed, with encoders' destinations emptied; the
// driver is closed once.
func TestClosed(t *testing.T) {
	f, b, kv, w := newFake(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F32, 1, 96)
	k, m := codec.Keys{Codes: []byte{1}}, trellis.Matrix{Codes: []uint32{1}}
	_, errKV := b.KV(params)
	_, errTrellis := b.Trellis(wparams)
	for i, err := range []error{
		errKV, errTrellis, b.Close(), kv.EncodeKeys(&k, x), kv.EncodeValues(new(codec.Values), x), kv.DecodeKeys(x, codec.Keys{}), kv.DecodeValues(x, codec.Values{}),
		kv.DecodeValuesRotated(x, codec.Values{}), kv.Decode(x, x, codec.Keys{}, codec.Values{}), kv.DecodeRotated(x, x, codec.Keys{}, codec.Values{}), kv.Unrotate(x, x),
		w.EncodeBlocks(bg, nil, x), w.Encode(bg, &m, x, x, trellis.Geometry{}), w.Decode(x, nil, 0),
	} {
		want(t, string(rune('a'+i)), err, codec.ErrClosed, "", codec.NoIndex)
	}
	if f.calls != 0 || f.closed != 1 || len(k.Codes)+len(m.Codes) != 0 {
		t.Errorf("%d calls, closed %d times, %d bytes and %d words left", f.calls, f.closed, len(k.Codes), len(m.Codes))
	}
}

// The front end allocates nothing once destinations are large enough.
func TestFrontAllocs(t *testing.T) {
	_, _, kv, w := newFake(t)
	x, y := codec.NewTensor(codec.BF16, 2, 3, 96), codec.NewTensor(codec.BF16, 2, 3, 64)
	var k codec.Keys
	var v codec.Values
	var m trellis.Matrix
	g := trellis.Geometry{Axis: 0, Out: 64, In: 5, Interleaved: true}
	wx, states := codec.NewTensor(codec.F32, 64, 5), make([]uint16, 64)
	samples := codec.NewTensor(codec.F32, 2, 32)
	for what, call := range map[string]func() error{
		"EncodeKeys":   func() error { return kv.EncodeKeys(&k, x) },
		"EncodeValues": func() error { return kv.EncodeValues(&v, y) },
		"Encode":       func() error { return w.Encode(bg, &m, wx, wx, g) },
		"EncodeBlocks": func() error {
			return w.EncodeBlocks(bg, states, samples)
		},
	} {
		allocs(t, what, call)
	}
	for what, call := range map[string]func() error{
		"DecodeKeys":          func() error { return kv.DecodeKeys(x, k) },
		"DecodeValues":        func() error { return kv.DecodeValues(y, v) },
		"DecodeValuesRotated": func() error { return kv.DecodeValuesRotated(y, v) },
		"Decode":              func() error { return kv.Decode(x, y, k, v) },
		"DecodeRotated":       func() error { return kv.DecodeRotated(x, y, k, v) },
		"Unrotate":            func() error { return kv.Unrotate(y, y) },
		"weights":             func() error { return w.Decode(wx, &m, 0) },
	} {
		allocs(t, what, call)
	}
}

func allocs(t *testing.T, what string, call func() error) {
	t.Helper()
	n := testing.AllocsPerRun(10, func() {
		if err := call(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	})
	if n > 0 {
		t.Errorf("%s: %v allocations", what, n)
	}
}
