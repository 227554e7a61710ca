package shaders

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A Launch is a way to assign threads to the work.
type Launch int

const (
	// Elements: a 2-D grid, x over a row's units, y over rows: ElementGrid.
	Elements Launch = iota
	// Lanes: a SIMD-group of 32 per row, LaneThreads per threadgroup: LaneGrid.
	Lanes
	// Rows: ThreadsPerRow threads per row, in threadgroup memory: RowLaunch.
	Rows
	// Blocks: a threadgroup per trellis block: TrellisLaunch.
	Blocks
	// Units: 4 units of eight elements per thread, in whole SIMD-groups: UnitGrid.
	Units
	// Single: one threadgroup of 32.
	Single
	// Matrices: a threadgroup of LaneThreads per 32 outputs and tile of rows, MatrixMemory of
	// threadgroup memory: MatrixGrid.
	Matrices
)

func (l Launch) String() string {
	return [...]string{"elements", "lanes", "rows", "blocks", "units", "single", "matrices"}[l]
}

// A Param is a buffer of a kernel; its index is its place in the list. The argument
// struct comes last.
type Param struct{ Name, Type string }

// A Variant is one kernel of the library.
type Variant struct {
	Name   string // the function's name
	Family string // the source file, without .metal
	Op     string // the name without the parts that specialise it

	Bits    int  // of the values, the packed codes or the trellis; 0: any
	KeyBits int  // of the keys; 0: any or none
	Signed  bool // int8 keys
	Dims    Dims // row lengths served
	Size    int  // element size in bytes that copy and mask serve
	Tile    int  // rows of x that a SIMD-group of a product takes
	Outputs int  // and outputs

	Params []Param
	Args   string // the argument struct, bound behind Params
	Launch Launch

	call string // the body it calls
}

// Dims are the powers of two from Min to Max, or any row length where Max is 0.
type Dims struct{ Min, Max int }

// Has reports whether d is one of them.
func (s Dims) Has(d int) bool {
	return s.Max == 0 || s.Min <= d && d <= s.Max && d&(d-1) == 0
}

func (s Dims) String() string {
	if s.Max == 0 {
		return "any"
	}
	return fmt.Sprintf("%d to %d", s.Min, s.Max)
}

// Buffers returns how many buffers the kernel binds, the arguments included.
func (v Variant) Buffers() int { return len(v.Params) + 1 }

// UsesThreadgroupMemory reports whether the host must set threadgroup memory 0.
func (v Variant) UsesThreadgroupMemory() bool {
	return v.Launch == Rows || v.Launch == Blocks || v.Launch == Matrices
}

const (
	bytesIn   = "const device uchar*"
	bytesOut  = "device uchar*"
	halvesIn  = "const device ushort*"
	halvesOut = "device ushort*"
	wordsIn   = "const device uint*"
	wordsOut  = "device uint*"
	floatsIn  = "const device float*"
	floatsOut = "device float*"
	status    = "device atomic_uint*"
)

// valueBits are the widths with a Lloyd–Max table.
var valueBits = []int{2, 3, 4, 5, 8}

// keyFormats in the order of their names: s8 is int8, the others unsigned.
var keyFormats = []struct {
	name   string
	bits   int
	signed bool
}{{"s8", 8, true}, {"u8", 8, false}, {"u5", 5, false}, {"u4", 4, false}, {"u3", 3, false}, {"u2", 2, false}}

// unitDims are the row lengths whose rotation stays in a SIMD-group's registers: where a lane's units are of rows of
// their own, and where (long) they are of one row or two.
var unitDims, longDims = Dims{32, 256}, Dims{512, 1024}

// Variants returns every kernel, family by family.
func Variants() []Variant { return slices.Clone(variants()) }

var variants = sync.OnceValue(makeVariants)

func makeVariants() []Variant {
	var all []Variant
	add := func(v Variant) { all = append(all, v) }

	add(Variant{Name: "canary", Family: "canary", Op: "canary", Launch: Single, Args: "CanaryArgs",
		Params: []Param{{"in", wordsIn}, {"out", wordsOut}}, call: "canary_probe"})

	hadamard := []Param{{"x", bytesIn}, {"y", bytesOut}, {"signs", wordsIn}, {"limited", status}}
	add(Variant{Name: "hadamard_units", Family: "hadamard", Op: "hadamard", Dims: unitDims, Launch: Units, Args: "HadamardArgs", Params: hadamard, call: "hadamard_unit_rows<false>"})
	add(Variant{Name: "hadamard_long", Family: "hadamard", Op: "hadamard", Dims: longDims, Launch: Units, Args: "HadamardArgs", Params: hadamard, call: "hadamard_unit_rows<true>"})
	add(Variant{Name: "hadamard_any", Family: "hadamard", Op: "hadamard", Launch: Rows, Args: "HadamardArgs", Params: hadamard, call: "hadamard_row"})

	for _, f := range keyFormats {
		add(Variant{Name: "keys_encode_" + f.name, Family: "keys", Op: "keys_encode", KeyBits: f.bits, Signed: f.signed, Launch: Units, Args: "KeysEncodeArgs",
			Params: []Param{{"x", bytesIn}, {"codes", bytesOut}, {"scales", bytesOut}, {"zeros", bytesOut}, {"status", status}},
			call:   fmt.Sprintf("keys_encode_units<%d, %t>", f.bits, f.signed)})
	}
	for _, f := range keyFormats {
		add(Variant{Name: "keys_decode_" + f.name, Family: "keys", Op: "keys_decode", KeyBits: f.bits, Signed: f.signed, Launch: Units, Args: "KeysDecodeArgs",
			Params: []Param{{"codes", bytesIn}, {"scales", bytesIn}, {"zeros", bytesIn}, {"out", bytesOut}, {"limited", status}},
			call:   fmt.Sprintf("keys_decode_units<%d, %t>", f.bits, f.signed)})
	}

	encode := []Param{{"x", bytesIn}, {"codes", bytesOut}, {"scales", bytesOut}, {"status", status}, {"table", floatsIn}, {"signs", wordsIn}}
	for _, op := range []string{"values_encode", "values_search"} {
		for _, bits := range valueBits {
			v := Variant{Name: fmt.Sprintf("%s_b%d", op, bits), Family: "values", Op: op, Bits: bits, Launch: Units, Args: "ValuesEncodeArgs", Params: encode}
			for i, dims := range []Dims{unitDims, longDims} {
				v.Dims, v.call = dims, fmt.Sprintf("values_encode_units<%d, %t, %t>", bits, op == "values_search", i == 1)
				add(v)
				v.Name += "_long"
			}
			add(Variant{Name: fmt.Sprintf("%s_b%d_any", op, bits), Family: "values", Op: op, Bits: bits, Launch: Rows,
				Args: "ValuesEncodeArgs", Params: encode, call: fmt.Sprintf("values_encode_row<%d, %t>", bits, op == "values_search")})
		}
	}

	for _, bits := range valueBits {
		add(Variant{Name: fmt.Sprintf("values_decode_b%d", bits), Family: "decode", Op: "values_decode", Bits: bits, Launch: Units, Args: "ValuesDecodeArgs",
			Params: []Param{{"codes", bytesIn}, {"scales", bytesIn}, {"out", bytesOut}, {"table", floatsIn}, {"limited", status}}, call: fmt.Sprintf("values_decode_units<%d>", bits)})
	}
	inverse := []Param{{"codes", bytesIn}, {"scales", bytesIn}, {"out", bytesOut}, {"table", floatsIn}, {"signs", wordsIn}, {"limited", status}}
	for _, bits := range valueBits {
		v := Variant{Name: fmt.Sprintf("values_inverse_b%d", bits), Family: "decode", Op: "values_inverse", Bits: bits, Launch: Units, Args: "ValuesDecodeArgs", Params: inverse}
		for i, dims := range []Dims{unitDims, longDims} {
			v.Dims, v.call = dims, fmt.Sprintf("values_inverse_units<%d, %t>", bits, i == 1)
			add(v)
			v.Name += "_long"
		}
		add(Variant{Name: fmt.Sprintf("values_inverse_b%d_any", bits), Family: "decode", Op: "values_inverse", Bits: bits, Launch: Rows,
			Args: "ValuesDecodeArgs", Params: inverse, call: fmt.Sprintf("values_inverse_row<%d>", bits)})
	}

	add(Variant{Name: "trellis_scales", Family: "trellis", Op: "trellis_scales", Launch: Lanes, Args: "TrellisScalesArgs",
		Params: []Param{{"w", bytesIn}, {"scales", halvesOut}, {"status", status}}, call: "trellis_scales_row"})
	add(Variant{Name: "trellis_refit", Family: "trellis", Op: "trellis_refit", Launch: Lanes, Args: "TrellisScalesArgs",
		Params: []Param{{"w", bytesIn}, {"states", halvesIn}, {"table", floatsIn}, {"scales", halvesOut}}, call: "trellis_refit_row"})
	viterbi := []Param{{"w", bytesIn}, {"scales", halvesIn}, {"table", floatsIn}, {"codes", wordsOut}, {"states", halvesOut}, {"scratch", bytesOut}, {"status", status}}
	for k := 1; k <= 8; k++ {
		add(Variant{Name: fmt.Sprintf("trellis_encode_k%d", k), Family: "trellis", Op: "trellis_encode", Bits: k, Launch: Blocks, Args: "TrellisEncodeArgs",
			Params: viterbi, call: fmt.Sprintf("trellis_encode_blocks<%d, %d>", k, searchSteps(k))})
	}
	add(Variant{Name: "trellis_encode_any", Family: "trellis", Op: "trellis_encode", Launch: Blocks, Args: "TrellisEncodeArgs",
		Params: viterbi, call: "trellis_encode_general<false>"})
	add(Variant{Name: "trellis_encode_device", Family: "trellis", Op: "trellis_encode", Launch: Blocks, Args: "TrellisEncodeArgs",
		Params: viterbi, call: "trellis_encode_general<true>"})

	expand := []Param{{"codes", wordsIn}, {"scales", halvesIn}, {"table", floatsIn}, {"out", bytesOut}}
	for _, e := range []struct {
		op, body string
		launch   Launch
	}{
		{"trellis_expand", "trellis_expand_element", Elements},
		{"trellis_expand8", "trellis_expand_runs", Elements},
	} {
		for k := 1; k <= 8; k++ {
			add(Variant{Name: fmt.Sprintf("%s_k%d", e.op, k), Family: "trellis", Op: e.op, Bits: k, Launch: e.launch, Args: "TrellisExpandArgs",
				Params: expand, call: fmt.Sprintf("%s<%d>", e.body, k)})
		}
	}

	for _, size := range []int{1, 2, 4} {
		add(Variant{Name: fmt.Sprintf("copy_%d", size), Family: "copy", Op: "copy", Size: size, Launch: Elements, Args: "CopyArgs",
			Params: []Param{{"x", bytesIn}, {"y", bytesOut}}, call: fmt.Sprintf("copy_element<%s>", map[int]string{1: "uchar", 2: "ushort", 4: "uint"}[size])})
	}

	add(Variant{Name: "product_input", Family: "product", Op: "product_input", Launch: Elements, Args: "ProductInputArgs",
		Params: []Param{{"x", bytesIn}, {"out", floatsOut}}, call: "product_factor"})
	trellisFactors := []Param{{"x", floatsIn}, {"codes", wordsIn}, {"scales", halvesIn}, {"table", floatsIn}, {"y", bytesOut}}
	for _, k := range []int{2, 3, 4, 0} {
		name := fmt.Sprintf("product_k%d", k)
		if k == 0 {
			name = "product_any"
		}
		for _, tile := range productTiles {
			add(Variant{Name: fmt.Sprintf("%s_m%d", name, tile), Family: "product", Op: "product", Bits: k, Tile: tile, Outputs: tileOutputs(tile), Launch: Lanes, Args: "ProductArgs",
				Params: trellisFactors, call: fmt.Sprintf("product_output<%d, %d, %d>", k, tile, tileOutputs(tile))})
		}
	}
	for _, tile := range quadTiles {
		add(Variant{Name: fmt.Sprintf("product_axis0_m%d", tile), Family: "product", Op: "product_axis0", Tile: tile, Outputs: 4, Launch: Lanes, Args: "ProductArgs",
			Params: trellisFactors, call: fmt.Sprintf("product_quad<%d>", tile)})
	}
	for _, tile := range productTiles {
		add(Variant{Name: fmt.Sprintf("product_affine_m%d", tile), Family: "product", Op: "product_affine", Tile: tile, Outputs: tileOutputs(tile), Launch: Lanes, Args: "ProductArgs",
			Params: []Param{{"x", floatsIn}, {"codes", wordsIn}, {"scales", bytesIn}, {"biases", bytesIn}, {"y", bytesOut}},
			call:   fmt.Sprintf("product_affine_output<%d, %d>", tile, tileOutputs(tile))})
	}

	add(Variant{Name: "matrix_input", Family: "matrix", Op: "matrix_input", Launch: Elements, Args: "ProductInputArgs",
		Params: []Param{{"x", bytesIn}, {"out", floatsOut}}, call: "matrix_factor"})
	for _, tile := range matrixTiles {
		for _, k := range []int{2, 3, 4, 0} {
			name := fmt.Sprintf("matrix_k%d_m%d", k, tile)
			if k == 0 {
				name = fmt.Sprintf("matrix_any_m%d", tile)
			}
			add(Variant{Name: name, Family: "matrix", Op: "matrix", Bits: k, Tile: tile, Launch: Matrices, Args: "ProductArgs",
				Params: trellisFactors, call: fmt.Sprintf("matrix_trellis<%d, %d>", k, tile/8)})
		}
		add(Variant{Name: fmt.Sprintf("matrix_affine_m%d", tile), Family: "matrix", Op: "matrix_affine", Tile: tile, Launch: Matrices, Args: "ProductArgs",
			Params: []Param{{"x", floatsIn}, {"codes", wordsIn}, {"scales", bytesIn}, {"biases", bytesIn}, {"y", bytesOut}},
			call:   fmt.Sprintf("matrix_affine<%d>", tile/8)})
	}

	add(Variant{Name: "affine_quantize", Family: "affine", Op: "affine_quantize", Launch: Lanes, Args: "AffineArgs",
		Params: []Param{{"x", bytesIn}, {"codes", bytesOut}, {"scales", bytesOut}, {"biases", bytesOut}, {"status", status}}, call: "affine_quantize_group"})
	add(Variant{Name: "affine_dequantize", Family: "affine", Op: "affine_dequantize", Launch: Elements, Args: "AffineArgs",
		Params: []Param{{"codes", bytesIn}, {"scales", bytesIn}, {"biases", bytesIn}, {"out", bytesOut}}, call: "affine_dequantize_unit"})

	for _, size := range []int{2, 4} {
		add(Variant{Name: fmt.Sprintf("mask_%d", size), Family: "mask", Op: "mask", Size: size, Launch: Elements, Args: "MaskArgs",
			Params: []Param{{"x", bytesIn}, {"words", wordsIn}, {"y", bytesOut}}, call: fmt.Sprintf("mask_element<%s>", map[int]string{2: "ushort", 4: "uint"}[size])})
	}
	add(Variant{Name: "mask_any", Family: "mask", Op: "mask_any", Launch: Lanes, Args: "MaskArgs",
		Params: []Param{{"words", wordsIn}, {"any", wordsOut}}, call: "mask_any_row"})

	for _, v := range rowCodes() {
		v.Family, v.Args = "rowcode", "RowCodeArgs"
		add(v)
	}
	return all
}

// rowCodes returns the kernels of row codes, without their family and arguments.
func rowCodes() []Variant {
	var all []Variant
	params := func(list ...any) (all []Param) {
		for _, p := range list {
			switch p := p.(type) {
			case Param:
				all = append(all, p)
			case []Param:
				all = append(all, p...)
			}
		}
		return all
	}
	centre := []Param{{"mean", bytesIn}, {"gain", bytesIn}}
	x, out, signs, table := Param{"x", bytesIn}, Param{"out", bytesOut}, Param{"signs", wordsIn}, Param{"table", floatsIn}
	found, limited := Param{"status", status}, Param{"limited", status}
	packed, packs := []Param{{"codes", bytesIn}, {"scales", bytesIn}}, []Param{{"codes", bytesOut}, {"scales", bytesOut}}
	// units adds the kernels of an operation for row lengths whose rotation stays in registers: call is their body's, up
	// to its last template argument.
	units := func(v Variant, name, call string) {
		v.Launch = Units
		for i, dims := range []Dims{unitDims, longDims} {
			v.Name, v.Dims, v.call = name, dims, fmt.Sprintf("%s%t>", call, i == 1)
			all = append(all, v)
			name = strings.TrimSuffix(name, "_units") + "_long"
		}
	}
	other := func(v Variant, name, call string) {
		v.Name, v.Launch, v.call = name, Rows, call
		all = append(all, v)
	}

	encode := params(x, packs, centre, signs, table, found)
	for _, bits := range []int{2, 3, 4, 5} {
		units(Variant{Op: "rowcode_encode", Bits: bits, Params: encode}, fmt.Sprintf("rowcode_encode_b%d", bits), fmt.Sprintf("rowcode_encode_units<%d, ", bits))
	}
	rotate := Variant{Op: "rowcode_rotate", Params: params(x, centre, signs, Param{"y", bytesOut}, found)}
	units(rotate, "rowcode_rotate_units", "rowcode_rotate_unit_rows<")
	other(rotate, "rowcode_rotate_any", "rowcode_rotate_row")
	for _, v := range []struct {
		op, call string
		params   []Param
	}{
		{"rowcode_levels", "rowcode_levels_row", params(Param{"y", floatsIn}, packs, found, table)},
		{"rowcode_samples", "rowcode_samples_row", params(Param{"y", floatsIn}, Param{"samples", floatsOut}, Param{"start", wordsOut}, found)},
		{"rowcode_refine", "rowcode_refine_row", params(Param{"y", floatsIn}, Param{"states", halvesIn}, Param{"start", wordsIn}, table, Param{"codes", wordsOut}, Param{"scales", bytesOut})},
	} {
		all = append(all, Variant{Name: v.op, Op: v.op, Launch: Lanes, Params: v.params, call: v.call})
	}

	codes := []struct {
		suffix  string
		bits    []int
		trellis bool
	}{{"", []int{2, 3, 4, 5}, false}, {"_trellis", []int{2, 3, 4}, true}}
	for _, c := range codes {
		for _, bits := range c.bits {
			op := "rowcode_decode" + c.suffix
			all = append(all, Variant{Name: fmt.Sprintf("%s_b%d", op, bits), Op: op, Bits: bits, Launch: Units,
				Params: params(packed, out, table, limited), call: fmt.Sprintf("rowcode_decode_units<%d, %t>", bits, c.trellis)})
		}
	}
	for _, c := range codes {
		v := Variant{Op: "rowcode_inverse" + c.suffix, Params: params(packed, centre, out, table, signs, limited)}
		for _, bits := range c.bits {
			v.Bits = bits
			units(v, fmt.Sprintf("%s_b%d", v.Op, bits), fmt.Sprintf("rowcode_inverse_units<%d, %t, ", bits, c.trellis))
		}
		v.Bits = 0
		other(v, v.Op+"_any", fmt.Sprintf("rowcode_inverse_row<%t>", c.trellis))
	}
	unrotate := Variant{Op: "rowcode_unrotate", Params: params(x, centre, Param{"mass", bytesIn}, out, signs, limited)}
	units(unrotate, "rowcode_unrotate_units", "rowcode_unrotate_unit_rows<")
	other(unrotate, "rowcode_unrotate_any", "rowcode_unrotate_row")
	return all
}

// productTiles and quadTiles are the heights of tiles of rows, the latter for weights coded along the outputs.
var (
	productTiles = []int{1, 2, 4, 8, 16}
	quadTiles    = []int{1, 4, 8}
)

// tileOutputs is how many outputs share the rows that a SIMD-group of a product loads: more of them with more rows,
// where there is less to gain from more SIMD-groups.
func tileOutputs(tile int) int {
	if tile <= 2 {
		return 2
	}
	return 4
}

// matrixTiles are the heights of tiles of rows of kernels with matrix units.
var matrixTiles = []int{16, 64}

// TileFor returns the tile of the kernels of v's operation that multiply m rows: the least that holds them all, or the
// largest.
func (v Variant) TileFor(m int) int {
	tiles := productTiles
	switch {
	case v.Launch == Matrices:
		tiles = matrixTiles
	case v.Op == "product_axis0":
		tiles = quadTiles
	}
	for _, t := range tiles {
		if t >= m {
			return t
		}
	}
	return tiles[len(tiles)-1]
}

// Lookup returns the kernel of that name.
func Lookup(name string) (Variant, bool) {
	for _, v := range variants() {
		if v.Name == name {
			return v, true
		}
	}
	return Variant{}, false
}

// builtins are the arguments behind the buffers and what the body is called with, by launch.
var builtins = map[Launch]struct{ params, pass string }{
	Elements: {"uint2 at [[thread_position_in_grid]]", "at"},
	Lanes: {"uint group [[threadgroup_position_in_grid]],\n    uint simd [[simdgroup_index_in_threadgroup]],\n" +
		"    uint simds [[simdgroups_per_threadgroup]],\n    uint lane [[thread_index_in_simdgroup]]", "group * simds + simd, lane"},
	Rows: {"threadgroup float* memory [[threadgroup(0)]],\n    uint group [[threadgroup_position_in_grid]],\n" +
		"    uint thread_index [[thread_index_in_threadgroup]],\n    uint threads [[threads_per_threadgroup]],\n" +
		"    uint lane [[thread_index_in_simdgroup]]", "memory, group, thread_index, threads, lane"},
	Blocks: {"threadgroup float* memory [[threadgroup(0)]],\n    uint group [[threadgroup_position_in_grid]],\n" +
		"    uint groups [[threadgroups_per_grid]],\n    uint thread_index [[thread_index_in_threadgroup]],\n" +
		"    uint threads [[threads_per_threadgroup]],\n    uint lane [[thread_index_in_simdgroup]]",
		"memory, group, groups, thread_index, threads, lane"},
	Matrices: {"threadgroup float* memory [[threadgroup(0)]],\n    uint group [[threadgroup_position_in_grid]],\n" +
		"    uint simd [[simdgroup_index_in_threadgroup]],\n    uint lane [[thread_index_in_simdgroup]]", "memory, group, simd, lane"},
	Units: {"uint2 group [[threadgroup_position_in_grid]],\n    uint simd [[simdgroup_index_in_threadgroup]],\n" +
		"    uint simds [[simdgroups_per_threadgroup]],\n    uint lane [[thread_index_in_simdgroup]]", "group, simd, simds, lane"},
	Single: {"uint lane [[thread_index_in_simdgroup]],\n    uint width [[threads_per_simdgroup]]", "lane, width"},
}

// maxThreads is what the compiler is told of a threadgroup's size, so that it fits registers to it: 0 is nothing.
// Without it a compiler may use so many that fewer threads fit than TrellisLaunch wants, or spill where 256 are
// enough. It is never 32 or less: Apple compilers then drop barriers between SIMD-groups that there may be.
func (v Variant) maxThreads() int {
	switch v.Launch {
	case Blocks:
		if v.Bits != 0 {
			return SearchThreads
		}
		return 1024
	case Elements, Lanes, Units, Matrices:
		return LaneThreads
	}
	return 0
}

func (v Variant) source() string {
	var b strings.Builder
	if n := v.maxThreads(); n > 0 {
		fmt.Fprintf(&b, "[[max_total_threads_per_threadgroup(%d)]]\n", n)
	}
	fmt.Fprintf(&b, "kernel void %s(\n", v.Name)
	var pass []string
	for i, p := range v.Params {
		fmt.Fprintf(&b, "    %s %s [[buffer(%d)]],\n", p.Type, p.Name, i)
		pass = append(pass, p.Name)
	}
	launch := builtins[v.Launch]
	fmt.Fprintf(&b, "    constant %s& a [[buffer(%d)]],\n    %s) {\n    %s(%s, a, %s);\n}\n",
		v.Args, len(v.Params), launch.params, v.call, strings.Join(pass, ", "), launch.pass)
	return b.String()
}
