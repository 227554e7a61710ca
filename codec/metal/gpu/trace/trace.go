// Package trace writes what a device ran to a file and runs such a file on any device, comparing
// every byte.
//
// # Format
//
// A trace is the eight bytes "TTTRACE1" followed by records, one for each dispatch, in the order in
// which they ran. All integers are little-endian; a size or count is a uint32 unless it says
// otherwise. A record is
//
//	magic     4 bytes "DISP"
//	kernel    length (1..255), then the kernel's name
//	args      length (0..4095), then the constant bytes bound to [[buffer(number of bindings)]]
//	memory    count (0..31), then the bytes of each threadgroup memory slot, uint32 each
//	grid      threadgroups x, y, z and threads in a threadgroup x, y, z, uint32 each
//	buffers   count (0..31), then for each distinct buffer
//	            length as uint64 (1..2^40)
//	            contents before the dispatch
//	            one byte: 1 if the dispatch changed the buffer, else 0
//	            contents after the dispatch, if it did
//	bindings  count (0..31), then for each, in order of [[buffer(i)]], the buffer's place in the list above, uint32, and
//	            the offset in it, uint64
//	check     CRC-32 (IEEE) of the record's bytes before this
//
// Two bindings of one buffer name the same place, so that a kernel sees the overlap that it saw
// when the trace was made.
package trace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/turbotrellis/turbotrellis/codec/metal/gpu"
)

const (
	fileMagic   = "TTTRACE1"
	recordMagic = "DISP"
	maxName     = 255
	maxBuffer   = 1 << 40
)

// ErrFormat is the class of every error about the contents of a trace.
var ErrFormat = errors.New("trace: not a trace")

// A Record is one dispatch: what it was given and what it left.
type Record struct {
	Kernel            string
	Args              []byte
	ThreadgroupMemory []int
	Groups, GroupSize [3]int
	Buffers           []Buffer
	Bindings          []Binding
}

// A Buffer is the contents of a buffer before and after a dispatch. After is nil if the dispatch
// changed nothing.
type Buffer struct{ Before, After []byte }

// A Binding is a place in a Record's Buffers and an offset in that buffer, in bytes.
type Binding struct{ Buffer, Offset int }

// check reports what the format does not allow.
func (r *Record) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
	}
	if len(r.Kernel) == 0 || len(r.Kernel) > maxName {
		return bad("a kernel's name of %d bytes", len(r.Kernel))
	}
	if len(r.Args) > gpu.MaxArgs {
		return bad("%d bytes of arguments", len(r.Args))
	}
	if len(r.ThreadgroupMemory) > gpu.MaxBindings || len(r.Buffers) > gpu.MaxBindings || len(r.Bindings) > gpu.MaxBindings {
		return bad("more than %d slots", gpu.MaxBindings)
	}
	for _, n := range r.ThreadgroupMemory {
		if !fits32(n) {
			return bad("threadgroup memory of %d bytes", n)
		}
	}
	for i := range 3 {
		if !fits32(r.Groups[i]) || !fits32(r.GroupSize[i]) {
			return bad("%v groups of %v", r.Groups, r.GroupSize)
		}
	}
	for i, b := range r.Buffers {
		if len(b.Before) == 0 || uint64(len(b.Before)) > maxBuffer {
			return bad("buffer %d has %d bytes", i, len(b.Before))
		}
		if b.After != nil && (len(b.After) != len(b.Before) || bytes.Equal(b.After, b.Before)) {
			return bad("buffer %d: contents after the dispatch that are no change", i)
		}
	}
	for i, b := range r.Bindings {
		if b.Buffer < 0 || b.Buffer >= len(r.Buffers) {
			return bad("binding %d of buffer %d of %d", i, b.Buffer, len(r.Buffers))
		}
		if b.Offset < 0 || b.Offset >= len(r.Buffers[b.Buffer].Before) {
			return bad("binding %d: offset %d in %d bytes", i, b.Offset, len(r.Buffers[b.Buffer].Before))
		}
	}
	return nil
}

func fits32(n int) bool { return n >= 0 && uint64(n) <= math.MaxUint32 }

// append appends r's encoding to dst.
func (r *Record) append(dst []byte) []byte {
	le := binary.LittleEndian
	start := len(dst)
	sized := func(s []byte) { dst = append(le.AppendUint32(dst, uint32(len(s))), s...) }
	dst = append(dst, recordMagic...)
	sized([]byte(r.Kernel))
	sized(r.Args)
	dst = le.AppendUint32(dst, uint32(len(r.ThreadgroupMemory)))
	for _, n := range r.ThreadgroupMemory {
		dst = le.AppendUint32(dst, uint32(n))
	}
	for _, n := range append(r.Groups[:3:3], r.GroupSize[:]...) {
		dst = le.AppendUint32(dst, uint32(n))
	}
	dst = le.AppendUint32(dst, uint32(len(r.Buffers)))
	for _, b := range r.Buffers {
		dst = le.AppendUint64(dst, uint64(len(b.Before)))
		dst = append(dst, b.Before...)
		if b.After == nil {
			dst = append(dst, 0)
		} else {
			dst = append(append(dst, 1), b.After...)
		}
	}
	dst = le.AppendUint32(dst, uint32(len(r.Bindings)))
	for _, b := range r.Bindings {
		dst = le.AppendUint32(dst, uint32(b.Buffer))
		dst = le.AppendUint64(dst, uint64(b.Offset))
	}
	return le.AppendUint32(dst, crc32.ChecksumIEEE(dst[start:]))
}

// A Writer writes a trace.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter begins a trace on w.
func NewWriter(w io.Writer) (*Writer, error) {
	if _, err := io.WriteString(w, fileMagic); err != nil {
		return nil, err
	}
	return &Writer{w: w}, nil
}

// Write appends a record, with one write to the underlying writer. It fails with ErrFormat if r
// cannot be expressed.
func (w *Writer) Write(r *Record) error {
	if err := r.check(); err != nil {
		return err
	}
	w.buf = r.append(w.buf[:0])
	_, err := w.w.Write(w.buf)
	return err
}

// A Reader reads a trace.
type Reader struct {
	r   *bufio.Reader
	sum uint32
	n   int // records read
}

// NewReader begins reading a trace from r.
func NewReader(r io.Reader) (*Reader, error) {
	b := bufio.NewReader(r)
	magic := make([]byte, len(fileMagic))
	if _, err := io.ReadFull(b, magic); err != nil || string(magic) != fileMagic {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrFormat, fileMagic)
	}
	return &Reader{r: b}, nil
}

// Next returns the next record, or io.EOF after the last. Memory grows with what is there to read,
// not with what a length claims.
func (r *Reader) Next() (*Record, error) {
	if _, err := r.r.Peek(1); err == io.EOF {
		return nil, io.EOF
	}
	rec, err := r.record()
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: it ends in the middle", ErrFormat)
		}
		return nil, fmt.Errorf("trace: record %d: %w", r.n, err)
	}
	r.n++
	return rec, nil
}

func (r *Reader) record() (*Record, error) {
	r.sum = 0
	magic, err := r.bytes(uint64(len(recordMagic)))
	if err != nil {
		return nil, err
	}
	if string(magic) != recordMagic {
		return nil, fmt.Errorf("%w: a record begins with %q", ErrFormat, magic)
	}
	rec := &Record{}
	name, err := r.sized(maxName)
	if err != nil {
		return nil, err
	}
	rec.Kernel = string(name)
	if rec.Args, err = r.sized(gpu.MaxArgs); err != nil {
		return nil, err
	}
	count, err := r.count()
	if err != nil {
		return nil, err
	}
	for range count {
		n, err := r.uint32()
		if err != nil {
			return nil, err
		}
		rec.ThreadgroupMemory = append(rec.ThreadgroupMemory, int(n))
	}
	for i := range 6 {
		n, err := r.uint32()
		if err != nil {
			return nil, err
		}
		if i < 3 {
			rec.Groups[i] = int(n)
		} else {
			rec.GroupSize[i-3] = int(n)
		}
	}
	if count, err = r.count(); err != nil {
		return nil, err
	}
	for i := range count {
		b, err := r.buffer()
		if err != nil {
			return nil, fmt.Errorf("buffer %d: %w", i, err)
		}
		rec.Buffers = append(rec.Buffers, b)
	}
	if count, err = r.count(); err != nil {
		return nil, err
	}
	for range count {
		place, err := r.uint32()
		if err != nil {
			return nil, err
		}
		offset, err := r.uint64()
		if err != nil {
			return nil, err
		}
		rec.Bindings = append(rec.Bindings, Binding{int(place), int(min(offset, math.MaxInt))})
	}
	sum := r.sum
	stored, err := r.uint32()
	if err != nil {
		return nil, err
	}
	if stored != sum {
		return nil, fmt.Errorf("%w: checksum %08x where the record has %08x", ErrFormat, stored, sum)
	}
	return rec, rec.check()
}

func (r *Reader) buffer() (b Buffer, err error) {
	n, err := r.uint64()
	if err != nil {
		return b, err
	}
	if n == 0 || n > maxBuffer {
		return b, fmt.Errorf("%w: %d bytes", ErrFormat, n)
	}
	if b.Before, err = r.bytes(n); err != nil {
		return b, err
	}
	changed, err := r.bytes(1)
	if err != nil {
		return b, err
	}
	switch changed[0] {
	case 0:
	case 1:
		b.After, err = r.bytes(n)
	default:
		err = fmt.Errorf("%w: flag %d", ErrFormat, changed[0])
	}
	return b, err
}

// bytes reads n bytes and adds them to the checksum.
func (r *Reader) bytes(n uint64) ([]byte, error) {
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r.r, int64(n)); err != nil {
		return nil, err
	}
	r.sum = crc32.Update(r.sum, crc32.IEEETable, b.Bytes())
	return b.Bytes(), nil
}

func (r *Reader) uint32() (uint32, error) {
	b, err := r.bytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *Reader) uint64() (uint64, error) {
	b, err := r.bytes(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (r *Reader) sized(limit uint32) ([]byte, error) {
	n, err := r.uint32()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("%w: length %d, more than %d", ErrFormat, n, limit)
	}
	return r.bytes(uint64(n))
}

func (r *Reader) count() (uint32, error) {
	n, err := r.uint32()
	if err == nil && n > gpu.MaxBindings {
		err = fmt.Errorf("%w: count %d, more than %d", ErrFormat, n, gpu.MaxBindings)
	}
	return n, err
}
