package safetensors

import (
	"context"
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

// NewWriterAt writes a header of the given metadata and tensors to w, at offset
// 0, and returns a Writer of the tensors, which may be written in any order,
// different ones also concurrently. Only names, dtypes and shapes of infos are
// read. The header is the same for the same arguments: tensors and their data
// in the order given, metadata in the order of its keys, padded with spaces to
// a multiple of 8 bytes. An order of wide elements before narrow ones leaves
// every tensor aligned.
//
// Errors wrap ErrFormat, for what no file may hold, or the error of the write.
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
		if t.Size, err = t.DType.DataSize(t.Shape); err != nil {
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
// one, which continues where it stopped. The error wraps ErrNoTensor.
func (w *Writer) Tensor(name string) (*TensorWriter, error) {
	i, ok := w.index[name]
	if !ok {
		return nil, &Error{Tensor: name, Err: ErrNoTensor}
	}
	return &w.tensors[i], nil
}

// Keep declares the named tensor complete as it is in the file, for a Writer
// that continues a file begun earlier with the same arguments. The error wraps
// ErrNoTensor.
func (w *Writer) Keep(name string) error {
	t, err := w.Tensor(name)
	if err != nil {
		return err
	}
	t.done.Store(t.info.Size)
	return nil
}

// copyBytes is how much of a tensor Copy holds.
const copyBytes = 1 << 20

// Copy writes the named tensor of f, which must have as many bytes here, as it
// is. It calls progress, if that is not nil, with the bytes of each piece that
// is written. Once ctx is done it returns its cause.
func (w *Writer) Copy(ctx context.Context, f *File, name string, progress func(n int64)) error {
	t, err := w.Tensor(name)
	if err != nil {
		return err
	}
	src, err := f.find(name)
	if err != nil {
		return err
	}
	buf := make([]byte, min(src.Size, copyBytes))
	for off := int64(0); off < src.Size; off += int64(len(buf)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		buf = buf[:min(src.Size-off, copyBytes)]
		if err := f.ReadPart(buf, name, off); err != nil {
			return err
		}
		if _, err := t.Write(buf); err != nil {
			return err
		}
		if progress != nil {
			progress(int64(len(buf)))
		}
	}
	return nil
}

// Close checks that every tensor is complete; it does not close the underlying
// writer. The error wraps ErrLength.
func (w *Writer) Close() error {
	for i := range w.tensors {
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
