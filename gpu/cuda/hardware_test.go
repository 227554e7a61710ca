//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// The tests of this file run on a GPU. Without one they skip, unless REQUIRE_BACKENDS names cuda.

func openReal(t testing.TB) gpu.Device {
	t.Helper()
	d, err := Open(Options{})
	if errors.Is(err, gpu.ErrUnavailable) && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), driverName) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, gpu.ErrClosed) {
			t.Error(err)
		}
	})
	return d
}

const realSource = `
struct Part { unsigned origin[3], groups[3]; };
extern __shared__ unsigned room[];

// y = x + n, a thread each.
extern "C" __global__ void add(const unsigned* x, unsigned* y, const __grid_constant__ uint2 n, const __grid_constant__ Part p) {
    const unsigned i = (p.origin[0] + blockIdx.x) * blockDim.x + threadIdx.x;
    y[i] = x[i] + n.x;
}

// Counts groups, and those that are beyond the grid.
extern "C" __global__ void visit(unsigned* count, const __grid_constant__ Part p) {
    const unsigned at[3] = {p.origin[0] + blockIdx.x, p.origin[1] + blockIdx.y, p.origin[2] + blockIdx.z};
    atomicAdd(count, 1u);
    for (int i = 0; i < 3; i++) {
        if (at[i] >= p.groups[i]) atomicAdd(count + 1, 1u);
        atomicMax(count + 2 + i, at[i]);
    }
}

// Reverses n words by way of threadgroup memory.
extern "C" __global__ void reverse(unsigned* x, const __grid_constant__ uint2 n, const __grid_constant__ Part p) {
    for (unsigned i = threadIdx.x; i < n.x; i += blockDim.x) room[n.x - 1 - i] = x[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n.x; i += blockDim.x) x[i] = room[i];
}

// What ends a context.
extern "C" __global__ void illegal(unsigned* x, const __grid_constant__ Part p) { x[1ul << 40] = 1; }
extern "C" __global__ void misaligned(unsigned* x, const __grid_constant__ Part p) { *(unsigned*)((char*)x + 1) = 1; }
extern "C" __global__ void trap(unsigned* x, const __grid_constant__ Part p) { __trap(); }
`

var faults = []string{"illegal", "misaligned", "trap"}

func realKernels(t testing.TB, d gpu.Device) map[string]gpu.Pipeline {
	t.Helper()
	l, err := d.NewLibrary(realSource, gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := map[string]gpu.Pipeline{}
	for _, name := range append([]string{"add", "visit", "reverse"}, faults...) {
		if p[name], err = l.Pipeline(name); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func realBuffer(t testing.TB, make func(int) (gpu.Buffer, error), words ...uint32) gpu.Buffer {
	t.Helper()
	b, err := make(4 * len(words))
	if err == nil {
		err = b.Upload(0, little(words...))
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func little(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func realWords(t testing.TB, b gpu.Buffer) (words []uint32) {
	t.Helper()
	data := make([]byte, b.Len())
	if err := b.Download(0, data); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(data); i += 4 {
		words = append(words, binary.LittleEndian.Uint32(data[i:]))
	}
	return words
}

func run(t testing.TB, d gpu.Device, list ...gpu.Dispatch) {
	t.Helper()
	if _, err := d.Run(list...); err != nil {
		t.Fatal(err)
	}
}

// Arguments, offsets, order, both kinds of memory, and what is refused.
func TestHardwareRun(t *testing.T) {
	d := openReal(t)
	t.Logf("%+v", d.Info())
	p := realKernels(t, d)
	x, y := realBuffer(t, d.NewBuffer, 1, 2, 3, 4), realBuffer(t, d.NewShared, 9, 9, 9, 9)
	z, err := d.NewBuffer(16)
	if err != nil || !slices.Equal(realWords(t, z), make([]uint32, 4)) {
		t.Fatal("not zeroed", err)
	}
	add := func(from, to gpu.Binding, n int, v uint32) gpu.Dispatch {
		return gpu.Dispatch{Pipeline: p["add"], Buffers: []gpu.Binding{from, to}, Args: little(v, 0), Groups: [3]int{n, 1, 1}, GroupSize: [3]int{1, 1, 1}}
	}
	run(t, d, add(gpu.Binding{Buffer: x}, gpu.Binding{Buffer: y}, 4, 10), add(gpu.Binding{Buffer: y, Offset: 8}, gpu.Binding{Buffer: z, Offset: 4}, 2, 1000))
	if !bytes.Equal(y.Bytes(), little(11, 12, 13, 14)) || !slices.Equal(realWords(t, z), []uint32{0, 1013, 1014, 0}) {
		t.Errorf("%v, %v", y.Bytes(), realWords(t, z))
	}
	wrong := add(gpu.Binding{Buffer: x}, gpu.Binding{Buffer: y}, 4, 10)
	wrong.Args = nil
	if _, err := d.Run(wrong); !errors.Is(err, gpu.ErrInvalid) {
		t.Errorf("a kernel without its arguments: %v", err)
	}
	if _, err := d.NewBuffer(int(d.Info().MaxBuffer)); !errors.Is(err, gpu.ErrOutOfMemory) {
		t.Errorf("all of the memory: %v", err)
	}
}

// Grids beyond 65535 in y and z, and threadgroup memory beyond 48 KiB.
func TestHardwareLimits(t *testing.T) {
	d := openReal(t)
	p := realKernels(t, d)
	for _, groups := range [][3]int{{3, 5, 7}, {1, 65536, 1}, {2, 70000, 2}, {1, 1, 131071}, {1, 65537, 65537}} {
		if groups[1]*groups[2] > 1<<30 && !long() {
			continue
		}
		count := realBuffer(t, d.NewBuffer, 0, 0, 0, 0, 0)
		run(t, d, gpu.Dispatch{Pipeline: p["visit"], Buffers: []gpu.Binding{{Buffer: count}}, Groups: groups, GroupSize: [3]int{1, 1, 1}})
		want := []uint32{uint32(groups[0] * groups[1] * groups[2]), 0, uint32(groups[0] - 1), uint32(groups[1] - 1), uint32(groups[2] - 1)}
		if got := realWords(t, count); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", groups, got, want)
		}
	}
	most := d.Info().MaxThreadgroupMemory
	for _, n := range []int{16, 48 << 10, 48<<10 + 16, most} {
		words := make([]uint32, n/4)
		for i := range words {
			words[i] = uint32(i)
		}
		x := realBuffer(t, d.NewBuffer, words...)
		run(t, d, gpu.Dispatch{Pipeline: p["reverse"], Buffers: []gpu.Binding{{Buffer: x}}, Args: little(uint32(len(words)), 0), ThreadgroupMemory: []int{n},
			Groups: [3]int{1, 1, 1}, GroupSize: [3]int{256, 1, 1}})
		slices.Reverse(words)
		if !slices.Equal(realWords(t, x), words) {
			t.Errorf("%d bytes of threadgroup memory: wrong words", n)
		}
	}
	t.Logf("%d bytes of threadgroup memory", most)
}

// A fault is ErrLost, from then on too. Reset either brings the device back, with shared memory as it was, or is
// ErrLost: what the driver allows is logged. Each fault has a process of its own, since it may end CUDA for all of
// it.
func TestHardwareLost(t *testing.T) {
	if os.Getenv("TURBOTRELLIS_SANITIZED") != "" {
		t.Skip("a sanitizer reports the fault")
	}
	openReal(t).Close()
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestHardwareFault$", "-test.v")
			cmd.Env = append(os.Environ(), faultVariable+"="+fault)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "PASS: TestHardwareFault") {
				t.Errorf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "hardware_test.go") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

const faultVariable = "TURBOTRELLIS_TEST_FAULT"

// TestHardwareFault is what TestHardwareLost starts.
func TestHardwareFault(t *testing.T) {
	fault := os.Getenv(faultVariable)
	if fault == "" {
		t.Skip("for TestHardwareLost")
	}
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := realKernels(t, d)
	x, s := realBuffer(t, d.NewBuffer, 1), realBuffer(t, d.NewShared, 5)
	_, err = d.Run(gpu.Dispatch{Pipeline: p[fault], Buffers: []gpu.Binding{{Buffer: x}}, Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}})
	if !errors.Is(err, gpu.ErrLost) || !strings.Contains(err.Error(), fault+": device lost: ") {
		t.Fatal(err)
	}
	t.Log(err)
	if err := x.Upload(0, little(2)); !errors.Is(err, gpu.ErrLost) {
		t.Error(err)
	}
	r := d.(gpu.Resetter)
	if err := r.Reset(); err != nil {
		t.Log("Reset: ", err)
		if !errors.Is(err, gpu.ErrLost) || !r.Lost() || !bytes.Equal(s.Bytes(), little(5)) {
			t.Errorf("lost %t, %v, %v", r.Lost(), s.Bytes(), err)
		}
		if _, err := d.NewBuffer(4); !errors.Is(err, gpu.ErrLost) {
			t.Error(err)
		}
	} else {
		t.Log("Reset brought the device back")
		p = realKernels(t, d)
		x = realBuffer(t, d.NewBuffer, 0)
		add := func(from, to gpu.Buffer) gpu.Dispatch {
			return gpu.Dispatch{Pipeline: p["add"], Buffers: []gpu.Binding{{Buffer: from}, {Buffer: to}}, Args: little(1, 0), Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}}
		}
		run(t, d, add(s, x), add(x, s))
		if got := realWords(t, x); got[0] != 6 || !bytes.Equal(s.Bytes(), little(7)) {
			t.Errorf("%v, %v", got, s.Bytes())
		}
	}
	s.Release()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Goroutines share a device.
func TestHardwareConcurrent(t *testing.T) {
	d := openReal(t)
	p := realKernels(t, d)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			words := make([]uint32, 4096)
			for j := range 100 {
				make := d.NewBuffer
				if j%8 == 0 {
					make = d.NewShared
				}
				b, err := make(4 * len(words))
				if err != nil {
					t.Error(err)
					return
				}
				for k := range words {
					words[k] = uint32(i<<20 + j<<12 + k)
				}
				err = b.Upload(0, little(words...))
				x := gpu.Dispatch{Pipeline: p["add"], Buffers: []gpu.Binding{{Buffer: b}, {Buffer: b}}, Args: little(3, 0), Groups: [3]int{16, 1, 1}, GroupSize: [3]int{256, 1, 1}}
				if err == nil {
					_, err = d.Run(x, x)
				}
				if err != nil {
					t.Error(err)
					return
				}
				for k, w := range realWords(t, b) {
					if w != words[k]+6 {
						t.Errorf("goroutine %d, round %d: word %d is %#x, want %#x", i, j, k, w, words[k]+6)
						break
					}
				}
				b.Release()
			}
		})
	}
	group.Wait()
}

// Devices are listed, and each opens by its number and its name.
func TestHardwareList(t *testing.T) {
	openReal(t)
	infos, err := List()
	if err != nil || len(infos) == 0 {
		t.Fatal(infos, err)
	}
	for i, info := range infos {
		for _, o := range []Options{{Number: i}, {Name: info.Name}} {
			d, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if got := d.Info(); got.Name != info.Name || o.Name == "" && got != info {
				t.Errorf("%+v opened %+v, want %+v", o, got, info)
			}
			d.Close()
		}
	}
}

// BenchmarkOpen takes context creation apart from what a kernel needs from the cache.
func BenchmarkOpen(b *testing.B) {
	warm := openReal(b)
	kernel, _ := shaders.Lookup("values_inverse_b3")
	source := shaders.CUDASource(kernel)
	if _, err := warm.NewLibrary(source, gpu.CompileOptions{}); err != nil {
		b.Fatal(err)
	}
	var opening, first time.Duration
	for b.Loop() {
		start := time.Now()
		d, err := Open(Options{})
		if err != nil {
			b.Fatal(err)
		}
		opened := time.Now()
		l, err := d.NewLibrary(source, gpu.CompileOptions{})
		if err == nil {
			_, err = l.Pipeline(kernel.Name)
		}
		if err != nil {
			b.Fatal(err)
		}
		first += time.Since(opened)
		opening += opened.Sub(start)
		d.Close()
	}
	b.ReportMetric(opening.Seconds()*1e3/float64(b.N), "ms/open")
	b.ReportMetric(first.Seconds()*1e3/float64(b.N), "ms/first-kernel")
}

// BenchmarkRun is the smallest dispatch, and copies of 4 KiB to 64 MiB.
func BenchmarkRun(b *testing.B) {
	d := openReal(b)
	p := realKernels(b, d)
	x := realBuffer(b, d.NewBuffer, 0)
	b.Run("dispatch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			run(b, d, gpu.Dispatch{Pipeline: p["add"], Buffers: []gpu.Binding{{Buffer: x}, {Buffer: x}}, Args: little(1, 0), Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}})
		}
	})
	for _, size := range []struct {
		name string
		n    int
	}{{"4KiB", 4 << 10}, {"1MiB", 1 << 20}, {"64MiB", 64 << 20}} {
		buf, err := d.NewBuffer(size.n)
		if err != nil {
			b.Fatal(err)
		}
		data := make([]byte, size.n)
		for name, move := range map[string]func(int, []byte) error{"upload/": buf.Upload, "download/": buf.Download} {
			b.Run(name+size.name, func(b *testing.B) {
				b.SetBytes(int64(size.n))
				for b.Loop() {
					if err := move(0, data); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
