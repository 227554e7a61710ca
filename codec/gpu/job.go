package gpu

import (
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"time"

	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// job is what one command buffer, or a few in a row, need: the dispatches, the buffers that go back to the pool
// afterwards, the tables in use, and the copies to Go memory that follow.
type job struct {
	e       *engine
	buffers []gpu.Buffer
	tables  []*table
	list    []gpu.Dispatch
	late    []gpu.Dispatch // run behind list: copies out
	after   []func() error // copies behind each run
	last    []func() error // copies that finish makes
}

func (e *engine) newJob() *job { return &job{e: e} }

// buffer returns at least n bytes, with any contents, until release.
func (j *job) buffer(n int) (gpu.Buffer, error) {
	buf, err := j.e.pool.get(n)
	if err == nil {
		j.buffers = append(j.buffers, buf)
	}
	return buf, err
}

// filled returns a buffer that holds data.
func (j *job) filled(data []byte) (gpu.Buffer, error) {
	buf, err := j.buffer(len(data))
	if err != nil {
		return nil, err
	}
	return buf, buf.Upload(0, data)
}

// status returns cleared status words.
func (j *job) status() (gpu.Buffer, error) { return j.filled(clearStatus) }

var clearStatus = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, shaders.StatusClear), shaders.StatusClear)

// collect takes in the status words of a dispatch whose first element is number element of the input. An overflow
// is counted in groups of so many elements. Dispatches come in the order of elements, so what was found before
// stays.
func collect(f *driver.Found, status gpu.Buffer, element, group int) error {
	words := make([]byte, 4*shaders.StatusWords)
	if err := status.Download(0, words); err != nil {
		return err
	}
	take := func(to *int, word, size int) {
		if w := binary.LittleEndian.Uint32(words[4*word:]); *to == driver.None && w != shaders.StatusClear {
			*to = element + int(w)*size
		}
	}
	take(&f.NonFinite, shaders.StatusNonFinite, 1)
	take(&f.Overflow, shaders.StatusScaleOverflow, group)
	return nil
}

func (j *job) table(k tableKey) (gpu.Binding, error) {
	t, err := j.e.tables.get(k)
	if err != nil {
		return gpu.Binding{}, err
	}
	j.tables = append(j.tables, t)
	return gpu.Binding{Buffer: t.buf}, nil
}

// dispatch returns a dispatch of k, and logs it.
func (j *job) dispatch(k kernel, rows int, grid shaders.Grid, memory int, args any, bindings ...gpu.Binding) gpu.Dispatch {
	d := gpu.Dispatch{Pipeline: k.pipeline, Buffers: bindings, Args: shaders.Append(nil, args), Groups: grid.Groups, GroupSize: grid.Threads}
	if memory > 0 {
		d.ThreadgroupMemory = []int{memory}
	}
	if log := j.e.opts.Log; log != nil {
		log.LogAttrs(context.Background(), slog.LevelDebug, "dispatch", slog.String("kernel", k.Name), slog.String("declined", k.declined), slog.String("product", k.product),
			slog.Int("rows", rows), slog.Any("groups", grid.Groups), slog.Any("threads", grid.Threads), slog.Int("memory", memory))
	}
	return d
}

// add appends a dispatch of k over rows rows, with memory bytes of threadgroup memory.
func (j *job) add(k kernel, rows int, grid shaders.Grid, memory int, args any, bindings ...gpu.Binding) {
	j.list = append(j.list, j.dispatch(k, rows, grid, memory, args, bindings...))
}

// bind puts rows row to row+n−1 of o where the kernel can reach them, and returns where that is: the view of
// all rows of p.
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
		j.after = append(j.after, func() error { return read(buf, n*o.dim*o.size, move) })
	} else {
		err = write(buf, n*o.dim*o.size, move)
	}
	return gpu.Binding{Buffer: buf}, v, err
}

// write fills the first n bytes of buf through f: in place where the memory is shared.
func write(buf gpu.Buffer, n int, f func(b []byte)) error {
	if b := buf.Bytes(); b != nil {
		f(b[:n])
		return nil
	}
	b := make([]byte, n)
	f(b)
	return buf.Upload(0, b)
}

// read gives the first n bytes of buf to f: in place where the memory is shared.
func read(buf gpu.Buffer, n int, f func(b []byte)) error {
	b := buf.Bytes()
	if b == nil {
		b = make([]byte, n)
		if err := buf.Download(0, b); err != nil {
			return err
		}
	}
	f(b[:n])
	return nil
}

// copy adds dispatches that move rows between the device memory of o and compact memory. It declines (false)
// if they would be too many.
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
	k, err := j.e.kernels.pick(need{op: "copy", size: size})
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
		args := shaders.CopyArgs{N1: uint32(inner[1]), N2: uint32(inner[2]), Row0: uint32(from - i*within), Rows: uint32(to - from), Dim: uint32(dim)}
		grid := shaders.ElementGrid(int(dim), to-from, k.pipeline.MaxThreads())
		if o.output {
			args.X, args.Y = ours, theirs
			j.late = append(j.late, j.dispatch(k, to-from, grid, 0, &args, gpu.Binding{Buffer: buf}, gpu.Binding{Buffer: o.buf}))
		} else {
			args.X, args.Y = theirs, ours
			j.add(k, to-from, grid, 0, &args, gpu.Binding{Buffer: o.buf}, gpu.Binding{Buffer: buf})
		}
	}
	return true, nil
}

// codes binds the codes of n coded rows of m from row on, and returns the view in which they are rows 0 to n−1.
func (j *job) codes(m *trellis.Matrix, row, n int) (gpu.Binding, shaders.View, error) {
	g := m.Geometry
	if buf, offset, ok := j.e.memory.find(bytesOf(m.Codes)); ok && offset%4 == 0 {
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
	err = write(buf, 4*groups*n*width, func(b []byte) {
		for i := range groups {
			copy(b[4*i*n*width:], bytesOf(m.Codes[(i*g.Rows()+row)*width:][:n*width]))
		}
	})
	if g.Axis == 0 {
		g.In = n
	} else {
		g.Out = n
	}
	return gpu.Binding{Buffer: buf}, layoutOf(g, m.Params, 0), err
}

// hold binds data, in place if it lies in the device's memory, and returns the number of its first element
// there. An output is copied back by finish.
func (j *job) hold(data []byte, size int, output bool) (gpu.Binding, int64, error) {
	if buf, offset, ok := j.e.memory.find(data); ok && offset%size == 0 {
		return gpu.Binding{Buffer: buf}, int64(offset / size), nil
	}
	if !output {
		buf, err := j.filled(data)
		return gpu.Binding{Buffer: buf}, 0, err
	}
	buf, err := j.buffer(len(data))
	j.last = append(j.last, func() error { return buf.Download(0, data) })
	return gpu.Binding{Buffer: buf}, 0, err
}

// send runs what was added so far and returns how long the device took.
func (j *job) send() (time.Duration, error) {
	took, err := j.e.dev.Run(j.list...)
	j.list = nil
	return took, err
}

// run runs what was added, then the copies out.
func (j *job) run() error {
	j.list = append(j.list, j.late...)
	if _, err := j.send(); err != nil {
		return err
	}
	for _, f := range j.after {
		if err := f(); err != nil {
			return err
		}
	}
	j.late, j.after = nil, nil
	return nil
}

// finish makes the copies that wait until all runs have succeeded.
func (j *job) finish() error {
	for _, f := range j.last {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// release gives everything back.
func (j *job) release() {
	for _, buf := range j.buffers {
		j.e.pool.put(buf)
	}
	for _, t := range j.tables {
		j.e.tables.put(t)
	}
	*j = job{e: j.e}
}
