package gpu

import "github.com/turbotrellis/turbotrellis/shaders"

// A launch is how a kernel that takes a shaders.Span is laid over the rows of a slab.
type launch struct {
	shaders.Grid
	memory        int // threadgroup memory 0
	span          shaders.Span
	threadsPerRow uint32
	wide          uint32 // the operands that shaders calls so, bit by bit
}

// part is the slab with operands i to j−1 alone.
func (s *slab) part(i, j int) *slab {
	p := *s
	p.ops, p.at, p.view = s.ops[i:j:j], s.at[i:j:j], s.view[i:j:j]
	return &p
}

// lay lays kernel k over the slab's rows of dim elements, operand by operand rows of dim, of their codes or of their
// scales. It changes the views.
func (s *slab) lay(k kernel, dim int) launch {
	l := launch{span: shaders.Span{N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height}}
	if k.Launch == shaders.Rows {
		r := s.e.launchRow(k, dim, s.n)
		l.Grid, l.memory, l.threadsPerRow = r.Grid, r.Bytes, uint32(r.ThreadsPerRow)
	} else {
		run, rows := s.runs()
		width := run * dim / 8
		grid, shift := shaders.UnitGrid(width, rows, k.pipeline.MaxThreads())
		l.Grid = grid
		l.span.Rows, l.span.Width, l.span.Shift = uint32(rows), uint32(width), uint32(shift)
		switch {
		case rows == 1:
			l.span = shaders.Span{N1: 1, N2: 1, Rows: 1, Width: uint32(width), Shift: uint32(shift)}
			for i, v := range s.view {
				i0, i1, i2 := s.row/s.plan.n2/s.plan.n1, s.row/s.plan.n2%s.plan.n1, s.row%s.plan.n2
				s.view[i] = shaders.View{Base: v.Base + int64(i0)*v.S0 + int64(i1)*v.S1 + int64(i2)*v.S2, S3: v.S3}
			}
		case run > 1: // a run for a row: there is a dimension less
			l.span.N1, l.span.N2, l.span.Row0 = uint32(s.plan.rows/s.plan.n2), s.n1, uint32(s.row/s.plan.n2)
			for i, v := range s.view {
				s.view[i] = shaders.View{Base: v.Base, S1: v.S0, S2: v.S1, S3: v.S3}
			}
		}
	}
	for i, o := range s.ops {
		v, align := s.view[i], int64(8)
		if o.size == 1 && o.dim != dim { // codes of less than 8 bits
			align = 4
		}
		if v.S3 == 1 && (v.Base|v.S0|v.S1|v.S2)&(align-1) == 0 {
			l.wide |= 1 << i
		}
	}
	return l
}

// runs returns how the slab's rows are runs of rows that follow each other in every operand, or share a centre: of how
// many rows each, and how many.
func (s *slab) runs() (run, rows int) {
	if s.n == 1 {
		return 1, 1
	}
	for i, o := range s.ops {
		if v := s.view[i]; v.S3 != 1 || v.S2 != int64(o.dim) && !(o.centre && v.S2 == 0) {
			return 1, s.n
		}
	}
	n2 := s.plan.n2
	switch {
	case s.row%n2+s.n <= n2:
		return s.n, 1
	case s.row%n2 == 0 && s.n%n2 == 0:
		return n2, s.n / n2
	}
	return 1, s.n
}

// groupShift is log2 of the units of a group of g elements.
func groupShift(g int) uint32 {
	if g == 64 {
		return 3
	}
	return 2
}
