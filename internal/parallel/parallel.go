// Package parallel runs the iterations of one loop on several goroutines.
package parallel

import (
	"context"
	"iter"
	"sync"
)

// Each calls do for every item of seq, up to len(slots) at a time. Each call has one of slots to itself, for
// buffers and the like. With one slot everything runs on the caller's goroutine.
//
// Each returns the error that a loop over seq would stop at: that of the first item that fails. When an item
// fails, no further item starts, the contexts of running calls for later items end, and calls for earlier items
// run on. When ctx ends, no further item starts; if no item has failed, the error is ctx.Err(). Each returns
// after the last call has returned.
//
// seq is run on the caller's goroutine, at most one item ahead of the calls. There must be at least one slot.
func Each[S, T any](ctx context.Context, slots []S, seq iter.Seq[T], do func(ctx context.Context, slot *S, item T) error) error {
	return run(ctx, slots, seq, do, nil)
}

// Ordered is Each that passes every item on to emit after do, in the order of seq and one at a time. The item
// keeps its slot until emit has returned. An error of emit is an error of the item.
func Ordered[S, T any](ctx context.Context, slots []S, seq iter.Seq[T], do, emit func(ctx context.Context, slot *S, item T) error) error {
	return run(ctx, slots, seq, do, emit)
}

// Range yields 0 to n-1.
func Range(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// ticket is an item that was taken from the sequence.
type ticket[T any] struct {
	index int
	item  T
	ctx   context.Context
	turn  <-chan struct{} // closed when the item before has been emitted
	done  chan struct{}   // closed when this one has
}

func run[S, T any](ctx context.Context, slots []S, seq iter.Seq[T], do, emit func(context.Context, *S, T) error) error {
	if len(slots) == 0 {
		panic("parallel: no slots")
	}
	if len(slots) == 1 {
		for item := range seq {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(ctx, &slots[0], item); err != nil {
				return err
			}
			if emit != nil {
				if err := emit(ctx, &slots[0], item); err != nil {
					return err
				}
			}
		}
		return ctx.Err()
	}

	var mu sync.Mutex // guards what follows
	var failure error
	failedAt := -1
	running := map[int]context.CancelFunc{}
	stop := make(chan struct{}) // closed at the first failure

	fail := func(index int, err error) {
		mu.Lock()
		defer mu.Unlock()
		if failedAt >= 0 && failedAt < index {
			return
		}
		if failedAt < 0 {
			close(stop)
		}
		failure, failedAt = err, index
		for i, cancel := range running {
			if i > index {
				cancel()
			}
		}
	}
	work := func(slot *S, t ticket[T]) error {
		if err := do(t.ctx, slot, t.item); err != nil || emit == nil {
			return err
		}
		select {
		case <-t.turn:
		case <-t.ctx.Done():
			return t.ctx.Err()
		}
		if err := emit(t.ctx, slot, t.item); err != nil {
			return err
		}
		close(t.done)
		return nil
	}

	tickets := make(chan ticket[T])
	var wg sync.WaitGroup
	for i := range slots {
		wg.Go(func() {
			for t := range tickets {
				if err := work(&slots[i], t); err != nil {
					fail(t.index, err)
				}
				mu.Lock()
				running[t.index]()
				delete(running, t.index)
				mu.Unlock()
			}
		})
	}

	index := 0
	turn := make(chan struct{})
	close(turn)
	var stopped error
	for item := range seq {
		if stopped = ctx.Err(); stopped != nil {
			break
		}
		t := ticket[T]{index: index, item: item, turn: turn, done: make(chan struct{})}
		var cancel context.CancelFunc
		t.ctx, cancel = context.WithCancel(ctx)
		mu.Lock()
		sent := failedAt < 0 // else fail has been through running
		running[index] = cancel
		mu.Unlock()
		if sent {
			select {
			case <-stop:
				sent = false
			case <-ctx.Done():
				sent, stopped = false, ctx.Err()
			case tickets <- t:
			}
		}
		if !sent {
			cancel()
			break
		}
		turn = t.done
		index++
	}
	close(tickets)
	wg.Wait()
	if failedAt >= 0 {
		return failure
	}
	if stopped == nil {
		stopped = ctx.Err()
	}
	return stopped
}
