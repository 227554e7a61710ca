package gpu

import (
	"context"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// slab is a run of consecutive rows of an operation, bound for one job.
type slab struct {
	*job
	plan                 plan
	row, n               int // rows row to row+n−1
	n1, n2, row0, height uint32
	ops                  []*operand
	at                   []gpu.Binding  // where each operand is
	view                 []shaders.View // and in it all of its rows
}

// bound binds rows row to row+n−1 of the operands.
func (j *job) bound(p plan, row, n int, ops []*operand) (*slab, error) {
	s := &slab{job: j, plan: p, row: row, n: n, n1: uint32(p.n1), n2: uint32(p.n2), row0: uint32(row), height: uint32(n), ops: ops}
	for _, o := range ops {
		at, v, err := j.bind(o, p, row, n)
		if err != nil {
			return nil, err
		}
		s.at, s.view = append(s.at, at), append(s.view, v)
	}
	return s, nil
}

// own returns the view of operand i in which the slab's rows are 0 to n−1, for kernels with rows in one
// dimension.
func (s *slab) own(i int) shaders.View {
	v := s.view[i]
	v.Base += int64(s.row) * v.S2
	return v
}

// over runs f for every slab of the rows of ops, in up to dims dimensions, until ctx ends.
func (e *engine) over(ctx context.Context, dims int, ops []*operand, f func(s *slab) error) error {
	p, err := e.plan(dims, ops...)
	if err != nil {
		return err
	}
	return e.failed(p.each(ctx, func(row, n int) error {
		j := e.newJob()
		defer j.release()
		s, err := j.bound(p, row, n, ops)
		if err != nil {
			return err
		}
		return f(s)
	}))
}

// each calls f for every slab of rows, in order.
func (p plan) each(ctx context.Context, f func(row, n int) error) error {
	for row := 0; row < p.rows; row += p.slab {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(row, min(p.slab, p.rows-row)); err != nil {
			return err
		}
	}
	return nil
}
