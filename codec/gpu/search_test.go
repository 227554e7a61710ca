package gpu

import (
	"fmt"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Every k and every L that has a kernel of its own, with several rounds of blocks, the last of which are missing.
func TestSearches(t *testing.T) {
	for _, rounds := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("rounds=%d", rounds), func(t *testing.T) {
			defer func(n, m int) { searchRounds, searchSlots = n, m }(searchRounds, searchSlots)
			searchRounds, searchSlots = rounds, 2
			b := open(t, Options{})
			e := newExercise(t, b)
			for k := 1; k <= 8; k++ {
				for L := max(8, k+1); L <= 12; L++ {
					for _, free := range []bool{false, true} {
						p := trellis.Params{L: L, K: k, T: 32, Code: trellis.Code(L % 3), FreeEnds: free}
						if L == 12 {
							p.T = 64
						}
						blocks := 3 * rounds << (12 - L)
						e.blocks(p, codec.F32, []int{blocks - 1}, uint64(16*k+L))
					}
				}
			}
			t.Logf("compared %d states", e.compared/2)
		})
	}
}
