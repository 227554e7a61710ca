package gpu

import (
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

// The table has every kernel once, and what serves in place of others is in it.
func TestKernelTable(t *testing.T) {
	kinds, names := map[string]bool{}, map[string]int{}
	for _, e := range Kernels() {
		kinds[e.Kernel] = true
		for _, n := range e.Names {
			names[n]++
		}
	}
	for _, v := range variants() {
		if names[v.Name] != 1 {
			t.Errorf("%s is in the table %d times", v.Name, names[v.Name])
		}
	}
	if len(names) != len(variants()) {
		t.Errorf("%d kernels in the table, want %d", len(names), len(variants()))
	}
	for _, e := range Kernels() {
		if e.Instead != "" && !kinds[e.Instead] {
			t.Errorf("%s: there are no kernels %s", e.Kernel, e.Instead)
		}
	}
}

// What is asked for is served by these kernels; what was passed over says a condition that the table has.
func TestEligibility(t *testing.T) {
	units := func(d *fakeDevice) { d.info.MatrixUnits = true }
	small := func(d *fakeDevice) { units(d); d.limit = map[string]int{"matrix_k3_m16": 128} }
	tight := func(d *fakeDevice) { units(d); d.info.MaxThreadgroupMemory = 4 << 10 }
	fast := func(m int, change ...func(*need)) need {
		n := need{op: "matrix", bits: 3, rows: m, cols: 512, block: 64, x: codec.BF16, w: codec.F16, order: codec.Fast}
		for _, f := range change {
			f(&n)
		}
		return n
	}
	affine := func(n *need) { n.op, n.bits = "matrix_affine", 0 }
	weights := need{op: "trellis_expand8", bits: 3, block: 256, cols: 512}
	with := func(n need, f func(*need)) need { f(&n); return n }
	for _, test := range []struct {
		name     string
		device   func(*fakeDevice)
		need     need
		want     string
		declined string
	}{
		{"tile of 16", units, fast(5), "matrix_k3_m16", ""},
		{"all of it", units, fast(16), "matrix_k3_m16", ""},
		{"tile of 64", units, fast(17), "matrix_k3_m64", ""},
		{"tiles of 64", units, fast(1000), "matrix_k3_m64", ""},
		{"other bits", units, fast(9, func(n *need) { n.bits = 5 }), "matrix_any_m16", ""},
		{"affine", units, fast(9, affine), "matrix_affine_m16", ""},
		{"few rows", units, fast(4), "product_k3_m4", "5 rows or more"},
		{"exact", units, fast(9, func(n *need) { n.order = codec.Exact }), "product_k3_m16", "order fast"},
		{"x of f32", units, fast(9, func(n *need) { n.x = codec.F32 }), "product_k3_m16", "x and weights f16 or bf16"},
		{"weights of f32", units, fast(9, affine, func(n *need) { n.w = codec.F32 }), "product_affine_m16", "x and weights f16 or bf16"},
		{"columns", units, fast(9, func(n *need) { n.cols = 48 }), "product_k3_m16", "columns a multiple of 32"},
		{"blocks", units, fast(9, func(n *need) { n.block = 48 }), "matrix_any_m16", "blocks multiples of 32"},
		{"no units", func(*fakeDevice) {}, fast(9), "product_k3_m16", "matrix units"},
		{"threads", small, fast(9), "matrix_any_m16", "threadgroups of 128 threads"},
		{"memory", tight, fast(9), "product_k3_m16", "4096 bytes of threadgroup memory"},
		{"along the outputs", units, need{op: "product_axis0", bits: 3, rows: 9, cols: 512, x: codec.BF16, w: codec.BF16, order: codec.Fast}, "product_axis0_m8", ""},
		{"weights", units, weights, "trellis_expand8_k3", ""},
		{"part of a row", units, with(weights, func(n *need) { n.cols = 252 }), "trellis_expand_k3", "first column"},
		{"short blocks", units, with(weights, func(n *need) { n.block, n.bits = 12, 8 }), "trellis_expand_k8", "T a power of two"},
		{"odd column", units, with(weights, func(n *need) { n.col0 = 4 }), "trellis_expand_k3", "first column"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newFake()
			test.device(d)
			b, err := Open("fake", d.open, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			k, err := b.engine.kernels.pick(test.need)
			if err != nil || k.Name != test.want || !strings.Contains(k.declined, test.declined) || (test.declined == "") != (k.declined == "") {
				t.Errorf("%s, declined %q (%v), want %s, declined %q", k.Name, k.declined, err, test.want, test.declined)
			}
			for _, why := range strings.Split(k.declined, "; ") {
				_, text, _ := strings.Cut(why, ": not ")
				if text != "" && !slices.ContainsFunc(Kernels(), func(e Eligibility) bool { return slices.Contains(e.Needs, text) }) {
					t.Errorf("the table has no condition %q", text)
				}
			}
			for _, source := range d.sources {
				if strings.Contains(test.declined, "order") && strings.Contains(source, "kernel void matrix_k3") {
					t.Error("a kernel was compiled that the call rules out")
				}
			}
		})
	}
}
