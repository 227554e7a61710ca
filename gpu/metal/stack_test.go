package metal_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

// A message may be what makes a goroutine's stack grow, at every place in it: whatever the callee
// was given an address of must not move with the stack.
func TestFreshStacks(t *testing.T) {
	d := open(t)
	l := library(t, d)
	p := pipeline(t, l, "add")
	want, err := metal.List()
	if err != nil {
		t.Fatal(err)
	}
	step := 1
	if testing.Short() {
		step = 5
	}
	var group sync.WaitGroup
	for depth := 0; depth < 150; depth += step { // 64 bytes each: past 8 KiB, a stack's second growth
		group.Go(func() {
			deeper(depth, func() {
				if got, err := metal.List(); err != nil || len(got) != len(want) || got[0] != want[0] {
					t.Errorf("depth %d: got %v, want %v", depth, got, want)
				}
			})
		})
		group.Go(func() {
			deeper(depth, func() {
				b, err := d.NewBuffer(256)
				if err != nil {
					t.Error(err)
					return
				}
				defer b.Release()
				if _, err := d.Run(addTo(p, b, 0, 64, depth), addTo(p, b, 0, 64, 1)); err != nil || words(b)[63] != uint32(depth+1) {
					t.Errorf("depth %d: %v, %v", depth, err, words(b))
				}
			})
		})
		group.Go(func() {
			deeper(depth, func() {
				l, err := d.NewLibrary(source, gpu.CompileOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				defer l.Release()
				if p, err := l.Pipeline("subtract"); !errors.Is(err, gpu.ErrNoFunction) {
					t.Error(p, err)
				}
			})
		})
		if depth%16 == 0 {
			group.Wait()
			runtime.GC() // frees the stacks
		}
	}
	group.Wait()
}

//go:noinline
func deeper(n int, f func()) [8]int {
	if n == 0 {
		f()
		return [8]int{}
	}
	r := deeper(n-1, f)
	r[n%8]++
	return r
}
