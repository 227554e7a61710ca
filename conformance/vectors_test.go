package conformance_test

import (
	"bytes"
	"context"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// vector is one file of vectors, as its README describes it. A field that is
// not here is refused.
type vector struct {
	Schema     int               `json:"schema"`
	Kind       string            `json:"kind"`
	Comment    string            `json:"comment"`
	Provenance map[string]string `json:"provenance"`
	Params     struct {
		HeadDim   int    `json:"headDim"`
		Bits      int    `json:"bits"`
		Signed    bool   `json:"signed"`
		Group     int    `json:"group"`
		ScaleType string `json:"scaleType"`
		Policy    string `json:"policy"`
		Rule      string `json:"rule"`
		L, K, T   int
		Code      string `json:"code"`
	} `json:"params"`
	Input struct {
		DType string   `json:"dtype"`
		Shape []int    `json:"shape"`
		Bits  hexBytes `json:"bits"`
	} `json:"input"`
	Stages struct {
		Canon   hexBytes `json:"canon"`
		Rotated hexBytes `json:"rotated"`
		Scale   hexBytes `json:"scale"`
		Zero    hexBytes `json:"zero"`
		Index   hexBytes `json:"index"`
	} `json:"stages"`
	Packed struct {
		Codes  hexBytes `json:"codes"`
		Scales hexBytes `json:"scales"`
		Zeros  hexBytes `json:"zeros"`
	} `json:"packed"`
	Decoded struct {
		DType   string   `json:"dtype"`
		Rotated hexBytes `json:"rotated"`
		Bits    hexBytes `json:"bits"`
	} `json:"decoded"`
}

type hexBytes []byte

func (b *hexBytes) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	v, err := hex.DecodeString(s)
	*b = v
	return err
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if d.More() {
		t.Fatalf("%s: more than one value", name)
	}
}

// eachVector runs f on every vector of a kind.
func eachVector(t *testing.T, kind string, f func(t *testing.T, v *vector)) {
	names, err := filepath.Glob("vectors/" + kind + "-*.json")
	if err != nil || len(names) == 0 {
		t.Fatal("no vectors of", kind, err)
	}
	for _, name := range names {
		name = filepath.Base(name)
		t.Run(strings.TrimSuffix(name, ".json"), func(t *testing.T) {
			var v vector
			readJSON(t, name, &v)
			f(t, &v)
		})
	}
	t.Logf("%d vectors of %s", len(names), kind)
}

// TestVectorLint checks that the files are what the README says: nothing else,
// the fields of their kind and lengths that fit.
func TestVectorLint(t *testing.T) {
	var total int64
	err := filepath.WalkDir("vectors", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		name := filepath.Base(path)
		switch filepath.Ext(name) {
		case ".py", ".txt":
			if filepath.Base(filepath.Dir(path)) == "oracle" {
				return nil
			}
		case ".json":
			kind, _, _ := strings.Cut(name, "-")
			if kind == "keys" || kind == "values" || kind == "weights" || name == "tables.json" {
				return nil
			}
		case ".md":
			return nil
		}
		if !strings.Contains(path, "__pycache__") {
			t.Errorf("%s does not belong here", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if total > 3<<20 {
		t.Errorf("%d bytes of vectors, want at most 3 MiB", total)
	}
	for kind, want := range map[string]int{"keys": 6 * 2 * 6, "values": 5 * 2 * 6, "weights": 4 * 3 * 3} {
		n := 0
		eachVector(t, kind, func(t *testing.T, v *vector) {
			n++
			lint(t, kind, v)
		})
		if n != want {
			t.Errorf("%d vectors of %s, want %d", n, kind, want)
		}
	}
}

func lint(t *testing.T, kind string, v *vector) {
	if v.Schema != 1 || v.Kind != kind || v.Comment == "" || v.Provenance["by"] != "oracle/make.py" || v.Provenance["numpy"] == "" {
		t.Errorf("schema %d, kind %q, comment %q, provenance %v", v.Schema, v.Kind, v.Comment, v.Provenance)
	}
	if len(v.Input.Shape) != 2 {
		t.Fatalf("shape %v", v.Input.Shape)
	}
	p := v.Params
	rows, d := v.Input.Shape[0], v.Input.Shape[1]
	n := rows * d
	groups, scale, bits, index := rows, 2, p.K, 2*n
	if kind != "weights" {
		groups, scale, bits, index = n/p.Group, sizes[p.ScaleType], p.Bits, n
		if p.HeadDim != d {
			t.Errorf("head dimension %d of rows of %d", p.HeadDim, d)
		}
	}
	zero, rotated := 0, 0
	if kind == "keys" {
		zero = groups
	}
	if kind == "values" {
		rotated = n
	}
	scaleStage := groups
	if kind == "weights" {
		scaleStage = 0
	}
	for what, length := range map[string][2]int{
		"input":           {len(v.Input.Bits), n * sizes[v.Input.DType]},
		"canon":           {len(v.Stages.Canon), 4 * n},
		"rotated stage":   {len(v.Stages.Rotated), 4 * rotated},
		"scale":           {len(v.Stages.Scale), 4 * scaleStage},
		"zero":            {len(v.Stages.Zero), 4 * zero},
		"index":           {len(v.Stages.Index), index},
		"codes":           {len(v.Packed.Codes), n * bits / 8},
		"scales":          {len(v.Packed.Scales), groups * scale},
		"zeros":           {len(v.Packed.Zeros), zero * scale},
		"decoded":         {len(v.Decoded.Bits), n * sizes[v.Decoded.DType]},
		"decoded rotated": {len(v.Decoded.Rotated), rotated * sizes[v.Decoded.DType]},
	} {
		if length[0] != length[1] {
			t.Errorf("%s: %d bytes, want %d", what, length[0], length[1])
		}
	}
}

var sizes = map[string]int{"f32": 4, "f16": 2, "bf16": 2}

// What follows, down to TestVectorDecode, is a decoder written from
// vectors/README.md alone: it uses no package of this module.

type tables struct {
	Comment    string              `json:"comment"`
	Provenance map[string]string   `json:"provenance"`
	Centroids  map[string][]string `json:"centroids"`
	Boundaries map[string][]string `json:"boundaries"`
	Signs      map[string]string   `json:"signs"`
	Matrices   map[string][]string `json:"matrices"`
}

// load reads one little-endian element.
func load(t string, b []byte) float32 {
	switch t {
	case "f32":
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case "bf16":
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
	}
	h := binary.LittleEndian.Uint16(b)
	sign, e, m := float64(1), int(h>>10&31), float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch e {
	case 0:
		return float32(sign * math.Ldexp(m, -24))
	case 31:
		if m != 0 {
			return float32(math.NaN())
		}
		return float32(math.Inf(int(sign)))
	}
	return float32(sign * math.Ldexp(1024+m, e-25))
}

// bits rounds x to nearest even in type t and returns the pattern, that of the
// quiet NaN without payload for any NaN.
func bits(t string, x float32) uint32 {
	nan := x != x
	switch t {
	case "f32":
		if nan {
			return 0x7fc00000
		}
		return math.Float32bits(x)
	case "bf16":
		if nan {
			return 0x7fc0
		}
		u := math.Float32bits(x)
		return (u + 0x7fff + u>>16&1) >> 16
	}
	if nan {
		return 0x7e00
	}
	sign := math.Float32bits(x) >> 16 & 0x8000
	a := math.Abs(float64(x))
	if a == 0 {
		return sign
	}
	_, e := math.Frexp(a) // a = f·2^e, f in [1/2, 1)
	step := max(e-11, -24)
	n := uint32(math.RoundToEven(math.Ldexp(min(a, 1<<17), -step)))
	// n steps of the binade that starts at 1024 of them, or below it.
	h := n
	if e-11 >= -24 {
		h = uint32(e-11+24)<<10 + n
	}
	return sign | min(h, 0x7c00)
}

// stream returns n unsigned numbers of b bits from a little-endian bit stream.
func stream(src []byte, n, b int) []int {
	out := make([]int, n)
	for i := range out {
		for j := range b {
			at := i*b + j
			out[i] |= int(src[at/8]>>(at%8)&1) << j
		}
	}
	return out
}

func decodeKeys(v *vector) []float32 {
	p := v.Params
	size := sizes[p.ScaleType]
	index := stream(v.Packed.Codes, len(v.Packed.Codes)*8/p.Bits, p.Bits)
	out := make([]float32, len(index))
	for i, x := range index {
		if p.Signed {
			x = int(int8(x))
		}
		at := i / p.Group * size
		sum := float32(x) + load(p.ScaleType, v.Packed.Zeros[at:])
		out[i] = sum * load(p.ScaleType, v.Packed.Scales[at:])
	}
	return out
}

func decodeValues(v *vector, c tables) (rotated, out []float32) {
	p := v.Params
	size := sizes[p.ScaleType]
	for i, x := range stream(v.Packed.Codes, len(v.Packed.Codes)*8/p.Bits, p.Bits) {
		u, _ := strconv.ParseUint(c.Centroids[strconv.Itoa(p.Bits)][x], 0, 32)
		rotated = append(rotated, math.Float32frombits(uint32(u))*load(p.ScaleType, v.Packed.Scales[i/p.Group*size:]))
	}
	d := p.HeadDim
	n, m := d, 1
	for _, k := range []int{12, 20, 28} {
		if d&(d-1) != 0 && d%k == 0 && d/k&(d/k-1) == 0 {
			n, m = d/k, k
		}
	}
	norm := float32(1 / math.Sqrt(float64(d)))
	for r := 0; r < len(rotated); r += d {
		x := append([]float32(nil), rotated[r:r+d]...)
		for run := 0; run < d; run += n {
			for h := 1; h < n; h *= 2 {
				for j := range n {
					if j&h == 0 {
						a, b := x[run+j], x[run+j+h]
						x[run+j], x[run+j+h] = a+b, a-b
					}
				}
			}
		}
		y := x
		if m > 1 {
			matrix := c.Matrices[strconv.Itoa(m)]
			y = make([]float32, d)
			for j := range m {
				for i := range m {
					for k := range n {
						// The inverse: row and column exchanged.
						if matrix[i][j] == '+' {
							y[j*n+k] += x[i*n+k]
						} else {
							y[j*n+k] -= x[i*n+k]
						}
					}
				}
			}
		}
		for i := range y {
			v := float32(y[i] * norm)
			if c.Signs[strconv.Itoa(d)][i] == '-' {
				v = -v
			}
			out = append(out, v)
		}
	}
	return rotated, out
}

// codeValue returns f(s).
func codeValue(code string, s uint32) float32 {
	switch code {
	case "1mad":
		x := s*34038481 + 76625530
		return float32(int(x&255+x>>8&255+x>>16&255+x>>24)-510) / 147.800537109375
	case "3inst":
		x := (s*89226354+64248484)&0x8fff8fff ^ 0x3b603b60
		half := func(h uint32) float32 { return load("f16", []byte{byte(h), byte(h >> 8)}) }
		return half(x>>16) + half(x&0xffff)
	}
	uniform := func(n uint32) float64 {
		z := 0xc0ffee + n*0x9e3779b9
		z = (z ^ z>>16) * 0x21f0aaad
		z = (z ^ z>>15) * 0x735a2d97
		return (float64(z^z>>15) + 0.5) / (1 << 32)
	}
	r := math.Sqrt(-2 * math.Log(uniform(s&^1+1)))
	sin, cos := math.Sincos(2 * math.Pi * uniform(s&^1+2))
	if s&1 == 1 {
		return float32(r * sin)
	}
	return float32(r * cos)
}

func decodeWeights(v *vector) []float32 {
	p := v.Params
	rows, cols := v.Input.Shape[0], v.Input.Shape[1]
	var out []float32
	size := p.T * p.K / 8
	for b := range rows * cols / p.T {
		block := v.Packed.Codes[b*size:][:size]
		bit := func(i int) int { i %= p.T * p.K; return int(block[i/8] >> (i % 8) & 1) }
		scale := load("f16", v.Packed.Scales[b*p.T/cols*2:])
		for t := range p.T {
			s := 0
			for j := range p.L {
				s |= bit((p.T-1-t)*p.K+j) << j
			}
			out = append(out, float32(codeValue(p.Code, uint32(s))*scale))
		}
	}
	return out
}

// TestVectorDecode decodes every vector from the files alone.
func TestVectorDecode(t *testing.T) {
	var c tables
	readJSON(t, "tables.json", &c)
	compared := 0
	same := func(t *testing.T, what, dtype string, got []float32, want []byte) {
		t.Helper()
		n := sizes[dtype]
		if len(got)*n != len(want) {
			t.Fatalf("%s: %d elements, want %d bytes", what, len(got), len(want))
		}
		for i, x := range got {
			w := uint32(want[i*n]) | uint32(want[i*n+1])<<8
			if n == 4 {
				w = binary.LittleEndian.Uint32(want[4*i:])
			}
			if g := bits(dtype, x); g != w {
				t.Fatalf("%s[%d] = %#x (%v), want %#x", what, i, g, x, w)
			}
			compared++
		}
	}
	eachVector(t, "keys", func(t *testing.T, v *vector) {
		same(t, "decoded", v.Decoded.DType, decodeKeys(v), v.Decoded.Bits)
	})
	eachVector(t, "values", func(t *testing.T, v *vector) {
		rotated, x := decodeValues(v, c)
		same(t, "rotated", v.Decoded.DType, rotated, v.Decoded.Rotated)
		same(t, "decoded", v.Decoded.DType, x, v.Decoded.Bits)
	})
	eachVector(t, "weights", func(t *testing.T, v *vector) {
		same(t, "decoded", v.Decoded.DType, decodeWeights(v), v.Decoded.Bits)
	})
	if compared == 0 {
		t.Fatal("nothing compared")
	}
	t.Logf("compared %d elements", compared)
}

// TestVectorReference encodes and decodes every vector with the reference, and
// compares every stage.
func TestVectorReference(t *testing.T) {
	compared := 0
	same := func(t *testing.T, what string, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Fatalf("%s: %d bytes, want %d; the first difference is at %d", what, len(got), len(want), i)
				}
			}
		}
		compared += len(want)
	}
	clean := func(dtype codec.DType, b []byte) []byte {
		for i := 0; i < len(b); i += dtype.Size() {
			if v := dtype.Load(b[i:]); v != v {
				dtype.Store(b[i:], math.Float32frombits(0x7fc00000))
			}
		}
		return b
	}
	wide := func(x []float32) []byte { return clean(codec.F32, codec.FromF32(x, len(x)).Data) }
	dtype := func(t *testing.T, name string) codec.DType {
		var d codec.DType
		parse(t, &d, name)
		return d
	}
	input := func(t *testing.T, v *vector) (codec.Tensor, [][]float32) {
		x := codec.Tensor{DType: dtype(t, v.Input.DType), Shape: v.Input.Shape, Data: v.Input.Bits}
		rows := make([][]float32, x.Rows())
		for r := range rows {
			rows[r] = make([]float32, x.Dim())
			x.LoadRow(rows[r], r)
		}
		return x, rows
	}
	kvOf := func(t *testing.T, v *vector, p codec.KVParams) (codec.KV, *ref.KV) {
		p.Group = v.Params.Group
		p.ScaleType = dtype(t, v.Params.ScaleType)
		kv, err := ref.New().KV(p)
		if err != nil {
			t.Fatal(err)
		}
		stages, err := ref.NewKV(p)
		if err != nil {
			t.Fatal(err)
		}
		return kv, stages
	}
	eachVector(t, "keys", func(t *testing.T, v *vector) {
		f, err := codec.KeyFormat(v.Params.Bits, v.Params.Signed)
		if err != nil {
			t.Fatal(err)
		}
		var policy codec.Policy
		parse(t, &policy, v.Params.Policy)
		kv, stages := kvOf(t, v, codec.KVParams{HeadDim: v.Params.HeadDim, ValueHeadDim: 64, Values: codec.Q2_0, Keys: f, Policy: policy})
		x, rows := input(t, v)
		var canon, scale, zero, index []byte
		for _, row := range rows {
			st, found := stages.KeyStages(row)
			if found != driver.Nothing {
				t.Fatal(found)
			}
			canon, scale, zero, index = append(canon, wide(st.Canon)...), append(scale, wide(st.Scale)...), append(zero, wide(st.Zero)...), append(index, st.Index...)
		}
		same(t, "canon", canon, v.Stages.Canon)
		same(t, "scale", scale, v.Stages.Scale)
		same(t, "zero", zero, v.Stages.Zero)
		same(t, "index", index, v.Stages.Index)
		var k codec.Keys
		if err := kv.EncodeKeys(&k, x); err != nil {
			t.Fatal(err)
		}
		same(t, "codes", k.Codes, v.Packed.Codes)
		same(t, "scales", clean(kv.Params().ScaleType, k.Scales), v.Packed.Scales)
		same(t, "zeros", clean(kv.Params().ScaleType, k.Zeros), v.Packed.Zeros)
		out := codec.NewTensor(dtype(t, v.Decoded.DType), x.Shape...)
		if err := kv.DecodeKeys(out, k); err != nil {
			t.Fatal(err)
		}
		same(t, "decoded", clean(out.DType, out.Data), v.Decoded.Bits)
	})
	eachVector(t, "values", func(t *testing.T, v *vector) {
		f, err := codec.ValueFormat(v.Params.Bits)
		if err != nil {
			t.Fatal(err)
		}
		var rule codec.ScaleRule
		parse(t, &rule, v.Params.Rule)
		kv, stages := kvOf(t, v, codec.KVParams{HeadDim: 64, Keys: codec.Uint8, ValueHeadDim: v.Params.HeadDim, Values: f, Scale: rule})
		x, rows := input(t, v)
		var canon, rotated, scale, index []byte
		for _, row := range rows {
			st, found := stages.ValueStages(row)
			if found != driver.Nothing {
				t.Fatal(found)
			}
			canon, rotated, scale, index = append(canon, wide(st.Canon)...), append(rotated, wide(st.Rotated)...), append(scale, wide(st.Scale)...), append(index, st.Index...)
		}
		same(t, "canon", canon, v.Stages.Canon)
		same(t, "rotated", rotated, v.Stages.Rotated)
		same(t, "scale", scale, v.Stages.Scale)
		same(t, "index", index, v.Stages.Index)
		var k codec.Values
		if err := kv.EncodeValues(&k, x); err != nil {
			t.Fatal(err)
		}
		same(t, "codes", k.Codes, v.Packed.Codes)
		same(t, "scales", k.Scales, v.Packed.Scales)
		out := codec.NewTensor(dtype(t, v.Decoded.DType), x.Shape...)
		if err := kv.DecodeValuesRotated(out, k); err != nil {
			t.Fatal(err)
		}
		same(t, "decoded, rotated", out.Data, v.Decoded.Rotated)
		if err := kv.DecodeValues(out, k); err != nil {
			t.Fatal(err)
		}
		same(t, "decoded", out.Data, v.Decoded.Bits)
	})
	eachVector(t, "weights", func(t *testing.T, v *vector) {
		p := trellis.Params{L: v.Params.L, K: v.Params.K, T: v.Params.T}
		parse(t, &p.Code, v.Params.Code)
		parse(t, &p.Scale, v.Params.Rule)
		parse(t, &p.Policy, v.Params.Policy)
		c, err := ref.New().Trellis(p)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := input(t, v)
		var m trellis.Matrix
		if err := c.Encode(context.Background(), &m, codec.Tensor{}, x, trellis.Geometry{Axis: 1, Out: x.Shape[0], In: x.Shape[1]}); err != nil {
			t.Fatal(err)
		}
		states, err := trellis.AppendUnpackStates(nil, m.Codes, p)
		if err != nil {
			t.Fatal(err)
		}
		var index, codes, scales []byte
		for _, s := range states {
			index = binary.LittleEndian.AppendUint16(index, s)
		}
		for _, w := range m.Codes {
			codes = binary.LittleEndian.AppendUint32(codes, w)
		}
		for _, s := range m.Scales {
			scales = binary.LittleEndian.AppendUint16(scales, s)
		}
		same(t, "scales", scales, v.Packed.Scales)
		same(t, "states", index, v.Stages.Index)
		same(t, "codes", codes, v.Packed.Codes)
		out := codec.NewTensor(dtype(t, v.Decoded.DType), x.Shape...)
		if err := c.Decode(out, &m, 0); err != nil {
			t.Fatal(err)
		}
		same(t, "decoded", out.Data, v.Decoded.Bits)
	})
	if compared == 0 {
		t.Fatal("nothing compared")
	}
	t.Logf("compared %d bytes", compared)
}

func parse(t *testing.T, v encoding.TextUnmarshaler, name string) {
	t.Helper()
	if err := v.UnmarshalText([]byte(name)); err != nil {
		t.Fatal(err)
	}
}
