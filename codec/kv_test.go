package codec_test

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

func TestKVParamsValidate(t *testing.T) {
	ok := codec.KVParams{HeadDim: 128, Keys: codec.Q4_0, Values: codec.Q3_0}
	with := func(f func(*codec.KVParams)) codec.KVParams {
		p := ok
		f(&p)
		return p
	}
	for _, c := range []struct {
		name string
		p    codec.KVParams
		want string // part of the error; empty if valid
	}{
		{"defaults", ok, ""},
		{"zero", codec.KVParams{}, "keys: format Format(0)"},
		{"no head dimension", with(func(p *codec.KVParams) { p.HeadDim = 0 }), "head dimension 0"},
		{"signed 8", with(func(p *codec.KVParams) { p.Keys = codec.Q8_0 }), ""},
		{"unsigned 8", with(func(p *codec.KVParams) { p.Keys = codec.Uint8 }), ""},
		{"no keys", with(func(p *codec.KVParams) { p.Keys = 0 }), "keys: format Format(0)"},
		{"unknown keys", with(func(p *codec.KVParams) { p.Keys = 200 }), "keys: format Format(200)"},
		{"no values", with(func(p *codec.KVParams) { p.Values = 0 }), "values: format Format(0)"},
		{"unsigned values", with(func(p *codec.KVParams) { p.Values = codec.Uint8 }), "values: format uint8"},
		{"key dim 2^20", with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = codec.MaxHeadDim, 64 }), ""},
		{"key dim beyond", with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = codec.MaxHeadDim+32, 64 }), "dimension 1048608 exceeds"},
		{"key dim of 63 bits", with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = math.MaxInt&^63, 64 }), "exceeds"},
		{"group 64", with(func(p *codec.KVParams) { p.Group = 64 }), ""},
		{"group 16", with(func(p *codec.KVParams) { p.Group = 16 }), "group 16"},
		{"group 128", with(func(p *codec.KVParams) { p.Group = 128 }), "group 128"},
		{"group -32", with(func(p *codec.KVParams) { p.Group = -32 }), "group -32"},
		{"group 64 in 96", with(func(p *codec.KVParams) { p.HeadDim, p.Group = 96, 64 }), "96 is not a positive multiple of the group, 64"},
		{"head dim -128", with(func(p *codec.KVParams) { p.HeadDim = -128 }), "dimension -128"},
		{"value dim -128", with(func(p *codec.KVParams) { p.ValueHeadDim = -128 }), "value head dimension -128"},
		{"value dim 100", with(func(p *codec.KVParams) { p.ValueHeadDim = 100 }), "value head dimension 100"},
		{"value dim 288", with(func(p *codec.KVParams) { p.ValueHeadDim = 288 }), "value head dimension 288"},
		{"value dim 16384", with(func(p *codec.KVParams) { p.ValueHeadDim = 16384 }), "value head dimension 16384"},
		{"value dim 64", with(func(p *codec.KVParams) { p.ValueHeadDim = 64 }), ""},
		{"key dim 288", with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = 288, 64 }), ""}, // keys do not rotate
		{"scale f32", with(func(p *codec.KVParams) { p.ScaleType = codec.F32 }), ""},
		{"scale 4", with(func(p *codec.KVParams) { p.ScaleType = 4 }), "DType(4)"},
		{"compat, search", with(func(p *codec.KVParams) { p.Policy, p.Scale = codec.Compat, codec.Search }), ""},
		{"policy 2", with(func(p *codec.KVParams) { p.Policy = 2 }), "Policy(2)"},
		{"rule 2", with(func(p *codec.KVParams) { p.Scale = 2 }), "ScaleRule(2)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.p.Validate()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, codec.ErrParams) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want ErrParams with %q", err, c.want)
			}
		})
	}
}

func TestKVParamsWithDefaults(t *testing.T) {
	got := codec.KVParams{HeadDim: 96, Keys: codec.Q4_0, Values: codec.Q3_0}.WithDefaults()
	want := codec.KVParams{HeadDim: 96, ValueHeadDim: 96, Keys: codec.Q4_0, Values: codec.Q3_0, Group: 32, ScaleType: codec.F16}
	if got != want {
		t.Errorf("defaults %+v, want %+v", got, want)
	}
	full := codec.KVParams{HeadDim: 128, ValueHeadDim: 64, Keys: codec.Q8_0, Values: codec.Q5_0, Group: 64, ScaleType: codec.BF16, Policy: codec.Compat, Scale: codec.Search}
	if full.WithDefaults() != full {
		t.Errorf("defaults replaced %+v by %+v", full, full.WithDefaults())
	}
}

// Lengths and rates worked out by hand.
func TestKVParamsLengths(t *testing.T) {
	for _, c := range []struct {
		p                                            codec.KVParams
		keyCodes, keyScales, valueCodes, valueScales int
		keyBitsPerElement, valueBitsPerElement       float64
	}{
		{p: codec.KVParams{HeadDim: 128, Keys: codec.Uint8, Values: codec.Q3_0}, keyCodes: 128, keyScales: 8, valueCodes: 48, valueScales: 8, keyBitsPerElement: 9, valueBitsPerElement: 3.5},
		{p: codec.KVParams{HeadDim: 192, ValueHeadDim: 128, Keys: codec.Q5_0, Values: codec.Q2_0, Group: 64}, keyCodes: 120, keyScales: 6, valueCodes: 32, valueScales: 4, keyBitsPerElement: 5.5, valueBitsPerElement: 2.25},
		{p: codec.KVParams{HeadDim: 32, Keys: codec.Q2_0, Values: codec.Q8_0, ScaleType: codec.F32}, keyCodes: 8, keyScales: 4, valueCodes: 32, valueScales: 4, keyBitsPerElement: 4, valueBitsPerElement: 9},
	} {
		kc, ks := c.p.KeyRowLen()
		vc, vs := c.p.ValueRowLen()
		if kc != c.keyCodes || ks != c.keyScales || vc != c.valueCodes || vs != c.valueScales {
			t.Errorf("%+v: rows of %d+%d and %d+%d bytes", c.p, kc, ks, vc, vs)
		}
		if c.p.KeyBitsPerElement() != c.keyBitsPerElement || c.p.ValueBitsPerElement() != c.valueBitsPerElement {
			t.Errorf("%+v: %v and %v bits an element", c.p, c.p.KeyBitsPerElement(), c.p.ValueBitsPerElement())
		}
	}
}

// Every value of every named type reads back from its text, and nothing else
// is read.
func TestText(t *testing.T) {
	type text interface {
		encoding.TextMarshaler
		fmt.Stringer
	}
	for _, c := range []struct {
		values []text
		read   func(string) (text, error)
	}{
		{[]text{codec.F32, codec.F16, codec.BF16}, func(s string) (text, error) { var v codec.DType; err := v.UnmarshalText([]byte(s)); return v, err }},
		{[]text{codec.Finite, codec.Compat}, func(s string) (text, error) { var v codec.Policy; err := v.UnmarshalText([]byte(s)); return v, err }},
		{[]text{codec.RMS, codec.Search}, func(s string) (text, error) { var v codec.ScaleRule; err := v.UnmarshalText([]byte(s)); return v, err }},
		{[]text{codec.Q2_0, codec.Q3_0, codec.Q4_0, codec.Q5_0, codec.Q8_0, codec.Uint8}, func(s string) (text, error) { var v codec.Format; err := v.UnmarshalText([]byte(s)); return v, err }},
	} {
		for _, v := range c.values {
			b, err := v.MarshalText()
			if err != nil || string(b) != v.String() {
				t.Errorf("%v: %q, %v", v, b, err)
			}
			if got, err := c.read(string(b)); got != v || err != nil {
				t.Errorf("%q reads as %v, %v", b, got, err)
			}
		}
		for _, bad := range []string{"", "q6_0", "F16", "f64", "q8_0 ", "DType(0)", "7", "08", "Finite"} {
			if got, err := c.read(bad); !errors.Is(err, codec.ErrParams) {
				t.Errorf("%q reads as %v, %v", bad, got, err)
			}
		}
	}
	for _, v := range []text{codec.DType(0), codec.DType(4), codec.Policy(2), codec.ScaleRule(2), codec.Format(0), codec.Format(200)} {
		if b, err := v.MarshalText(); err == nil {
			t.Errorf("%v has the text %q", v, b)
		}
	}
}

// The names that vllm-metal gives to key formats, with their widths.
func TestFormats(t *testing.T) {
	for name, want := range map[string]struct {
		bits   int
		signed bool
	}{
		"int2": {2, false}, "int4": {4, false}, "int8": {8, true}, "q4_0": {4, false}, "q5_0": {5, false}, "q8_0": {8, true},
		"uint2": {2, false}, "uint3": {3, false}, "uint4": {4, false}, "uint8": {8, false},
	} {
		var f codec.Format
		if err := f.UnmarshalText([]byte(name)); err != nil || f.Bits() != want.bits || f.Signed() != want.signed {
			t.Errorf("%s: %v of %d bits, %v", name, f, f.Bits(), err)
		}
		if got, err := codec.KeyFormat(want.bits, want.signed); got != f || err != nil {
			t.Errorf("keys of %d bits, signed %v: %v, %v", want.bits, want.signed, got, err)
		}
		if err := (codec.KVParams{HeadDim: 64, Keys: f, Values: codec.Q3_0}).Validate(); err != nil {
			t.Error(err)
		}
	}
	for name, bits := range map[string]int{"q2_0": 2, "q3_0": 3, "q4_0": 4, "q5_0": 5, "q8_0": 8, "2": 2, "3": 3, "4": 4, "5": 5, "8": 8} {
		var f codec.Format
		if err := f.UnmarshalText([]byte(name)); err != nil || f.Bits() != bits {
			t.Errorf("%s: %v, %v", name, f, err)
		}
		if got, err := codec.ValueFormat(bits); got != f || err != nil {
			t.Errorf("values of %d bits: %v, %v", bits, got, err)
		}
	}
	for _, bits := range []int{-8, 0, 1, 6, 7, 9, 16} {
		for _, signed := range []bool{false, true} {
			if f, err := codec.KeyFormat(bits, signed); !errors.Is(err, codec.ErrParams) {
				t.Errorf("keys of %d bits: %v, %v", bits, f, err)
			}
		}
		if f, err := codec.ValueFormat(bits); !errors.Is(err, codec.ErrParams) {
			t.Errorf("values of %d bits: %v, %v", bits, f, err)
		}
	}
	if f, err := codec.KeyFormat(4, true); !errors.Is(err, codec.ErrParams) {
		t.Errorf("signed keys of 4 bits: %v, %v", f, err)
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  codec.Error
		want string
	}{
		{codec.Error{Err: codec.ErrNonFinite, Tensor: "keys", Index: 7, Reason: "NaN"}, "keys: element 7: NaN (not finite)"},
		{codec.Error{Err: codec.ErrShape, Tensor: "values", Index: codec.NoIndex, Reason: "shape [3]"}, "values: shape [3] (shape does not fit)"},
		{codec.Error{Err: codec.ErrClosed, Index: codec.NoIndex}, "backend is closed"},
		{codec.Error{}, "element 0: unknown error"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if c.err.Err != nil && !errors.Is(&c.err, c.err.Err) {
			t.Errorf("%v does not wrap its class", &c.err)
		}
	}
}

// Zero values of the exported types do not panic.
func TestZeroValues(t *testing.T) {
	var p codec.KVParams
	var x codec.Tensor
	_, _ = p.KeyRowLen()
	_, _ = p.ValueRowLen()
	_, _, _ = p.KeyBitsPerElement(), p.ValueBitsPerElement(), p.KeyFormat()
	_, _ = codec.Keys{}.Planes(p), codec.Values{}.Planes(p)
	_, _ = x.RowOffset(0)
	_, _, _ = x.Len(), x.Dim(), x.Rows()
	x.LoadRow(nil, 0)
	x.StoreRow(0, nil)
	if err := x.Validate("x"); !errors.Is(err, codec.ErrDType) {
		t.Error(err)
	}
	if err := p.Validate(); !errors.Is(err, codec.ErrParams) {
		t.Error(err)
	}
	if (&codec.Error{}).Unwrap() != nil || codec.Format(0).Bits() != 0 {
		t.Error("zero Error or Format")
	}
}
