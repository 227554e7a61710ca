package model

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// pool bounds the goroutines of all tensors together.
type pool chan struct{}

func newPool() pool { return make(pool, runtime.GOMAXPROCS(0)) }

const (
	// chunkTime is about how long a run of rows should take: long enough that
	// its overhead does not count, short enough for progress to flow.
	chunkTime = 200 * time.Millisecond

	// chunkWeights bounds what all goroutines hold of a tensor at a time,
	// beside the tensor and its output: 12 bytes a weight.
	chunkWeights = 1 << 19
)

// rows calls work on runs of at least least consecutive rows of the given
// length, but for the last, until n are done, several at a time. slot numbers the goroutine, so that work can keep
// buffers. The error is that of the first run that failed, of those that ran.
func (p pool) rows(ctx context.Context, n, length, least int, work func(slot, first, rows int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slots := min(cap(p), n)
	most := max(least, chunkWeights/cap(p)/max(1, length))
	var mu sync.Mutex // guards what follows
	next, failedAt := 0, n
	var failed error
	var wg sync.WaitGroup
	for slot := range slots {
		wg.Go(func() {
			size := least
			for {
				select {
				case p <- struct{}{}:
				case <-ctx.Done():
					return
				}
				mu.Lock()
				// The last runs are short, so that all goroutines end together.
				first := next
				rows := min(n-next, max(least, min(size, most, (n-next)/(2*slots))))
				next += rows
				mu.Unlock()
				if first >= n || ctx.Err() != nil {
					<-p
					return
				}
				begun := time.Now()
				err := work(slot, first, rows)
				<-p
				if err != nil {
					mu.Lock()
					if first < failedAt {
						failed, failedAt = err, first
					}
					mu.Unlock()
					cancel()
					return
				}
				if time.Since(begun) < chunkTime/2 {
					size *= 2
				}
			}
		})
	}
	wg.Wait()
	if failed == nil {
		return ctx.Err()
	}
	return failed
}
