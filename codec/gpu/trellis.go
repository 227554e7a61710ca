package gpu

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

const (
	maxSlots     = 128      // threadgroups of a Viterbi dispatch
	scratchBytes = 64 << 20 // of their scratch
	maxBack      = 32 << 20 // of back-pointers of a block, as trellis.NewEncoder has it
	rowTile      = 32       // rows of a tile of interleaved codes
)

// Trellis is the weight codec of a Backend.
type Trellis struct {
	b       *Backend
	p       trellis.Params
	inverse float32 // f32(1/lutRMS)
}

var _ codec.Trellis = (*Trellis)(nil)

func newTrellis(b *Backend, p trellis.Params) (*Trellis, error) {
	if err := p.Validate(); err != nil {
		return nil, codec.TrellisError("", err)
	}
	inverse, err := inverseRMS(p.Code, p.L)
	if err != nil {
		return nil, codec.TrellisError("", err)
	}
	return &Trellis{b: b, p: p, inverse: inverse}, nil
}

// Params returns the parameters.
func (c *Trellis) Params() trellis.Params { return c.p }

// codeNumbers numbers codes as the kernels do; the others are read from a table.
var codeNumbers = map[trellis.Code]uint32{trellis.OneMAD: shaders.Code1MAD, trellis.ThreeInst: shaders.Code3INST}

func (c *Trellis) code() uint32 {
	if n, ok := codeNumbers[c.p.Code]; ok {
		return n
	}
	return shaders.CodeLUT
}

// refitFactor is α of docs/numerics.md §6, by K.
var refitFactor = [9]float32{1, 7. / 8, 33. / 32, 35. / 32, 73. / 64, 1, 1, 1, 1}

// checkEncoder refuses what no encoder takes: too many back-pointers.
func (c *Trellis) checkEncoder() error {
	if c.p.T <= maxBack>>(c.p.L-c.p.K) {
		return nil
	}
	_, err := trellis.NewEncoder(c.p)
	return codec.TrellisError("", err)
}

// bytesOf is the memory of s: little-endian, as every host of a Metal device is.
func bytesOf[T uint16 | uint32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// viterbi picks the encoder's kernel and its launch over some blocks.
func (c *Trellis) viterbi(blocks int) (kernel, shaders.TrellisPlan, int, error) {
	b, declined := c.b, ""
	for threads := b.info.MaxThreads[0]; threads >= simdWidth; {
		l := shaders.TrellisLaunch(c.p.L, c.p.K, c.p.T, threads, b.info.MaxThreadgroupMemory)
		k, err := b.kernels.named(l.Kernel)
		if err != nil {
			return kernel{}, l, 0, err
		}
		err = wholeSIMD(k)
		if most := k.pipeline.MaxThreads(); err == nil && l.Threads > most {
			err = fmt.Errorf("threadgroups of %d threads, not %d", most, l.Threads)
		}
		if err == nil && l.Bytes > b.room(k) {
			err = fmt.Errorf("%d bytes of threadgroup memory, not %d", b.room(k), l.Bytes)
		}
		if err != nil { // fewer threads lead to a more general kernel
			declined = fmt.Sprintf("%s: %v", k.Name, err)
			threads = l.Threads - 1
			continue
		}
		k.declined = declined
		return k, l, min(blocks, maxSlots, max(1, int(scratchBytes/l.SlotBytes))), nil
	}
	return kernel{}, shaders.TrellisPlan{}, 0, fmt.Errorf("%w: %s", errNoKernel, declined)
}

// EncodeBlocks writes the states of the best paths (docs/numerics.md §6).
func (c *Trellis) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := codec.CheckInput("samples", x, c.p.T); err != nil {
		return err
	}
	if len(states) != x.Len() {
		return &codec.Error{Err: codec.ErrShape, Tensor: "states", Index: codec.NoIndex, Reason: fmt.Sprintf("%d states for %d samples", len(states), x.Len())}
	}
	if err := c.checkEncoder(); err != nil {
		return err
	}
	if len(states) == 0 {
		return nil
	}
	found, err := c.encodeBlocks(states, x)
	if err != nil {
		return failed(err)
	}
	return found.samples("samples", x)
}

func (c *Trellis) encodeBlocks(states []uint16, t codec.Tensor) (status, error) {
	b, p := c.b, c.p
	x := b.tensor(t, false)
	out := b.packed(bytesOf(states), 2, p.T, t.Shape[:len(t.Shape)-1], true)
	found := newStatus()
	return found, b.overRows(1, []*operand{x, out}, func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		words, err := j.status()
		if err != nil {
			return err
		}
		for i := range v {
			v[i].Base += int64(row) * v[i].S2
		}
		args := shaders.TrellisEncodeArgs{W: v[0], States: v[1], Blocks: uint32(n), RowBlocks: 1, WType: dtypes[t.DType], WriteStates: 1}
		if err := c.addViterbi(j, args, at[0], at[1], at[1], at[1], gpu.Binding{Buffer: words}); err != nil {
			return err
		}
		if err := j.run(); err != nil {
			return err
		}
		return found.read(words, row*p.T, row*p.T)
	})
}

// addViterbi adds the encoder's dispatch. args has the views, the blocks and what
// to write.
func (c *Trellis) addViterbi(j *job, args shaders.TrellisEncodeArgs, w, scales, codes, states, words gpu.Binding) error {
	p := c.p
	k, l, slots, err := c.viterbi(int(args.Blocks))
	if err != nil {
		return err
	}
	values, err := j.table(tableKey{codeTable, int(p.Code), p.L})
	if err != nil {
		return err
	}
	scratch, err := j.buffer(slots * int(l.SlotBytes))
	if err != nil {
		return err
	}
	args.SlotBytes, args.Block, args.StateBits, args.Bits = l.SlotBytes, uint32(p.T), uint32(p.L), uint32(p.K)
	if !p.FreeEnds {
		args.TailBiting = 1
	}
	grid := shaders.Grid{Groups: [3]int{slots, 1, 1}, Threads: [3]int{l.Threads, 1, 1}}
	j.add(k, int(args.Blocks), grid, l.Bytes, false, &args, w, scales, values, codes, states, gpu.Binding{Buffer: scratch}, words)
	return nil
}

// Encode packs x (docs/numerics.md §6).
func (c *Trellis) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error {
	*dst = trellis.Matrix{Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := codec.CheckWeights(recon, x, g, c.p); err != nil {
		return err
	}
	if err := c.checkEncoder(); err != nil {
		return err
	}
	rows, words := g.Rows(), g.CodesLen(c.p)
	m := trellis.Matrix{Params: c.p, Geometry: g, Codes: slices.Grow(dst.Codes, words)[:words], Scales: slices.Grow(dst.Scales, rows)[:rows]}
	if words == 0 { // rows without weights
		for i := range m.Scales {
			m.Scales[i] = 0
			if c.p.Policy == trellis.Compat {
				m.Scales[i] = 0x3c00
			}
		}
	} else {
		w := coded(x, g.Axis)
		found, err := c.encode(m, recon, w)
		if err != nil {
			return failed(err)
		}
		at := func(i int) int {
			if g.Axis == 0 {
				return i%w.Dim()*g.In + i/w.Dim()
			}
			return i
		}
		if err := found.rows("weights", w, at); err != nil {
			return err
		}
	}
	*dst = m
	return nil
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

// encode writes m, and the weights it decodes to to recon unless that is the zero
// Tensor. It writes nothing where it finds something to report.
func (c *Trellis) encode(m trellis.Matrix, recon, t codec.Tensor) (status, error) {
	b, p, g := c.b, c.p, m.Geometry
	found := newStatus()
	w := b.tensor(t, false)
	pl, err := b.plan(1, w)
	if err != nil {
		return found, err
	}
	whole := b.newJob() // what all slabs share
	defer whole.release()
	scales, scaleBase, err := whole.hold(bytesOf(m.Scales), 2, true)
	if err != nil {
		return found, err
	}
	codes, codeBase, err := whole.hold(bytesOf(m.Codes), 4, true)
	if err != nil {
		return found, err
	}
	// Where there is one slab, both passes use what the first has bound.
	at, view := gpu.Binding{}, shaders.View{}
	slab := func(row, n int, f func(j *job, w gpu.Binding, v shaders.View) error) error {
		j := whole
		if pl.slab < pl.rows {
			j = b.newJob()
			defer j.release()
		}
		if at.Buffer == nil || j != whole {
			if at, view, err = j.bind(w, pl, row, n); err != nil {
				return err
			}
			view.Base += int64(row) * view.S2
		}
		return f(j, at, view)
	}
	scaleArgs := func(row, n int, v shaders.View) shaders.TrellisScalesArgs {
		a := shaders.TrellisScalesArgs{W: v, Scales: shaders.View{Base: scaleBase + int64(row), S2: 1}, Rows: uint32(n), Cols: uint32(g.Cols()),
			WType: dtypes[t.DType], InverseCodeRMS: c.inverse, Factor: 1}
		if p.Scale == trellis.Refit {
			a.Factor = refitFactor[p.K]
		}
		if p.Policy == trellis.Compat {
			a.Policy = shaders.PolicyCompat
		}
		return a
	}

	// Every row's scale, before anything is written.
	scaler, err := b.kernels.pick(need{op: "trellis_scales"}, wholeSIMD)
	if err != nil {
		return found, err
	}
	if err := pl.each(func(row, n int) error {
		return slab(row, n, func(j *job, w gpu.Binding, v shaders.View) error {
			words, err := j.status()
			if err != nil {
				return err
			}
			args := scaleArgs(row, n, v)
			j.add(scaler, n, shaders.LaneGrid(n, scaler.pipeline.MaxThreads()), 0, false, &args, w, scales, gpu.Binding{Buffer: words})
			if err := j.run(); err != nil {
				return err
			}
			return found.read(words, row*g.Cols(), row)
		})
	}); err != nil || found != newStatus() {
		return found, err
	}

	var out *operand
	if recon.DType != 0 {
		out = b.tensor(coded(recon, g.Axis), true)
		if _, err := b.plan(1, out); err != nil {
			return found, err
		}
		out.direct = out.direct && (out.buf != nil || pl.slab >= pl.rows)
	}
	rowBlocks, rowWords := g.Cols()/p.T, g.Cols()/p.T*p.BlockWords()
	rowsOf := layoutOf(g, p, codeBase)
	err = pl.each(func(row, n int) error {
		return slab(row, n, func(j *job, w gpu.Binding, v shaders.View) error {
			words, err := j.status()
			if err != nil {
				return err
			}
			plain, plainView := codes, shaders.View{Base: codeBase + int64(row*rowWords), S2: int64(rowWords), S3: 1}
			if g.Interleaved {
				buf, err := j.buffer(4 * n * rowWords)
				if err != nil {
					return err
				}
				plain, plainView.Base = gpu.Binding{Buffer: buf}, 0
			}
			args := shaders.TrellisEncodeArgs{
				W: v, Scales: shaders.View{Base: scaleBase + int64(row), S2: 1}, Codes: plainView, Blocks: uint32(n * rowBlocks), RowBlocks: uint32(rowBlocks),
				WType: dtypes[t.DType], Scaled: 1, WriteCodes: 1,
			}
			states := plain // not written
			if p.Scale == trellis.Refit {
				buf, err := j.buffer(2 * n * g.Cols())
				if err != nil {
					return err
				}
				states, args.States, args.WriteStates = gpu.Binding{Buffer: buf}, shaders.View{S2: int64(g.Cols()), S3: 1}, 1
			}
			if err := c.addViterbi(j, args, w, scales, plain, states, gpu.Binding{Buffer: words}); err != nil {
				return err
			}
			if p.Scale == trellis.Refit {
				k, err := b.kernels.pick(need{op: "trellis_refit"}, wholeSIMD)
				if err != nil {
					return err
				}
				values, err := j.table(tableKey{codeTable, int(p.Code), p.L})
				if err != nil {
					return err
				}
				refit := scaleArgs(row, n, v)
				refit.States = args.States
				j.add(k, n, shaders.LaneGrid(n, k.pipeline.MaxThreads()), 0, false, &refit, w, states, values, scales)
			}
			if g.Interleaved {
				k, err := b.kernels.pick(need{op: "copy", size: 4}, accept)
				if err != nil {
					return err
				}
				pair := int64(2 * p.BlockWords())
				to := shaders.View{Base: rowsOf.Base + int64(row)*rowsOf.S2, S1: rowsOf.S1, S2: rowsOf.S2, S3: 1}
				args := shaders.CopyArgs{X: shaders.View{S1: pair, S2: int64(rowWords), S3: 1}, Y: to,
					N1: uint32(rowBlocks / 2), N2: uint32(n), Rows: uint32(rowBlocks / 2 * n), Dim: uint32(pair)}
				j.add(k, int(args.Rows), shaders.ElementGrid(int(pair), int(args.Rows), k.pipeline.MaxThreads()), 0, false, &args, plain, codes)
			}
			if out != nil {
				to, toView, err := j.bind(out, pl, row, n)
				if err != nil {
					return err
				}
				toView.Base += int64(row) * toView.S2
				from := rowsOf
				from.Base += int64(row) * from.S2
				args := shaders.TrellisExpandArgs{Codes: from, Scales: shaders.View{Base: scaleBase + int64(row), S2: 1}, Out: toView,
					Rows: uint32(n), Cols: uint32(g.Cols()), OutType: dtypes[recon.DType]}
				if err := c.addExpand(j, args, g, codes, scales, to); err != nil {
					return err
				}
			}
			return j.run()
		})
	})
	if err == nil {
		err = whole.finish()
	}
	return found, err
}

// layoutOf is the view of the codes of a whole matrix that begin at word base.
func layoutOf(g trellis.Geometry, p trellis.Params, base int64) shaders.View {
	if g.Interleaved {
		pair := int64(2 * p.BlockWords())
		return shaders.View{Base: base, S1: int64(g.Rows()) * pair, S2: pair, S3: 1}
	}
	return shaders.View{Base: base, S2: int64(g.Cols() / p.T * p.BlockWords()), S3: 1}
}

// addExpand adds a dispatch that decodes Rows rows and Cols columns from Col0 on
// of coded rows. args has the views, those and the output type.
func (c *Trellis) addExpand(j *job, args shaders.TrellisExpandArgs, g trellis.Geometry, codes, scales, out gpu.Binding) error {
	p := c.p
	fours := p.L+3*p.K <= 33 && args.Col0%4 == 0 && args.Cols%4 == 0
	op := "trellis_expand"
	if fours {
		op = "trellis_expand4"
	}
	if fours && g.Interleaved && int(args.Cols) == g.Cols() {
		op = "trellis_tile"
	}
	k, err := j.b.kernels.pick(need{op: op, bits: p.K}, accept)
	if err != nil {
		return err
	}
	values, err := j.table(tableKey{codeTable, int(p.Code), p.L})
	if err != nil {
		return err
	}
	args.Block, args.StateBits, args.Bits, args.Code, args.RowTile, args.Wide = uint32(p.T), uint32(p.L), uint32(p.K), c.code(), rowTile, wide(args.Out)
	if g.Interleaved {
		args.Interleaved = 1
	}
	rows, cols, most := int(args.Rows), int(args.Cols), k.pipeline.MaxThreads()
	var grid shaders.Grid
	switch op {
	case "trellis_tile":
		grid = shaders.TileGrid(rows, cols, rowTile, most)
	case "trellis_expand4":
		grid = shaders.ElementGrid(cols/4, rows, most)
	default:
		grid = shaders.ElementGrid(cols, rows, most)
	}
	j.add(k, rows, grid, 0, false, &args, codes, scales, values, out)
	return nil
}

// Decode writes rows of m (docs/numerics.md §6).
func (c *Trellis) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := codec.CheckMatrix(m, c.p); err != nil {
		return err
	}
	if err := codec.CheckRows(dst, m, first); err != nil {
		return err
	}
	if dst.Len() == 0 {
		return nil
	}
	row0, col0 := first, 0
	if m.Geometry.Axis == 0 {
		row0, col0 = 0, first
	}
	out := c.b.tensor(coded(dst, m.Geometry.Axis), true)
	return failed(c.overCoded(m, out, row0, func(j *job, args shaders.TrellisExpandArgs, codes, scales, to gpu.Binding) error {
		args.Col0, args.Cols, args.OutType = uint32(col0), uint32(out.dim), dtypes[dst.DType]
		return c.addExpand(j, args, m.Geometry, codes, scales, to)
	}))
}

// overCoded binds the coded rows of m that the rows of out stand for, from first
// on, slab by slab, and runs what add adds. The arguments have the views and rows.
func (c *Trellis) overCoded(m *trellis.Matrix, out *operand, first int, add func(j *job, args shaders.TrellisExpandArgs, codes, scales, to gpu.Binding) error) error {
	b := c.b
	pl, err := b.plan(1, out)
	if err != nil {
		return err
	}
	return pl.each(func(row, n int) error {
		j := b.newJob()
		defer j.release()
		to, toView, err := j.bind(out, pl, row, n)
		if err != nil {
			return err
		}
		toView.Base += int64(row) * toView.S2
		codes, codesView, err := j.codes(m, first+row, n)
		if err != nil {
			return err
		}
		scales, base, err := j.hold(bytesOf(m.Scales[first+row:][:n]), 2, false)
		if err != nil {
			return err
		}
		args := shaders.TrellisExpandArgs{Codes: codesView, Scales: shaders.View{Base: base, S2: 1}, Out: toView, Rows: uint32(n)}
		if err := add(j, args, codes, scales, to); err != nil {
			return err
		}
		return j.run()
	})
}

// codes binds the codes of n coded rows of m from row on, and the view in which
// they are rows 0 to n−1.
func (j *job) codes(m *trellis.Matrix, row, n int) (gpu.Binding, shaders.View, error) {
	g := m.Geometry
	if buf, offset, ok := j.b.memory.find(bytesOf(m.Codes)); ok && offset%4 == 0 {
		v := layoutOf(g, m.Params, int64(offset/4))
		v.Base += int64(row) * v.S2
		return gpu.Binding{Buffer: buf}, v, nil
	}
	groups, width := 1, g.Cols()/m.Params.T*m.Params.BlockWords()
	if g.Interleaved {
		groups, width = g.Cols()/m.Params.T/2, 2*m.Params.BlockWords()
	}
	buf, err := j.buffer(4 * groups * n * width)
	if err != nil {
		return gpu.Binding{}, shaders.View{}, err
	}
	if err := fill(buf, 4*groups*n*width, func(b []byte) {
		for i := range groups {
			copy(b[4*i*n*width:], bytesOf(m.Codes[(i*g.Rows()+row)*width:][:n*width]))
		}
	}); err != nil {
		return gpu.Binding{}, shaders.View{}, err
	}
	if g.Axis == 0 {
		g.In = n
	} else {
		g.Out = n
	}
	return gpu.Binding{Buffer: buf}, layoutOf(g, m.Params, 0), nil
}

// hold binds data, in place if it lies in the device's memory, and returns where
// it begins in elements. An output is copied back by finish.
func (j *job) hold(data []byte, size int, output bool) (gpu.Binding, int64, error) {
	if buf, offset, ok := j.b.memory.find(data); ok && offset%size == 0 {
		return gpu.Binding{Buffer: buf}, int64(offset / size), nil
	}
	buf, err := j.buffer(len(data))
	if err != nil {
		return gpu.Binding{}, 0, err
	}
	if output {
		j.last = append(j.last, func() error { return buf.Download(0, data) })
	} else if err := buf.Upload(0, data); err != nil {
		return gpu.Binding{}, 0, err
	}
	return gpu.Binding{Buffer: buf}, 0, nil
}
