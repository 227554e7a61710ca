package metal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

// These tests go through gpu.Device only, so they hold for whichever driver was compiled in.
// Without one, or without a device, they skip, unless the environment variable REQUIRE_BACKENDS
// names metal.

const source = `#include <metal_stdlib>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#pragma clang fp contract(off)
using namespace metal;
#if defined(__FAST_MATH__)
constant uint fastMath = 1;
#else
constant uint fastMath = 0;
#endif

struct AddArgs { uint n; uint value; };

kernel void add(device uint* x [[buffer(0)]], constant AddArgs& a [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    if (i < a.n) {
        x[i] += a.value;
    }
}

kernel void reverse(const device uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
                    threadgroup uint* low [[threadgroup(0)]], threadgroup uint* high [[threadgroup(1)]],
                    uint group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
    const uint v = x[group * 64 + t];
    if (t < 32) {
        low[t] = v;
    } else {
        high[t - 32] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[group * 64 + t] = t < 32 ? high[31 - t] : low[63 - t];
}

kernel void shape(device uint* y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                  uint3 t [[thread_position_in_threadgroup]], uint3 groups [[threadgroups_per_grid]],
                  uint3 size [[threads_per_threadgroup]]) {
    const uint g = (group.z * groups.y + group.y) * groups.x + group.x;
    const uint i = (t.z * size.y + t.y) * size.x + t.x;
    y[g * (size.x * size.y * size.z) + i] = group.x | group.y << 4 | group.z << 8 | t.x << 12 | t.y << 16 | t.z << 20;
}

kernel void isFast(device uint* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = fastMath;
}
`

func open(t testing.TB) gpu.Device {
	t.Helper()
	d, err := metal.Open(gpu.Options{})
	if errors.Is(err, gpu.ErrUnavailable) && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), "metal") {
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

func library(t testing.TB, d gpu.Device) gpu.Library {
	t.Helper()
	l, err := d.NewLibrary(source, gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func pipeline(t testing.TB, l gpu.Library, name string) gpu.Pipeline {
	t.Helper()
	p, err := l.Pipeline(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func buffer(t testing.TB, d gpu.Device, n int) gpu.Buffer {
	t.Helper()
	b, err := d.NewBuffer(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func words(b gpu.Buffer) []uint32 {
	list := make([]uint32, b.Len()/4)
	binary.Decode(b.Bytes(), binary.LittleEndian, list)
	return list
}

// addTo adds value to the first n words of b from the offset on.
func addTo(p gpu.Pipeline, b gpu.Buffer, offset, n, value int) gpu.Dispatch {
	args := binary.LittleEndian.AppendUint32(nil, uint32(n))
	return gpu.Dispatch{
		Pipeline:  p,
		Buffers:   []gpu.Binding{{Buffer: b, Offset: offset}},
		Args:      binary.LittleEndian.AppendUint32(args, uint32(value)),
		Groups:    [3]int{(n + 63) / 64, 1, 1},
		GroupSize: [3]int{64, 1, 1},
	}
}

func run(t testing.TB, d gpu.Device, list ...gpu.Dispatch) {
	t.Helper()
	if _, err := d.Run(list...); err != nil {
		t.Fatal(err)
	}
}

func TestInfo(t *testing.T) {
	d := open(t)
	info := d.Info()
	t.Logf("%+v", info)
	if info.Driver != metal.Name || info.Name == "" || info.RegistryID == 0 || info.WorkingSet == 0 || info.MaxBuffer < 1<<20 {
		t.Error("incomplete")
	}
	if info.MaxThreadgroupMemory < 16<<10 || info.MaxThreads[0] < 64 || info.MaxThreads[1] < 1 || info.MaxThreads[2] < 1 {
		t.Error("limits")
	}
	list, err := metal.List()
	if err != nil || len(list) == 0 || list[0] != info {
		t.Error(list, err)
	}
	for _, o := range []gpu.Options{{Name: info.Name}, {RegistryID: info.RegistryID}} {
		e, err := metal.Open(o)
		if err != nil {
			t.Error(err)
			continue
		}
		if e.Info() != info {
			t.Error(e.Info())
		}
		e.Close()
	}
	for _, o := range []gpu.Options{{Name: "no such device"}, {RegistryID: ^info.RegistryID}} {
		if _, err := metal.Open(o); !errors.Is(err, gpu.ErrUnavailable) {
			t.Error(o, err)
		}
	}
}

func TestRun(t *testing.T) {
	d := open(t)
	l := library(t, d)
	add, reverse, shape := pipeline(t, l, "add"), pipeline(t, l, "reverse"), pipeline(t, l, "shape")
	for _, p := range []gpu.Pipeline{add, reverse, shape} {
		if p.MaxThreads() < 64 || p.ExecutionWidth() == 0 || p.StaticThreadgroupMemory() != 0 {
			t.Error(p.Name(), p.MaxThreads(), p.ExecutionWidth(), p.StaticThreadgroupMemory())
		}
	}
	l.Release() // pipelines live on

	x, y := buffer(t, d, 4*130), buffer(t, d, 4*128)
	if !bytes.Equal(x.Bytes(), make([]byte, 4*130)) {
		t.Error("a new buffer is not zero")
	}
	for i := range 130 {
		binary.LittleEndian.PutUint32(x.Bytes()[4*i:], uint32(1000*i))
	}
	spent, err := d.Run(
		addTo(add, x, 8, 127, 7), // leaves words 0, 1 and 129 alone
		gpu.Dispatch{
			Pipeline:          reverse,
			Buffers:           []gpu.Binding{{Buffer: x, Offset: 8}, {Buffer: y}},
			ThreadgroupMemory: []int{128, 128},
			Groups:            [3]int{2, 1, 1},
			GroupSize:         [3]int{64, 1, 1},
		},
		addTo(add, y, 0, 128, 1),
	)
	if err != nil || spent < 0 {
		t.Fatal(spent, err)
	}
	for i, got := range words(x) {
		want := uint32(1000 * i)
		if i >= 2 && i < 129 {
			want += 7
		}
		if got != want {
			t.Errorf("x[%d] = %d, want %d", i, got, want)
		}
	}
	from := words(x)[2:]
	for i, got := range words(y) {
		if want := from[i/64*64+63-i%64] + 1; got != want {
			t.Errorf("y[%d] = %d, want %d", i, got, want)
		}
	}

	groups, size := [3]int{3, 2, 4}, [3]int{5, 4, 2}
	z := buffer(t, d, 4*24*40)
	run(t, d, gpu.Dispatch{Pipeline: shape, Buffers: []gpu.Binding{{Buffer: z}}, Groups: groups, GroupSize: size})
	got := words(z)
	for g := range 24 {
		for i := range 40 {
			gx, gy, gz, tx, ty, tz := g%3, g/3%2, g/6, i%5, i/5%4, i/20
			if want := uint32(gx | gy<<4 | gz<<8 | tx<<12 | ty<<16 | tz<<20); got[40*g+i] != want {
				t.Fatalf("group %d thread %d: %#x, want %#x", g, i, got[40*g+i], want)
			}
		}
	}
}

// A dispatch's threadgroup memory does not count against the next one's.
func TestThreadgroupMemoryIsPerDispatch(t *testing.T) {
	d := open(t)
	l := library(t, d)
	reverse := pipeline(t, l, "reverse")
	x, y := buffer(t, d, 256), buffer(t, d, 256)
	for i := range x.Bytes() {
		x.Bytes()[i] = byte(i)
	}
	half := d.Info().MaxThreadgroupMemory / 2
	a := gpu.Dispatch{Pipeline: reverse, Buffers: []gpu.Binding{{Buffer: x}, {Buffer: y}}, Groups: [3]int{1, 1, 1}, GroupSize: [3]int{64, 1, 1}}
	b, c := a, a
	a.ThreadgroupMemory = []int{128, half}
	b.ThreadgroupMemory = []int{2*half - 128, 128}
	c.ThreadgroupMemory = []int{2*half - 112, 128}
	run(t, d, a, b)
	if got := words(y); got[0] != words(x)[63] || got[63] != words(x)[0] {
		t.Error(got)
	}
	if _, err := d.Run(c); !errors.Is(err, gpu.ErrInvalid) {
		t.Error(err)
	}
}

func TestCompileOptions(t *testing.T) {
	d := open(t)
	y := buffer(t, d, 4)
	for want, o := range []gpu.CompileOptions{{}, {FastMath: true}} {
		l, err := d.NewLibrary(strings.Replace(source, "#pragma METAL fp math_mode(safe)", "", 1), o)
		if err != nil {
			t.Fatal(err)
		}
		run(t, d, gpu.Dispatch{Pipeline: pipeline(t, l, "isFast"), Buffers: []gpu.Binding{{Buffer: y}}, Groups: [3]int{1, 1, 1}, GroupSize: [3]int{1, 1, 1}})
		if got := words(y)[0]; got != uint32(want) {
			t.Errorf("%+v: __FAST_MATH__ is %d, want %d", o, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	d := open(t)
	_, err := d.NewLibrary(strings.Replace(source, "x[i] += a.value", "x[i] += a.valve", 1), gpu.CompileOptions{})
	var e *gpu.Error
	if !errors.As(err, &e) || e.Err != gpu.ErrCompile || !strings.Contains(e.Detail, "valve") || e.Domain != "MTLLibraryErrorDomain" {
		t.Errorf("got %v", err)
	} else {
		t.Log(err)
	}
	line := strconv.Itoa(1 + strings.Count(source[:strings.Index(source, "x[i] += a.value")], "\n"))
	if e != nil && !strings.Contains(e.Detail, ":"+line+":") {
		t.Errorf("the compiler's text does not name line %s", line)
	}
	l := library(t, d)
	if _, err := l.Pipeline("subtract"); !errors.Is(err, gpu.ErrNoFunction) {
		t.Error(err)
	}
	if max := d.Info().MaxBuffer; max < 1<<62 {
		if _, err := d.NewBuffer(int(max) + 1); !errors.Is(err, gpu.ErrOutOfMemory) {
			t.Error(err)
		}
	}
	p := pipeline(t, l, "add")
	x := addTo(p, buffer(t, d, 256), 0, 64, 1)
	for _, change := range []func(*gpu.Dispatch){
		func(x *gpu.Dispatch) { x.GroupSize[0] = p.MaxThreads() + 1 },
		func(x *gpu.Dispatch) { x.ThreadgroupMemory = []int{8} },
		func(x *gpu.Dispatch) { x.ThreadgroupMemory = []int{d.Info().MaxThreadgroupMemory + 16} },
		func(x *gpu.Dispatch) { x.Args = make([]byte, 4096) },
		func(x *gpu.Dispatch) { x.Buffers = []gpu.Binding{{Buffer: x.Buffers[0].Buffer, Offset: 256}} },
		func(x *gpu.Dispatch) { x.Buffers = []gpu.Binding{{}} },
	} {
		bad := x
		change(&bad)
		if _, err := d.Run(x, bad); !errors.Is(err, gpu.ErrInvalid) {
			t.Error(err)
		}
	}
	if got := words(x.Buffers[0].Buffer)[0]; got != 0 {
		t.Errorf("a refused list ran: %d", got)
	}
	run(t, d, x)
	if got := words(x.Buffers[0].Buffer)[0]; got != 1 {
		t.Errorf("got %d", got)
	}
}

// Goroutines share a device while the garbage collector runs all the time.
func TestConcurrent(t *testing.T) {
	d := open(t)
	l := library(t, d)
	shared := pipeline(t, l, "add")
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	stop := make(chan struct{})
	var collector, group sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for g := range 8 {
		group.Go(func() {
			own, err := l.Pipeline("add")
			if err != nil {
				t.Error(err)
				return
			}
			defer own.Release()
			for i := range rounds {
				n := 1 + (g*131+i*17)%300
				b, err := d.NewBuffer(4 * n)
				if err != nil {
					t.Error(err)
					return
				}
				// The dispatches are made of fresh memory, which the collector would love to have.
				if _, err := d.Run(addTo(shared, b, 0, n, g), addTo(own, b, 0, n, i)); err != nil {
					t.Error(err)
				}
				for at, got := range words(b) {
					if got != uint32(g+i) {
						t.Errorf("goroutine %d round %d: word %d is %d", g, i, at, got)
						break
					}
				}
				b.Release()
			}
		})
	}
	group.Wait()
	close(stop)
	collector.Wait()
}

// The same with freed memory overwritten.
func TestClobberFree(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Skip("a child of a process that has used Metal may hang: GODEBUG=clobberfree=1 go test -run 'Run|Errors|Concurrent'")
	}
	open(t).Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^(TestRun|TestErrors|TestConcurrent)$", "-test.short", "-test.count=1", "-test.v")
	c.Env = append(os.Environ(), "GODEBUG=clobberfree=1")
	out, err := c.CombinedOutput()
	if err != nil && strings.HasSuffix(err.Error(), "exec format error") {
		t.Skip(err) // run by an emulator
	}
	if err != nil || strings.Count(string(out), "--- PASS") != 5 {
		t.Errorf("%v\n%s", err, out)
	}
}

// Many dispatches leave no growth in memory. TURBOTRELLIS_LONG makes it 10^5.
func TestNoGrowth(t *testing.T) {
	d := open(t)
	l := library(t, d)
	p := pipeline(t, l, "add")
	defer l.Release()
	keep := buffer(t, d, 256)
	rounds := 1000
	if os.Getenv("TURBOTRELLIS_LONG") != "" {
		rounds = 100_000
	}
	round := func(i int) {
		b := buffer(t, d, 64<<10+64*(i%5))
		for at := range b.Bytes() {
			b.Bytes()[at] = byte(i)
		}
		run(t, d, addTo(p, b, 0, 64, 1), addTo(p, keep, 0, 64, 1))
		b.Release()
	}
	for i := range rounds / 5 { // let pools and arenas fill
		round(i)
	}
	objects, memory := liveObjects(), residentBytes()
	for i := range rounds {
		round(i)
	}
	runtime.GC()
	if after := liveObjects(); after != objects {
		t.Errorf("%d objects, were %d", after, objects)
	}
	grown := residentBytes() - memory
	t.Logf("%d dispatches: resident memory grew by %d bytes", 2*rounds, grown)
	if grown > 16<<20 { // a quarter of the buffers
		t.Errorf("resident memory grew by %d bytes in %d rounds", grown, rounds)
	}
	if got := words(keep)[0]; got != uint32(rounds+rounds/5) {
		t.Error(got)
	}
}

// residentBytes is what the process has in memory, 0 where the system does not say.
func residentBytes() int {
	stat, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.Atoi(strings.Fields(string(stat))[1])
	return pages * os.Getpagesize()
}

func BenchmarkRun(b *testing.B) {
	d := open(b)
	l := library(b, d)
	x := addTo(pipeline(b, l, "add"), buffer(b, d, 256), 0, 64, 1)
	b.ReportAllocs()
	for b.Loop() {
		run(b, d, x)
	}
}
