package gpu

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// slow is a device that says that a block takes so long, and what ran on it.
type slow struct {
	gpu.Device
	block time.Duration
	ran   func()

	mu     sync.Mutex
	blocks []int // of each search
}

func (s *slow) wrap(d gpu.Device) (gpu.Device, error) {
	s.Device = d
	return s, nil
}

// Info has a device whose cores are not known: a search has maxSlots threadgroups.
func (s *slow) Info() gpu.Info {
	info := s.Device.Info()
	info.Cores = 0
	return info
}

func (s *slow) Run(list ...gpu.Dispatch) (time.Duration, error) {
	took, err := s.Device.Run(list...)
	if n := len(list); err == nil && n > 0 {
		if v, _ := shaders.Lookup(list[n-1].Pipeline.Name()); v.Op == "trellis_encode" {
			var args shaders.TrellisEncodeArgs
			if err := decodeArgs(list[n-1].Args, &args); err != nil {
				return 0, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.blocks = append(s.blocks, int(args.Blocks))
			took = time.Duration(args.Blocks) * s.block
			if s.ran != nil {
				s.ran()
			}
		}
	}
	return took, err
}

// A search is cut into command buffers of whole waves that take about bufferTime; what it writes and finds is
// that of one; and it stops between them.
func TestPace(t *testing.T) {
	s := slow{block: bufferTime / (3*maxSlots + 50)}
	b := open(t, Options{}, s.wrap)
	e := newExercise(t, b)
	p := trellis.Params{L: 6, K: 2, T: 32}
	c := newWeights(t, b, p)
	r, err := e.r.Trellis(p)
	e.must(err)
	const n = 10 * maxSlots
	x := tensor(codec.F32, canonical(samples(n, p.T, 3)), n, p.T)
	for i := range x.Len() {
		codec.F32.Store(x.Data[4*i:], float32(math.Mod(float64(codec.F32.Load(x.Data[4*i:])), 4)))
	}
	got, want := make([]uint16, n*p.T), make([]uint16, n*p.T)
	e.must(r.EncodeBlocks(t.Context(), want, x))
	e.must(c.EncodeBlocks(t.Context(), got, x))
	e.same("states", 0, bytesOf(got), bytesOf(want))
	if want := []int{maxSlots, 3 * maxSlots, 3 * maxSlots, 3 * maxSlots}; !slices.Equal(s.blocks, want) {
		t.Errorf("blocks %v, want %v", s.blocks, want)
	}
	g := trellis.Geometry{Axis: 1, Out: 4, In: n / 4 * p.T, Interleaved: true}
	matrix := codec.Tensor{DType: codec.F32, Shape: []int{g.Out, g.In}, Data: x.Data}
	var m, wantM trellis.Matrix
	e.must(r.Encode(t.Context(), &wantM, codec.Tensor{}, matrix, g))
	e.must(c.Encode(t.Context(), &m, codec.Tensor{}, matrix, g))
	e.same("codes", 0, bytesOf(m.Codes), bytesOf(wantM.Codes))

	bad := 5*maxSlots*p.T + 7
	codec.F32.Store(x.Data[4*bad:], float32(math.NaN()))
	var found *codec.Error
	if err := c.EncodeBlocks(t.Context(), got, x); !errors.As(err, &found) || found.Index != bad {
		t.Errorf("%v, want element %d", err, bad)
	}
	codec.F32.Store(x.Data[4*bad:], 0)

	ctx, cancel := context.WithCancel(t.Context())
	s.blocks, s.ran = nil, cancel
	if err := c.EncodeBlocks(ctx, got, x); !errors.Is(err, context.Canceled) || len(s.blocks) != 1 {
		t.Errorf("%v after %d command buffers", err, len(s.blocks))
	}
	if err := c.Encode(ctx, &m, codec.Tensor{}, matrix, g); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
