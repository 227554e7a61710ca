package driver_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// A centre that is not one is refused, by the name of its tensor and the element, by encoders and decoders alike.
func TestCentreRefused(t *testing.T) {
	kv, err := ref.New().KV(codec.KVParams{HeadDim: 32, Keys: codec.T3, Values: codec.R4, CentreKeys: true, CentreValues: true})
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F32, 2, 5, 32)
	good := func() codec.Centre {
		c, err := codec.NewCentre(x)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	k, v := codec.Keys{Centre: good()}, codec.Values{Centre: good()}
	if err := errors.Join(kv.EncodeKeys(&k, x), kv.EncodeValues(&v, x)); err != nil {
		t.Fatal(err)
	}
	out := codec.NewTensor(codec.F32, 2, 5, 32)
	mass := codec.NewTensor(codec.F32, 2, 5, 1)
	for name, test := range map[string]struct {
		change func(c *codec.Centre)
		class  error
		tensor string
		index  int
	}{
		"none":          {func(c *codec.Centre) { *c = codec.Centre{} }, codec.ErrDType, "mean", codec.NoIndex},
		"f32":           {func(c *codec.Centre) { c.Gain = codec.NewTensor(codec.F32, 32) }, codec.ErrDType, "gain", codec.NoIndex},
		"another d":     {func(c *codec.Centre) { c.Mean = codec.NewTensor(codec.F16, 2, 1, 64) }, codec.ErrShape, "mean", codec.NoIndex},
		"three heads":   {func(c *codec.Centre) { c.Mean = codec.NewTensor(codec.F16, 3, 1, 32) }, codec.ErrShape, "mean", codec.NoIndex},
		"four axes":     {func(c *codec.Centre) { c.Mean = codec.NewTensor(codec.F16, 1, 2, 1, 32) }, codec.ErrShape, "mean", codec.NoIndex},
		"NaN mean":      {func(c *codec.Centre) { codec.F16.Store(c.Mean.Data[6:], float32(math.NaN())) }, codec.ErrParams, "mean", 3},
		"infinite gain": {func(c *codec.Centre) { codec.F16.Store(c.Gain.Data[66:], float32(math.Inf(1))) }, codec.ErrParams, "gain", 33},
		"zero gain":     {func(c *codec.Centre) { clear(c.Gain.Data[2:4]) }, codec.ErrParams, "gain", 1},
		"negative gain": {func(c *codec.Centre) { codec.F16.Store(c.Gain.Data, -1) }, codec.ErrParams, "gain", 0},
	} {
		c := good()
		test.change(&c)
		badK, badV := k, v
		badK.Centre, badV.Centre = c, c
		for call, err := range map[string]error{
			"EncodeKeys":      kv.EncodeKeys(&codec.Keys{Centre: c}, x),
			"EncodeValues":    kv.EncodeValues(&codec.Values{Centre: c}, x),
			"DecodeKeys":      kv.DecodeKeys(out, badK),
			"DecodeValues":    kv.DecodeValues(out, badV),
			"Decode":          kv.Decode(out, out, badK, v),
			"UnrotateCentred": kv.UnrotateCentred(out, x, c, mass),
		} {
			var e *codec.Error
			if !errors.As(err, &e) || e.Err != test.class || !strings.HasSuffix(e.Tensor, test.tensor) || e.Index != test.index {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
	}
	for name, bad := range map[string]codec.Tensor{"f16": codec.NewTensor(codec.F16, 2, 5, 1), "shape": codec.NewTensor(codec.F32, 2, 5), "none": {}} {
		if err := kv.UnrotateCentred(out, x, k.Centre, bad); err == nil {
			t.Errorf("mass: %s is accepted", name)
		}
	}
	k.Scales[7] = 248
	var e *codec.Error
	if err := kv.DecodeKeys(out, k); !errors.As(err, &e) || e.Tensor != "key scales" || e.Index != 7 {
		t.Error(err)
	}
}

// One centre for all heads, one for each, and one with strides of its own give the same rows where they are equal.
func TestCentreBroadcast(t *testing.T) {
	kv, err := ref.New().KV(codec.KVParams{HeadDim: 32, Keys: codec.R4, Values: codec.R4, CentreKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F32, 2, 3, 32)
	for i := range x.Len() {
		codec.F32.Store(x.Data[4*i:], float32(math.Sin(float64(i))))
	}
	mean, gain := codec.NewTensor(codec.F16, 32), codec.NewTensor(codec.F16, 32)
	for j := range 32 {
		codec.F16.Store(mean.Data[2*j:], float32(j)/16)
		codec.F16.Store(gain.Data[2*j:], 1+float32(j)/8)
	}
	twice := func(x codec.Tensor) codec.Tensor {
		return codec.Tensor{DType: codec.F16, Shape: []int{2, 1, 32}, Data: append(append([]byte{}, x.Data...), x.Data...)}
	}
	spread := func(x codec.Tensor) codec.Tensor {
		y := codec.Tensor{DType: codec.F16, Shape: []int{1, 32}, Stride: []int{7, 3}, Data: make([]byte, 2*3*32)}
		for j := range 32 {
			copy(y.Data[6*j:], x.Data[2*j:2*j+2])
		}
		return y
	}
	want := codec.Keys{Centre: codec.Centre{Mean: mean, Gain: gain}}
	if err := kv.EncodeKeys(&want, x); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]codec.Centre{"each": {Mean: twice(mean), Gain: twice(gain)}, "strided": {Mean: spread(mean), Gain: spread(gain)}} {
		k := codec.Keys{Centre: c}
		if err := kv.EncodeKeys(&k, x); err != nil || string(k.Codes) != string(want.Codes) || string(k.Scales) != string(want.Scales) {
			t.Errorf("%s: other rows: %v", name, err)
		}
	}
}
