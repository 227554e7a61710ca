//go:build metal && hostmetal

package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebitengine/purego"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// What hostmetal.h declares.
var hostmetal struct {
	live     func(name *byte) int
	fault    func(name string, n int) int32
	clear    func()
	abort    func(on int32)
	misuses  func() uint
	last     func() string
	seed     func(uint64)
	ftz      func(on int32)
	dispatch func(name string) uint64
}

var hooks = sync.OnceFunc(func() {
	for f, name := range map[any]string{
		&hostmetal.live: "hostmetal_live_count", &hostmetal.fault: "hostmetal_set_fault", &hostmetal.clear: "hostmetal_clear_faults",
		&hostmetal.abort: "hostmetal_set_abort", &hostmetal.misuses: "hostmetal_misuses", &hostmetal.last: "hostmetal_last_misuse",
		&hostmetal.seed: "hostmetal_set_seed", &hostmetal.ftz: "hostmetal_set_ftz", &hostmetal.dispatch: "hostmetal_counter",
	} {
		purego.RegisterLibFunc(f, purego.RTLD_DEFAULT, name)
	}
})

// start opens the default device, after which the library is loaded.
func start(t testing.TB, o Options, wrap ...func(gpu.Device) (gpu.Device, error)) *Backend {
	t.Helper()
	b := open(t, o, wrap...)
	hooks()
	return b
}

func fault(t testing.TB, name string, n int) {
	t.Helper()
	hooks()
	t.Cleanup(hostmetal.clear)
	if hostmetal.fault(name, n) != 0 {
		t.Fatal("hostmetal has no fault", name)
	}
}

func long() bool { return os.Getenv("TURBOTRELLIS_LONG") != "" }

// small is a call of each kind that fits anywhere, with its check.
func small(e *exercise) {
	e.t.Helper()
	e.kv(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0}, codec.F32, codec.F16, []int{2, 2, 2}, layouts[0], 1)
	e.trellis(trellis.Params{L: 8, K: 2, T: 32, Scale: trellis.Refit}, trellis.Geometry{Axis: 1, Out: 3, In: 64, Interleaved: true}, codec.F32, codec.F32, 1)
}

// Kernels that are compiled alone, as on a Mac: every kernel in the long form.
func TestSingleKernels(t *testing.T) {
	start(t, Options{}).Close()
	b, err := Open(deviceName, openDevice, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	e := newExercise(t, b)
	if long() {
		e.all()
	} else {
		small(e)
	}
}

// A device that fails a check is refused by the name of the check, and goes.
func TestBadDevices(t *testing.T) {
	start(t, Options{}).Close()
	for _, test := range []struct{ fault, reason string }{
		{"no-device", "no Metal device"},
		{"no-queue", "command queue"},
		{"contracts", "contraction of x·y + z"},
		{"rounds-wrongly", "rounding of"},
		{"width-16", "SIMD-groups of 16 threads"},
		{"no-library", "injected"},
		{"no-function", "canary"},
		{"no-pipeline", "injected"},
		{"no-buffer", "out of memory"},
		{"no-command-buffer", "no command buffer"},
		{"no-encoder", "no encoder"},
		{"command-timeout", "timed out"},
		{"command-page-fault", "page fault"},
		{"command-out-of-memory", "out of memory"},
	} {
		fault(t, test.fault, -1)
		b, err := Open(deviceName, openDevice, Options{})
		hostmetal.clear()
		if b != nil || !errors.Is(err, codec.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), test.reason) {
			t.Errorf("%s: backend %v, error %v", test.fault, b != nil, err)
		} else {
			t.Logf("%s: %v", test.fault, err)
		}
		if n := hostmetal.live(nil); n != 0 {
			t.Errorf("%s: %d objects left", test.fault, n)
		}
	}
}

// A device whose command buffers the system ignores, or that does not answer, is lost: the call says so, the next
// one has a new queue, memory from Alloc stays, and nothing is left behind. A second loss is for good.
func TestLostByMetal(t *testing.T) {
	start(t, Options{}).Close()
	for _, name := range []string{"command-ignored", "command-hang"} {
		b, err := Open(deviceName, func() (gpu.Device, error) { return metal.Open(gpu.Options{Timeout: 3 * time.Second}) }, Options{})
		if err != nil {
			t.Fatal(err)
		}
		e := newExercise(t, b)
		kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
		x, err := b.NewTensor(codec.F32, 6, 64)
		e.must(err)
		copy(x.Data, tensor(codec.F32, samples(6, 64, 1), 6, 64).Data)
		var want, k codec.Keys
		e.must(kv.EncodeKeys(&want, x))
		for range 2 {
			fault(t, name, 1)
			if err := kv.EncodeKeys(&k, x); !errors.Is(err, gpu.ErrLost) {
				t.Errorf("%s: %v", name, err)
			}
			hostmetal.clear()
			err := kv.EncodeKeys(&k, x)
			if errors.Is(err, gpu.ErrLost) {
				break // the second time
			}
			e.must(err)
			e.same(name, 0, k.Codes, want.Codes)
		}
		if err := kv.EncodeKeys(&k, x); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("%s, twice: %v", name, err)
		}
		e.must(b.Close())
		for range 500 { // a run that was given up may still be on its way out
			if hostmetal.live(nil) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := hostmetal.live(nil); n != 0 {
			t.Errorf("%s: %d objects left", name, n)
		}
	}
}

// A device of 256 threads and one of 1 MiB run what fits, and say what does not.
func TestLesserDevices(t *testing.T) {
	start(t, Options{}).Close()
	fault(t, "threads-256", 1)
	var s spy
	b := start(t, Options{}, s.wrap)
	hostmetal.clear()
	e := newExercise(t, b)
	e.all()
	if s.kernels["trellis_encode_any"] == 0 {
		t.Error("no general Viterbi ran")
	}
	// All 2^12 states in registers take 1024 threads.
	wide := trellis.Params{L: 12, K: 2, T: 32}
	e.trellis(wide, trellis.Geometry{Axis: 1, Out: 2, In: 32}, codec.F32, codec.F32, 3)
	if s.kernels["trellis_encode_k2"] == 0 { // L = 9 fits
		t.Error("no special Viterbi ran")
	}
	b.Close()

	fault(t, "little-memory", 1)
	b = start(t, Options{})
	hostmetal.clear()
	e = newExercise(t, b)
	small(e)
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Uint8, Values: codec.Q3_0})
	var k codec.Keys
	err := kv.EncodeKeys(&k, codec.NewTensor(codec.F32, 4<<20/256, 64))
	var input *codec.Error
	if !errors.Is(err, gpu.ErrOutOfMemory) || errors.As(err, &input) || len(k.Codes) != 0 {
		t.Errorf("4 MiB on a device of 1: %v", err)
	}
	small(e)
	b.Close()
	if n := hostmetal.live(nil); n != 0 {
		t.Errorf("%d objects left", n)
	}
	// In smaller pieces it fits.
	fault(t, "little-memory", 1)
	b = start(t, Options{stage: 64 << 10})
	hostmetal.clear()
	kv = newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Uint8, Values: codec.Q3_0})
	if err := kv.EncodeKeys(&k, codec.NewTensor(codec.F32, 4<<20/256, 64)); err != nil || len(k.Codes) != 1<<20 {
		t.Error(err)
	}
}

// Every fault in every call has its error, leaves nothing behind, and the backend
// works afterwards.
func TestFaults(t *testing.T) {
	b := start(t, Options{exact: true}) // every call allocates
	e := newExercise(t, b)
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	tr := newWeights(t, b, trellis.Params{L: 8, K: 2, T: 32, Scale: trellis.Refit})
	x := tensor(codec.F32, samples(6, 64, 1), 6, 64)
	g := trellis.Geometry{Axis: 1, Out: 6, In: 64, Interleaved: true}
	var k codec.Keys
	var v codec.Values
	var m trellis.Matrix
	e.must(kv.EncodeKeys(&k, x))
	e.must(kv.EncodeValues(&v, x))
	e.must(tr.Encode(context.Background(), &m, codec.Tensor{}, x, g))
	out, out2 := codec.NewTensor(codec.F32, 6, 64), codec.NewTensor(codec.F32, 6, 64)
	states := make([]uint16, 6*64)
	rows, err := b.Affine(affine.RowFormat{Bits: 4, Group: 32})
	e.must(err)
	var a codec.AffineRows
	e.must(rows.Quantize(&a, x))
	xs, y := tensor(codec.BF16, samples(6, 64, 2), 6, 64), codec.NewTensor(codec.F32, 6, 6)
	calls := map[string]func() error{
		"EncodeKeys":          func() error { return kv.EncodeKeys(new(codec.Keys), x) },
		"EncodeValues":        func() error { return kv.EncodeValues(new(codec.Values), x) },
		"DecodeKeys":          func() error { return kv.DecodeKeys(out, k) },
		"DecodeValues":        func() error { return kv.DecodeValues(out, v) },
		"DecodeValuesRotated": func() error { return kv.DecodeValuesRotated(out, v) },
		"Decode":              func() error { return kv.Decode(out, out2, k, v) },
		"DecodeRotated":       func() error { return kv.DecodeRotated(out, out2, k, v) },
		"Unrotate":            func() error { return kv.Unrotate(out, x) },
		"EncodeBlocks": func() error {
			return tr.EncodeBlocks(context.Background(), states, codec.Tensor{DType: codec.F32, Shape: []int{12, 32}, Data: x.Data})
		},
		"Encode weights": func() error { return tr.Encode(context.Background(), new(trellis.Matrix), out, x, g) },
		"Decode weights": func() error { return tr.Decode(out, &m, 0) },
		"MatMul":         func() error { return tr.MatMul(y, xs, &m, codec.ProductOptions{}) },
		"MatMul fast":    func() error { return tr.MatMul(y, xs, &m, codec.ProductOptions{Order: codec.Fast}) },
		"Quantize":       func() error { return rows.Quantize(new(codec.AffineRows), x) },
		"Dequantize":     func() error { return rows.Dequantize(out, a) },
		"AffineMatMul":   func() error { return rows.MatMul(y, xs, a, codec.ProductOptions{}) },
		"Mask": func() error {
			_, err := b.Mask(out, x, codec.Bitmask{Rows: 1, Words: 2, Data: make([]byte, 8)})
			return err
		},
		"Compact": func() error {
			return b.Compact(new(codec.Tensor), codec.Tensor{DType: codec.F32, Shape: []int{64, 6}, Stride: []int{1, 64}, Data: x.Data})
		},
		"Alloc": func() error { d, err := b.Alloc(64); _ = b.Free(d); return err },
	}
	faults := []struct {
		name  string
		class error
	}{
		{"no-command-buffer", gpu.ErrFailed}, {"no-encoder", gpu.ErrFailed}, {"no-buffer", gpu.ErrOutOfMemory},
		{"command-out-of-memory", gpu.ErrOutOfMemory}, {"command-timeout", gpu.ErrTimeout}, {"command-page-fault", gpu.ErrPageFault},
	}
	for name, call := range calls { // all that is cached, first
		if err := call(); err != nil {
			t.Fatal(name, err)
		}
	}
	struck := 0
	for name, call := range calls {
		for _, f := range faults {
			before := hostmetal.live(nil)
			for nth := 1; ; nth++ { // the first, the second, … until the call does not get there
				fault(t, f.name, nth)
				err := call()
				hostmetal.clear()
				if after := hostmetal.live(nil); after != before && name != "Alloc" {
					t.Fatalf("%s, %s %d: %d objects, were %d", name, f.name, nth, after, before)
				}
				if err == nil {
					if nth == 1 && (name != "Alloc" || f.name == "no-buffer") {
						t.Errorf("%s: %s did not strike", name, f.name)
					}
					break
				}
				var input *codec.Error
				if !errors.Is(err, f.class) || errors.As(err, &input) {
					t.Errorf("%s: %s %d: %v", name, f.name, nth, err)
				}
				struck++
				if err := call(); err != nil {
					t.Errorf("%s after %s: %v", name, f.name, err)
				}
			}
		}
	}
	small(e)
	t.Logf("%d faults struck", struck)
	// A library, a function and a pipeline that are not there: with nothing cached.
	for _, f := range []struct {
		name  string
		class error
	}{{"no-library", gpu.ErrCompile}, {"no-function", gpu.ErrNoFunction}, {"no-pipeline", gpu.ErrPipeline}} {
		fresh := start(t, Options{})
		kv := newCodec(t, fresh, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
		before := hostmetal.live(nil)
		fault(t, f.name, 1)
		err := kv.EncodeKeys(&k, x)
		hostmetal.clear()
		if !errors.Is(err, f.class) {
			t.Errorf("%s: %v", f.name, err)
		}
		if after := hostmetal.live(nil); after > before+1 { // the library may stay
			t.Errorf("%s: %d objects, were %d", f.name, after, before)
		}
		small(newExercise(t, fresh))
		fresh.Close()
	}
	b.Close()
	if n := hostmetal.live(nil); n != 0 {
		t.Errorf("%d objects after Close", n)
	}
	if n := hostmetal.misuses(); n != 0 {
		t.Errorf("%d misuses of the API: %s", n, hostmetal.last())
	}
}

// Orders of threads and flushing of subnormals change no bit: 16 orders, 64 with
// TURBOTRELLIS_LONG, flushing in every other one.
func TestOrders(t *testing.T) {
	b := start(t, Options{})
	defer hostmetal.seed(0)
	defer hostmetal.ftz(1)
	orders := 16
	if testing.Short() {
		orders = 2
	}
	if long() {
		orders = 64
	}
	e := newExercise(t, b)
	for seed := range orders {
		hostmetal.seed(uint64(seed + 1))
		hostmetal.ftz(int32(seed % 2))
		e.all()
	}
	t.Logf("%d orders; compared %d elements", orders, e.compared)
}

// The canary records what the device does with subnormals.
func TestFlushes(t *testing.T) {
	start(t, Options{}).Close()
	defer hostmetal.ftz(1)
	for on := range int32(2) {
		hostmetal.ftz(on)
		b := start(t, Options{})
		if b.Flushes() != (on == 1) {
			t.Errorf("flushing %d: recorded %t", on, b.Flushes())
		}
		b.Close()
	}
}

// Buffers exactly as long as what they hold: hostmetal has guard words on both
// sides and aborts where one changed. And many slabs give what one gives.
func TestGuardsAndSlabs(t *testing.T) {
	for _, o := range []Options{{exact: true}, {exact: true, stage: 4096}, {stage: 1 << 20}} {
		e := newExercise(t, start(t, o))
		e.all()
		if n := hostmetal.misuses(); n != 0 {
			t.Fatal(hostmetal.last())
		}
		e.b.Close()
		t.Logf("stage %d: compared %d elements", o.stage, e.compared)
	}
	if n := hostmetal.live(nil); n != 0 {
		t.Errorf("%d objects left", n)
	}
}

// Many dispatches leave no growth in objects or memory: 10^5 in the long form.
func TestSoak(t *testing.T) {
	b := start(t, Options{})
	dispatches := 2_000
	if long() {
		dispatches = 100_000
	}
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	x := tensor(codec.F32, samples(4, 64, 1), 4, 64)
	var k codec.Keys
	out := codec.NewTensor(codec.F16, 4, 64)
	round := func() {
		if err := kv.EncodeKeys(&k, x); err != nil {
			t.Fatal(err)
		}
		if err := kv.DecodeKeys(out, k); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		round()
	}
	objects, bytes := hostmetal.live(nil), resident(t)
	begin := hostmetal.dispatch("dispatches")
	for int(hostmetal.dispatch("dispatches")-begin) < dispatches {
		round()
	}
	if n := hostmetal.live(nil); n != objects {
		t.Errorf("%d objects after %d dispatches, were %d", n, dispatches, objects)
	}
	if grown := resident(t) - bytes; grown > 16<<20 {
		t.Errorf("%d bytes of memory more after %d dispatches", grown, dispatches)
	}
	t.Logf("%d dispatches, %d objects, %d bytes of memory, were %d", hostmetal.dispatch("dispatches")-begin, objects, resident(t), bytes)
}

// resident returns the memory of the process that is in use, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// Eight goroutines share one backend, on codecs of their own and of all, while
// faults strike some.
func TestConcurrent(t *testing.T) {
	b := start(t, Options{})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			e := newExercise(t, b)
			for j := range 4 {
				e.kv(codec.KVParams{HeadDim: 64, Keys: keyFormat([]int{2, 3, 4, 8}[(i+j)%4], false), Values: valueFormat([]int{2, 3, 4, 5, 8}[(i+j)%5]), ValueHeadDim: []int{64, 96, 128}[i%3]},
					allTypes[i%3], allTypes[j%3], []int{2, 2, 2}, layouts[(i+j)%len(layouts)], uint64(8*i+j))
			}
			e.trellis(trellis.Params{L: 8, K: 1 + i%4, T: 32}, trellis.Geometry{Axis: i % 2, Out: 64, In: 64}, codec.F32, codec.F32, uint64(i))
		})
	}
	group.Wait()
	fault(t, "command-timeout", 9)
	fault(t, "no-encoder", 23)
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	x := tensor(codec.F32, samples(4, 64, 1), 4, 64)
	var want codec.Keys
	newExercise(t, b).must(kv.EncodeKeys(&want, x))
	var mu sync.Mutex
	failures := 0
	for range 8 {
		group.Go(func() {
			for range 10 {
				var k codec.Keys
				err := kv.EncodeKeys(&k, x)
				if err == nil && !bytes.Equal(k.Codes, want.Codes) {
					t.Error("codes differ")
				}
				if err != nil {
					mu.Lock()
					failures++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if failures != 2 {
		t.Errorf("%d calls failed, want 2", failures)
	}
}

// Close waits for the calls in progress; calls that come later say ErrClosed.
func TestCloseDuringCalls(t *testing.T) {
	b := start(t, Options{})
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	x := tensor(codec.F32, samples(64, 64, 1), 64, 64)
	var group sync.WaitGroup
	started := make(chan struct{}, 8)
	for range 8 {
		group.Go(func() {
			for n := 0; ; n++ {
				var k codec.Keys
				err := kv.EncodeKeys(&k, x)
				if n == 1 {
					started <- struct{}{}
				}
				if errors.Is(err, codec.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if n := hostmetal.live(nil); n != 0 {
		t.Errorf("%d objects after Close", n)
	}
	group.Wait()
}

// Neither Go memory nor its addresses stay with the device: what it was given may
// move, change and go.
func TestKeepsNoGoMemory(t *testing.T) {
	b := start(t, Options{})
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	e := newExercise(t, b)
	var want codec.Keys
	e.must(kv.EncodeKeys(&want, tensor(codec.F32, samples(6, 64, 1), 6, 64)))
	codes := bytes.Clone(want.Codes)
	for range 50 {
		x := tensor(codec.F32, samples(6, 64, 1), 6, 64)
		var k codec.Keys
		e.must(kv.EncodeKeys(&k, x))
		for i := range x.Data {
			x.Data[i] = 0xff
		}
		clear(want.Codes)
		runtime.GC()
		e.same("codes", 0, k.Codes, codes)
		want = k
	}
}
