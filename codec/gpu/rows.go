package gpu

import (
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// maxCopies bounds the dispatches of one strided copy.
const maxCopies = 256

// operand is one operand of a kernel: rows of elements in the caller's memory,
// and how the kernel gets at them.
type operand struct {
	size   int   // bytes of an element
	dim    int   // elements of a row
	lead   []int // leading dimensions
	stride []int // of the leading dimensions, then of the elements of a row
	data   []byte
	output bool

	buf    gpu.Buffer // what data lies in, if that is the device's
	offset int        // bytes

	// direct: the kernel uses the strides, over buf or over a copy of data. Else
	// it sees compact rows, gathered before or scattered afterwards.
	direct bool
	steps  [3]int64 // direct: strides of the leading dimensions after collapsing
}

// tensor describes a tensor. It is direct where the kernel can use the memory as
// it is: the device's, if aligned, or a copy of one that has no gaps. Bytes in
// the gaps of a tensor are somebody else's: they are neither read nor written.
func (b *Backend) tensor(t codec.Tensor, output bool) *operand {
	size := t.DType.Size()
	last := len(t.Shape) - 1
	o := &operand{size: size, dim: t.Shape[last], lead: t.Shape[:last], stride: t.Stride, output: output}
	if o.stride == nil {
		o.stride = rowMajor(t.Shape)
	}
	o.data = t.Data[:(o.reach()+1)*size]
	o.locate(b)
	if o.buf == nil {
		o.direct = o.dense()
	}
	return o
}

// packed describes rows of codes or scales without gaps. The leading dimensions
// are the tensor's.
func (b *Backend) packed(data []byte, size, dim int, lead []int, output bool) *operand {
	o := &operand{size: size, dim: dim, lead: lead, stride: rowMajor(append(slices.Clone(lead), dim)), data: data, output: output}
	o.locate(b)
	return o
}

func (o *operand) locate(b *Backend) {
	if buf, offset, ok := b.memory.find(o.data); ok {
		o.buf, o.offset, o.direct = buf, offset, offset%o.size == 0
	}
}

func rowMajor(shape []int) []int {
	stride := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		stride[i] = n
		n *= shape[i]
	}
	return stride
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// reach returns the element offset of the last element.
func (o *operand) reach() int {
	n := (o.dim - 1) * o.stride[len(o.lead)]
	for i, d := range o.lead {
		n += (d - 1) * o.stride[i]
	}
	return n
}

// dense reports whether every element between the first and the last is one of
// the operand's.
func (o *operand) dense() bool {
	shape := append(slices.Clone(o.lead), o.dim)
	order := make([]int, len(shape))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return o.stride[i] - o.stride[j] })
	reach := 0
	for _, i := range order {
		if shape[i] > 1 {
			if o.stride[i] > reach+1 {
				return false
			}
			reach += (shape[i] - 1) * o.stride[i]
		}
	}
	return true
}

// collapse merges neighbouring dimensions that every operand steps over evenly,
// and drops those of length 1.
func collapse(shape []int, strides [][]int) (merged []int, steps [][]int) {
	steps = make([][]int, len(strides))
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		even := len(merged) > 0
		for k, s := range strides {
			even = even && s[i] == steps[k][0]*merged[0]
		}
		if even {
			merged[0] *= shape[i]
			continue
		}
		merged = slices.Insert(merged, 0, shape[i])
		for k, s := range strides {
			steps[k] = slices.Insert(steps[k], 0, s[i])
		}
	}
	return merged, steps
}

// plan is how the rows of an operation are numbered: [n0, n1, n2], with the same
// numbers for every operand.
type plan struct {
	rows   int
	n1, n2 int
	slab   int // rows at a time
}

// maxDim bounds a row, for the counts of its elements to fit 32 bits.
const maxDim = 1 << 28

func tooLong(dim int) error { return unsupported("rows of %d elements, more than 2^28", dim) }

// maxSlab bounds the rows of a dispatch, for the counts of threads to fit 32 bits.
const maxSlab = 1 << 20

// plan numbers the rows of the operands, which share the leading dimensions, by
// up to dims dimensions. Operands whose strides need more are made indirect.
func (b *Backend) plan(dims int, ops ...*operand) (plan, error) {
	lead := ops[0].lead
	p := plan{rows: product(lead), slab: maxSlab}
	if uint64(p.rows) > math.MaxUint32 {
		return plan{}, unsupported("%d rows, more than 2^32-1", p.rows)
	}
	widest := 1
	for _, o := range ops {
		if o.dim > maxDim {
			return plan{}, tooLong(o.dim)
		}
		widest = max(widest, o.dim*max(o.size, 4)) // status words count elements in 32 bits
	}
	p.slab = max(1, min(maxSlab, int(min(uint64(b.opts.stage), math.MaxUint32)/uint64(widest))))
	if p.slab < p.rows { // a part of the rows is not a part of a copy
		for _, o := range ops {
			o.direct = o.direct && o.buf != nil
		}
	}
	var merged []int
	for {
		var direct []*operand
		var strides [][]int
		for _, o := range ops {
			if o.direct {
				direct = append(direct, o)
				strides = append(strides, o.stride)
			}
		}
		var steps [][]int
		merged, steps = collapse(lead, strides)
		if len(merged) <= dims || len(direct) == 0 {
			for k, o := range direct {
				o.steps = [3]int64{}
				for i, s := range steps[k] {
					o.steps[3-len(merged)+i] = int64(s)
				}
			}
			break
		}
		// The operand with the most dimensions of its own goes.
		worst, most := direct[0], 0
		for _, o := range direct {
			if m, _ := collapse(lead, [][]int{o.stride}); len(m) > most {
				worst, most = o, len(m)
			}
		}
		worst.direct = false
	}
	p.n1, p.n2 = 1, 1
	switch len(merged) {
	case 0:
	case 1:
		p.n2 = merged[0]
	case 2:
		p.n1, p.n2 = merged[0], merged[1]
	default:
		p.n1, p.n2 = merged[1], merged[2]
	}
	return p, nil
}

// each calls f for every slab of rows, in order.
func (p plan) each(f func(row, n int) error) error {
	for row := 0; row < p.rows; row += p.slab {
		if err := f(row, min(p.slab, p.rows-row)); err != nil {
			return err
		}
	}
	return nil
}

// bind puts rows row to row+n−1 of o where the kernel can reach them, and returns
// where that is.
func (j *job) bind(o *operand, p plan, row, n int) (gpu.Binding, shaders.View, error) {
	last := len(o.lead)
	if o.direct {
		v := shaders.View{S0: o.steps[0], S1: o.steps[1], S2: o.steps[2], S3: int64(o.stride[last])}
		if o.buf != nil {
			v.Base = int64(o.offset / o.size)
			return gpu.Binding{Buffer: o.buf}, v, nil
		}
		buf, err := j.buffer(len(o.data))
		if err != nil {
			return gpu.Binding{}, v, err
		}
		if o.output {
			j.after = append(j.after, func() error { return buf.Download(0, o.data) })
		} else {
			err = buf.Upload(0, o.data)
		}
		return gpu.Binding{Buffer: buf}, v, err
	}
	v := compact(o.dim, p)
	v.Base = -int64(row) * int64(o.dim)
	buf, err := j.buffer(n * o.dim * o.size)
	if err != nil {
		return gpu.Binding{}, v, err
	}
	if o.buf != nil {
		done, err := j.copy(o, buf, row, n)
		if done || err != nil {
			return gpu.Binding{Buffer: buf}, v, err
		}
	}
	move := func(rows []byte) { o.move(rows, row, n) }
	if o.output {
		j.after = append(j.after, func() error { return drain(buf, n*o.dim*o.size, move) })
	} else {
		err = fill(buf, n*o.dim*o.size, move)
	}
	return gpu.Binding{Buffer: buf}, v, err
}

// compact is the view of rows of dim elements that follow each other.
func compact(dim int, p plan) shaders.View {
	d := int64(dim)
	return shaders.View{S0: int64(p.n1) * int64(p.n2) * d, S1: int64(p.n2) * d, S2: d, S3: 1}
}

// move gathers rows of an input into compact memory, or scatters those of an
// output from it.
func (o *operand) move(rows []byte, row, n int) {
	last := len(o.lead)
	width := o.dim * o.size
	step := o.stride[last] * o.size
	if m, s := collapse(append(slices.Clone(o.lead), o.dim), [][]int{o.stride}); len(m) == 0 || len(m) == 1 && s[0][0] == 1 {
		o.moveRun(rows, o.data[row*width:], n*width)
		return
	}
	for r := range n {
		at := 0
		for i, q := last-1, row+r; i >= 0; i-- {
			at += q % o.lead[i] * o.stride[i]
			q /= o.lead[i]
		}
		run, theirs := rows[r*width:][:width], o.data[at*o.size:]
		if step == o.size {
			o.moveRun(run, theirs, width)
			continue
		}
		for e := range o.dim {
			o.moveRun(run[e*o.size:], theirs[e*step:], o.size)
		}
	}
}

func (o *operand) moveRun(ours, theirs []byte, n int) {
	if o.output {
		copy(theirs[:n], ours[:n])
	} else {
		copy(ours[:n], theirs[:n])
	}
}

// copy plans dispatches that move rows between the device memory of o and
// compact memory. It declines (false) where they would be too many.
func (j *job) copy(o *operand, buf gpu.Buffer, row, n int) (bool, error) {
	shape := append(slices.Clone(o.lead), o.dim)
	stride := slices.Clone(o.stride)
	size := o.size
	if o.offset%size != 0 { // by bytes
		for i := range stride {
			stride[i] *= size
		}
		if stride[len(stride)-1] == size {
			shape[len(shape)-1] *= size
			stride[len(stride)-1] = 1
		} else {
			shape, stride = append(shape, size), append(stride, 1)
			row, n = row*o.dim, n*o.dim
		}
		size = 1
	}
	last := len(shape) - 1
	merged, steps := collapse(shape[:last], [][]int{stride[:last]})
	for len(merged) < 3 {
		merged = slices.Insert(merged, 0, 1)
		steps[0] = slices.Insert(steps[0], 0, 0)
	}
	outer, inner := merged[:len(merged)-3], merged[len(merged)-3:]
	within := product(inner)
	first, end := row/within, (row+n+within-1)/within
	if end-first > maxCopies {
		return false, nil
	}
	k, err := j.b.kernels.pick(need{op: "copy", size: size}, accept)
	if err != nil {
		return false, err
	}
	dim := int64(shape[last])
	s := steps[0][len(outer):]
	for i := first; i < end; i++ {
		from, to := max(row, i*within), min(row+n, (i+1)*within)
		at := int64(o.offset / size)
		for d, q := len(outer)-1, i; d >= 0; d-- {
			at += int64(q%outer[d]) * int64(steps[0][d])
			q /= outer[d]
		}
		theirs := shaders.View{Base: at, S0: int64(s[0]), S1: int64(s[1]), S2: int64(s[2]), S3: int64(stride[last])}
		ours := shaders.View{Base: int64(i*within-row) * dim, S0: int64(inner[1]*inner[2]) * dim, S1: int64(inner[2]) * dim, S2: dim, S3: 1}
		args := shaders.CopyArgs{X: theirs, Y: ours, N1: uint32(inner[1]), N2: uint32(inner[2]), Row0: uint32(from - i*within), Rows: uint32(to - from), Dim: uint32(dim)}
		bindings := []gpu.Binding{{Buffer: o.buf}, {Buffer: buf}}
		if o.output {
			args.X, args.Y = ours, theirs
			bindings[0], bindings[1] = bindings[1], bindings[0]
		}
		grid := shaders.ElementGrid(int(dim), to-from, k.pipeline.MaxThreads())
		j.add(k, to-from, grid, 0, o.output, &args, bindings...)
	}
	return true, nil
}
