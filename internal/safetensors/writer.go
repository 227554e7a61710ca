package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
)

// Writer writes a safetensors file whose tensors are declared up front.
// It holds the header and no data.
type Writer struct {
	seq     bool // tensors must be written in order
	next    int  // with seq, tensors before this one are complete
	infos   []Info
	tensors []TensorWriter
	index   map[string]int
}

// TensorWriter writes the bytes of one tensor, in one or many calls. It is not
// safe for concurrent use.
type TensorWriter struct {
	dst  io.Writer
	info Info
	done atomic.Int64 // bytes written
}

// NewWriter writes a header of the given metadata and tensors to w and
// returns a Writer that takes the tensors one after another. Only names, dtypes
// and shapes of infos are read. The header is the same for the same arguments:
// tensors and their data in the order given, metadata in the order of its keys,
// padded with spaces to a multiple of 8 bytes. An order of wide elements before
// narrow ones leaves every tensor aligned.
//
// Errors wrap ErrFormat, for what no file may hold, or the error of the write.
func NewWriter(w io.Writer, metadata map[string]string, infos []Info) (*Writer, error) {
	sw, header, err := layout(metadata, infos)
	if err != nil {
		return nil, err
	}
	sw.seq = true
	for i := range sw.tensors {
		sw.tensors[i].dst = w
	}
	if _, err := writeFull(w, header); err != nil {
		return nil, &Error{Err: fmt.Errorf("writing the header: %w", err)}
	}
	return sw, nil
}

// NewWriterAt is NewWriter for tensors written in any order, different ones
// also concurrently. The file starts at offset 0 of w.
func NewWriterAt(w io.WriterAt, metadata map[string]string, infos []Info) (*Writer, error) {
	sw, header, err := layout(metadata, infos)
	if err != nil {
		return nil, err
	}
	for i := range sw.tensors {
		sw.tensors[i].dst = io.NewOffsetWriter(w, sw.infos[i].Offset)
	}
	if _, err := writeFull(io.NewOffsetWriter(w, 0), header); err != nil {
		return nil, &Error{Err: fmt.Errorf("writing the header: %w", err)}
	}
	return sw, nil
}

// layout checks what is to be written, places it and returns the file's bytes
// up to the payload.
func layout(metadata map[string]string, infos []Info) (*Writer, []byte, error) {
	w := &Writer{
		infos:   slices.Clone(infos),
		tensors: make([]TensorWriter, len(infos)),
		index:   make(map[string]int, len(infos)),
	}
	var payload int64
	for i := range w.infos {
		t := &w.infos[i]
		t.Shape = slices.Clone(t.Shape)
		if t.Name == metadataKey {
			return nil, nil, malformed(t.Name, "the name is reserved")
		}
		if _, ok := w.index[t.Name]; ok {
			return nil, nil, malformed(t.Name, "declared twice")
		}
		w.index[t.Name] = i
		var err error
		if t.Size, err = dataSize(t.DType, t.Shape); err != nil {
			return nil, nil, malformed(t.Name, "%v", err)
		}
		// Leave room for the header, so that every offset fits.
		if payload > math.MaxInt64-lengthSize-maxHeader-t.Size {
			return nil, nil, malformed(t.Name, "the file's size overflows 63 bits")
		}
		payload += t.Size
	}
	header, err := appendHeader(make([]byte, lengthSize), metadata, w.infos)
	if err != nil {
		return nil, nil, malformed("", "%v", err)
	}
	length := len(header) - lengthSize
	if length > maxHeader {
		return nil, nil, malformed("", "a header of %d bytes is over the limit of %d", length, maxHeader)
	}
	binary.LittleEndian.PutUint64(header, uint64(length))
	offset := int64(len(header))
	for i := range w.infos {
		t := &w.infos[i]
		t.Offset = offset
		offset += t.Size
		w.tensors[i].info = *t
	}
	return w, header, nil
}

func writeFull(w io.Writer, p []byte) (int, error) {
	n, err := w.Write(p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Tensors returns the tensors in order, with their offsets and sizes. Shapes must
// not be modified.
func (w *Writer) Tensors() []Info { return slices.Clone(w.infos) }

// Tensor returns the writer of the named tensor. Further calls return the same
// one, which goes on where it stopped. A Writer from NewWriter demands
// that all tensors before this one are complete.
// Errors wrap ErrNoTensor, or ErrLength where an earlier tensor is incomplete.
func (w *Writer) Tensor(name string) (*TensorWriter, error) {
	i, ok := w.index[name]
	if !ok {
		return nil, &Error{Tensor: name, Err: ErrNoTensor}
	}
	if w.seq && i > w.next {
		if err := w.complete(w.next, i); err != nil {
			return nil, err
		}
		w.next = i
	}
	return &w.tensors[i], nil
}

// Keep declares the named tensor complete as it is in the file, for a Writer
// from NewWriterAt that goes on with a file begun earlier with the same
// arguments. The error wraps ErrNoTensor.
func (w *Writer) Keep(name string) error {
	t, err := w.Tensor(name)
	if err != nil {
		return err
	}
	if w.seq {
		return &Error{Tensor: name, Reason: "a sequential writer has nothing to keep", Err: ErrLength}
	}
	t.done.Store(t.info.Size)
	return nil
}

// Close checks that every tensor is complete; it does not close the underlying
// writer. The error wraps ErrLength.
func (w *Writer) Close() error { return w.complete(0, len(w.tensors)) }

// complete checks that tensors from to to-1 are complete.
func (w *Writer) complete(from, to int) error {
	for i := from; i < to; i++ {
		t := &w.tensors[i]
		if done := t.done.Load(); done != t.info.Size {
			return &Error{Tensor: t.info.Name, Reason: fmt.Sprintf("%d of %d written", done, t.info.Size), Err: ErrLength}
		}
	}
	return nil
}

// Write writes the next bytes of the tensor. Past its end it writes nothing and
// returns an error that wraps ErrLength.
func (t *TensorWriter) Write(p []byte) (int, error) {
	if left := t.info.Size - t.done.Load(); int64(len(p)) > left {
		return 0, &Error{Tensor: t.info.Name, Reason: fmt.Sprintf("writing %d where %d are left of %d", len(p), left, t.info.Size), Err: ErrLength}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := writeFull(t.dst, p)
	t.done.Add(int64(n))
	if err != nil {
		return n, &Error{Tensor: t.info.Name, Err: fmt.Errorf("writing its data: %w", err)}
	}
	return n, nil
}
