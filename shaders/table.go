package shaders

import (
	"fmt"
	"strings"
)

const (
	unitThreads     = "256, 32 elements per thread"
	rotated         = unitThreads + "; any: max(32, d/8) per row, at least 256 per threadgroup"
	rotatedMemory   = "none; any: 4·dim per row"
	rotatedBarriers = "0; any: 1 + passes"
)

// ops describes each operation for the kernel table: what a threadgroup holds, and the bytes
// moved per element, with b bits per code, x and y the input's and output's element size, s the
// scale's size, G the group.
var ops = []struct{ op, does, threads, memory, moved, barriers string }{
	{"canary", "device self-test", "32", "none", "not applicable", "0"},
	{"hadamard", "inverse rotation of rows that are not packed", rotated, rotatedMemory, "x + y", rotatedBarriers},
	{"keys_encode", "keys to codes, scales, zeros", unitThreads, "none", "x + b/8 + 2s/G", "0"},
	{"keys_decode", "codes to keys", unitThreads, "none", "b/8 + 2s/G + y", "0"},
	{"values_encode", "canon, rotate, scale, index, pack in one pass", rotated, rotatedMemory, "x + b/8 + s/G", rotatedBarriers},
	{"values_search", "the same with the searched scale", rotated, rotatedMemory, "x + b/8 + s/G", rotatedBarriers},
	{"values_decode", "codes to rotated values", unitThreads, "none", "b/8 + s/G + y", "0"},
	{"values_inverse", "codes to values, with the rotation undone", rotated, rotatedMemory, "b/8 + s/G + y", rotatedBarriers},
	{"trellis_scales", "row scales", "256, 32 per row", "none", "x", "0"},
	{"trellis_refit", "refitted row scales", "256, 32 per row", "none", "x + 2", "0"},
	{"trellis_encode", "Viterbi search of 2^(12−L) blocks per round (k), or of one (any, device)", "k: 256, 2^(L−4) per block; any, device: up to 2^(L−k)", "k: 8·2^(12−k) per round (128·2^(12−L) if that is more); any: 256 + 8·2^L; device: 256", "x + b/8, and in scratch per pass 2^(L−4) (k > 4, any, device: 2^(L−k); device: 8·2^L more)", "k: 2 + T (k ≤ 2: 2 + T/2) per pass; any, device: 3 + T; 1 or 2 per block"},
	{"trellis_expand", "weights of packed blocks, one window per weight", "256, one element per thread", "none", "b/8 + y", "0"},
	{"trellis_expand8", "eight weights from two or three words", "256, 32 elements per thread", "none", "b/8 + y", "0"},
	{"copy", "strided copy of 1, 2 or 4 byte elements", "256, one element per thread", "none", "2x", "0"},
	{"product_input", "rows of x to canonical f32", "256, one element per thread", "none", "x + 4", "0"},
	{"product", "x·Wᵀ, trellis weights coded along the columns", "128, 32 per 2 outputs (m ≤ 2) or 4 and tile of rows", "none", "per weight b/8; of x 4 per 2 or 4 outputs, mostly from a cache", "0"},
	{"product_axis0", "the same, coded along the outputs", "128, 32 per four outputs and tile of rows", "none", "as product", "0"},
	{"product_affine", "x·Wᵀ, affine weights", "128, 32 per 2 outputs (m ≤ 2) or 4 and tile of rows", "none", "as product, and 2s/G", "0"},
	{"matrix_input", "the same, and rows of zeros to a multiple of 64", "256, one element per thread", "none", "x + 4", "0"},
	{"matrix", "x·Wᵀ in another order, matrix units, trellis weights coded along the columns", "256 per 32 outputs and tile of rows", "8192", "per weight b/8; of x 4 per 32 outputs, mostly from a cache", "2 per 8 rows"},
	{"matrix_affine", "the same, affine weights", "256 per 32 outputs and tile of rows", "8192", "as matrix, and 2s/G", "2 per 8 rows"},
	{"affine_quantize", "rows to codes, scales, biases", "256, 32 per group", "none", "x + b/8 + 2s/G", "0"},
	{"affine_dequantize", "codes to rows", "256, 8 elements per thread", "none", "b/8 + 2s/G + y", "0"},
	{"mask", "logits + (0 or −Inf)", "256, one element per thread", "none", "2x + 1/8", "0"},
	{"mask_any", "whether rows allow a token", "256, 32 per row", "none", "1/8", "0"},
	{"rowcode_encode", "rows to codes and scales of levels in one pass", unitThreads, "none", "x + b/8", "0"},
	{"rowcode_rotate", "canon, centre, rotate, for the next two", rotated, rotatedMemory, "x + 4", rotatedBarriers},
	{"rowcode_levels", "scale, index, pack of rows of levels of other lengths", "256, 32 per row", "none", "4, ten times from a cache, + b/8", "0"},
	{"rowcode_samples", "first scale and samples of rows of a trellis", "256, 32 per row", "none", "4, twice from a cache, + 4", "0"},
	{"rowcode_refine", "their scale, behind trellis_encode", "256, 32 per row", "none", "6, three times from a cache", "0"},
	{"rowcode_decode", "codes of levels to rotated rows", unitThreads, "none", "b/8 + y", "0"},
	{"rowcode_decode_trellis", "codes of a trellis to rotated rows", unitThreads, "none", "b/8 + y", "0"},
	{"rowcode_inverse", "codes of levels to rows", rotated, rotatedMemory, "b/8 + y", rotatedBarriers},
	{"rowcode_inverse_trellis", "codes of a trellis to rows", rotated, rotatedMemory, "b/8 + y", rotatedBarriers},
	{"rowcode_unrotate", "inverse rotation and centre of rows that are not packed", rotated, rotatedMemory, "x + y", rotatedBarriers},
}

// Table returns the kernel table of docs/metal.md in Markdown.
func Table() string {
	kernels := map[string]int{}
	for _, v := range Variants() {
		kernels[v.Op]++
	}
	var b strings.Builder
	b.WriteString("b: bits per code. x, y: bytes of an input and an output element. s: bytes of a scale. G: group.\n" +
		"passes: ⌈log2(dim/m)/3⌉, plus one for m = 12, 20, 28.\n\n" +
		"| operation | kernels | what | threads in a threadgroup | threadgroup memory, bytes | bytes moved per element | barriers |\n|---|---|---|---|---|---|---|\n")
	for _, o := range ops {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s |\n", o.op, kernels[o.op], o.does, o.threads, o.memory, o.moved, o.barriers)
	}
	fmt.Fprintf(&b, "\n%d kernels.\n", len(Variants()))
	return b.String()
}
