//go:build metal

package gpu

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// diff fails the test at the first element where got and want differ, NaN equal
// to NaN, and returns the number of elements it compared.
func diff(t *testing.T, what string, d codec.DType, got, want []byte) int {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	size := max(d.Size(), 1)
	for i := 0; i < len(got); i += size {
		g, w := got[i:i+size], want[i:i+size]
		if bytes.Equal(g, w) || d != 0 && d.Load(g) != d.Load(g) && d.Load(w) != d.Load(w) {
			continue
		}
		t.Fatalf("%s: element %d = %x, want %x", what, i/size, g, w)
	}
	return len(got) / size
}

func dtype(t *testing.T, name string) codec.DType {
	t.Helper()
	d, err := codec.ParseDType(strings.ToLower(name))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newCodec(t testing.TB, b *Backend, p codec.KVParams) codec.KV {
	t.Helper()
	kv, err := b.KV(p)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// TestVectorKV reproduces every output in testdata/kv.
func TestVectorKV(t *testing.T) {
	b := open(t, Options{})
	total := 0
	for _, d := range []string{"64", "128", "256", "512"} {
		for _, kind := range []string{"", "_g64", "_bf16", "_f16"} {
			name := "kv_d" + d + kind
			t.Run(name, func(t *testing.T) {
				f := vectors.Load(t, path.Join("kv", name+".safetensors"))
				total += vectorKV(t, b, f, strings.TrimPrefix(kind, "_"))
			})
		}
	}
	if total == 0 {
		t.Fatal("nothing compared")
	}
	t.Logf("compared %d elements", total)
}

func vectorKV(t *testing.T, b *Backend, f vectors.File, kind string) (compared int) {
	x := codec.Tensor{DType: dtype(t, f["x"].DType), Shape: f["x"].Shape, Data: f["x"].Data}
	group := 32
	if kind == "g64" {
		group = 64
	}
	if kind != "" {
		kind += "."
	}
	used := map[string]bool{"x": true}
	same := func(key string, d codec.DType, got []byte) {
		if v, ok := f[key]; ok {
			used[key] = true
			compared += diff(t, key, d, got, v.Data)
		}
	}
	for _, kt := range codec.KeyTypes() {
		for _, policy := range []codec.Policy{codec.Compat, codec.Finite} {
			key := fmt.Sprintf("k.%s.%s%v.", kt.Name, kind, policy)
			if _, ok := f[key+"codes"]; !ok {
				continue
			}
			kv := newCodec(t, b, codec.KVParams{HeadDim: x.Dim(), KeyBits: kt.Bits, KeySigned: kt.Signed, ValueBits: 3, Group: group, Policy: policy})
			var k codec.Keys
			if err := kv.EncodeKeys(&k, x); err != nil {
				t.Fatal(err)
			}
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
			kv := newCodec(t, b, codec.KVParams{HeadDim: x.Dim(), KeyBits: 8, ValueBits: bits, Group: group, Scale: rule})
			key := fmt.Sprintf("v.%d.%s", bits, kind)
			if rule == codec.Search {
				key += "search."
			}
			if _, ok := f[key+"codes"]; !ok {
				continue
			}
			var v codec.Values
			if err := kv.EncodeValues(&v, x); err != nil {
				t.Fatal(err)
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
	return compared
}

// param reads the integer behind a letter in one of a vector's dotted name
// parts, such as 12 in "L12".
func param(t *testing.T, name, letter string) int {
	t.Helper()
	for part := range strings.SplitSeq(name, ".") {
		if n, err := strconv.Atoi(strings.TrimPrefix(part, letter)); err == nil && strings.HasPrefix(part, letter) {
			return n
		}
	}
	t.Fatalf("no %s in %q", letter, name)
	return 0
}

func newWeights(t testing.TB, b *Backend, p trellis.Params) *Trellis {
	t.Helper()
	c, err := b.Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Trellis)
}

func counted(t *testing.T, n int) {
	t.Helper()
	if n == 0 {
		t.Fatal("nothing compared")
	}
	t.Logf("compared %d elements", n)
}

func u16s(x []int32) []uint16 {
	var out []uint16
	for _, v := range x {
		out = append(out, uint16(v))
	}
	return out
}

// TestVectorTrellis codes the matrices of testdata/trellis/rows.
func TestVectorTrellis(t *testing.T) {
	b := open(t, Options{})
	f := vectors.Load(t, "trellis/rows.safetensors")
	n := 0
	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".w")
		if !ok {
			continue
		}
		p := trellis.DefaultParams(param(t, base, "k"))
		p.Policy = trellis.Compat
		if strings.Contains(base, ".T") {
			p.T = param(t, base, "T")
		}
		shape := f.Shape(name)
		x := codec.Tensor{DType: codec.F32, Shape: shape, Data: f[name].Data}
		c := newWeights(t, b, p)
		var m trellis.Matrix
		recon, out := codec.NewTensor(codec.F32, shape...), codec.NewTensor(codec.F32, shape...)
		if err := c.Encode(&m, recon, x, trellis.Geometry{Axis: 1, Out: shape[0], In: shape[1]}); err != nil {
			t.Fatal(base, err)
		}
		if !slices.Equal(m.Codes, f.U32(t, base+".codes")) {
			t.Errorf("%s: codes differ", base)
		}
		if !slices.Equal(m.Scales, f.U16(t, base+".scales")) {
			t.Errorf("%s: scales differ", base)
		}
		if err := c.Decode(out, &m, 0); err != nil {
			t.Fatal(base, err)
		}
		n += diff(t, base+".decoded", codec.F32, out.Data, f[base+".decoded"].Data)
		n += diff(t, base+" reconstruction", codec.F32, recon.Data, f[base+".decoded"].Data)
		n += len(m.Codes) + len(m.Scales)
	}
	counted(t, n)
}

// TestVectorBlocks finds the states of testdata/trellis/encode.
func TestVectorBlocks(t *testing.T) {
	b := open(t, Options{})
	f := vectors.Load(t, "trellis/encode.safetensors")
	n := 0
	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".x")
		if !ok {
			continue
		}
		code, err := trellis.ParseCode(strings.Split(base, ".")[4])
		if err != nil {
			t.Fatal(err)
		}
		p := trellis.Params{L: param(t, base, "L"), K: param(t, base, "k"), T: param(t, base, "T"), Code: code, FreeEnds: strings.HasSuffix(base, ".free")}
		want := u16s(f.I32(t, base+".states"))
		got := make([]uint16, len(want))
		x := codec.Tensor{DType: codec.F32, Shape: []int{len(want) / p.T, p.T}, Data: f[name].Data}
		if err := newWeights(t, b, p).EncodeBlocks(got, x); err != nil {
			t.Fatal(base, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: states differ", base)
		}
		n += len(got)
	}
	counted(t, n)
}

// TestVectorPacked decodes the blocks of testdata/trellis/pack, to states and to
// weights.
func TestVectorPacked(t *testing.T) {
	b := open(t, Options{})
	f := vectors.Load(t, "trellis/pack.safetensors")
	n := 0
	for _, name := range f.Names() {
		base, ok := strings.CutSuffix(name, ".states")
		if !ok {
			continue
		}
		p := trellis.Params{L: 12, K: param(t, base, "k"), T: param(t, base, "T")}
		want := u16s(f.I32(t, name))
		scale := pack.ToF16(0.75)
		m := trellis.Matrix{Params: p, Geometry: trellis.Geometry{Axis: 1, Out: 3, In: p.T}, Codes: f.U32(t, base+".words"), Scales: []uint16{scale, scale, scale}}
		c := newWeights(t, b, p)
		got := make([]uint16, len(want))
		if err := c.States(got, &m, 0); err != nil {
			t.Fatal(base, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: states differ", base)
		}
		out := codec.NewTensor(codec.F32, 3, p.T)
		if err := c.Decode(out, &m, 0); err != nil {
			t.Fatal(base, err)
		}
		n += len(got) + diff(t, base+".decoded", codec.F32, out.Data, f[base+".decoded"].Data)
	}
	counted(t, n)
}
