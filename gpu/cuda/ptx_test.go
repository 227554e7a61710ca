//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// The tests of this file compile with NVRTC and need no GPU. Where EnvNVRTC names the library, it has to be
// there.

func needCompiler(t *testing.T) compiler {
	t.Helper()
	c, err := loadCompiler(compilers[0])
	if err != nil && os.Getenv(EnvNVRTC) == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func long() bool { return os.Getenv("TURBOTRELLIS_LONG") != "" }

// slowFamilies are those that take most of the time to compile.
var slowFamilies = []string{"values", "decode", "product", matrixFamily}

// ptxArch is the first architecture that NVRTC 13 compiles for.
const ptxArch = "compute_75"

// matrixArch is the first with matrix units for tf32; the family matrix is for devices that have them.
const (
	matrixFamily = "matrix"
	matrixArch   = 80
)

// archOf returns the first architecture that a family compiles for.
func archOf(family string) string {
	if family == matrixFamily {
		return fmt.Sprintf("compute_%d", matrixArch)
	}
	return ptxArch
}

// Every kernel compiles, and its instructions are those that docs/numerics.md allows. With
// TURBOTRELLIS_LONG that is so of all families in both forms, else of the slow ones in one.
func TestPTX(t *testing.T) {
	c := needCompiler(t)
	for _, flush := range []bool{false, true} {
		for _, family := range shaders.Families() {
			if flush && slices.Contains(slowFamilies, family) && !long() {
				continue
			}
			t.Run(fmt.Sprintf("%s/ftz=%t", family, flush), func(t *testing.T) {
				t.Parallel()
				source := shaders.CUDASource(shaders.Family(family)...)
				ptx := compilePTX(t, c, source, compileOptions(c, archOf(family), flush, gpu.CompileOptions{}))
				found, faults := readPTX(ptx, flush)
				for i, f := range faults {
					if i == 10 {
						t.Errorf("and %d more", len(faults)-i)
						break
					}
					t.Error(f)
				}
				var want []string
				for _, v := range shaders.Variants() {
					if v.Family == family {
						want = append(want, v.Name)
					}
				}
				slices.Sort(want)
				slices.Sort(found.kernels)
				if !slices.Equal(found.kernels, want) {
					t.Errorf("kernels %v, want %v", found.kernels, want)
				}
				if uses := slices.Contains([]string{"canary", "hadamard", "keys", "values", "decode", "trellis", "product", matrixFamily, "rowcode"}, family); uses != (found.fma > 0) {
					t.Errorf("%d fma", found.fma)
				}
				if (family == matrixFamily) != (found.mma > 0) {
					t.Errorf("%d mma", found.mma)
				}
				t.Logf("%d kernels, %d instructions of f32 arithmetic, %d fma, %d mma", len(found.kernels), found.arithmetic, found.fma, found.mma)
			})
		}
	}
}

func compilePTX(t *testing.T, c compiler, source string, options []string) string {
	t.Helper()
	image, log, err := c.Compile(source, append(options, "-lineinfo"))
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if log != "" {
		t.Errorf("the compiler says: %s", log)
	}
	return string(image)
}

type ptxCounts struct {
	kernels              []string
	arithmetic, fma, mma int
}

var (
	ptxEntry      = regexp.MustCompile(`\.entry (\w+)\(`)
	ptxFile       = regexp.MustCompile(`^\s*\.file\s+(\d+) "(.*)"`)
	ptxLine       = regexp.MustCompile(`^\s*\.loc\s+(\d+) (\d+) `)
	ptxOp         = regexp.MustCompile(`^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\s`)
	ptxArithmetic = regexp.MustCompile(`^(add|sub|mul|div|rcp|sqrt|fma)\.rn(\.ftz)?\.f32$`)
	ptxMoves      = regexp.MustCompile(`^((min|max)(\.ftz)?\.f32$|(ld|st)\.(global|shared|param)|mov|selp|abs|neg|setp|cvt\.rni(\.ftz)?\.f32\.f32$|` +
		`cvt\.rn(\.ftz)?\.f32\.[su](8|16|32|64)$|cvt\.rzi(\.ftz)?\.[su](32|64)\.f32$|cvt\.rn\.f16\.f32$|cvt\.f32\.f16$)`)
	ptxMatrix = regexp.MustCompile(`^mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32$`)
	ptxFloat  = regexp.MustCompile(`\.(f16|f16x2|bf16|bf16x2|tf32|f32|f64)\b`)
	ptxMemory = regexp.MustCompile(`^(ld|st|atom|red)\.`)
	ptxSpace  = regexp.MustCompile(`^(ld|st|atom|red)(\.volatile)?\.(global|shared|param)\b`)
)

// readPTX looks at every instruction of a program compiled with -lineinfo.
func readPTX(ptx string, flush bool) (found ptxCounts, faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	files := map[string]string{}
	for line := range strings.Lines(ptx) { // .file stands behind the code
		if m := ptxFile.FindStringSubmatch(line); m != nil {
			files[m[1]] = m[2][strings.LastIndexByte(m[2], '/')+1:]
		}
	}
	kernel, file, at := "", "", 0
	for line := range strings.Lines(ptx) {
		if m := ptxEntry.FindStringSubmatch(line); m != nil {
			kernel = m[1]
			found.kernels = append(found.kernels, kernel)
		}
		if m := ptxLine.FindStringSubmatch(line); m != nil {
			file = files[m[1]]
			at, _ = strconv.Atoi(m[2])
			continue
		}
		if strings.Contains(line, ".local") || strings.Contains(line, ".func") {
			bad("%s: local memory or a call: %s", kernel, strings.TrimSpace(line))
		}
		m := ptxOp.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		op := m[1]
		if ptxMemory.MatchString(op) && !ptxSpace.MatchString(op) {
			bad("%s: %s:%d: no address space: %s", kernel, file, at, op)
		}
		if !ptxFloat.MatchString(op) || op == "ld.param.f32" {
			continue
		}
		a := ptxArithmetic.FindStringSubmatch(op)
		switch {
		case a != nil && (a[2] != "") != flush:
			bad("%s: %s:%d: %s where ftz is %t", kernel, file, at, op, flush)
		case a != nil && a[1] == "fma":
			found.fma++
			if text := shaders.Line(file, at); !strings.Contains(text, "fma(") {
				bad("%s: %s:%d: %s, the source has %q", kernel, file, at, op, strings.TrimSpace(text))
			}
		case a != nil && a[1] == "rcp":
			found.arithmetic++
			if text := shaders.Line(file, at); !strings.Contains(text, "1.0f / ") {
				bad("%s: %s:%d: %s, the source has %q", kernel, file, at, op, strings.TrimSpace(text))
			}
		case a != nil:
			found.arithmetic++
		case ptxMatrix.MatchString(op) && strings.HasPrefix(kernel, "matrix_") && strings.Contains(shaders.Line(file, at), "mma.sync"):
			found.mma++
		case !ptxMoves.MatchString(op):
			bad("%s: %s:%d: %s", kernel, file, at, op)
		}
	}
	return found, faults
}

// The reading above sees what options and sources could do wrong.
func TestPTXSeededMistakes(t *testing.T) {
	c := needCompiler(t)
	options := compileOptions(c, ptxArch, false, gpu.CompileOptions{})
	canary := shaders.CUDASource(shaders.Family("canary")...)
	without := func(option string) []string {
		return slices.DeleteFunc(slices.Clone(options), func(o string) bool { return strings.HasPrefix(o, option) })
	}
	for _, m := range []struct {
		name, old, new string
		options        []string
		want           string
	}{
		{"contraction", "", "", append(without("-fmad"), "-fmad=true"), "fma.rn.f32, the source has"},
		{"approximate division", "", "", append(without("-prec-div"), "-prec-div=false"), "div.full.f32"},
		{"approximate square root", "precise::sqrt", "::sqrtf", append(without("-prec-sqrt"), "-prec-sqrt=false"), "sqrt.approx.f32"},
		{"flushing", "", "", append(without("-ftz"), "-ftz=true"), "where ftz is false"},
		{"a double", "fabs(x)", "float(double(x) * 3.3)", options, "f64"},
		{"a reciprocal", "x / y", "__frcp_rn(y)", options, "rcp.rn.f32"},
		{"matrix units", "x / y", "[](float v) { metal::simdgroup_float8x8 m(v); metal::simdgroup_right8x8 r = {v, v}; simdgroup_multiply_accumulate(m, m, r, m); return m.e[0]; }(y)",
			compileOptions(c, "compute_80", false, gpu.CompileOptions{}), "mma.sync"},
		{"local memory", "r[4] = as_type<uint>(rint(x));", "uint room[9]; for (uint j = 0; j < 9; j++) room[j] = in[j]; r[4] = room[in[i] % 9u];", options, "local memory"},
	} {
		t.Run(m.name, func(t *testing.T) {
			source := canary
			if m.old != "" {
				if source = strings.Replace(canary, m.old, m.new, 1); source == canary {
					t.Fatalf("the canary no longer has %q", m.old)
				}
			}
			_, faults := readPTX(compilePTX(t, c, source, m.options), false)
			if !strings.Contains(strings.Join(faults, "\n"), m.want) {
				t.Errorf("want %q, got %q", m.want, faults)
			}
		})
	}
}

// An error of the compiler's is ErrCompile and names the place in the source; fast math is refused.
func TestCompileErrors(t *testing.T) {
	c := needCompiler(t)
	source := shaders.CUDASource(shaders.Family("copy")...)
	options := compileOptions(c, ptxArch, false, gpu.CompileOptions{})
	for _, test := range []struct {
		source  string
		options []string
		want    string
	}{
		{strings.Replace(source, "const uint3 row =", "const uint4 row =", 1), options, "copy.metal:8: error"},
		{source, compileOptions(c, ptxArch, false, gpu.CompileOptions{FastMath: true}), "fast math off"},
	} {
		_, err := compile(c, cache{}, test.source, test.options)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "compile: compile failed: NVRTC: ") {
			t.Errorf("want %q, got %v", test.want, err)
		}
	}
}

// NVRTC says what it compiles for, and which file it is.
func TestCompilerIdentity(t *testing.T) {
	c := needCompiler(t)
	major, minor := c.Version()
	if !slices.Contains(compilers, major) || c.Build() == "" || !slices.Contains(c.Architectures(), 90) {
		t.Errorf("NVRTC %d.%d, %q, %v", major, minor, c.Build(), c.Architectures())
	}
	t.Logf("NVRTC %d.%d, %s, compiles for %v", major, minor, c.Build(), c.Architectures())
}

var ptxasReport = regexp.MustCompile(`Compiling entry function '(\w+)'[^\n]*\n(?:[^\n]*\n)*?[^\n]*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads[^\n]*\n[^\n]*Used (\d+) registers`)

// In machine code no kernel has a stack or spills registers: with TURBOTRELLIS_LONG, for all architectures that
// NVRTC compiles for, else for one, without the slow families.
func TestResources(t *testing.T) {
	c := needCompiler(t)
	archs := []int{90}
	if long() {
		archs = c.Architectures()
	}
	for _, arch := range archs {
		for _, family := range shaders.Families() {
			if slices.Contains(slowFamilies, family) && !long() || family == matrixFamily && arch < matrixArch {
				continue
			}
			t.Run(fmt.Sprintf("%s/sm_%d", family, arch), func(t *testing.T) {
				t.Parallel()
				source := shaders.CUDASource(shaders.Family(family)...)
				options := compileOptions(c, fmt.Sprintf("sm_%d", arch), false, gpu.CompileOptions{})
				_, log, err := c.Compile(source, append(options, "-Xptxas=-v"))
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				found := ptxasReport.FindAllStringSubmatch(log, -1)
				for _, m := range found {
					if m[2] != "0" || m[3] != "0" || m[4] != "0" {
						t.Errorf("%s: stack %s, spills %s and %s bytes, %s registers", m[1], m[2], m[3], m[4], m[5])
					}
				}
				want := 0
				for _, v := range shaders.Variants() {
					if v.Family == family {
						want++
					}
				}
				if len(found) != want {
					t.Errorf("the compiler reports on %d kernels of %d:\n%.600s", len(found), want, log)
				}
			})
		}
	}
}
