// Package vectortest compares a backend with the test vectors of internal/vectors.
package vectortest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Run reproduces with the backend that open returns every output in kv,
// trellis/rows, trellis/encode, trellis/pack, product, bitmask, affine_mlx and row_codes, each in a subtest of the case's
// name. A backend that is not available skips the test, unless it is required,
// as in conftest.Run.
func Run(t *testing.T, name string, open func() (codec.Backend, error)) {
	b, err := open()
	if errors.Is(err, codec.ErrUnavailable) && !slices.Contains(conftest.Required(), name) {
		t.Skipf("%s: %v", name, err)
	}
	check(t, err)
	defer b.Close()
	keys, values := vectors.KV(t)
	for _, c := range keys {
		t.Run(c.Name, func(t *testing.T) { runKeys(t, b, c) })
	}
	for _, c := range values {
		t.Run(c.Name, func(t *testing.T) { runValues(t, b, c) })
	}
	for _, c := range vectors.Matrices(t) {
		t.Run(c.Name, func(t *testing.T) { runMatrix(t, b, c) })
	}
	for _, c := range vectors.Paths(t) {
		t.Run(c.Name, func(t *testing.T) { runPaths(t, b, c) })
	}
	for _, c := range vectors.Packed(t) {
		t.Run(c.Name, func(t *testing.T) { runPacked(t, b, c) })
	}
	for _, of := range []struct {
		file, suffix string
		run          func(t *testing.T, b codec.Backend, base string, take func(string) vectors.Tensor)
	}{
		{"product.safetensors", ".x", runProduct}, {"bitmask.safetensors", ".logits", runMask}, {"affine_mlx.safetensors", ".packed", runAffine},
		{"row_codes.safetensors", ".x", runRowCodes},
	} {
		bases(t, of.file, of.suffix, func(t *testing.T, base string, take func(string) vectors.Tensor) { of.run(t, b, base, take) })
	}
}

func runKeys(t *testing.T, b codec.Backend, c vectors.KeyCase) {
	var f codec.Format
	check(t, f.UnmarshalText([]byte(c.Type)))
	var policy codec.Policy
	check(t, policy.UnmarshalText([]byte(c.Policy)))
	x := tensor(t, c.X)
	kv, err := b.KV(codec.KVParams{HeadDim: x.Dim(), Keys: f, Values: codec.Q3_0, Group: c.Group, Policy: policy})
	check(t, err)
	var k codec.Keys
	check(t, kv.EncodeKeys(&k, x))
	same(t, "codes", k.Codes, c.Codes)
	same(t, "scales", k.Scales, c.Scales)
	same(t, "zeros", k.Zeros, c.Zeros)
	if c.Decoded.Data != nil {
		out := codec.NewTensor(dtype(t, c.Decoded), x.Shape...)
		check(t, kv.DecodeKeys(out, k))
		same(t, "decoded", out.Data, c.Decoded)
	}
}

func runValues(t *testing.T, b codec.Backend, c vectors.ValueCase) {
	x := tensor(t, c.X)
	f, err := codec.ValueFormat(c.Bits)
	check(t, err)
	p := codec.KVParams{HeadDim: x.Dim(), Keys: codec.Uint8, Values: f, Group: c.Group}
	if c.Search {
		p.Scale = codec.Search
	}
	kv, err := b.KV(p)
	check(t, err)
	var v codec.Values
	check(t, kv.EncodeValues(&v, x))
	same(t, "codes", v.Codes, c.Codes)
	same(t, "scales", v.Scales, c.Scales)
	for what, want := range map[string]vectors.Tensor{"rotated": c.Rotated, "decoded": c.Decoded, "decoded to bf16": c.DecodedBF16} {
		if want.Data == nil {
			continue
		}
		out := codec.NewTensor(dtype(t, want), x.Shape...)
		if what == "rotated" {
			check(t, kv.DecodeValuesRotated(out, v))
		} else {
			check(t, kv.DecodeValues(out, v))
		}
		same(t, what, out.Data, want)
	}
}

func runMatrix(t *testing.T, b codec.Backend, c vectors.MatrixCase) {
	p := trellis.DefaultParams(c.K)
	p.Policy = trellis.Compat
	if c.T != 0 {
		p.T = c.T
	}
	x := tensor(t, c.W)
	w, err := b.Trellis(p)
	check(t, err)
	var m trellis.Matrix
	recon, out := codec.NewTensor(codec.F32, x.Shape...), codec.NewTensor(codec.F32, x.Shape...)
	check(t, w.Encode(context.Background(), &m, recon, x, trellis.Geometry{Axis: 1, Out: x.Shape[0], In: x.Shape[1]}))
	equal(t, "codes", m.Codes, c.Codes)
	equal(t, "scales", m.Scales, c.Scales)
	check(t, w.Decode(out, &m, 0))
	same(t, "decoded", out.Data, c.Decoded)
	same(t, "reconstruction", recon.Data, c.Decoded)
}

func runPaths(t *testing.T, b codec.Backend, c vectors.PathCase) {
	var code trellis.Code
	check(t, code.UnmarshalText([]byte(c.Code)))
	w, err := b.Trellis(trellis.Params{L: c.L, K: c.K, T: c.T, Code: code, FreeEnds: c.FreeEnds})
	check(t, err)
	states := make([]uint16, len(c.States))
	check(t, w.EncodeBlocks(context.Background(), states, tensor(t, c.X)))
	equal(t, "states", states, c.States)
}

func runPacked(t *testing.T, b codec.Backend, c vectors.PackedCase) {
	p := trellis.Params{L: 12, K: c.K, T: c.T}
	blocks := len(c.States) / c.T
	scales := slices.Repeat([]uint16{pack.ToF16(0.75)}, blocks)
	m := trellis.Matrix{Params: p, Geometry: trellis.Geometry{Axis: 1, Out: blocks, In: c.T}, Codes: c.Words, Scales: scales}
	w, err := b.Trellis(p)
	check(t, err)
	out := codec.NewTensor(codec.F32, blocks, c.T)
	check(t, w.Decode(out, &m, 0))
	same(t, "decoded", out.Data, c.Decoded)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func dtype(t *testing.T, v vectors.Tensor) codec.DType {
	t.Helper()
	d, ok := map[string]codec.DType{"F32": codec.F32, "F16": codec.F16, "BF16": codec.BF16}[v.DType]
	if !ok {
		t.Fatalf("tensor of %s", v.DType)
	}
	return d
}

func tensor(t *testing.T, v vectors.Tensor) codec.Tensor {
	t.Helper()
	return codec.Tensor{DType: dtype(t, v), Shape: v.Shape, Data: v.Data}
}

// same compares bytes, of floating-point elements with any NaN equal to any.
func same(t *testing.T, what string, got []byte, want vectors.Tensor) {
	t.Helper()
	if len(got) != len(want.Data) || len(got) == 0 {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want.Data))
	}
	size, nan := 1, func([]byte) bool { return false }
	if want.DType != "U8" && want.DType != "I8" {
		d := dtype(t, want)
		size, nan = d.Size(), func(b []byte) bool { v := d.Load(b); return v != v }
	}
	for i := 0; i < len(got); i += size {
		g, w := got[i:i+size], want.Data[i:i+size]
		if !bytes.Equal(g, w) && !(nan(g) && nan(w)) {
			t.Fatalf("%s: element %d = %x, want %x", what, i/size, g, w)
		}
	}
}

func equal[E uint16 | uint32](t *testing.T, what string, got, want []E) {
	t.Helper()
	if len(got) != len(want) || len(got) == 0 {
		t.Fatalf("%s: %d, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: element %d = %#x, want %#x", what, i, got[i], want[i])
		}
	}
}
