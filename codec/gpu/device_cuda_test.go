//go:build cuda && !metal

package gpu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/cuda"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

const deviceName = "cuda"

const families = false

var source = shaders.CUDASource

// openDevice opens the first CUDA device, which flushes subnormals if TURBOTRELLIS_TEST_FTZ is set.
func openDevice() (gpu.Device, error) {
	return cuda.Open(cuda.Options{FlushSubnormals: os.Getenv("TURBOTRELLIS_TEST_FTZ") != ""})
}

// Every kernel again with buffers exactly as long as what they hold, which compute-sanitizer's memcheck watches,
// and in many slabs.
func TestExactBuffers(t *testing.T) {
	for _, o := range []Options{{exact: true}, {exact: true, stage: 4096}} {
		e := newExercise(t, open(t, o))
		e.all()
		t.Logf("stage %d: compared %d elements", o.stage, e.compared)
	}
}

// A grid of more than 65535 threadgroups in y, which CUDA takes in parts.
func TestTallGrid(t *testing.T) {
	if os.Getenv("TURBOTRELLIS_LONG") == "" {
		t.Skip("67 million weights: set TURBOTRELLIS_LONG")
	}
	b := open(t, Options{})
	p := trellis.Params{L: 9, K: 2, T: 32}
	g := trellis.Geometry{Axis: 1, Out: 65537, In: 1024}
	r := ref.New()
	m := trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range m.Codes {
		m.Codes[i] = random.Uint32()
	}
	for i := range m.Scales {
		m.Scales[i] = 0x3c00 + uint16(random.UintN(256))
	}
	got, want := codec.NewTensor(codec.BF16, g.Out, g.In), codec.NewTensor(codec.BF16, g.Out, g.In)
	e := &exercise{t: t, b: b, r: r}
	e.must(newWeights(t, b, p).Decode(got, &m, 0))
	e.must(newReference(t, r, p).Decode(want, &m, 0))
	e.same("weights", codec.BF16, got.Data, want.Data)
	t.Logf("compared %d elements", e.compared)
}

func newReference(t *testing.T, r codec.Backend, p trellis.Params) codec.Trellis {
	t.Helper()
	c, err := r.Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBarrier runs every kernel with one barrier removed: "trellis:3" is the fourth of that family's source. It
// fails where the bits show it. scripts/cuda-barriers.sh runs it for each barrier, under racecheck too.
func TestBarrier(t *testing.T) {
	family, n, ok := strings.Cut(os.Getenv("TURBOTRELLIS_TEST_BARRIER"), ":")
	if !ok {
		t.Skip("for scripts/cuda-barriers.sh")
	}
	nth, err := strconv.Atoi(n)
	if err != nil {
		t.Fatal(err)
	}
	removed := ""
	b := open(t, Options{Source: func(kernels ...shaders.Variant) string {
		s := source(kernels...)
		if kernels[0].Family == family {
			if s, removed, err = withoutBarrier(s, nth); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}})
	defer func() { // behind a Fatal too
		if removed == "" {
			t.Error("no barrier was removed")
		}
		t.Log("removed ", removed)
	}()
	newExercise(t, b).all()
}

// withoutBarrier removes the nth barrier from a source and says which it was.
func withoutBarrier(s string, nth int) (changed, removed string, err error) {
	const barrier = "threadgroup_barrier(mem_flags::"
	parts := strings.Split(s, barrier)
	if nth+1 >= len(parts) {
		return "", "", fmt.Errorf("there are %d barriers", len(parts)-1)
	}
	before := strings.Join(parts[:nth+1], barrier)
	at := before[strings.LastIndex(before, "#line 1 "):]
	file := strings.SplitN(at, `"`, 3)[1]
	line := strings.Count(at, "\n")
	statement, after, _ := strings.Cut(barrier+strings.Join(parts[nth+1:], barrier), ";")
	return before + after, fmt.Sprintf("%s:%d: %s", file, line, statement), nil
}

// A search of 10^9 weights in one call never has a command buffer above 100 ms, and a context ends it in about that
// time. With TURBOTRELLIS_LONG.
func TestLongSearch(t *testing.T) {
	if os.Getenv("TURBOTRELLIS_LONG") == "" {
		t.Skip("10^9 weights: set TURBOTRELLIS_LONG")
	}
	var s longest
	b := open(t, Options{}, s.wrap)
	g := trellis.Geometry{Axis: 1, Out: 244141, In: 4096}
	x := codec.Tensor{DType: codec.BF16, Shape: []int{g.Out, g.In}, Data: make([]byte, 2*g.Out*g.In)}
	some := tensor(codec.BF16, normals(1<<20), 1<<20).Data
	for i := 0; i < len(x.Data); i += len(some) {
		copy(x.Data[i:], some)
	}
	for _, k := range []int{1, 2, 4, 8} {
		s.most.Store(0)
		s.runs.Store(0)
		c := newWeights(t, b, trellis.DefaultParams(k))
		var m trellis.Matrix
		start := time.Now()
		if err := c.Encode(t.Context(), &m, codec.Tensor{}, x, g); err != nil {
			t.Fatal(err)
		}
		took, most := time.Since(start), time.Duration(s.most.Load())
		ctx, cancel := context.WithCancel(t.Context())
		var cancelled time.Time
		time.AfterFunc(500*time.Millisecond, func() { cancelled = time.Now(); cancel() })
		if err := c.Encode(ctx, &m, codec.Tensor{}, x, g); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		stopped := time.Since(cancelled)
		t.Logf("k = %d: %d weights in %v, %d command buffers of at most %v; stopped %v after the context", k, g.Out*g.In, took, s.runs.Load(), most, stopped)
		if most > 100*time.Millisecond || stopped > 200*time.Millisecond {
			t.Errorf("k = %d: a command buffer of %v, stopped after %v", k, most, stopped)
		}
	}
}

// longest remembers how long the longest run on a device took, by the wall clock.
type longest struct {
	gpu.Device
	most, runs atomic.Int64
}

func (l *longest) wrap(d gpu.Device) (gpu.Device, error) {
	l.Device = d
	return l, nil
}

func (l *longest) Run(list ...gpu.Dispatch) (time.Duration, error) {
	start := time.Now()
	d, err := l.Device.Run(list...)
	l.runs.Add(1)
	if took := int64(time.Since(start)); took > l.most.Load() {
		l.most.Store(took)
	}
	return d, err
}
