package gpu

import (
	"context"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// encoding is a matrix being encoded, in two passes over slabs of its coded rows: every row's scale, before
// anything else is written; then search, refit, interleave and expand.
type encoding struct {
	*weights
	g       trellis.Geometry
	w       *operand
	wType   codec.DType
	recon   *operand // nil if not asked for
	outType codec.DType
	plan    plan

	whole         *job // what all slabs share
	scales, codes gpu.Binding
	scale0        int64        // where the scales begin
	layout        shaders.View // of the codes
	only          *slab        // where there is one: both passes use what it has bound
}

// Encode packs x into m, and writes the weights that m decodes to to recon unless that is the zero Tensor
// (docs/numerics.md §6). It writes nothing to Go memory if it finds something to report.
func (c *weights) Encode(ctx context.Context, m *trellis.Matrix, recon, x codec.Tensor) (driver.Found, error) {
	out, err := c.encode(ctx, m, recon, x)
	if m.Geometry.Axis == 0 { // element numbers of the coded rows
		for _, i := range []*int{&out.NonFinite, &out.Overflow} {
			if cols := m.Geometry.Cols(); *i != driver.None {
				*i = *i%cols*m.Geometry.In + *i/cols
			}
		}
	}
	return out, c.e.failed(err)
}

func (c *weights) encode(ctx context.Context, m *trellis.Matrix, recon, x codec.Tensor) (driver.Found, error) {
	out := driver.Nothing
	e := &encoding{weights: c, g: m.Geometry, wType: x.DType, outType: recon.DType, whole: c.e.newJob()}
	defer e.whole.release()
	if err := e.begin(m, recon, x); err != nil {
		return out, err
	}
	err := e.each(ctx, func(s *slab) error { return e.scale(s, &out) })
	if err != nil || out != driver.Nothing {
		return out, err
	}
	if err := e.each(ctx, func(s *slab) error { return e.code(ctx, s) }); err != nil {
		return out, err
	}
	return out, e.whole.finish()
}

// begin plans the slabs and binds the outputs.
func (e *encoding) begin(m *trellis.Matrix, recon, x codec.Tensor) (err error) {
	e.w = e.e.tensor(coded(x, e.g.Axis), false)
	if e.plan, err = e.e.plan(1, e.w); err != nil {
		return err
	}
	if recon.DType != 0 {
		e.recon = e.e.tensor(coded(recon, e.g.Axis), true)
		if _, err := e.e.plan(1, e.recon); err != nil {
			return err
		}
		e.recon.direct = e.recon.direct && (e.recon.buf != nil || e.plan.slab >= e.plan.rows)
	}
	if e.scales, e.scale0, err = e.whole.hold(bytesOf(m.Scales), 2, true); err != nil {
		return err
	}
	codes, base, err := e.whole.hold(bytesOf(m.Codes), 4, true)
	e.codes, e.layout = codes, layoutOf(e.g, e.p, base)
	return err
}

// each runs f for every slab of coded rows.
func (e *encoding) each(ctx context.Context, f func(s *slab) error) error {
	return e.plan.each(ctx, func(row, n int) (err error) {
		if e.plan.slab >= e.plan.rows {
			if e.only == nil {
				e.only, err = e.whole.bound(e.plan, row, n, []*operand{e.w})
			}
			if err != nil {
				return err
			}
			return f(e.only)
		}
		j := e.e.newJob()
		defer j.release()
		s, err := j.bound(e.plan, row, n, []*operand{e.w})
		if err != nil {
			return err
		}
		return f(s)
	})
}

// rowScales is the view of the slab's scales.
func (e *encoding) rowScales(s *slab) shaders.View {
	return shaders.View{Base: e.scale0 + int64(s.row), S2: 1}
}

func (e *encoding) scaleArgs(s *slab) shaders.TrellisScalesArgs {
	a := shaders.TrellisScalesArgs{W: s.own(0), Scales: e.rowScales(s), Rows: s.height, Cols: uint32(e.g.Cols()), WType: dtypes[e.wType],
		InverseCodeRMS: e.inverse, Factor: 1}
	if e.p.Scale == trellis.Refit {
		a.Factor = trellis.RefitFactor(e.p.K)
	}
	if e.p.Policy == trellis.Compat {
		a.Policy = shaders.PolicyCompat
	}
	return a
}

// scale computes the scales of a slab's rows and reports what it finds.
func (e *encoding) scale(s *slab, out *driver.Found) error {
	k, err := e.e.kernels.pick(need{op: "trellis_scales"})
	if err != nil {
		return err
	}
	status, err := s.status()
	if err != nil {
		return err
	}
	args := e.scaleArgs(s)
	s.add(k, s.n, shaders.LaneGrid(s.n, k.pipeline.MaxThreads()), 0, &args, s.at[0], e.scales, gpu.Binding{Buffer: status})
	if err := s.run(); err != nil {
		return err
	}
	return collect(out, status, s.row*e.g.Cols(), e.g.Cols())
}

// code is the second pass over a slab.
func (e *encoding) code(ctx context.Context, s *slab) error {
	cols := e.g.Cols()
	rowBlocks := cols / e.p.T
	rowWords := int64(rowBlocks * e.p.BlockWords())
	args := shaders.TrellisEncodeArgs{
		W: s.own(0), Scales: e.rowScales(s), Blocks: uint32(s.n * rowBlocks), RowBlocks: uint32(rowBlocks),
		WType: dtypes[e.wType], Scaled: 1, WriteCodes: 1,
	}
	at := places{w: s.at[0], scales: e.scales, codes: e.codes, states: e.codes} // states: not written
	if e.g.Interleaved {
		buf, err := s.buffer(4 * s.n * int(rowWords))
		if err != nil {
			return err
		}
		at.codes, args.Codes = gpu.Binding{Buffer: buf}, shaders.View{S2: rowWords, S3: 1}
	} else {
		args.Codes = e.layout
		args.Codes.Base += int64(s.row) * rowWords
	}
	if e.p.Scale == trellis.Refit {
		buf, err := s.buffer(2 * s.n * cols)
		if err != nil {
			return err
		}
		at.states, args.States, args.WriteStates = gpu.Binding{Buffer: buf}, shaders.View{S2: int64(cols), S3: 1}, 1
	}
	found := driver.Nothing // the scales pass has seen every weight
	if err := e.search(ctx, s, args, at, s.row*cols, &found); err != nil {
		return err
	}
	if e.p.Scale == trellis.Refit {
		if err := e.refit(s, at.states, args.States); err != nil {
			return err
		}
	}
	if e.g.Interleaved {
		if err := e.interleave(s, at.codes, rowWords); err != nil {
			return err
		}
	}
	if e.recon != nil {
		if err := e.reconstruct(s); err != nil {
			return err
		}
	}
	return s.run()
}

// refit adds the dispatch that refits the scales of a slab's rows to their states.
func (e *encoding) refit(s *slab, states gpu.Binding, view shaders.View) error {
	k, err := e.e.kernels.pick(need{op: "trellis_refit"})
	if err != nil {
		return err
	}
	values, err := s.values(e.p)
	if err != nil {
		return err
	}
	args := e.scaleArgs(s)
	args.States = view
	s.add(k, s.n, shaders.LaneGrid(s.n, k.pipeline.MaxThreads()), 0, &args, s.at[0], states, values, e.scales)
	return nil
}

// interleave adds the dispatch that copies a slab's codes, row after row in from, to where the layout has them.
func (e *encoding) interleave(s *slab, from gpu.Binding, rowWords int64) error {
	k, err := e.e.kernels.pick(need{op: "copy", size: 4})
	if err != nil {
		return err
	}
	pairs := e.g.Cols() / e.p.T / 2
	pair := int64(2 * e.p.BlockWords())
	to := e.layout
	to.Base += int64(s.row) * to.S2
	args := shaders.CopyArgs{X: shaders.View{S1: pair, S2: rowWords, S3: 1}, Y: to,
		N1: uint32(pairs), N2: s.height, Rows: uint32(pairs * s.n), Dim: uint32(pair)}
	s.add(k, pairs*s.n, shaders.ElementGrid(int(pair), pairs*s.n, k.pipeline.MaxThreads()), 0, &args, from, e.codes)
	return nil
}

// reconstruct adds the dispatches that decode a slab.
func (e *encoding) reconstruct(s *slab) error {
	at, view, err := s.bind(e.recon, e.plan, s.row, s.n)
	if err != nil {
		return err
	}
	view.Base += int64(s.row) * view.S2
	from := e.layout
	from.Base += int64(s.row) * from.S2
	args := shaders.TrellisExpandArgs{Codes: from, Scales: e.rowScales(s), Out: view, Rows: s.height, Cols: uint32(e.g.Cols()), OutType: dtypes[e.outType]}
	return e.expand(s, args, e.g, e.codes, e.scales, at)
}
