package shaders

import (
	"fmt"
	"math/bits"
)

// LaneThreads is the threadgroup of a Lanes kernel: eight rows.
const LaneThreads = 256

// ThreadgroupLimit is the threadgroup memory that every Apple GPU has, in bytes.
const ThreadgroupLimit = 32 << 10

// A Grid is threadgroups in the grid and threads in a threadgroup, for dispatchThreadgroups.
type Grid struct {
	Groups, Threads [3]int
}

// ElementGrid assigns threads to rows of `units` work items: 8 elements of affine_dequantize, 1 of the rest.
func ElementGrid(units, rows, maxThreads int) Grid {
	threads := min(256, maxThreads)
	x := min(threads, 1<<bits.Len(uint(max(units, 1)-1)))
	y := threads / x
	return Grid{Groups: [3]int{ceil(units, x), ceil(rows, y), 1}, Threads: [3]int{x, y, 1}}
}

// LaneGrid assigns a SIMD-group to each row.
func LaneGrid(rows, maxThreads int) Grid {
	threads := min(LaneThreads, maxThreads&^31)
	return Grid{Groups: [3]int{ceil(rows, threads/32), 1, 1}, Threads: [3]int{threads, 1, 1}}
}

// MatrixMemory is the threadgroup memory of a Matrices kernel.
const MatrixMemory = 8 << 10

// MatrixGrid assigns a threadgroup to each 32 outputs of a number of tiles of rows.
func MatrixGrid(outputs, tiles int) Grid {
	return Grid{Groups: [3]int{ceil(outputs, 32) * tiles, 1, 1}, Threads: [3]int{LaneThreads, 1, 1}}
}

// unitsPerThread is what common.metal calls UNITS.
const unitsPerThread = 4

// UnitGrid assigns tiles to rows of `width` units. shift is for the span: a tile is 2^shift units of a row, at most
// its own size, by as many rows as fit.
func UnitGrid(width, rows, maxThreads int) (g Grid, shift int) {
	threads := 1 << (bits.Len(uint(min(LaneThreads, maxThreads))) - 1)
	tile := threads * unitsPerThread
	shift = min(bits.Len(uint(width-1)), bits.Len(uint(tile))-1)
	return Grid{Groups: [3]int{ceil(width, 1<<shift), ceil(rows, tile>>shift), 1}, Threads: [3]int{threads, 1, 1}}, shift
}

// A RowPlan is the launch of a Rows kernel.
type RowPlan struct {
	Grid
	ThreadsPerRow int // for the argument struct
	Bytes         int // threadgroup memory 0, a multiple of 16
}

// RowLaunch assigns threads to rows of dim f32 in threadgroup memory. It fails if a row does
// not fit in memory bytes of it.
func RowLaunch(dim, rows, maxThreads, memory int) (RowPlan, error) {
	if 4*dim > memory {
		return RowPlan{}, fmt.Errorf("shaders: a row of %d f32 needs %d bytes of threadgroup memory, the device has %d", dim, 4*dim, memory)
	}
	limit := maxThreads &^ 31
	perRow := min(limit, max(32, 1<<bits.Len(uint(ceil(dim, 8)-1))))
	held := max(1, min(256, limit)/perRow)
	held = min(held, memory/(4*dim))
	return RowPlan{
		Grid:          Grid{Groups: [3]int{ceil(rows, held), 1, 1}, Threads: [3]int{perRow * held, 1, 1}},
		ThreadsPerRow: perRow,
		Bytes:         ceil(4*dim*held, 16) * 16,
	}, nil
}

// A TrellisPlan is the launch of trellis_encode_*.
type TrellisPlan struct {
	Kernel    string
	Threads   int    // in a threadgroup
	Bytes     int    // threadgroup memory 0
	Blocks    int    // that a threadgroup searches at a time
	Rounds    int    // for the argument struct
	SlotBytes uint64 // scratch for each threadgroup of the grid
}

// SearchThreads is the threadgroup of trellis_encode_k*.
const SearchThreads = 256

// searchSteps is S of trellis.metal: the transitions between two exchanges of metrics.
func searchSteps(k int) int {
	if k <= 2 {
		return 2
	}
	return 1
}

// TrellisLaunch picks the Viterbi kernel for `blocks` blocks of T = block with L state bits and k symbol bits, of
// which each of `groups` threadgroups should have some. The specialised kernels take L from 8 to 12 and keep sixteen states per thread
// in registers; their threadgroups search as many blocks at a time as they have 2^(L−4) threads, in up to `rounds` rounds between
// two barriers. The scratch buffer holds one slot for each threadgroup of the grid, which may be any size: threadgroups
// take further blocks in turn.
func TrellisLaunch(stateBits, k, block, blocks, groups, rounds, maxThreads, memory int) TrellisPlan {
	states := 1 << stateBits
	if stateBits >= 8 && stateBits <= 12 && states/16 <= maxThreads && maxThreads >= 32 {
		threads := min(SearchThreads, 1<<(bits.Len(uint(maxThreads))-1))
		subs := threads * 16 / states
		room := subs * max(16, states>>k) * 8 // bytes of a round
		if room <= memory {
			rounds = max(1, min(rounds, memory/room, blocks/(groups*subs)))
			back := threads * searchSteps(k) * (block / searchSteps(k))
			if k > 4 {
				back = threads >> (k - 4) * block
			}
			return TrellisPlan{Kernel: fmt.Sprintf("trellis_encode_k%d", k), Threads: threads, Bytes: rounds * room, Blocks: rounds * subs, Rounds: rounds,
				SlotBytes: align16(uint64(rounds) * (uint64(subs)*uint64(block)*8 + uint64(back)))}
		}
	}
	slot := uint64(block)*8 + uint64(block)*uint64(states>>k)
	threads := min(maxThreads&^31, max(32, states>>k))
	if bytes := 256 + 8*states; bytes <= memory {
		return TrellisPlan{Kernel: "trellis_encode_any", Threads: threads, Bytes: bytes, Blocks: 1, SlotBytes: align16(slot)}
	}
	return TrellisPlan{Kernel: "trellis_encode_device", Threads: threads, Bytes: 256, Blocks: 1, SlotBytes: align16(slot + 8*uint64(states))}
}

// RunGrid assigns threads to rows of trellis_expand8: each has expandRuns runs of eight columns.
func RunGrid(cols, rows, maxThreads int) Grid {
	return ElementGrid(ceil(cols/8, 32*expandRuns)*32, rows, maxThreads)
}

// expandRuns is RUNS of trellis.metal.
const expandRuns = 4

func ceil(n, d int) int { return (n + d - 1) / d }

func align16(n uint64) uint64 { return (n + 15) &^ 15 }
