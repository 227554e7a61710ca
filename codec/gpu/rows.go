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
	centre bool // of a row code: rows may share it

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
func (e *engine) tensor(t codec.Tensor, output bool) *operand {
	size := t.DType.Size()
	last := len(t.Shape) - 1
	o := &operand{size: size, dim: t.Shape[last], lead: t.Shape[:last], stride: t.Stride, output: output}
	if o.stride == nil {
		o.stride = rowMajor(t.Shape)
	}
	o.data = t.Data[:(o.reach()+1)*size]
	o.locate(e)
	if o.buf == nil {
		o.direct = o.dense()
	}
	return o
}

// packed describes rows of codes or scales without gaps. The leading dimensions
// are the tensor's.
func (e *engine) packed(data []byte, size, dim int, lead []int, output bool) *operand {
	o := &operand{size: size, dim: dim, lead: lead, stride: rowMajor(append(slices.Clone(lead), dim)), data: data, output: output}
	o.locate(e)
	return o
}

func (o *operand) locate(e *engine) {
	if buf, offset, ok := e.memory.find(o.data); ok {
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

// maxSlab bounds the rows of a dispatch, for the counts of threads to fit 32 bits.
const maxSlab = 1 << 20

// plan numbers the rows of the operands, which share the leading dimensions, by
// up to dims dimensions. Operands whose strides need more are made indirect.
func (e *engine) plan(dims int, ops ...*operand) (plan, error) {
	lead := ops[0].lead
	p := plan{rows: product(lead), slab: maxSlab}
	if uint64(p.rows) > math.MaxUint32 {
		return plan{}, e.unsupported("%d rows, more than 2^32-1", p.rows)
	}
	widest := 1
	for _, o := range ops {
		if o.dim > maxDim {
			return plan{}, e.unsupported("rows of %d elements, more than 2^28", o.dim)
		}
		widest = max(widest, o.dim*max(o.size, 4)) // status words count elements in 32 bits
	}
	p.slab = max(1, min(maxSlab, int(min(uint64(e.opts.stage), math.MaxUint32)/uint64(widest))))
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
