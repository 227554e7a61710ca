package gpu

import (
	"context"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

const (
	maxSlots     = 128       // threadgroups of a search, on a device that does not tell its cores
	coreSlots    = 4         // otherwise, for each core
	scratchBytes = 256 << 20 // of their scratch
)

// weights is the weight codec of an engine.
type weights struct {
	e       *engine
	p       trellis.Params
	inverse float32 // f32(1/lutRMS)
	table   tableKey
}

// codeNumbers numbers codes as the kernels do; the others are read from a table.
var codeNumbers = map[trellis.Code]uint32{trellis.OneMAD: shaders.Code1MAD, trellis.ThreeInst: shaders.Code3INST}

func (c *weights) code() uint32 {
	if n, ok := codeNumbers[c.p.Code]; ok {
		return n
	}
	return shaders.CodeLUT
}

// bytesOf is the memory of s. It is little-endian: codecs refuse to build for other machines.
func bytesOf[T uint16 | uint32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// values binds f(s), the value of each state.
func (s *slab) values(p trellis.Params) (gpu.Binding, error) {
	return s.table(tableKey{codeTable, int(p.Code), p.L})
}

// searchRounds is how many rounds a threadgroup of a search has at most: they share its barriers, and as many SIMD-groups
// trace their paths. searchSlots, if not zero, is how many threadgroups a search has at most.
var searchRounds, searchSlots = 4, 0

// viterbi picks the search's kernel, its launch over some blocks, and the threadgroups to launch.
func (c *weights) viterbi(blocks int) (k kernel, l shaders.TrellisPlan, slots int, err error) {
	e, declined, most := c.e, "", maxSlots
	if n := c.e.info.Cores; n > 0 {
		most = coreSlots * n
	}
	rounds := searchRounds
	if c.p.L <= 10 { // more back-pointers than a cache holds cost more than barriers
		rounds = min(rounds, 2)
	}
	if searchSlots > 0 {
		most = searchSlots
	}
	for threads := e.info.MaxThreads[0]; threads >= simdWidth; {
		l := shaders.TrellisLaunch(c.p.L, c.p.K, c.p.T, blocks, most, rounds, threads, e.info.MaxThreadgroupMemory)
		k, err := e.kernels.named(l.Kernel)
		if err != nil {
			return kernel{}, l, 0, err
		}
		err = wholeSIMD(k)
		if limit := k.pipeline.MaxThreads(); err == nil && l.Threads > limit {
			err = fmt.Errorf("threadgroups of %d threads, not %d", limit, l.Threads)
		}
		if err == nil && l.Bytes > e.kernels.room(k) {
			err = fmt.Errorf("%d bytes of threadgroup memory, not %d", e.kernels.room(k), l.Bytes)
		}
		if err != nil { // fewer threads lead to a more general kernel
			declined = fmt.Sprintf("%s: %v", k.Name, err)
			threads = l.Threads - 1
			continue
		}
		k.declined = declined
		return k, l, min((blocks+l.Blocks-1)/l.Blocks, most, max(1, int(scratchBytes/l.SlotBytes))), nil
	}
	return kernel{}, shaders.TrellisPlan{}, 0, fmt.Errorf("%w: %s", errNoKernel, declined)
}

// places are where a search reads and writes. It leaves alone what it is not told to write, and reads scales only
// if its samples are to be scaled.
type places struct{ w, scales, codes, states gpu.Binding }

// search finds the best paths of the args.Blocks blocks of a slab, in as many command buffers as the pace asks
// for. args has the views, the blocks and what to write. What it finds in the samples, of which the slab's first
// is number element of the input, goes to out.
func (c *weights) search(ctx context.Context, s *slab, args shaders.TrellisEncodeArgs, at places, element int, out *driver.Found) error {
	p, blocks := c.p, int(args.Blocks)
	k, l, slots, err := c.viterbi(blocks)
	if err != nil {
		return err
	}
	values, err := s.table(c.table)
	if err != nil {
		return err
	}
	scratch, err := s.buffer(slots * int(l.SlotBytes))
	if err != nil {
		return err
	}
	status, err := s.status()
	if err != nil {
		return err
	}
	args.SlotBytes, args.Block, args.StateBits, args.Bits, args.Rounds = l.SlotBytes, uint32(p.T), uint32(p.L), uint32(p.K), uint32(l.Rounds)
	if !p.FreeEnds {
		args.TailBiting = 1
	}
	for first, n := 0, 0; first < blocks && *out == driver.Nothing; first += n {
		if err := ctx.Err(); err != nil {
			return err
		}
		n = min(blocks-first, c.e.pace.blocks(p, slots*l.Blocks))
		args.Block0, args.Blocks = uint32(first), uint32(n)
		grid := shaders.Grid{Groups: [3]int{min((n+l.Blocks-1)/l.Blocks, slots), 1, 1}, Threads: [3]int{l.Threads, 1, 1}}
		s.add(k, n, grid, l.Bytes, &args, at.w, at.scales, values, at.codes, at.states, gpu.Binding{Buffer: scratch}, gpu.Binding{Buffer: status})
		took, err := s.send()
		if err != nil {
			return err
		}
		c.e.pace.learn(p, n, took)
		if err := collect(out, status, element+first*p.T, 1); err != nil {
			return err
		}
	}
	return nil
}

// EncodeBlocks writes the states of the best paths (docs/numerics.md §6).
func (c *weights) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) (driver.Found, error) {
	p, out := c.p, driver.Nothing
	ops := []*operand{c.e.tensor(x, false), c.e.packed(bytesOf(states), 2, p.T, x.Shape[:len(x.Shape)-1], true)}
	err := c.e.over(ctx, 1, ops, func(s *slab) error {
		args := shaders.TrellisEncodeArgs{W: s.own(0), States: s.own(1), Blocks: s.height, RowBlocks: 1, WType: dtypes[x.DType], WriteStates: 1}
		if err := c.search(ctx, s, args, places{s.at[0], s.at[1], s.at[1], s.at[1]}, s.row*p.T, &out); err != nil {
			return err
		}
		return s.run()
	})
	return out, err
}

// Decode writes rows of m (docs/numerics.md §6).
func (c *weights) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	row0, col0 := first, 0
	if m.Geometry.Axis == 0 {
		row0, col0 = 0, first
	}
	out := c.e.tensor(coded(dst, m.Geometry.Axis), true)
	return c.e.over(context.Background(), 1, []*operand{out}, func(s *slab) error {
		codes, view, err := s.codes(m, row0+s.row, s.n)
		if err != nil {
			return err
		}
		scales, base, err := s.hold(bytesOf(m.Scales[row0+s.row:][:s.n]), 2, false)
		if err != nil {
			return err
		}
		args := shaders.TrellisExpandArgs{
			Codes: view, Scales: shaders.View{Base: base, S2: 1}, Out: s.own(0),
			Rows: s.height, Col0: uint32(col0), Cols: uint32(out.dim), OutType: dtypes[dst.DType],
		}
		if err := c.expand(s, args, m.Geometry, codes, scales, s.at[0]); err != nil {
			return err
		}
		return s.run()
	})
}

// coded returns a matrix [Out, In] as its coded rows.
func coded(x codec.Tensor, axis int) codec.Tensor {
	if axis == 1 {
		return x
	}
	stride := x.Stride
	if stride == nil {
		stride = rowMajor(x.Shape)
	}
	x.Shape, x.Stride = []int{x.Shape[1], x.Shape[0]}, []int{stride[1], stride[0]}
	return x
}

// layoutOf is the view of the codes of a whole matrix that begin at word base.
func layoutOf(g trellis.Geometry, p trellis.Params, base int64) shaders.View {
	if g.Interleaved {
		pair := int64(2 * p.BlockWords())
		return shaders.View{Base: base, S1: int64(g.Rows()) * pair, S2: pair, S3: 1}
	}
	return shaders.View{Base: base, S2: int64(g.Cols() / p.T * p.BlockWords()), S3: 1}
}

// expand adds a dispatch that decodes Cols columns from Col0 on of Rows coded rows. args has the views, those
// and the output type.
func (c *weights) expand(s *slab, args shaders.TrellisExpandArgs, g trellis.Geometry, codes, scales, out gpu.Binding) error {
	p := c.p
	k, err := c.e.kernels.pick(need{op: "trellis_expand8", bits: p.K, block: p.T, col0: int(args.Col0), cols: int(args.Cols)})
	if err != nil {
		return err
	}
	values, err := s.values(p)
	if err != nil {
		return err
	}
	args.Block, args.StateBits, args.Bits, args.Code, args.Shift = uint32(p.T), uint32(p.L), uint32(p.K), c.code(), uint32(bits.TrailingZeros(uint(p.T)))
	if o := args.Out; o.S3 == 1 && (o.Base|o.S2)&7 == 0 {
		args.Wide = 1
	}
	if g.Interleaved {
		args.Interleaved = 1
	}
	rows, cols, most := int(args.Rows), int(args.Cols), k.pipeline.MaxThreads()
	grid := shaders.ElementGrid(cols, rows, most)
	if k.Op == "trellis_expand8" {
		grid = shaders.RunGrid(cols, rows, most)
	}
	s.add(k, rows, grid, 0, &args, codes, scales, values, out)
	return nil
}
