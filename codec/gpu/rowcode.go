package gpu

import (
	"context"
	"encoding/binary"

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
	return []*operand{c.e.tensor(centre.Mean, false), c.e.tensor(centre.Gain, false)}
}

// args are a slab's arguments, without views.
func (c *rowCode) args(s *slab) shaders.RowCodeArgs {
	d := c.dim
	a := shaders.RowCodeArgs{N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height, Dim: uint32(d), Factor: uint32(factor(d)),
		Bits: uint32(c.f.Bits()), Policy: policies[c.policy], Norm: hadamard.Norm(d)}
	if c.search != nil {
		a.Trellis = 1
	}
	return a
}

// centred sets the arguments of a centre, which lies at operands i and i+1 if it is among them, and returns its
// bindings: others that the kernel does not touch where there is none.
func (s *slab) centred(a *shaders.RowCodeArgs, i int) []gpu.Binding {
	if i >= len(s.at) {
		return []gpu.Binding{s.at[0], s.at[0]}
	}
	a.Centred, a.Mean, a.Gain = 1, s.view[i], s.view[i+1]
	return s.at[i : i+2]
}

// addRow adds a dispatch of k over the slab's rows in threadgroup memory.
func (c *rowCode) addRow(s *slab, k kernel, a *shaders.RowCodeArgs, bindings ...gpu.Binding) {
	l := c.e.launchRow(k, c.dim, s.n)
	a.ThreadsPerRow = uint32(l.ThreadsPerRow)
	s.add(k, s.n, l.Grid, l.Bytes, a, bindings...)
}

// Encode packs x.
func (c *rowCode) Encode(codes, scales []byte, x codec.Tensor, centre codec.Centre) (driver.Found, error) {
	found := driver.Nothing
	rotate, err := c.e.kernels.pick(need{op: "rowcode_rotate", dim: c.dim})
	if err != nil {
		return found, c.e.failed(err)
	}
	size := 1
	if c.search != nil {
		size = 4
	}
	ops := append([]*operand{c.e.tensor(x, false)}, c.packed(codes, scales, size, x.Shape[:len(x.Shape)-1], true)...)
	ops = append(ops, c.centre(centre)...)
	err = c.e.over(context.Background(), 3, ops, func(s *slab) error {
		buf, err := s.status()
		if err != nil {
			return err
		}
		rotated, err := s.buffer(4 * s.n * c.dim)
		if err != nil {
			return err
		}
		signs, err := s.table(tableKey{signTable, c.dim, 0})
		if err != nil {
			return err
		}
		status, y := gpu.Binding{Buffer: buf}, gpu.Binding{Buffer: rotated}
		args := c.args(s)
		args.X, args.Codes, args.Scales, args.XType = s.view[0], s.view[1], s.view[2], dtypes[x.DType]
		mean := s.centred(&args, 3)
		c.addRow(s, rotate, &args, s.at[0], mean[0], mean[1], signs, y, status)
		if c.search == nil {
			err = c.levels(s, &args, y, status)
		} else {
			err = c.paths(s, &args, y, status)
		}
		if err != nil {
			return err
		}
		if err := s.run(); err != nil {
			return err
		}
		return collect(&found, buf, s.row*c.dim, c.dim)
	})
	return found, err
}

// levels adds the dispatch that packs rotated rows.
func (c *rowCode) levels(s *slab, args *shaders.RowCodeArgs, y, status gpu.Binding) error {
	k, err := c.e.kernels.pick(need{op: "rowcode_levels"})
	if err != nil {
		return err
	}
	table, err := s.table(c.table)
	if err != nil {
		return err
	}
	s.add(k, s.n, shaders.LaneGrid(s.n, k.pipeline.MaxThreads()), 0, args, y, s.at[1], s.at[2], status, table)
	return nil
}

// paths finds the paths of rotated rows and adds the dispatch that chooses their scales.
func (c *rowCode) paths(s *slab, args *shaders.RowCodeArgs, y, status gpu.Binding) error {
	first, err := c.e.kernels.pick(need{op: "rowcode_samples"})
	if err != nil {
		return err
	}
	refine, err := c.e.kernels.pick(need{op: "rowcode_refine"})
	if err != nil {
		return err
	}
	table, err := s.table(c.table)
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
	k, err := c.e.kernels.pick(need{op: op, dim: c.dim})
	if err != nil {
		return 0, c.e.failed(err)
	}
	return c.decode(ops, dst.DType, func(s *slab, count gpu.Binding) error {
		table, err := s.table(c.table)
		if err != nil {
			return err
		}
		args := c.args(s)
		args.Y, args.Codes, args.Scales, args.YType = s.view[0], s.view[1], s.view[2], dtypes[dst.DType]
		if rotated {
			s.add(k, s.n, shaders.ElementGrid(c.dim, s.n, k.pipeline.MaxThreads()), 0, &args, s.at[1], s.at[2], s.at[0], table, count)
			return nil
		}
		signs, err := s.table(tableKey{signTable, c.dim, 0})
		if err != nil {
			return err
		}
		mean := s.centred(&args, 3)
		c.addRow(s, k, &args, s.at[1], s.at[2], mean[0], mean[1], s.at[0], table, signs, count)
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
		args := c.args(s)
		args.Y, args.X, args.YType, args.XType = s.view[0], s.view[1], dtypes[dst.DType], dtypes[x.DType]
		mean, weight := s.centred(&args, 2), s.at[0]
		if args.Centred != 0 {
			weight, args.Mass, args.MassType = s.at[4], s.view[4], dtypes[mass.DType]
		}
		c.addRow(s, k, &args, s.at[1], mean[0], mean[1], weight, s.at[0], signs, count)
		return nil
	})
}
