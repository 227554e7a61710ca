package ref_test

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
)

// kvFiles are the vector files of testdata/kv.
var kvFiles = []string{
	"kv_d64", "kv_d64_g64", "kv_d64_bf16", "kv_d64_f16",
	"kv_d128", "kv_d128_g64", "kv_d128_bf16", "kv_d128_f16",
	"kv_d256", "kv_d256_g64", "kv_d256_bf16", "kv_d256_f16",
	"kv_d512", "kv_d512_g64", "kv_d512_bf16", "kv_d512_f16",
}

func dtype(t *testing.T, name string) codec.DType {
	t.Helper()
	d, err := codec.ParseDType(strings.ToLower(name))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// diff fails the test at the first element where got and want differ, NaN
// equal to NaN, and returns the number of elements it compared.
func diff(t *testing.T, what string, d codec.DType, got, want []byte) int {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	if d == 0 { // plain bytes
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s: byte %d = %#02x, want %#02x", what, i, got[i], want[i])
			}
		}
		return len(got)
	}
	for i := 0; i < len(got); i += d.Size() {
		if !bytes.Equal(got[i:i+d.Size()], want[i:i+d.Size()]) {
			g, w := d.Load(got[i:]), d.Load(want[i:])
			if g != g && w != w {
				continue
			}
			t.Fatalf("%s: element %d = %x (%v), want %x (%v)", what, i/d.Size(), got[i:i+d.Size()], g, want[i:i+d.Size()], w)
		}
	}
	return len(got) / d.Size()
}

// TestVectorKV reproduces every output in testdata/kv: keys in five formats
// under both policies, values in five widths under both scale rules, and what
// they decode to.
func TestVectorKV(t *testing.T) {
	total := 0
	for _, name := range kvFiles {
		t.Run(name, func(t *testing.T) {
			f := vectors.Load(t, path.Join("kv", name+".safetensors"))
			x := codec.Tensor{DType: dtype(t, f["x"].DType), Shape: f["x"].Shape, Data: f["x"].Data}
			group, infix := 32, ""
			if _, rest, ok := strings.Cut(name[3:], "_"); ok {
				infix = rest + "."
			}
			if infix == "g64." {
				group = 64
			}
			used := map[string]bool{"x": true}
			compared := 0
			// same compares one output, if this file has it.
			same := func(key string, d codec.DType, got []byte) {
				v, ok := f[key]
				if !ok {
					return
				}
				used[key] = true
				if v.DType == "U8" || v.DType == "I8" {
					d = 0
				}
				compared += diff(t, key, d, got, v.Data)
			}
			for _, kt := range codec.KeyTypes() {
				for _, policy := range []codec.Policy{codec.Compat, codec.Finite} {
					kv := newKV(t, codec.KVParams{HeadDim: x.Dim(), KeyBits: kt.Bits, KeySigned: kt.Signed, ValueBits: 3, Group: group, Policy: policy})
					var k codec.Keys
					if err := kv.EncodeKeys(&k, x); err != nil {
						t.Fatal(err)
					}
					key := fmt.Sprintf("k.%s.%s%v.", kt.Name, infix, policy)
					same(key+"codes", 0, k.Codes)
					same(key+"scales", codec.F16, k.Scales)
					same(key+"zeros", codec.F16, k.Zeros)
					if v, ok := f[key+"decoded"]; ok {
						out := codec.NewTensor(dtype(t, v.DType), x.Shape...)
						if err := kv.DecodeKeys(out, k); err != nil {
							t.Fatal(err)
						}
						same(key+"decoded", out.DType, out.Data)
					}
				}
			}
			for _, bits := range []int{2, 3, 4, 5, 8} {
				for _, rule := range []codec.ScaleRule{codec.RMS, codec.Search} {
					kv := newKV(t, codec.KVParams{HeadDim: x.Dim(), KeyBits: 8, ValueBits: bits, Group: group, Scale: rule})
					var v codec.Values
					if err := kv.EncodeValues(&v, x); err != nil {
						t.Fatal(err)
					}
					key := fmt.Sprintf("v.%d.%s", bits, infix)
					if rule == codec.Search {
						key += "search."
					}
					same(key+"codes", 0, v.Codes)
					same(key+"scales", codec.F16, v.Scales)
					for out, decode := range map[string]func(codec.Tensor, codec.Values) error{
						"rotated": kv.DecodeValuesRotated, "decoded": kv.DecodeValues, "decoded_bf16": kv.DecodeValues,
					} {
						if e, ok := f[key+out]; ok {
							y := codec.NewTensor(dtype(t, e.DType), x.Shape...)
							if err := decode(y, v); err != nil {
								t.Fatal(err)
							}
							same(key+out, y.DType, y.Data)
						}
					}
				}
			}
			for _, key := range f.Names() {
				if !used[key] {
					t.Errorf("vector %s was not compared", key)
				}
			}
			if compared == 0 {
				t.Error("nothing compared")
			}
			t.Logf("compared %d elements in %d vectors", compared, len(used)-1)
			total += compared
		})
	}
	if total == 0 {
		t.Fatal("nothing compared")
	}
	t.Logf("compared %d elements", total)
}

func newKV(t testing.TB, p codec.KVParams) *ref.KV {
	t.Helper()
	kv, err := ref.NewKV(p)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}
