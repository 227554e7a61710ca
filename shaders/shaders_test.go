package shaders

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func TestGeneratedFileIsCurrent(t *testing.T) {
	if text("layout.metal") != Layout() {
		t.Error("layout.metal is stale: run go generate ./shaders")
	}
}

var kernelName = regexp.MustCompile(`(?m)^kernel void (\w+)\(`)

// Every kernel of the table stands once in the sources and in its family's, and no other does.
func TestKernelsMatchVariants(t *testing.T) {
	var want []string
	byFamily := map[string][]string{}
	for _, v := range Variants() {
		want = append(want, v.Name)
		byFamily[v.Family] = append(byFamily[v.Family], v.Name)
		if got, ok := Lookup(v.Name); !ok || !reflect.DeepEqual(got, v) {
			t.Errorf("Lookup(%q) = %v, %t", v.Name, got, ok)
		}
		if !strings.HasPrefix(v.Name, v.Op) {
			t.Errorf("%s does not name its operation, %s", v.Name, v.Op)
		}
		if v.Buffers() > 31 {
			t.Errorf("%s binds %d buffers", v.Name, v.Buffers())
		}
	}
	find := func(source string) (names []string) {
		for _, m := range kernelName.FindAllStringSubmatch(source, -1) {
			names = append(names, m[1])
		}
		return names
	}
	if got := find(Source(Variants()...)); !slices.Equal(got, want) {
		t.Errorf("the sources have %d kernels, the table %d", len(got), len(want))
	}
	for _, f := range Families() {
		if got := find(Source(Family(f)...)); !slices.Equal(got, byFamily[f]) {
			t.Errorf("family %s has the kernels %v, want %v", f, got, byFamily[f])
		}
	}
	if slices.Sort(want); len(slices.Compact(want)) != len(Variants()) {
		t.Error("a kernel name occurs twice")
	}
	for _, v := range Variants() {
		if got := find(Source(v)); len(got) != 1 || got[0] != v.Name {
			t.Errorf("the source of %s has the kernels %v", v.Name, got)
		}
	}
	if got := Family("no such"); len(got) > 0 {
		t.Errorf("an unknown family has the kernels %v", got)
	}
	if _, ok := Lookup("no such"); ok {
		t.Error("an unknown kernel is found")
	}
}

// A helper with a kernel's name would overload it, which Metal does not allow.
func TestNoHelperHasAKernelsName(t *testing.T) {
	helper := regexp.MustCompile(`(?m)^static inline [^(=]*\b(\w+)\(`)
	n := 0
	for _, m := range helper.FindAllStringSubmatch(Source(Variants()...), -1) {
		if _, ok := Lookup(m[1]); ok {
			t.Errorf("%s is a helper and a kernel", m[1])
		}
		n++
	}
	if n < 50 {
		t.Fatalf("found %d helpers only", n)
	}
}

func code(t *testing.T, name string) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text(name)) {
		line, _, _ = strings.Cut(line, "//")
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func metalFiles(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(files, "*.metal")
	if err != nil || len(names) != len(Families())+2 {
		t.Fatalf("sources %v, %v; want the families, common and layout", names, err)
	}
	return names
}

func TestForbiddenWords(t *testing.T) {
	forbidden := regexp.MustCompile(`\b(fast::|simd_sum|simd_product|simd_prefix\w*|simdgroup_float\w*|atomic_float|double|bfloat|round|pow|exp2?|log2?|dot|goto|long long)\b`)
	for _, name := range metalFiles(t) {
		source := code(t, name)
		switch name {
		case "trellis.metal": // the search takes the maximum of numbers that are not NaN, and no state depends on the sign of a zero
			source = strings.ReplaceAll(source, "top = fmax(top, ", "")
		case "matrix.metal": // the one place for another order
			source = strings.ReplaceAll(source, "simdgroup_float8x8", "")
		}
		if m := forbidden.FindString(source); m != "" {
			t.Errorf("%s uses %s", name, m)
		}
	}
	for _, bad := range []string{"x = fast::sqrt(x)", "simd_sum(x)", "double d;", "bfloat b", "round(x)", "simdgroup_float8x8 m"} {
		if forbidden.FindString(bad) == "" {
			t.Errorf("%q is not caught", bad)
		}
	}
}

// common.metal alone opens with the guards, and a helper that holds a barrier returns once, at its end.
func TestPrologueAndBarriers(t *testing.T) {
	for _, line := range []string{"#if defined(__FAST_MATH__)\n#error", "#pragma METAL fp math_mode(safe)\n", "#pragma METAL fp contract(off)\n", "#pragma clang fp contract(off)\n"} {
		if strings.Count(Source(Variants()...), line) != 1 {
			t.Errorf("%q stands %d times", line, strings.Count(Source(Variants()...), line))
		}
	}
	if i, j := strings.Index(Source(Variants()...), "#pragma clang fp contract(off)"), strings.Index(Source(), "static inline"); i > j {
		t.Error("functions stand before the contraction pragma")
	}
	collective := regexp.MustCompile(`threadgroup_barrier\(|transform_row\(|trellis_(load|forward\w*|best_state)\b`)
	checked := 0
	for _, name := range metalFiles(t) {
		for _, f := range strings.Split(code(t, name), "\nstatic inline ")[1:] {
			body := f[strings.Index(f, "{"):]
			last := collective.FindAllStringIndex(body, -1)
			if last == nil {
				continue
			}
			checked++
			if i := strings.Index(body, "return"); i >= 0 && i < last[len(last)-1][0] && !strings.HasPrefix(body[i:], "return trellis_best_state") {
				t.Errorf("%s: %s returns before a barrier", name, f[:strings.Index(f, "(")])
			}
		}
	}
	if checked < 8 {
		t.Errorf("found %d functions with barriers only", checked)
	}
}

func TestArgumentLayout(t *testing.T) {
	for _, s := range argStructs {
		typ := reflect.TypeOf(s)
		var at uintptr
		narrow := false
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Offset != at {
				t.Errorf("%s.%s is at %d, want %d without padding", typ.Name(), f.Name, f.Offset, at)
			}
			at += f.Type.Size()
			if f.Type.Size() == 4 {
				narrow = true
			} else if narrow {
				t.Errorf("%s.%s: 8 bytes behind 4", typ.Name(), f.Name)
			}
		}
		if at != typ.Size() || at%8 != 0 && typ.NumField() > 1 {
			t.Errorf("%s has %d bytes of fields in %d", typ.Name(), at, typ.Size())
		}
		p := reflect.New(typ)
		if got := len(Append(nil, p.Interface())); got != int(typ.Size()) {
			t.Errorf("Append(%s) gives %d bytes, want %d", typ.Name(), got, typ.Size())
		}
		if typ.Size() >= 4096 {
			t.Errorf("%s does not fit setBytes", typ.Name())
		}
	}
	got := Append([]byte{9}, &CanaryArgs{Count: 0x01020304, Subnormal: 5})
	if want := []byte{9, 4, 3, 2, 1, 5, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("Append gives % x, want % x", got, want)
	}
	args := &ValuesDecodeArgs{Dim: 7}
	buf := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { buf = Append(buf[:0], args) }); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{"N1": "n1", "S0": "s0", "KCodes": "k_codes", "XType": "x_type", "InverseCodeRMS": "inverse_code_rms", "Row0": "row0", "Dim": "dim", "ThreadsPerRow": "threads_per_row"} {
		if got := snake(in); got != want {
			t.Errorf("snake(%q) = %q, want %q", in, got, want)
		}
	}
}

// constants reads the unsigned literals of a program-scope constant.
func constants(t *testing.T, name string) []uint32 {
	t.Helper()
	m := regexp.MustCompile(`constant uint ` + name + `(?:\[\d+\])? = \{?([^;]*?)\}?;`).FindStringSubmatch(Source(Variants()...))
	if m == nil {
		t.Fatalf("no constant %s", name)
	}
	var out []uint32
	for _, w := range regexp.MustCompile(`0x[0-9a-f]+`).FindAllString(m[1], -1) {
		v, err := strconv.ParseUint(w, 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, uint32(v))
	}
	return out
}

// The ±1 matrices against MLX's (testdata/hadamard.safetensors), and against what the Go
// transform does to unit vectors.
func TestHadamardMatricesVector(t *testing.T) {
	dir := os.Getenv("TURBOTRELLIS_DATA")
	if dir == "" {
		dir = "../testdata"
	}
	data, err := os.ReadFile(filepath.Join(dir, "hadamard.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	var header map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(data[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, m := range []int{12, 20, 28} {
		rows := constants(t, "hadamard"+strconv.Itoa(m))
		want := data[8+int(n)+header["h"+strconv.Itoa(m)].Offsets[0]:]
		for c := range m {
			unit := make([]float32, m)
			unit[c] = 1
			if err := hadamard.Transform(unit); err != nil {
				t.Fatal(err)
			}
			for j := range m {
				minus := rows[j]>>c&1 == 1
				if (int8(want[j*m+c]) < 0) != minus || (unit[j] < 0) != minus {
					t.Errorf("h%d[%d][%d] is minus: shader %t, vector %d, transform %v", m, j, c, minus, int8(want[j*m+c]), unit[j])
				}
				compared++
			}
		}
	}
	t.Logf("%d elements", compared)
}

// The product with the reciprocal in two parts is the rounded quotient for every sum of four bytes.
func TestCode1MAD(t *testing.T) {
	r := math.Float32frombits(constants(t, "code_1mad_reciprocal")[0])
	rest := math.Float32frombits(constants(t, "code_1mad_rest")[0])
	const d float32 = 147.800537109375
	if r != 1/d || rest != float32(1/float64(d)-float64(r)) {
		t.Fatalf("reciprocal %v, and the rest of it %v", r, rest)
	}
	for i := -510; i <= 510; i++ {
		y := float32(i)
		if got := f32.FMA(y, r, y*rest); got != y/d {
			t.Errorf("y = %d: %v, want %v", i, got, y/d)
		}
	}
}

func TestLaunchLimits(t *testing.T) {
	for _, limit := range []struct{ threads, memory int }{{1024, ThreadgroupLimit}, {896, ThreadgroupLimit}, {256, ThreadgroupLimit}, {1024, 16 << 10}, {32, ThreadgroupLimit}} {
		for d := 1; d <= 8192; d++ {
			if !hadamard.Supported(d) {
				continue
			}
			for _, rows := range []int{1, 5, 4096, 1 << 20} {
				p, err := RowLaunch(d, rows, limit.threads, limit.memory)
				if err != nil {
					if 4*d <= limit.memory {
						t.Errorf("RowLaunch(%d) in %d bytes: %v", d, limit.memory, err)
					}
					continue
				}
				held := p.Threads[0] / p.ThreadsPerRow
				switch {
				case p.ThreadsPerRow%32 != 0, p.Threads[0] != held*p.ThreadsPerRow, p.Threads[0] > limit.threads,
					p.Bytes%16 != 0, p.Bytes > limit.memory, p.Bytes < 4*d*held, p.Groups[0]*held < rows, (p.Groups[0]-1)*held >= rows,
					limit.threads >= 256 && limit.memory == ThreadgroupLimit && p.Threads[0] < 256 && 2*4*d*held <= limit.memory:
					t.Errorf("RowLaunch(%d, %d, %v) = %+v", d, rows, limit, p)
				}
			}
		}
		for _, units := range []int{1, 3, 16, 64, 1000, 4096} {
			for _, rows := range []int{1, 3, 4096, 1<<20 + 1} {
				g := ElementGrid(units, rows, limit.threads)
				n := g.Threads[0] * g.Threads[1]
				if n > limit.threads || g.Groups[0]*g.Threads[0] < units || g.Groups[1]*g.Threads[1] < rows || n != min(256, limit.threads) {
					t.Errorf("ElementGrid(%d, %d) = %+v", units, rows, g)
				}
			}
		}
		for _, rows := range []int{1, 7, 8, 9, 4096} {
			if g := LaneGrid(rows, limit.threads); g.Threads[0]%32 != 0 || g.Threads[0] > limit.threads || g.Groups[0]*g.Threads[0]/32 < rows {
				t.Errorf("LaneGrid(%d) = %+v", rows, g)
			}
		}
		for L := 2; L <= 16; L++ {
			for k := 1; k <= 8 && k < L; k++ {
				p := TrellisLaunch(L, k, 256, 1<<20, 100, 4, limit.threads, limit.memory)
				v, ok := Lookup(p.Kernel)
				if !ok || v.Op != "trellis_encode" || v.Bits != 0 && v.Bits != k {
					t.Errorf("L=%d k=%d: kernel %s", L, k, p.Kernel)
				}
				if p.Threads%32 != 0 || p.Threads > limit.threads || p.Bytes%16 != 0 || p.Bytes > limit.memory || p.SlotBytes%16 != 0 || p.SlotBytes < uint64(p.Blocks*(256*8+255*(k<<(L-k))/8)) {
					t.Errorf("L=%d k=%d %v: %+v", L, k, limit, p)
				}
			}
		}
	}
	if g := LaneGrid(4096, 1024); g.Threads[0] < 256 {
		t.Errorf("LaneGrid(4096) launches %d threads", g.Threads[0])
	}
	for k := 1; k <= 8; k++ {
		for L := max(8, k+1); L <= 12; L++ {
			p := TrellisLaunch(L, k, 256, 1<<20, 100, 2, 1024, ThreadgroupLimit)
			if v, _ := Lookup(p.Kernel); v.Bits != k || p.Threads != SearchThreads || p.Blocks != 2<<(12-L) {
				t.Errorf("L=%d k=%d: %+v, want a special kernel and two rounds", L, k, p)
			}
			if p := TrellisLaunch(L, k, 256, 100, 100, 4, 1024, ThreadgroupLimit); p.Rounds != 1 {
				t.Errorf("L=%d k=%d: %d rounds of few blocks", L, k, p.Rounds)
			}
		}
	}
}

// Every operation has a line in the table, and every line kernels.
func TestTableHasEveryOperation(t *testing.T) {
	kernels := map[string]int{}
	for _, v := range Variants() {
		kernels[v.Op]++
	}
	table := Table()
	for op, n := range kernels {
		if !strings.Contains(table, fmt.Sprintf("\n| %s | %d | ", op, n)) {
			t.Errorf("the table lacks %s with %d kernels", op, n)
		}
	}
	if len(ops) != len(kernels) {
		t.Errorf("%d lines for %d operations", len(ops), len(kernels))
	}
}

func TestCheckCanaryLength(t *testing.T) {
	if _, err := CheckCanary(make([]byte, CanaryLen-1)); err == nil {
		t.Error("a short output is accepted")
	}
	if in, args := CanaryInput(); len(in) != int(args.Count)*12 {
		t.Errorf("%d bytes of input for %d triples", len(in), args.Count)
	}
}

// The CUDA dialect has the text of the Metal sources, on its lines, and an entry point for each kernel.
func TestCUDASource(t *testing.T) {
	entry := regexp.MustCompile(`(?m)^extern "C" __global__ void __launch_bounds__\((\d+)(?:, \d)?\) (\w+)\(`)
	kernels := 0
	for _, family := range Families() {
		source := CUDASource(Family(family)...)
		for _, file := range []string{"layout.metal", "common.metal", family + ".metal"} {
			_, rest, ok := strings.Cut(source, "#line 1 \""+file+"\"\n")
			if !ok {
				t.Errorf("%s lacks %s", family, file)
				continue
			}
			n := 0
			for want := range strings.Lines(text(file)) {
				n++
				line, after, _ := strings.Cut(rest, "\n")
				rest = after
				if want = strings.TrimSuffix(want, "\n"); line != want && !strings.HasPrefix(want, "#pragma ") {
					t.Errorf("%s: %s:%d is %q", family, file, n, line)
				}
				if got := strings.TrimSuffix(Line(file, n), "\n"); got != want {
					t.Errorf("Line(%s, %d) = %q, want %q", file, n, got, want)
				}
			}
		}
		if strings.Contains(source, "#pragma METAL") || strings.Contains(source, "#pragma clang") || strings.Contains(source, "[[") {
			t.Errorf("%s has words of Metal's", family)
		}
		for _, m := range entry.FindAllStringSubmatch(source, -1) {
			v, ok := Lookup(m[2])
			if !ok || v.Family != family || strings.Contains(source, "kernel void "+v.Name+"(") {
				t.Errorf("%s: entry point %s", family, m[2])
			}
			kernels++
		}
	}
	if kernels != len(Variants()) {
		t.Errorf("%d entry points for %d kernels", kernels, len(Variants()))
	}
	for _, at := range []struct {
		file string
		n    int
	}{{"copy.metal", 0}, {"copy.metal", 1 << 20}, {"no such", 1}} {
		if got := Line(at.file, at.n); got != "" {
			t.Errorf("Line(%s, %d) = %q", at.file, at.n, got)
		}
	}
}

func TestSourceNamesFiles(t *testing.T) {
	for _, name := range append(metalFiles(t), "instances.metal") {
		if strings.Count(Source(Variants()...), "#line 1 \""+name+"\"\n") != 1 {
			t.Errorf("no #line directive for %s", name)
		}
	}
}

// The constants that define bytes and that the shaders spell out are those of the packages that own them.
func TestConstantsOfLeaves(t *testing.T) {
	literals := func(pattern string) (out []float32) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(Source(Variants()...), -1) {
			for _, text := range regexp.MustCompile(`[0-9.]+(e-?\d+)?`).FindAllString(m[1], -1) {
				v, err := strconv.ParseFloat(text, 32)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, float32(v))
			}
		}
		return out
	}
	factors := lloydmax.SearchFactors()
	if got := literals(`search_factors\[9\] = \{([^}]*)\}`); !slices.Equal(got, factors[:]) {
		t.Errorf("search factors %v, want %v", got, factors)
	}
	eps := literals(`\b(1e-8)f\b`)
	for _, got := range eps {
		if want := []float32{affine.Eps, lloydmax.Eps}; got != want[0] || got != want[1] {
			t.Errorf("epsilon %v, want %v", got, want)
		}
	}
	if want := strings.Count(Source(Variants()...), "1e-8f"); len(eps) == 0 || len(eps) != want {
		t.Errorf("%d epsilons, want %d", len(eps), want)
	}
	if got := literals(`sample_limit = ([0-9.]+)f`); len(got) != 1 || got[0] != trellis.MaxSample {
		t.Errorf("largest sample %v, want %v", got, float32(trellis.MaxSample))
	}
}

// divide_by is the rounded quotient: of random numbers, and of numbers whose quotient lies next to the middle of two
// floats, for divisors of random and of extreme fractions.
func TestDivideBy(t *testing.T) {
	if !strings.Contains(Source(Variants()...), "const float q = x * reciprocal;\n    const float e = fma(-q, d, x);\n    return fma(e, reciprocal, q);") {
		t.Fatal("divide_by is not what this test computes")
	}
	divide := func(x, d float32) float32 {
		r := 1 / d
		q := x * r
		return f32.FMA(f32.FMA(-q, d, x), r, q)
	}
	r := rand.New(rand.NewPCG(15, 5))
	trials := 200_000
	if os.Getenv("TURBOTRELLIS_LONG") != "" {
		trials = 50_000_000
	}
	for i := range trials {
		fraction := r.Uint32() & 0x7fffff
		switch i % 8 {
		case 0:
			fraction = uint32(i/8) & 0xff
		case 1:
			fraction = 0x7fffff - uint32(i/8)&0xff
		}
		d := math.Float32frombits(uint32(100+i%60)<<23 | fraction)
		middle := (float64(r.Uint32()&0x7fffff|0x800000) + 0.5) * 0x1p-23 // of two floats
		x := float32(middle * float64(d))
		for _, x := range []float32{x, math.Nextafter32(x, 0), math.Nextafter32(x, x*2), -x, r.Float32()} {
			if got, want := divide(x, d), x/d; got != want {
				t.Fatalf("%x / %x = %x, want %x", x, d, got, want)
			}
		}
	}
}
