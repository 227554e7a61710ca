package trace

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/turbotrellis/turbotrellis/codec/metal/gpu"
)

// NewRecorder returns dev with a recorder around it: every dispatch that succeeds is written to w.
// The recorder runs each dispatch of a list as a command buffer of its own, one at a time whoever
// asks, to see the buffers between them. Closing it closes dev, not w.
func NewRecorder(dev gpu.Device, w io.Writer) (gpu.Device, error) {
	tw, err := NewWriter(w)
	if err != nil {
		return nil, err
	}
	return &recorder{Device: dev, w: tw}, nil
}

type recorder struct {
	gpu.Device
	mu sync.Mutex
	w  *Writer
}

func (r *recorder) Run(list ...gpu.Dispatch) (time.Duration, error) {
	for i := range list { // refuse a list whole, as the device does
		if err := list[i].Check(r.Info()); err != nil {
			return 0, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var total time.Duration
	for i := range list {
		if list[i].Empty() {
			continue
		}
		spent, err := r.run(&list[i])
		if err != nil {
			return 0, err
		}
		total += spent
	}
	return total, nil
}

func (r *recorder) run(d *gpu.Dispatch) (time.Duration, error) {
	rec := Record{
		Kernel:            d.Pipeline.Name(),
		Args:              d.Args,
		ThreadgroupMemory: d.ThreadgroupMemory,
		Groups:            d.Groups,
		GroupSize:         d.GroupSize,
	}
	var buffers []gpu.Buffer
	place := map[gpu.Buffer]int{}
	for _, b := range d.Buffers {
		at, seen := place[b.Buffer]
		if !seen {
			at = len(buffers)
			place[b.Buffer] = at
			buffers = append(buffers, b.Buffer)
			rec.Buffers = append(rec.Buffers, Buffer{Before: bytes.Clone(b.Buffer.Bytes())})
		}
		rec.Bindings = append(rec.Bindings, Binding{at, b.Offset})
	}
	spent, err := r.Device.Run(*d)
	if err != nil {
		return 0, err
	}
	for i, b := range buffers {
		if after := b.Bytes(); !bytes.Equal(after, rec.Buffers[i].Before) {
			rec.Buffers[i].After = bytes.Clone(after)
		}
	}
	return spent, r.w.Write(&rec)
}

// Result counts what a replay did.
type Result struct {
	Dispatches int
	Bytes      int64 // compared
	Kernels    map[string]int
}

// Mismatch is the first byte in which a device's answer differs from the trace's.
type Mismatch struct {
	Record    int    // the dispatch, from 0
	Kernel    string //
	Buffer    int    // the buffer's place in the record
	Offset    int    // in the buffer
	Got, Want byte
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("trace: record %d: %s: buffer %d, byte %d: got %#02x, want %#02x",
		m.Record, m.Kernel, m.Buffer, m.Offset, m.Got, m.Want)
}

// Replay runs every dispatch of the trace in r on dev, each with buffers of its own, and compares
// every byte of every buffer with what the trace has. pipeline finds a kernel by name. It stops at
// the first difference, which is a *Mismatch; the result counts what came before.
func Replay(r io.Reader, dev gpu.Device, pipeline func(kernel string) (gpu.Pipeline, error)) (Result, error) {
	result := Result{Kernels: map[string]int{}}
	reader, err := NewReader(r)
	if err != nil {
		return result, err
	}
	for {
		rec, err := reader.Next()
		if err == io.EOF {
			return result, nil
		}
		if err != nil {
			return result, err
		}
		compared, err := replay(rec, result.Dispatches, dev, pipeline)
		if err != nil {
			return result, err
		}
		result.Dispatches++
		result.Kernels[rec.Kernel]++
		result.Bytes += compared
	}
}

func replay(rec *Record, at int, dev gpu.Device, pipeline func(string) (gpu.Pipeline, error)) (int64, error) {
	p, err := pipeline(rec.Kernel)
	if err != nil {
		return 0, fmt.Errorf("trace: record %d: %w", at, err)
	}
	d := gpu.Dispatch{
		Pipeline:          p,
		Args:              rec.Args,
		ThreadgroupMemory: rec.ThreadgroupMemory,
		Groups:            rec.Groups,
		GroupSize:         rec.GroupSize,
	}
	var buffers []gpu.Buffer
	defer func() {
		for _, b := range buffers {
			b.Release()
		}
	}()
	for _, b := range rec.Buffers {
		buf, err := dev.NewBuffer(len(b.Before))
		if err != nil {
			return 0, fmt.Errorf("trace: record %d: %w", at, err)
		}
		buffers = append(buffers, buf)
		copy(buf.Bytes(), b.Before)
	}
	for _, b := range rec.Bindings {
		d.Buffers = append(d.Buffers, gpu.Binding{Buffer: buffers[b.Buffer], Offset: b.Offset})
	}
	if _, err := dev.Run(d); err != nil {
		return 0, fmt.Errorf("trace: record %d: %w", at, err)
	}
	var compared int64
	for i, b := range rec.Buffers {
		want := b.Before
		if b.After != nil {
			want = b.After
		}
		got := buffers[i].Bytes()
		if !bytes.Equal(got, want) {
			for j := range want {
				if got[j] != want[j] {
					return 0, &Mismatch{at, rec.Kernel, i, j, got[j], want[j]}
				}
			}
		}
		compared += int64(len(want))
	}
	return compared, nil
}
