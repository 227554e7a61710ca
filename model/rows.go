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

// feeder cuts matrices into calls of a backend, of the size that it asks for as long as they are short, and
// bounds the calls of all matrices together.
type feeder struct {
	most  int           // bytes of input per call
	calls chan struct{} // holds a token for each call in progress
	bytes *atomic.Int64 // of the next call's input: it follows the time that calls take
}

func newFeeder(f codec.Feed) feeder {
	if f.Bytes < 1 {
		f.Bytes = 2 << 20
	}
	if f.Calls < 1 {
		f.Calls = runtime.GOMAXPROCS(0)
	}
	n := feeder{f.Bytes, make(chan struct{}, f.Calls), new(atomic.Int64)}
	n.bytes.Store(int64(min(f.Bytes, 1<<16)))
	return n
}

// span is some consecutive rows of a matrix.
type span struct{ first, rows int }

// rows splits n rows into spans of at least fewest rows (the last may be shorter) and calls work on them
// concurrently, each time with a slot of its own. The error is that of the first span that fails.
func (f feeder) rows(ctx context.Context, slots []slot, n, rowBytes, fewest int, work func(ctx context.Context, s *slot, r span) error) error {
	spans := func(yield func(span) bool) {
		for r := (span{}); r.first < n; r.first += r.rows {
			r.rows = int(f.bytes.Load()) / max(1, rowBytes)
			if len(slots) > 1 {
				// The last spans are short, so that all calls end together.
				r.rows = min(r.rows, (n-r.first)/(2*len(slots)))
			}
			r.rows = min(max(fewest, r.rows), n-r.first)
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
		begun, size := time.Now(), f.bytes.Load()
		err := work(ctx, s, r)
		<-f.calls
		switch took := time.Since(begun); {
		case took < chunkTime/2 && int64(r.rows)*int64(rowBytes) > size/2: // else a longer span tells nothing
			f.bytes.CompareAndSwap(size, min(2*size, int64(f.most)))
		case took > 2*chunkTime:
			f.bytes.CompareAndSwap(size, max(size/2, 1))
		}
		return err
	})
}
