package gpu

import (
	"context"
	"log/slog"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// job is what one command buffer needs: the dispatches, the buffers that go back
// to the pool afterwards, the tables in use, and the copies that end it.
type job struct {
	b       *Backend
	buffers []gpu.Buffer
	tables  []*table
	list    []gpu.Dispatch
	late    []gpu.Dispatch // run behind list: copies out
	after   []func() error // copies behind each run
	last    []func() error // copies that finish makes
}

func (b *Backend) newJob() *job { return &job{b: b} }

// buffer returns at least n bytes, with any contents, until release.
func (j *job) buffer(n int) (gpu.Buffer, error) {
	buf, err := j.b.pool.get(n)
	if err == nil {
		j.buffers = append(j.buffers, buf)
	}
	return buf, err
}

// fill writes the first n bytes of buf, which write is given: the memory itself where it is shared.
func fill(buf gpu.Buffer, n int, write func(b []byte)) error {
	if b := buf.Bytes(); b != nil {
		write(b[:n])
		return nil
	}
	b := make([]byte, n)
	write(b)
	return buf.Upload(0, b)
}

// drain reads the first n bytes of buf, likewise.
func drain(buf gpu.Buffer, n int, read func(b []byte)) error {
	b := buf.Bytes()
	if b == nil {
		b = make([]byte, n)
		if err := buf.Download(0, b); err != nil {
			return err
		}
	}
	read(b[:n])
	return nil
}

// status returns cleared status words.
func (j *job) status() (gpu.Buffer, error) {
	buf, err := j.buffer(4 * shaders.StatusWords)
	if err != nil {
		return nil, err
	}
	return buf, buf.Upload(0, clearStatus())
}

func (j *job) table(k tableKey) (gpu.Binding, error) {
	t, err := j.b.tables.get(k)
	if err != nil {
		return gpu.Binding{}, err
	}
	j.tables = append(j.tables, t)
	return gpu.Binding{Buffer: t.buf}, nil
}

// add appends a dispatch of k over rows rows.
func (j *job) add(k kernel, rows int, grid shaders.Grid, memory int, late bool, args any, bindings ...gpu.Binding) {
	d := gpu.Dispatch{Pipeline: k.pipeline, Buffers: bindings, Args: shaders.Append(nil, args), Groups: grid.Groups, GroupSize: grid.Threads}
	if memory > 0 {
		d.ThreadgroupMemory = []int{memory}
	}
	if log := j.b.opts.Log; log != nil {
		log.LogAttrs(context.Background(), slog.LevelDebug, "dispatch", slog.String("kernel", k.Name), slog.String("declined", k.declined),
			slog.Int("rows", rows), slog.Any("groups", grid.Groups), slog.Any("threads", grid.Threads), slog.Int("memory", memory))
	}
	if late {
		j.late = append(j.late, d)
	} else {
		j.list = append(j.list, d)
	}
}

// run runs what was added, then copies out.
func (j *job) run() error {
	if _, err := j.b.dev.Run(append(j.list, j.late...)...); err != nil {
		return err
	}
	for _, f := range j.after {
		if err := f(); err != nil {
			return err
		}
	}
	j.list, j.late, j.after = nil, nil, nil
	return nil
}

// finish makes the copies that wait for all runs to have succeeded.
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
		j.b.pool.put(buf)
	}
	for _, t := range j.tables {
		j.b.tables.put(t)
	}
	*j = job{b: j.b}
}
