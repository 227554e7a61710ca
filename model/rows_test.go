package model

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
)

// Rows are covered once each, in spans that grow to what the backend asks for and stay there for the next matrix.
func TestRows(t *testing.T) {
	const rowBytes = 1000
	for _, calls := range []int{1, 3} {
		t.Run(fmt.Sprint(calls, " calls"), func(t *testing.T) {
			f := newFeeder(codec.Feed{Bytes: 1 << 20, Calls: calls})
			longest := 0
			for _, c := range []struct{ n, fewest int }{{20000, 1}, {20000, 1}, {100, 32}, {7, 32}, {0, 1}} {
				var mu sync.Mutex
				running := 0
				seen := make([]int, c.n)
				err := f.rows(context.Background(), make([]slot, calls), c.n, rowBytes, c.fewest, func(_ context.Context, _ *slot, r span) error {
					mu.Lock()
					defer mu.Unlock()
					if running++; running > calls {
						t.Errorf("%d calls at once", running)
					}
					if r.rows < c.fewest && r.first+r.rows != c.n || r.rows < 1 || r.rows*rowBytes > max(1<<20, c.fewest*rowBytes) {
						t.Errorf("span %v of %v", r, c)
					}
					if calls > 1 && r.rows > max(c.fewest, (c.n-r.first)/(2*calls)) {
						t.Errorf("span %v of %v leaves %d calls to wait for", r, c, calls-1)
					}
					for i := range r.rows {
						seen[r.first+i]++
					}
					longest = max(longest, r.rows)
					running--
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for i, n := range seen {
					if n != 1 {
						t.Fatalf("row %d was done %d times", i, n)
					}
				}
			}
			if longest != 1<<20/rowBytes {
				t.Errorf("at most %d rows per call, want %d", longest, 1<<20/rowBytes)
			}
		})
	}
	// A backend may have no wishes.
	if f := newFeeder(codec.Feed{}); f.most != 2<<20 || cap(f.calls) != runtime.GOMAXPROCS(0) {
		t.Errorf("%d bytes, %d calls", f.most, cap(f.calls))
	}
	// Slow calls are cut shorter.
	f := newFeeder(codec.Feed{Bytes: 1 << 20, Calls: 1})
	var sizes []int
	bad := errors.New("bad")
	err := f.rows(context.Background(), make([]slot, 1), 1<<20, 1, 1, func(_ context.Context, _ *slot, r span) error {
		if sizes = append(sizes, r.rows); len(sizes) == 2 {
			return bad
		}
		time.Sleep(2*chunkTime + 20*time.Millisecond)
		return nil
	})
	if err != bad || len(sizes) != 2 || sizes[1] >= sizes[0] {
		t.Errorf("sizes %v, error %v", sizes, err)
	}
}
