package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
)

// File is an open safetensors file. It holds the parsed header and no data;
// its methods may be called concurrently.
type File struct {
	r     io.ReaderAt
	c     io.Closer // nil where the caller owns r
	path  string
	meta  map[string]string
	infos []Info // in the order of their data
	index map[string]int
}

// Open opens the named file and reads its header.
// Errors wrap ErrFormat, ErrNotSafetensors or the error of the system.
// What is not a regular file is not opened: that of a pipe would wait.
func Open(path string) (*File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, &Error{File: path, Err: pathless(err)}
	}
	if !st.Mode().IsRegular() {
		reason := "not a regular file"
		if st.IsDir() {
			reason = "it is a directory"
		}
		return nil, &Error{File: path, Reason: reason, Err: ErrNotSafetensors}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{File: path, Err: pathless(err)}
	}
	if st, err = f.Stat(); err != nil {
		f.Close()
		return nil, &Error{File: path, Err: pathless(err)}
	}
	file, e := newFile(f, st.Size())
	if e != nil {
		f.Close()
		e.File = path
		return nil, e
	}
	file.c = f
	file.path = path
	return file, nil
}

// pathless drops the path that Error already names.
func pathless(err error) error {
	if e, ok := err.(*os.PathError); ok {
		return e.Err
	}
	return err
}

// NewFile reads the header of the safetensors file of the given size, in bytes,
// that r holds. Errors are those of Open.
func NewFile(r io.ReaderAt, size int64) (*File, error) {
	f, err := newFile(r, size)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func newFile(r io.ReaderAt, size int64) (*File, *Error) {
	start := make([]byte, min(max(size, 0), 64))
	if err := readAt(r, start, 0); err != nil {
		return nil, &Error{Err: fmt.Errorf("reading the header: %w", err)}
	}
	if len(start) < lengthSize {
		if kind := sniff(start); kind != "" {
			return nil, &Error{Reason: "it looks like " + kind, Err: ErrNotSafetensors}
		}
		return nil, malformed("", "%d bytes are too few for the length of a header", size)
	}
	length := binary.LittleEndian.Uint64(start)
	brace := len(start) == lengthSize || start[lengthSize] == '{' // unless cut off
	fits := length <= maxHeader && length <= uint64(size-lengthSize)
	if !fits || !brace {
		// A length may by chance look like another type's first bytes, so
		// those count only when what follows is not a header either.
		kind := sniff(start)
		switch {
		case kind != "":
			return nil, &Error{Reason: "it looks like " + kind, Err: ErrNotSafetensors}
		case !fits && !brace:
			return nil, &Error{Reason: "its first bytes are neither a header's length nor a header", Err: ErrNotSafetensors}
		case length > maxHeader:
			return nil, malformed("", "a header of %d bytes is over the limit of %d", length, maxHeader)
		case !fits:
			return nil, malformed("", "a header of %d bytes does not fit into a file of %d: truncated?", length, size)
		}
	}
	header := make([]byte, length)
	if err := readAt(r, header, lengthSize); err != nil {
		return nil, &Error{Err: fmt.Errorf("reading the header: %w", err)}
	}
	data := lengthSize + int64(length)
	meta, infos, e := parseHeader(header, size-data)
	if e != nil {
		return nil, e
	}
	f := &File{r: r, meta: meta, infos: infos, index: make(map[string]int, len(infos))}
	for i := range infos {
		infos[i].Offset += data
		f.index[infos[i].Name] = i
	}
	return f, nil
}

// readAt fills dst from the given offset. An early end is io.ErrUnexpectedEOF.
func readAt(r io.ReaderAt, dst []byte, off int64) error {
	n, err := r.ReadAt(dst, off)
	if n == len(dst) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return pathless(err)
}

// sniff names the type of file that begins with start, or returns "".
func sniff(start []byte) string {
	for _, k := range []struct{ magic, kind string }{
		{"PK\x03\x04", "a zip archive (PyTorch checkpoint or .npz)"},
		{"version https://git-lfs", "a Git LFS pointer: fetch the file itself with git lfs pull"},
		{"GGUF", "a GGUF model"},
		{"\x93NUMPY", "a NumPy array"},
		{"\x89HDF", "an HDF5 file"},
		{"\x1f\x8b", "gzip data"},
		{"\x28\xb5\x2f\xfd", "zstd data"},
		{"<", "HTML or XML"},
		{"{", "JSON"},
	} {
		if bytes.HasPrefix(start, []byte(k.magic)) {
			return k.kind
		}
	}
	if len(start) >= 2 && start[0] == 0x80 && 2 <= start[1] && start[1] <= 5 {
		return "a Python pickle (PyTorch checkpoint)"
	}
	return ""
}

// Tensors returns the tensors in the order of their data, which may differ
// from that of the header. Shapes must not be modified.
func (f *File) Tensors() []Info { return slices.Clone(f.infos) }

// Lookup returns the named tensor, if there is one. Its shape must not be modified.
func (f *File) Lookup(name string) (Info, bool) {
	i, ok := f.index[name]
	if !ok {
		return Info{}, false
	}
	return f.infos[i], true
}

// Metadata returns a copy of the file's metadata, or nil where there is none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.meta) }

// Reader returns a reader of the named tensor's bytes, which also reads parts of
// it by offset. The error wraps ErrNoTensor.
func (f *File) Reader(name string) (*io.SectionReader, error) {
	t, err := f.find(name)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(f.r, t.Offset, t.Size), nil
}

// ReadInto reads the named tensor into dst, whose length must be the tensor's
// size. Errors wrap ErrNoTensor, ErrLength or the error of the read.
func (f *File) ReadInto(dst []byte, name string) error {
	t, err := f.find(name)
	if err != nil {
		return err
	}
	if int64(len(dst)) != t.Size {
		return &Error{File: f.path, Tensor: name, Reason: fmt.Sprintf("a buffer of %d for %d", len(dst), t.Size), Err: ErrLength}
	}
	if err := readAt(f.r, dst, t.Offset); err != nil {
		return &Error{File: f.path, Tensor: name, Err: fmt.Errorf("reading its data: %w", err)}
	}
	return nil
}

// ReadPart fills dst with the named tensor's bytes from offset off. Errors wrap
// ErrNoTensor, ErrLength where dst reaches past the tensor's end, or the error
// of the read.
func (f *File) ReadPart(dst []byte, name string, off int64) error {
	t, err := f.find(name)
	if err != nil {
		return err
	}
	if off < 0 || off > t.Size || int64(len(dst)) > t.Size-off {
		return &Error{File: f.path, Tensor: name, Reason: fmt.Sprintf("%d from byte %d of %d", len(dst), off, t.Size), Err: ErrLength}
	}
	if err := readAt(f.r, dst, t.Offset+off); err != nil {
		return &Error{File: f.path, Tensor: name, Err: fmt.Errorf("reading its data: %w", err)}
	}
	return nil
}

// AppendTensor appends the named tensor's bytes to dst. On error it returns dst
// as it was. Errors wrap ErrNoTensor, ErrLength (a tensor larger than the
// address space) or the error of the read.
func (f *File) AppendTensor(dst []byte, name string) ([]byte, error) {
	t, err := f.find(name)
	if err != nil {
		return dst, err
	}
	if t.Size > math.MaxInt-int64(len(dst)) {
		return dst, &Error{File: f.path, Tensor: name, Reason: fmt.Sprintf("%d do not fit into memory", t.Size), Err: ErrLength}
	}
	n := len(dst)
	out := slices.Grow(dst, int(t.Size))[:n+int(t.Size)]
	if err := f.ReadInto(out[n:], name); err != nil {
		return dst, err
	}
	return out, nil
}

func (f *File) find(name string) (Info, error) {
	i, ok := f.index[name]
	if !ok {
		return Info{}, &Error{File: f.path, Tensor: name, Err: ErrNoTensor}
	}
	return f.infos[i], nil
}

// Close closes the file if Open opened it.
func (f *File) Close() error {
	if f.c == nil {
		return nil
	}
	return f.c.Close()
}
