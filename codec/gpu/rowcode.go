package gpu

import (
	"context"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

var _ driver.RowCodes = (*engine)(nil)

// rowCode is one row code of an engine (docs/numerics.md §10).
type rowCode struct {
	e      *engine
	f      codec.Format
	dim    int
	policy codec.Policy
	search *weights // of the trellis code, else nil
	table  tableKey // what codes stand for
}

// RowCode returns codec.ErrUnsupported if a row does not fit in the device's threadgroup memory.
func (e *engine) RowCode(f codec.Format, dim int, p codec.Policy) (driver.RowCode, error) {
	if _, err := shaders.RowLaunch(dim, 1, e.info.MaxThreads[0], e.info.MaxThreadgroupMemory); err != nil {
		return nil, e.unsupported("%v", err)
	}
	c := &rowCode{e: e, f: f, dim: dim, policy: p, table: tableKey{levelTable, f.Bits(), 0}}
	if f.Trellis() {
		c.table = tableKey{rowTable, f.Bits(), 0}
		c.search = &weights{e: e, p: trellis.Params{L: trellis.RowL, K: f.Bits(), T: dim}, table: c.table}
	}
	return c, nil
}

// packed describes packed rows: codes, in elements of some bytes, and scales.
func (c *rowCode) packed(codes, scales []byte, size int, lead []int, output bool) []*operand {
	return []*operand{c.e.packed(codes, size, c.dim*c.f.Bits()/8/size, lead, output), c.e.packed(scales, 1, 1, lead, output)}
}

// centre describes a centre: nothing where there is none.
func (c *rowCode) centre(centre codec.Centre) []*operand {
	if centre.Mean.DType == 0 {
		return nil
	}
	mean, gain := c.e.tensor(centre.Mean, false), c.e.tensor(centre.Gain, false)
	mean.centre, gain.centre = true, true
	return []*operand{mean, gain}
}

// The views of RowCodeArgs, in the order of the bits of Wide.
const (
	rowX = iota
	rowY
	rowCodes
	rowScales
	rowMean
	rowGain
	rowMass
)

// lay lays kernel k over the slab's rows; its operands are the first views of which.
func (c *rowCode) lay(s *slab, k kernel, which ...int) (launch, shaders.RowCodeArgs) {
	p := *s
	p.view = slices.Clone(s.view)
	l := p.lay(k, c.dim)
	d := c.dim
	a := shaders.RowCodeArgs{Span: l.span, Dim: uint32(d), Factor: factor(d), ThreadsPerRow: l.threadsPerRow, UnitShift: uint32(bits.Len(uint(d/8)) - 1),
		Bits: uint32(c.f.Bits()), Policy: policies[c.policy], Norm: hadamard.Norm(d)}
	views := [...]*shaders.View{&a.X, &a.Y, &a.Codes, &a.Scales, &a.Mean, &a.Gain, &a.Mass}
	for i, v := range p.view {
		*views[which[i]] = v
		a.Wide |= l.wide >> i & 1 << which[i]
		if which[i] == rowMean || which[i] == rowGain {
			a.Centred |= 1
			if s.view[i].S2 == 0 {
				a.Centred |= 2 << (which[i] - rowMean)
			}
		}
	}
	return l, a
}

// mean returns the bindings of a centre, which lies at operands i and i+1 if it is among them: others that the kernel
// does not touch where there is none.
func (s *slab) mean(i int) []gpu.Binding {
	if i >= len(s.at) {
		return []gpu.Binding{s.at[0], s.at[0]}
	}
	return s.at[i : i+2]
}

// Encode packs x.
func (c *rowCode) Encode(codes, scales []byte, x codec.Tensor, centre codec.Centre) (driver.Found, error) {
	found := driver.Nothing
	op, size := "rowcode_encode", 1
	if c.search != nil {
		op, size = "rowcode_rotate", 4
	}
	k, err := c.e.kernels.pick(need{op: op, bits: c.f.Bits(), dim: c.dim})
	if err != nil {
		return found, c.e.failed(err)
	}
	ops := append([]*operand{c.e.tensor(x, false)}, c.packed(codes, scales, size, x.Shape[:len(x.Shape)-1], true)...)
	ops = append(ops, c.centre(centre)...)
	err = c.e.over(context.Background(), 3, ops, func(s *slab) error {
		buf, err := s.status()
		if err != nil {
			return err
		}
		signs, err := s.table(tableKey{signTable, c.dim, 0})
		if err != nil {
			return err
		}
		table, err := s.table(c.table)
		if err != nil {
			return err
		}
		status, mean := gpu.Binding{Buffer: buf}, s.mean(3)
		l, args := c.lay(s, k, rowX, rowCodes, rowScales, rowMean, rowGain)
		args.XType = dtypes[x.DType]
		if k.Op == "rowcode_encode" {
			s.add(k, s.n, l.Grid, l.memory, &args, s.at[0], s.at[1], s.at[2], mean[0], mean[1], signs, table, status)
		} else {
			rotated, err := s.buffer(4 * s.n * c.dim)
			if err != nil {
				return err
			}
			y := gpu.Binding{Buffer: rotated}
			s.add(k, s.n, l.Grid, l.memory, &args, s.at[0], mean[0], mean[1], signs, y, status)
			// The rest takes the slab's rows one by one.
			args.Span = shaders.Span{N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height}
			args.Codes, args.Scales = s.view[1], s.view[2]
			rest := c.levels
			if c.search != nil {
				rest = c.paths
			}
			if err := rest(s, &args, y, status, table); err != nil {
				return err
			}
		}
		if err := s.run(); err != nil {
			return err
		}
		return collect(&found, buf, s.row*c.dim, c.dim)
	})
	return found, err
}

// levels adds the dispatch that packs rotated rows.
func (c *rowCode) levels(s *slab, args *shaders.RowCodeArgs, y, status, table gpu.Binding) error {
	k, err := c.e.kernels.pick(need{op: "rowcode_levels"})
	if err != nil {
		return err
	}
	s.add(k, s.n, shaders.LaneGrid(s.n, k.pipeline.MaxThreads()), 0, args, y, s.at[1], s.at[2], status, table)
	return nil
}

// paths finds the paths of rotated rows and adds the dispatch that chooses their scales.
func (c *rowCode) paths(s *slab, args *shaders.RowCodeArgs, y, status, table gpu.Binding) error {
	first, err := c.e.kernels.pick(need{op: "rowcode_samples"})
	if err != nil {
		return err
	}
	refine, err := c.e.kernels.pick(need{op: "rowcode_refine"})
	if err != nil {
		return err
	}
	var at [3]gpu.Binding // samples, first scales, states
	for i, n := range []int{4 * c.dim, 4, 2 * c.dim} {
		buf, err := s.buffer(n * s.n)
		if err != nil {
			return err
		}
		at[i] = gpu.Binding{Buffer: buf}
	}
	grid := shaders.LaneGrid(s.n, first.pipeline.MaxThreads())
	s.add(first, s.n, grid, 0, args, y, at[0], at[1], status)
	rows := shaders.View{S2: int64(c.dim), S3: 1}
	search := shaders.TrellisEncodeArgs{W: rows, Codes: s.own(1), States: rows, Blocks: s.height, RowBlocks: 1, WriteCodes: 1, WriteStates: 1}
	found := driver.Nothing // samples are finite and in range
	if err := c.search.search(context.Background(), s, search, places{w: at[0], scales: at[0], codes: s.at[1], states: at[2]}, 0, &found); err != nil {
		return err
	}
	s.add(refine, s.n, shaders.LaneGrid(s.n, refine.pipeline.MaxThreads()), 0, args, y, at[2], at[1], table, s.at[1], s.at[2])
	return nil
}

// decode runs a decoder over the slabs of ops, and returns how many elements it saturated on the way to type t. add
// adds the dispatch; count is where the kernel counts, if it has something to count.
func (c *rowCode) decode(ops []*operand, t codec.DType, add func(s *slab, count gpu.Binding) error) (saturated int, err error) {
	counts := t == codec.F16 && c.policy == codec.Finite
	err = c.e.over(context.Background(), 3, ops, func(s *slab) error {
		count := s.at[0] // the kernel does not touch it
		if counts {
			buf, err := s.filled(make([]byte, 4))
			if err != nil {
				return err
			}
			count = gpu.Binding{Buffer: buf}
		}
		if err := add(s, count); err != nil {
			return err
		}
		if err := s.run(); err != nil || !counts {
			return err
		}
		word := make([]byte, 4)
		err := count.Buffer.Download(0, word)
		saturated += int(binary.LittleEndian.Uint32(word))
		return err
	})
	return saturated, err
}

// Decode unpacks rows.
func (c *rowCode) Decode(dst codec.Tensor, codes, scales []byte, centre codec.Centre, rotated bool) (saturated int, err error) {
	ops := append([]*operand{c.e.tensor(dst, true)}, c.packed(codes, scales, 1, dst.Shape[:len(dst.Shape)-1], false)...)
	op := "rowcode_decode"
	if !rotated {
		op = "rowcode_inverse"
		ops = append(ops, c.centre(centre)...)
	}
	if c.search != nil {
		op += "_trellis"
	}
	k, err := c.e.kernels.pick(need{op: op, bits: c.f.Bits(), dim: c.dim})
	if err != nil {
		return 0, c.e.failed(err)
	}
	return c.decode(ops, dst.DType, func(s *slab, count gpu.Binding) error {
		table, err := s.table(c.table)
		if err != nil {
			return err
		}
		l, args := c.lay(s, k, rowY, rowCodes, rowScales, rowMean, rowGain)
		args.YType = dtypes[dst.DType]
		if rotated {
			s.add(k, s.n, l.Grid, l.memory, &args, s.at[1], s.at[2], s.at[0], table, count)
			return nil
		}
		signs, err := s.table(tableKey{signTable, c.dim, 0})
		if err != nil {
			return err
		}
		mean := s.mean(3)
		s.add(k, s.n, l.Grid, l.memory, &args, s.at[1], s.at[2], mean[0], mean[1], s.at[0], table, signs, count)
		return nil
	})
}

// Unrotate rotates rows back, and un-centres them.
func (c *rowCode) Unrotate(dst, x codec.Tensor, centre codec.Centre, mass codec.Tensor) (saturated int, err error) {
	k, err := c.e.kernels.pick(need{op: "rowcode_unrotate", dim: c.dim})
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := []*operand{c.e.tensor(dst, true), c.e.tensor(x, false)}
	if list := c.centre(centre); list != nil {
		ops = append(append(ops, list...), c.e.tensor(mass, false))
	}
	return c.decode(ops, dst.DType, func(s *slab, count gpu.Binding) error {
		signs, err := s.table(tableKey{signTable, c.dim, 0})
		if err != nil {
			return err
		}
		l, args := c.lay(s, k, rowY, rowX, rowMean, rowGain, rowMass)
		args.YType, args.XType = dtypes[dst.DType], dtypes[x.DType]
		mean, weight := s.mean(2), s.at[0]
		if args.Centred != 0 {
			weight, args.MassType = s.at[4], dtypes[mass.DType]
		}
		s.add(k, s.n, l.Grid, l.memory, &args, s.at[1], mean[0], mean[1], weight, s.at[0], signs, count)
		return nil
	})
}
