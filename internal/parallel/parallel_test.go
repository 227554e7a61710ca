package parallel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// forSlots runs a test with one slot, two and many.
func forSlots(t *testing.T, test func(t *testing.T, slots []int)) {
	for _, n := range []int{1, 2, 7} {
		t.Run(fmt.Sprint(n, " slots"), func(t *testing.T) { test(t, make([]int, n)) })
	}
}

// Every item is done once, with a slot that no other running call has.
func TestEach(t *testing.T) {
	forSlots(t, func(t *testing.T, slots []int) {
		const n = 500
		var mu sync.Mutex
		var done [n]int
		busy := map[*int]bool{}
		err := Each(context.Background(), slots, Range(n), func(_ context.Context, slot *int, i int) error {
			mu.Lock()
			if busy[slot] {
				t.Error("a slot was shared")
			}
			busy[slot] = true
			mu.Unlock()
			*slot++
			mu.Lock()
			done[i]++
			busy[slot] = false
			mu.Unlock()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range done {
			if d != 1 {
				t.Fatalf("item %d was done %d times", i, d)
			}
		}
		sum := 0
		for _, s := range slots {
			sum += s
		}
		if sum != n {
			t.Errorf("slots counted %d, want %d", sum, n)
		}
	})
}

// Items are emitted in order, whatever time each takes.
func TestOrdered(t *testing.T) {
	forSlots(t, func(t *testing.T, slots []int) {
		const n = 200
		var got []int
		err := Ordered(context.Background(), slots, Range(n), func(_ context.Context, slot *int, i int) error {
			*slot = i * i
			time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
			return nil
		}, func(_ context.Context, slot *int, i int) error {
			if *slot != i*i {
				t.Errorf("item %d has the slot of another", i)
			}
			got = append(got, i)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, slices.Collect(Range(n))) {
			t.Errorf("emitted %v", got)
		}
	})
}

// The error is that of the first failing item in the order of the sequence, even if a later one fails sooner.
func TestFirstError(t *testing.T) {
	forSlots(t, func(t *testing.T, slots []int) {
		for range 50 {
			late := make(chan struct{})
			var started atomic.Int64
			do := func(ctx context.Context, _ *int, i int) error {
				started.Add(1)
				switch i {
				case 3:
					if len(slots) > 1 {
						<-late // 4 has failed
					}
					if ctx.Err() != nil {
						t.Error("an item before the failure was cancelled")
					}
					return errors.New("3")
				case 4:
					defer close(late)
					return errors.New("4")
				}
				if i > 4 {
					<-ctx.Done() // ends with the failure of an earlier item
					return ctx.Err()
				}
				return nil
			}
			err := Each(context.Background(), slots, Range(1000), do)
			if err == nil || err.Error() != "3" {
				t.Fatalf("error %v, want 3", err)
			}
			if n := started.Load(); n > int64(5+len(slots)) {
				t.Fatalf("%d items were started", n)
			}
		}
	})
}

// A failing emit stops the loop, and what follows is not emitted.
func TestEmitError(t *testing.T) {
	forSlots(t, func(t *testing.T, slots []int) {
		bad := errors.New("bad")
		var got []int
		err := Ordered(context.Background(), slots, Range(1000), func(context.Context, *int, int) error { return nil },
			func(_ context.Context, _ *int, i int) error {
				if i == 10 {
					return bad
				}
				got = append(got, i)
				return nil
			})
		if err != bad || !slices.Equal(got, slices.Collect(Range(10))) {
			t.Errorf("error %v after %v", err, got)
		}
	})
}

func TestCancel(t *testing.T) {
	forSlots(t, func(t *testing.T, slots []int) {
		ctx, cancel := context.WithCancel(context.Background())
		var n atomic.Int64
		err := Ordered(ctx, slots, Range(1000), func(ctx context.Context, _ *int, i int) error {
			if n.Add(1) == 20 {
				cancel()
			}
			return nil
		}, func(context.Context, *int, int) error { return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if n := n.Load(); n > int64(20+len(slots)) {
			t.Errorf("%d items were started", n)
		}
		// Not even one starts when the context has ended before.
		err = Each(ctx, slots, Range(3), func(context.Context, *int, int) error { t.Error("started"); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// The sequence runs at most one item ahead.
func TestLazy(t *testing.T) {
	forSlots(t, func(t *testing.T, slots []int) {
		var taken, done atomic.Int64
		seq := func(yield func(int) bool) {
			for i := range 100 {
				taken.Add(1)
				if !yield(i) {
					return
				}
			}
		}
		err := Each(context.Background(), slots, seq, func(context.Context, *int, int) error {
			if ahead := taken.Load() - done.Load(); ahead > int64(len(slots))+1 {
				t.Errorf("%d items ahead", ahead)
			}
			done.Add(1)
			return nil
		})
		if err != nil || done.Load() != 100 {
			t.Errorf("%d done, %v", done.Load(), err)
		}
	})
}

func BenchmarkEach(b *testing.B) {
	slots := make([]int, 2)
	b.ReportAllocs()
	for b.Loop() {
		if err := Each(context.Background(), slots, Range(1000), func(context.Context, *int, int) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
