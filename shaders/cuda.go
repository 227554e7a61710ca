package shaders

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed cuda.h
var cudaHeader string

// cudaDialect respells what NVRTC does not take. Lines keep their numbers.
var cudaDialect = strings.NewReplacer(
	"#pragma clang loop unroll(full)", "#pragma unroll",
	"#pragma METAL fp math_mode(safe)", "", // NVRTC's options say it for the whole program
	"#pragma METAL fp contract(off)", "",
	"#pragma clang fp contract(off)", "",
)

// CUDASource returns kernels of Variants in CUDA C++ as one compilation unit: the text that Source has, behind
// definitions of Metal's words, and an entry point for each kernel. Its parameters are the pointers of
// Variant.Params, the argument struct by value, and a Launch (cuda.h); its name is the kernel's. Threadgroup
// memory is the dynamic shared memory of the launch.
func CUDASource(kernels ...Variant) string {
	var b strings.Builder
	appendFile(&b, "cuda.h", cudaHeader)
	appendFamilies(&b, kernels, func(name string) string { return cudaDialect.Replace(text(name)) })
	appendFile(&b, "instances", "")
	for _, v := range kernels {
		b.WriteString(v.cudaSource())
	}
	return b.String()
}

// cudaBuiltins holds, by launch, what a body is called with behind the arguments, and the threads that a
// threadgroup may have.
var cudaBuiltins = map[Launch]struct {
	pass    string
	threads int
}{
	Elements: {"launch.position()", LaneThreads},
	Lanes:    {"launch.group() * simds() + simd(), lane()", LaneThreads},
	Rows:     {"(float*)threadgroup_memory, launch.group(), thread_index(), threads(), lane()", 512}, // 1024 would spill registers
	Blocks:   {"(float*)threadgroup_memory, launch.group(), launch.groups[0], thread_index(), threads(), lane()", 1024},
	Units:    {"launch.tile(), simd(), simds(), lane()", LaneThreads},
	Matrices: {"(float*)threadgroup_memory, launch.group(), simd(), lane()", LaneThreads},
	Single:   {"lane(), warpSize", 32},
}

func (v Variant) cudaSource() string {
	var b strings.Builder
	l := cudaBuiltins[v.Launch]
	if v.Launch == Blocks {
		l.threads = v.maxThreads()
	}
	bounds := fmt.Sprint(l.threads)
	switch { // threadgroups that the registers of a multiprocessor have to be enough for
	case v.Launch == Blocks && v.Bits != 0, v.Launch == Matrices && v.Tile <= 16:
		bounds += ", 2"
	case v.Tile*v.Outputs >= 64: // sums in registers; products have threadgroups of 128
		bounds = "128, 3"
	case v.Launch == Matrices:
		bounds += ", 1"
	}
	fmt.Fprintf(&b, "\nextern \"C\" __global__ void __launch_bounds__(%s) %s(\n", bounds, v.Name)
	var pass []string
	for _, p := range v.Params {
		fmt.Fprintf(&b, "    %s %s,\n", p.Type, p.Name)
		pass = append(pass, p.Name)
	}
	fmt.Fprintf(&b, "    const __grid_constant__ %s a,\n    const __grid_constant__ Launch launch) {\n    %s(%s, a, %s);\n}\n",
		v.Args, v.call, strings.Join(pass, ", "), l.pass)
	return b.String()
}

// Line returns a line, from 1, of one of the files that #line directives name, or "" where there is none.
func Line(file string, n int) string {
	source := cudaHeader
	if file != "cuda.h" {
		b, err := files.ReadFile(file)
		if err != nil {
			return ""
		}
		source = string(b)
	}
	for line := range strings.Lines(source) {
		if n--; n == 0 {
			return line
		}
	}
	return ""
}
