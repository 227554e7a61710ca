package codec_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

func TestKVParamsValidate(t *testing.T) {
	ok := codec.KVParams{HeadDim: 128, KeyBits: 4, ValueBits: 3}
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
		{"zero", codec.KVParams{}, "head dimension 0"},
		{"signed 8", with(func(p *codec.KVParams) { p.KeyBits, p.KeySigned = 8, true }), ""},
		{"signed 4", with(func(p *codec.KVParams) { p.KeySigned = true }), "signed keys of 4"},
		{"key bits 0", with(func(p *codec.KVParams) { p.KeyBits = 0 }), "0 bits"},
		{"key bits 1", with(func(p *codec.KVParams) { p.KeyBits = 1 }), "1 bits"},
		{"key bits 6", with(func(p *codec.KVParams) { p.KeyBits = 6 }), "6 bits"},
		{"key bits -8", with(func(p *codec.KVParams) { p.KeyBits = -8 }), "-8 bits"},
		{"value bits 0", with(func(p *codec.KVParams) { p.ValueBits = 0 }), "0 bits"},
		{"value bits 1", with(func(p *codec.KVParams) { p.ValueBits = 1 }), "1 bits"},
		{"value bits 6", with(func(p *codec.KVParams) { p.ValueBits = 6 }), "6 bits"},
		{"value bits 9", with(func(p *codec.KVParams) { p.ValueBits = 9 }), "9 bits"},
		{"value bits -1", with(func(p *codec.KVParams) { p.ValueBits = -1 }), "-1 bits"},
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
			if !errors.Is(err, codec.ErrParams) || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "codec: ") {
				t.Errorf("error %v, want ErrParams with %q", err, c.want)
			}
		})
	}
}

func TestKVParamsWithDefaults(t *testing.T) {
	got := codec.KVParams{HeadDim: 96, KeyBits: 4, ValueBits: 3}.WithDefaults()
	want := codec.KVParams{HeadDim: 96, ValueHeadDim: 96, KeyBits: 4, ValueBits: 3, Group: 32, ScaleType: codec.F16}
	if got != want {
		t.Errorf("defaults %+v, want %+v", got, want)
	}
	full := codec.KVParams{HeadDim: 128, ValueHeadDim: 64, KeyBits: 8, KeySigned: true, ValueBits: 5, Group: 64, ScaleType: codec.BF16, Policy: codec.Compat, Scale: codec.Search}
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
		{p: codec.KVParams{HeadDim: 128, KeyBits: 8, ValueBits: 3}, keyCodes: 128, keyScales: 8, valueCodes: 48, valueScales: 8, keyBitsPerElement: 9, valueBitsPerElement: 3.5},
		{p: codec.KVParams{HeadDim: 192, ValueHeadDim: 128, KeyBits: 5, ValueBits: 2, Group: 64}, keyCodes: 120, keyScales: 6, valueCodes: 32, valueScales: 4, keyBitsPerElement: 5.5, valueBitsPerElement: 2.25},
		{p: codec.KVParams{HeadDim: 32, KeyBits: 2, ValueBits: 8, ScaleType: codec.F32}, keyCodes: 8, keyScales: 4, valueCodes: 32, valueScales: 4, keyBitsPerElement: 4, valueBitsPerElement: 9},
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

func TestParse(t *testing.T) {
	for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		if got, err := codec.ParseDType(d.String()); got != d || err != nil {
			t.Error(got, err)
		}
	}
	for _, p := range []codec.Policy{codec.Finite, codec.Compat} {
		if got, err := codec.ParsePolicy(p.String()); got != p || err != nil {
			t.Error(got, err)
		}
	}
	for _, s := range []codec.ScaleRule{codec.RMS, codec.Search} {
		if got, err := codec.ParseScaleRule(s.String()); got != s || err != nil {
			t.Error(got, err)
		}
	}
	for _, k := range codec.KeyTypes() {
		if got, err := codec.ParseKeyType(k.Name); got != k || err != nil {
			t.Error(got, err)
		}
		p := codec.KVParams{HeadDim: 64, KeyBits: k.Bits, KeySigned: k.Signed, ValueBits: 3}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
	for name, want := range map[string]int{"q2_0": 2, "q3_0": 3, "q4_0": 4, "q5_0": 5, "q8_0": 8, "2": 2, "3": 3, "4": 4, "5": 5, "8": 8} {
		if got, err := codec.ParseValueType(name); got != want || err != nil {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "q6_0", "F16", "f64", "q8_0 ", "DType(0)", "7", "08", "Finite"} {
		for what, parse := range map[string]func(string) error{
			"dtype":  func(s string) error { _, err := codec.ParseDType(s); return err },
			"policy": func(s string) error { _, err := codec.ParsePolicy(s); return err },
			"rule":   func(s string) error { _, err := codec.ParseScaleRule(s); return err },
			"key":    func(s string) error { _, err := codec.ParseKeyType(strings.TrimSuffix(s, "8_0")); return err },
			"value":  func(s string) error { _, err := codec.ParseValueType(s); return err },
		} {
			err := parse(bad)
			if err == nil {
				t.Errorf("%s %q parsed", what, bad)
			} else if !errors.Is(err, codec.ErrParams) && !errors.Is(err, codec.ErrDType) {
				t.Errorf("%s %q: %v", what, bad, err)
			}
		}
	}
}

// The named types are those of vllm-metal, with their widths.
func TestKeyTypes(t *testing.T) {
	want := []codec.KeyType{
		{"int2", 2, false}, {"int4", 4, false}, {"int8", 8, true},
		{"q4_0", 4, false}, {"q5_0", 5, false}, {"q8_0", 8, true},
		{"uint2", 2, false}, {"uint3", 3, false}, {"uint4", 4, false}, {"uint8", 8, false},
	}
	got := codec.KeyTypes()
	slices.SortFunc(got, func(a, b codec.KeyType) int { return strings.Compare(a.Name, b.Name) })
	if !slices.Equal(got, want) {
		t.Errorf("key types %v, want %v", got, want)
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  codec.Error
		want string
	}{
		{codec.Error{Err: codec.ErrNonFinite, Tensor: "keys", Index: 7, Reason: "NaN"}, "codec: keys: element 7: NaN (not finite)"},
		{codec.Error{Err: codec.ErrShape, Tensor: "values", Index: codec.NoIndex, Reason: "shape [3]"}, "codec: values: shape [3] (shape does not fit)"},
		{codec.Error{Err: codec.ErrClosed, Index: codec.NoIndex}, "codec: backend is closed"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if !errors.Is(&c.err, c.err.Err) {
			t.Errorf("%v does not wrap its class", &c.err)
		}
	}
}
