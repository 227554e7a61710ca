package model

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/parallel"
)

// chunkTime is about how long one call of a codec should take: long enough that its overhead does not count,
// short enough for progress to flow.
const chunkTime = 200 * time.Millisecond

// feeder cuts matrices into calls of a backend, of the size that it asks for, and bounds the calls of all
// matrices together.
type feeder struct {
	bytes int           // of input per call, at most
	calls chan struct{} // holds a token for each call in progress
}

func newFeeder(f codec.Feed) feeder {
	if f.Bytes < 1 {
		f.Bytes = 2 << 20
	}
	if f.Calls < 1 {
		f.Calls = runtime.GOMAXPROCS(0)
	}
	return feeder{f.Bytes, make(chan struct{}, f.Calls)}
}

// span is some consecutive rows of a matrix.
type span struct{ first, rows int }

// rows splits n rows into spans of at least fewest rows (the last may be shorter) and calls work on them
// concurrently, each time with a slot of its own. The error is that of the first span that fails.
func (f feeder) rows(ctx context.Context, slots []slot, n, rowBytes, fewest int, work func(ctx context.Context, s *slot, r span) error) error {
	most := max(fewest, f.bytes/max(1, rowBytes))
	var size atomic.Int64 // of the next span; it grows while calls are short
	size.Store(int64(fewest))
	spans := func(yield func(span) bool) {
		for r := (span{}); r.first < n; r.first += r.rows {
			r.rows = int(size.Load())
			if len(slots) > 1 {
				// The last spans are short, so that all calls end together.
				r.rows = max(fewest, min(r.rows, (n-r.first)/(2*len(slots))))
			}
			r.rows = min(r.rows, n-r.first)
			if !yield(r) {
				return
			}
		}
	}
	return parallel.Each(ctx, slots, spans, func(ctx context.Context, s *slot, r span) error {
		select {
		case f.calls <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		begun := time.Now()
		err := work(ctx, s, r)
		<-f.calls
		if time.Since(begun) < chunkTime/2 {
			size.CompareAndSwap(int64(r.rows), int64(min(2*r.rows, most)))
		}
		return err
	})
}
