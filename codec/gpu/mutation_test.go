//go:build metal && hostmetal

package gpu

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

const mutantVariable = "TURBOTRELLIS_MUTANT"

// TestMutant runs a check on a backend with one mistake: what the tests below start
// as a process of its own, since a mistake may end the process.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("for TestMutations")
	}
	o := Options{exact: true}
	var wrap []func(gpu.Device) (gpu.Device, error)
	check := ""
	for _, m := range shaderMutations {
		if m.name == name {
			check = m.check
			o.Source = func(kernels ...shaders.Variant) string {
				return strings.ReplaceAll(shaders.Source(kernels...), m.old, m.new)
			}
		}
	}
	for _, m := range planMutations {
		if m.name == name {
			check = m.check
			wrap = append(wrap, func(d gpu.Device) (gpu.Device, error) {
				m.saboteur.Device = d
				return &m.saboteur, nil
			})
		}
	}
	if c, ok := strings.CutPrefix(name, "none: "); ok {
		check = c
	}
	b := start(t, o, wrap...)
	compared := 0
	run := func(name string) { // and let go of its memory
		t.Run(name, func(t *testing.T) {
			e := newExercise(t, b)
			checks[check](e)
			compared += e.compared
		})
	}
	run("first")
	before := hostmetal.live(nil)
	run("second") // with pipelines and constants cached
	if after := hostmetal.live(nil); after != before {
		t.Errorf("%d objects, were %d", after, before)
	}
	b.Close()
	if n := hostmetal.live(nil); n != 0 {
		t.Errorf("%d objects left", n)
	}
	t.Logf("compared %d elements", compared)
}

// mutant runs TestMutant in a process of its own and returns its output and
// whether it passed.
func mutant(t *testing.T, name string) (string, bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestMutant$", "-test.v", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), mutantVariable+"="+name, "REQUIRE_BACKENDS=metal")
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// complaint picks the line that says what failed.
func complaint(out string) string {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(line, "_test.go:") || strings.Contains(line, "hostmetal:") || strings.Contains(line, "SIG") {
			return line[:min(len(line), 250)]
		}
	}
	return out[:min(len(out), 250)]
}

// The checks that mutations have to fail: a few calls each, one family or two.
var checks = map[string]func(*exercise){
	"keys": func(e *exercise) {
		for _, policy := range []codec.Policy{codec.Finite, codec.Compat} {
			e.keys(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0, Policy: policy}, codec.F32, codec.BF16)
			e.keys(codec.KVParams{HeadDim: 96, Keys: codec.Q2_0, Values: codec.Q3_0, Policy: policy, ScaleType: codec.F32}, codec.F32, codec.F32)
			e.keys(codec.KVParams{HeadDim: 192, Keys: codec.Q8_0, ValueHeadDim: 64, Values: codec.Q3_0, Group: 64, Policy: policy}, codec.BF16, codec.F16)
		}
	},
	"values": func(e *exercise) {
		for _, d := range []int{64, 96} {
			for _, rule := range []codec.ScaleRule{codec.RMS, codec.Search} {
				e.values(codec.KVParams{HeadDim: d, Keys: codec.Q4_0, Values: codec.Q3_0, Scale: rule}, codec.F32)
			}
		}
	},
	"hadamard": func(e *exercise) {
		for _, d := range []int{64, 160, 96, 1792} {
			e.unrotate(codec.KVParams{HeadDim: d, Keys: codec.Q4_0, Values: codec.Q3_0})
		}
	},
	"decode": func(e *exercise) {
		e.decode(codec.KVParams{HeadDim: 64, ValueHeadDim: 160, Keys: codec.Q5_0, Values: codec.Q3_0})
		e.decode(codec.KVParams{HeadDim: 64, ValueHeadDim: 128, Keys: codec.Q4_0, Values: codec.Q5_0})
	},
	"row codes": func(e *exercise) {
		e.rowCodes(codec.R3, 96, codec.F32, codec.F32, codec.Finite, layouts[0], 1)
		e.rowCodes(codec.R4, 64, codec.F16, codec.F32, codec.Finite, layouts[0], 2)
		e.rowCodes(codec.R2, 1024, codec.F32, codec.F32, codec.Finite, layouts[0], 3)
		e.rowCodes(codec.T3, 128, codec.F32, codec.F32, codec.Finite, layouts[0], 4)
	},
	"trellis": func(e *exercise) {
		e.trellis(trellis.Params{L: 9, K: 2, T: 32, Scale: trellis.Refit}, trellis.Geometry{Axis: 1, Out: 37, In: 128, Interleaved: true}, codec.F32, codec.F32, 1)
		e.trellis(trellis.Params{L: 10, K: 4, T: 32}, trellis.Geometry{Axis: 0, Out: 64, In: 5}, codec.F32, codec.BF16, 2)
		e.blocks(trellis.Params{L: 12, K: 3, T: 64}, codec.F32, []int{4}, 3)
		e.blocks(trellis.Params{L: 9, K: 6, T: 32}, codec.F32, []int{11}, 6)
		e.blocks(trellis.Params{L: 8, K: 1, T: 32, FreeEnds: true}, codec.F32, []int{33}, 7)
		e.blocks(trellis.Params{L: 5, K: 4, T: 32, Code: trellis.ThreeInst}, codec.F16, []int{9}, 4)
		e.blocks(trellis.Params{L: 8, K: 2, T: 64}, codec.F32, []int{100}, 5)
		e.blocks(trellis.Params{L: 7, K: 2, T: 64}, codec.F32, []int{100}, 5)
		e.blocks(trellis.Params{L: 6, K: 1, T: 64}, codec.F16, []int{9}, 4)
	},
	"products": func(e *exercise) {
		e.products(trellis.Params{L: 9, K: 3, T: 32}, trellis.Geometry{Axis: 1, Out: 5, In: 160}, 0, 1, 3)
		e.products(trellis.Params{L: 9, K: 2, T: 32}, trellis.Geometry{Axis: 0, Out: 32, In: 131}, 0, 3)
		e.affine(affine.RowFormat{Bits: 5, Group: 32}, 160, 7, codec.BF16, layouts[0], 3, 2)
		e.affine(affine.RowFormat{Bits: 3, Group: 64}, 128, 7, codec.F32, layouts[0], 4)
	},
	"masks": func(e *exercise) {
		e.masks([]int{2, 1, 3}, 1, codec.F32, codec.Bitmask{Rows: 6, Words: 1}, layouts[0], 1)
		for i, words := range []int{5, 3} { // as many as there are tokens, and fewer
			e.masks([]int{2, 1, 3}, 130, allTypes[i], codec.Bitmask{Rows: 6, Words: words, Stride: 6}, layouts[i], uint64(i))
		}
	},
	"matrices": func(e *exercise) { e.matrices(1, 9, 19) },
	"limits": func(e *exercise) {
		p := codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, ValueHeadDim: 96, Values: codec.Q3_0, ScaleType: codec.F32}
		e.saturation(p, 5)
		p.Policy = codec.Compat
		e.saturation(p, 5)
	},
	"copy": func(e *exercise) {
		x := tensor(codec.F32, samples(32, 96, 1), 2, 2, 2, 2, 2, 96)
		deep := arrangement{"deep", []int{5, 0, 2, 4, 1, 3}, 4, 4, true, 0}
		kv, err := e.b.KV(codec.KVParams{HeadDim: 96, Keys: codec.Q4_0, Values: codec.Q3_0})
		e.must(err)
		r, err := e.r.KV(codec.KVParams{HeadDim: 96, Keys: codec.Q4_0, Values: codec.Q3_0})
		e.must(err)
		var got, want codec.Keys
		e.must(r.EncodeKeys(&want, x))
		at := e.place(x, deep)
		defer e.b.Free(at.all)
		e.must(kv.EncodeKeys(&got, at.Tensor))
		e.same("codes", 0, got.Codes, want.Codes)
	},
	"status": func(e *exercise) {
		x := codec.NewTensor(codec.F32, 40, 64)
		for _, i := range []int{2000, 1030, 1500} {
			codec.F32.Store(x.Data[4*i:], float32(math.NaN()))
		}
		kv, err := e.b.KV(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
		e.must(err)
		var k codec.Keys
		var at *codec.Error
		if err := kv.EncodeKeys(&k, x); !errors.As(err, &at) || at.Index != 1030 {
			e.t.Fatal(err)
		}
	},
}

func (e *exercise) keys(p codec.KVParams, in, out codec.DType) {
	m, err := e.b.KV(p)
	e.must(err)
	r, err := e.r.KV(p)
	e.must(err)
	x := tensor(in, samples(27, p.HeadDim, 3), 27, p.HeadDim)
	x.Shape = []int{3, 9, p.HeadDim}
	x.Stride = []int{p.HeadDim, 3 * p.HeadDim, 1}
	var got, want codec.Keys
	e.must(r.EncodeKeys(&want, x))
	e.must(m.EncodeKeys(&got, x))
	e.same("key codes", 0, got.Codes, want.Codes)
	e.same("key scales", r.Params().ScaleType, got.Scales, want.Scales)
	e.same("key zeros", r.Params().ScaleType, got.Zeros, want.Zeros)
	y, wantY := codec.NewTensor(out, x.Shape...), codec.NewTensor(out, x.Shape...)
	e.must(r.DecodeKeys(wantY, want))
	e.must(m.DecodeKeys(y, got))
	e.same("keys", out, y.Data, wantY.Data)
}

func (e *exercise) values(p codec.KVParams, in codec.DType) {
	m, err := e.b.KV(p)
	e.must(err)
	r, err := e.r.KV(p)
	e.must(err)
	x := tensor(in, samples(27, p.HeadDim, 3), 27, p.HeadDim)
	var got, want codec.Values
	e.must(r.EncodeValues(&want, x))
	e.must(m.EncodeValues(&got, x))
	e.same("value scales", codec.F16, got.Scales, want.Scales)
	e.same("value codes", 0, got.Codes, want.Codes)
}

func (e *exercise) unrotate(p codec.KVParams) {
	m, err := e.b.KV(p)
	e.must(err)
	r, err := e.r.KV(p)
	e.must(err)
	x := tensor(codec.F32, canonical(samples(9, p.HeadDim, 3)), 9, p.HeadDim)
	got, want := codec.NewTensor(codec.F32, 9, p.HeadDim), codec.NewTensor(codec.F32, 9, p.HeadDim)
	e.must(r.Unrotate(want, x))
	e.must(m.Unrotate(got, x))
	e.same("unrotated", codec.F32, got.Data, want.Data)
}

func (e *exercise) decode(p codec.KVParams) {
	m, err := e.b.KV(p)
	e.must(err)
	r, err := e.r.KV(p)
	e.must(err)
	const rows = 19
	var k codec.Keys
	var v codec.Values
	e.must(r.EncodeKeys(&k, tensor(codec.F32, samples(rows, p.HeadDim, 5), rows, p.HeadDim)))
	e.must(r.EncodeValues(&v, tensor(codec.F32, samples(rows, p.ValueHeadDim, 6), rows, p.ValueHeadDim)))
	gotK, wantK := codec.NewTensor(codec.F16, rows, p.HeadDim), codec.NewTensor(codec.F16, rows, p.HeadDim)
	gotV, wantV := codec.NewTensor(codec.F16, rows, p.ValueHeadDim), codec.NewTensor(codec.F16, rows, p.ValueHeadDim)
	e.must(r.Decode(wantK, wantV, k, v))
	e.must(m.Decode(gotK, gotV, k, v))
	e.same("keys", codec.F16, gotK.Data, wantK.Data)
	e.same("values", codec.F16, gotV.Data, wantV.Data)
	e.must(r.DecodeRotated(wantK, wantV, k, v))
	e.must(m.DecodeRotated(gotK, gotV, k, v))
	e.same("keys", codec.F16, gotK.Data, wantK.Data)
	e.same("rotated values", codec.F16, gotV.Data, wantV.Data)
	clear(gotV.Data)
	e.must(m.DecodeValuesRotated(gotV, v))
	e.same("rotated values alone", codec.F16, gotV.Data, wantV.Data)
}

// shaderMutations are mistakes in copies of the shaders.
var shaderMutations = []struct{ name, old, new, check string }{
	{"*barrier between passes removed", "        threadgroup_barrier(mem_flags::mem_threadgroup);\n    }\n    if (m != 1)", "    }\n    if (m != 1)", "hadamard"},
	{"barrier before the transform removed", "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    uint h = 1;", "    uint h = 1;", "row codes"},
	{"barrier of a Viterbi step removed", "        next = swap;\n        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);", "        next = swap;", "trellis"},
	{"return before a barrier", "threadgroup float* buf = memory + in_group * a.dim;", "if (!active) { return; }\n    threadgroup float* buf = memory + in_group * a.dim;", "hadamard"},
	{"*shuffle mask of the transform swapped", "const float partner = simd_shuffle_xor(x[e], ushort(h));", "const float partner = simd_shuffle_xor(x[e], ushort(16u >> (h >> 1)));", "hadamard"},
	{"shuffle masks of the tree in ascending order", "for (ushort mask = 16; mask > 0; mask >>= 1) {\n        const float other = simd_shuffle_xor(q, mask);", "for (ushort mask = 1; mask < 32; mask <<= 1) {\n        const float other = simd_shuffle_xor(q, mask);", "trellis"},
	{"lanes of a group's tree exchanged", "const ushort near = far >> 1;", "const ushort near = far << 1;", "values"},
	{"*tail guard dropped", "u.active = x < s.width && y < s.rows;\n    u.x = min(x, s.width - 1u);\n    u.number = u.x;\n    u.row = uint3(0u, 0u, 0u);\n    if (s.rows > 1) {\n        const uint nth = min(y, s.rows - 1u);", "u.active = x < s.width;\n    u.x = min(x, s.width - 1u);\n    u.number = u.x;\n    u.row = uint3(0u, 0u, 0u);\n    if (s.rows > 1) {\n        const uint nth = y;", "keys"},
	{"tail guard of a row dropped", "u.active = x < s.width && y < s.rows;\n    u.x = min(x, s.width - 1u);", "u.active = y < s.rows;\n    u.x = x;", "values"},
	{"tail guard of columns dropped", "if (at.x >= a.dim || at.y >= a.rows) {", "if (at.y >= a.rows) {", "copy"},
	{"guard of rows off by one", "u.active = x < s.width && y < s.rows;\n    u.x = min(x, s.width - 1u);\n    u.number = u.x;\n    u.row = uint3(0u, 0u, 0u);\n    if (s.rows > 1) {\n        const uint nth = min(y, s.rows - 1u);", "u.active = x < s.width && y <= s.rows;\n    u.x = min(x, s.width - 1u);\n    u.number = u.x;\n    u.row = uint3(0u, 0u, 0u);\n    if (s.rows > 1) {\n        const uint nth = min(y, s.rows);", "keys"},
	{"*key decode contracted", "v[e] = shifted * scale[r];", "v[e] = fma(shifted - zero[r], scale[r], zero[r] * scale[r]);", "keys"},
	{"Viterbi emission contracted", "const float product = x * f;\n    return product - square;", "return fma(x, f, -square);", "trellis"},
	{"reciprocal for a quotient", "float q = divide_by(v[e], g.se, g.reciprocal);", "float q = v[e] * g.reciprocal;", "keys"},
	{"*round for rint in a zero point", "zero = rint(zero);", "zero = round(zero);", "keys"},
	{"round for rint in an index", "as_type<uint>(q + (", "as_type<uint>(round(q) + (", "keys"},
	{"inputs not canonical", "return magnitude < 0x1f800000u ? 0.0f : x;", "return x;", "values"},
	{"sign of a zero lost", "return (u & 0x7fffffffu) < 0x1f800000u ? as_type<float>(u & 0x80000000u) : x;", "return (u & 0x7fffffffu) < 0x1f800000u ? 0.0f : x;", "keys"},
	{"bf16 truncated", "return ushort((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);", "return ushort(u >> 16);", "keys"},
	{"*last offender reported", "atomic_fetch_min_explicit(status + word, index, memory_order_relaxed);", "atomic_store_explicit(status + word, index, memory_order_relaxed);", "status"},
	{"strides exchanged", "long(r.y) * v.s1 + long(r.z) * v.s2", "long(r.z) * v.s1 + long(r.y) * v.s2", "keys"},
	{"group of the wrong run", "long(u.x >> a.group_shift)", "long((u.x >> a.group_shift) ^ (u.x >> 3 & 1u))", "decode"},
	{"bits of another lane", "(part == 1u ? middle : next)", "next", "values"},
	{"a quotient not corrected", "return fma(e, reciprocal, q);", "return q;", "values"},
	{"a cell further", "cells, 12582928.0f)", "cells, 12582929.0f)", "values"},
	{"shuffle mask of the first stage", "const float partner = simd_shuffle_xor(x[e], ushort(h));", "const float partner = simd_shuffle_xor(x[e], ushort(h ^ 1u));", "hadamard"},
	{"zero point subtracted in one rounding", "float q = divide_by(v[e], g.se, g.reciprocal);\n            q = q - g.zero;", "float q = fma(v[e], g.reciprocal, -g.zero);", "keys"},
	{"outer strides exchanged", "long(r.x) * v.s0 + long(r.y) * v.s1", "long(r.x) * v.s1 + long(r.y) * v.s0", "keys"},
	{"rotation for its inverse", "transform_row(buf, a.dim, a.factor, true,", "transform_row(buf, a.dim, a.factor, false,", "hadamard"},
	{"ties to the smallest predecessor", "m = g >= top ? q", "m = g > top ? q", "trellis"},
	{"ties to the smallest predecessor of any k", "if (g >= best) {", "if (g > best) {", "trellis"},
	{"ties to any lane's predecessor", "m = max(m, simd_shuffle_xor(m, ushort(mask)));", "", "trellis"},
	{"trace of the row before", "c > r ? c - 1u - r : 0u", "c > r + 1u ? c - 2u - r : 0u", "trellis"},
	{"blocks of a round exchanged", "h.sub = thread_index >> (h.L - 4u);", "h.sub = h.subs - 1u - (thread_index >> (h.L - 4u));", "trellis"},
	{"matrix not transposed", "minus = transposed ? rows[c] >> j : rows[j] >> c", "minus = rows[j] >> c", "hadamard"},
	{"no wrap around a block", "w + 1u == words ? 0u : w + 1u", "w + 1u == words ? w : w + 1u", "trellis"},
	{"second pass not pinned", "p.pinned = true;", "p.pinned = false;", "trellis"},
	{"limit one step late", "magnitude >= 0x477ff000u", "magnitude > 0x477ff000u", "limits"},
	{"limited to infinity", "(u & 0x80000000u) | 0x477fe000u", "(u & 0x80000000u) | 0x47800000u", "limits"},
	{"limited elements not counted", "count += 1u;", "", "limits"},
	{"limited whatever the policy", "return policy == POLICY_FINITE && type == TYPE_F16;", "return type == TYPE_F16;", "limits"},
	{"a search of eight", "c < 9", "c < 8", "values"},
	{"*a chain swapped", "product_sums<C>(chain + FIRST, lane);", "for (uint i = 0; i < C; i++) {\nchain[FIRST + i] = simd_shuffle(chain[FIRST + i], ushort(lane < 2u ? lane ^ 1u : lane));\n}\nproduct_sums<C>(chain + FIRST, lane);", "products"},
	{"tree of chains folded otherwise", "product_sums<C>(chain + FIRST, lane);", "for (uint i = 0; i < C; i++) {\nfor (ushort mask = 1; mask < 32; mask <<= 1) {\nconst float other = simd_shuffle_xor(chain[FIRST + i], mask);\nchain[FIRST + i] = chain[FIRST + i] + other;\n}\n}\nchain[FIRST] = chain[FIRST + lane * C / 32u];", "products"},
	{"product contracted", "const float product = v * w[i];\n                    chain[m * 4 + i] = chain[m * 4 + i] + product;", "chain[m * 4 + i] = fma(v, w[i], chain[m * 4 + i]);", "products"},
	{"tail of columns dropped", "const bool some = part + lane * 4u < a.cols;", "const bool some = part + 128u <= a.cols;", "products"},
	{"affine edge of the other sign", "scale = from_low ? scale : -scale;", "scale = from_low ? -scale : scale;", "products"},
	{"affine scale of its floor", "scale = scale < 1e-7f ? 1e-7f : scale;", "scale = max(scale, 1e-3f);", "products"},
	{"index off by one", "index = index > most ? most : index;", "index = index + 1.0f > most ? most : index + 1.0f;", "products"},
	{"-0 kept under a mask", "masked = bits == sign ? 0u : bits; // −0 + 0", "masked = bits;", "masks"},
	{"NaN masked", "masked = bits; // a NaN", "masked = sign | infinity;", "masks"},
	{"tokens beyond the words allowed", "uint allowed = 0;", "uint allowed = 1;", "masks"},
	{"spare bits of a mask counted", "<< (32u - tokens);", "<< 0u;", "masks"},
	{"one sum of matrices too few", "for (uint s = 1; s < 8; s++) {", "for (uint s = 1; s < 7; s++) {", "matrices"},
	{"sums of matrices read early", "        threadgroup_barrier(mem_flags::mem_threadgroup);\n        const uint at = simd * 32u + lane;", "        const uint at = simd * 32u + lane;", "matrices"},
	{"sums of a row taken in another order", "s[first] = e == first ? s[e] : s[first] + s[e];", "s[first] = e == first ? s[7u - e] : s[first] + s[7u - e];", "row codes"},
	{"halves of a long row exchanged", "sum[i] = i == 1 && one ? sum[0] : 0.0f;", "sum[i] = 0.0f;", "row codes"},
	{"the mean added before the gain", "const float scaled = v[e] * g[e];\n            const float shift = m[e] * mass;\n            v[e] = scaled + shift;", "v[e] = (v[e] + m[e] * mass) * g[e];", "row codes"},
	{"no wrap around a row", "codes[n == 0 ? 0u : (m + 1u) * BITS]", "codes[n == 0 ? m * BITS : (m + 1u) * BITS]", "row codes"},
	{"zeros of a row with signs", "y[e] = scale_code == 0 ? 0.0f : y[e]; // and not −0", "", "row codes"},
	{"outputs of matrices beyond the last", "if (out < a.outputs && in_tile < a.rows) {", "if (in_tile < a.rows) {", "matrices"},
	{"rows of matrices beyond the last", "if (out < a.outputs && in_tile < a.rows) {", "if (out < a.outputs) {", "matrices"},
	{"last columns of matrices dropped", "column < a.cols; column += 256u", "column + 32u < a.cols; column += 256u", "matrices"},
}

// Each mistake, in a copy of the shaders or in planning, makes a check fail that
// passes without it: those with a star in the short form, all with
// TURBOTRELLIS_LONG.
func TestMutations(t *testing.T) {
	start(t, Options{}).Close()
	tried := 0
	try := func(name string) {
		if !strings.HasPrefix(name, "*") && !long() {
			return
		}
		tried++
		out, passed := mutant(t, name)
		if passed {
			t.Errorf("%s: not caught", name)
		}
		t.Logf("%s: %s", name, complaint(out))
	}
	used := map[string]bool{} // checks of what is tried
	for _, m := range shaderMutations {
		used[m.check] = used[m.check] || long() || strings.HasPrefix(m.name, "*")
	}
	for _, m := range planMutations {
		used[m.check] = used[m.check] || long() || strings.HasPrefix(m.name, "*")
	}
	for name := range checks {
		if !used[name] {
			continue
		}
		if out, passed := mutant(t, "none: "+name); !passed {
			t.Fatalf("%s fails without a mutation: %s", name, out)
		}
	}
	for _, m := range shaderMutations {
		if !strings.Contains(shaders.Source(shaders.Variants()...), m.old) {
			t.Errorf("%s: the shaders no longer have %q", m.name, m.old)
			continue
		}
		try(m.name)
	}
	for _, m := range planMutations {
		try(m.name)
	}
	t.Logf("%d of %d mutations", tried, len(shaderMutations)+len(planMutations))
}

// saboteur is a device with a planner's mistakes.
type saboteur struct {
	gpu.Device
	dispatch func(*gpu.Dispatch)
	size     func(int) int
	keep     bool // forgets to release
}

func (s *saboteur) NewBuffer(n int) (gpu.Buffer, error) {
	if s.size != nil {
		n = s.size(n)
	}
	b, err := s.Device.NewBuffer(n)
	if s.keep && err == nil {
		return kept{b}, nil
	}
	return b, err
}

type kept struct{ gpu.Buffer }

func (kept) Release() {}

func (s *saboteur) Run(list ...gpu.Dispatch) (d time.Duration, err error) {
	for i := range list {
		list[i].Buffers = slices.Clone(list[i].Buffers)
		for k, b := range list[i].Buffers {
			if own, ok := b.Buffer.(kept); ok {
				list[i].Buffers[k].Buffer = own.Buffer
			}
		}
		if s.dispatch != nil && list[i].Pipeline.Name() != "canary" {
			s.dispatch(&list[i])
		}
	}
	return s.Device.Run(list...)
}

func exchange(i, j int) func(*gpu.Dispatch) {
	return func(d *gpu.Dispatch) { d.Buffers[i], d.Buffers[j] = d.Buffers[j], d.Buffers[i] }
}

// planMutations are mistakes in planning.
var planMutations = []struct {
	name     string
	saboteur saboteur
	check    string
}{
	{"*buffers in the wrong order", saboteur{dispatch: exchange(0, 1)}, "keys"},
	{"scales for zeros", saboteur{dispatch: exchange(1, 2)}, "keys"},
	{"one threadgroup missing", saboteur{dispatch: func(d *gpu.Dispatch) { d.Groups[0] = max(1, d.Groups[0]-1) }}, "trellis"},
	{"half of the threads", saboteur{dispatch: func(d *gpu.Dispatch) { d.GroupSize[0] = max(1, d.GroupSize[0]/2) }}, "decode"},
	{"too little threadgroup memory", saboteur{dispatch: func(d *gpu.Dispatch) {
		for i := range d.ThreadgroupMemory {
			d.ThreadgroupMemory[i] = 16
		}
	}}, "hadamard"},
	{"last argument changed", saboteur{dispatch: func(d *gpu.Dispatch) {
		d.Args = slices.Clone(d.Args)
		d.Args[len(d.Args)-4] ^= 1 // the norm
	}}, "hadamard"},
	{"arguments a word off", saboteur{dispatch: func(d *gpu.Dispatch) { d.Args = append(slices.Clone(d.Args[4:]), 0, 0, 0, 0) }}, "keys"},
	{"*codes a byte short", saboteur{size: func(n int) int {
		if n == 27*32 {
			n--
		}
		return n
	}}, "keys"},
	{"buffers of half the size", saboteur{size: func(n int) int { return max(n/2, 2048+256) }}, "values"},
	{"*releases forgotten", saboteur{keep: true}, "keys"},
}

// goMutations are mistakes in copies of the Go sources, each with the tests that
// have to fail, TestMutant without a mutation of its own for NONE.
var goMutations = []struct{ name, file, old, new, run string }{
	{"an object released twice", "../../gpu/metal/object.go", "mtl.Pool(d.s, o.metal.Release)", "mtl.Pool(d.s, func() { o.metal.Release(); o.metal.Release() })", "NONE"},
	{"an object not released", "../../gpu/metal/object.go", "mtl.Pool(d.s, o.metal.Release)", "mtl.Pool(d.s, func() {})", "NONE"},
	{"buffers not given back", "job.go", "j.e.pool.put(buf)", "_ = buf", "NONE"},
	{"buffers given back twice", "job.go", "j.e.pool.put(buf)", "j.e.pool.put(buf)\n\t\tj.e.pool.put(buf)", "TestEveryKernel"},
	{"rows of a byte less", "job.go", "j.buffer(n * o.dim * o.size)", "j.buffer(n*o.dim*o.size - 1)", "NONE"},
	{"views exchanged", "kv.go", "X: s.view[0], Codes: s.view[1], Scales: s.view[2], Zeros: s.view[3]", "X: s.view[0], Codes: s.view[2], Scales: s.view[1], Zeros: s.view[3]", "TestVectors"},
	{"n1 for n2", "units.go", "N1: s.n1, N2: s.n2", "N1: s.n2, N2: s.n1", "TestEveryKernel"},
	{"a run that begins within one", "units.go", "s.row%n2 == 0 && s.n%n2 == 0", "s.n%n2 == 0", "TestSpans"},
	{"a run beyond its end", "units.go", "s.row%n2+s.n <= n2", "s.n <= n2", "TestSpans"},
	{"units wide without looking", "units.go", "(v.Base|v.S0|v.S1|v.S2)&(align-1) == 0", "true", "TestEveryKernel|TestConformanceOwned"},
	{"last slab reported", "job.go", "*to == driver.None && w", "w", "TestStatus"},
	{"status not cleared", "job.go", "return j.filled(clearStatus)", "return j.buffer(len(clearStatus))", "TestStatus"},
	{"search of the first blocks again", "trellis.go", "args.Block0, args.Blocks = uint32(first), uint32(n)", "args.Block0, args.Blocks = 0, uint32(n)", "TestPace"},
	{"found in the first command buffer", "trellis.go", "element+first*p.T", "element", "TestPace"},
	{"gaps copied over", "rows.go", "if o.stride[i] > reach+1 {", "if false {", "TestConformance$"},
	{"wide without looking", "kernels.go", "if v.S3 == 1 && (v.Base|v.S0|v.S1|v.S2)&3 == 0 {", "if v.S3 == 1 {", "TestEveryKernel|TestConformanceOwned"},
	{"canary not asked", "gpu.go", "return shaders.CheckCanary(answer)", "return false, nil", "TestBadDevices"},
}

// With TURBOTRELLIS_LONG, each mistake in a copy of the Go sources makes a test
// fail; without, the sources have what it changes.
func TestGoMutations(t *testing.T) {
	start(t, Options{}).Close()
	for _, m := range goMutations {
		path, err := filepath.Abs(m.file)
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), m.old) {
			t.Errorf("%s: %s no longer has %q", m.name, m.file, m.old)
			continue
		}
		if !long() {
			continue
		}
		dir := t.TempDir()
		mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
		replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(os.WriteFile(mutated, []byte(strings.ReplaceAll(string(source), m.old, m.new)), 0o644), os.WriteFile(overlay, replace, 0o644))
		if err != nil {
			t.Fatal(err)
		}
		exe := filepath.Join(dir, "mutant.test")
		if out, err := exec.Command("go", "test", "-c", "-o", exe, "-tags", "metal,hostmetal", "-overlay", overlay, ".").CombinedOutput(); err != nil {
			t.Errorf("%s does not build: %s", m.name, out)
			continue
		}
		cmd := exec.Command(exe, "-test.short", "-test.v", "-test.timeout=120s", "-test.run="+strings.ReplaceAll(m.run, "NONE", "^TestMutant$"))
		cmd.Env = append(os.Environ(), "TURBOTRELLIS_LONG=", "REQUIRE_BACKENDS=metal", mutantVariable+"=none: keys")
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s: not caught", m.name)
		}
		t.Logf("%s: %s", m.name, complaint(string(out)))
	}
}
