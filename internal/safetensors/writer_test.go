package safetensors

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/pack"
)

// The public implementation's files come out byte for byte.
func TestPublicImplementation(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.safetensors")
	if err != nil || len(paths) != 2 {
		t.Fatalf("%v, %v", paths, err)
	}
	for _, path := range paths {
		rewrite(t, path)
	}

	f, err := Open("testdata/dtypes.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, want := f.Metadata()["purpose"], "every dtype, <&> \"\u00e9\u2603\n"; got != want {
		t.Errorf("metadata %q, want %q", got, want)
	}
	for _, d := range []struct {
		name  string
		dtype DType
	}{
		{"bool", Bool}, {"uint8", U8}, {"int8", I8}, {"float8_e5m2", F8E5M2}, {"float8_e4m3fn", F8E4M3},
		{"float8_e8m0fnu", F8E8M0}, {"float8_e4m3fnuz", F8E4M3FNUZ}, {"float8_e5m2fnuz", F8E5M2FNUZ},
		{"uint16", U16}, {"int16", I16}, {"float16", F16}, {"bfloat16", BF16}, {"uint32", U32}, {"int32", I32},
		{"float32", F32}, {"uint64", U64}, {"int64", I64}, {"float64", F64}, {"complex64", C64},
	} {
		info, ok := f.Lookup(d.name)
		if !ok || info.DType != d.dtype || len(info.Shape) != 2 {
			t.Errorf("%s: %v, %v", d.name, info, ok)
		}
		got, err := f.AppendTensor(nil, d.name)
		if err != nil || len(got) != 6*d.dtype.Size() {
			t.Errorf("%s: %d bytes, %v", d.name, len(got), err)
		}
		for i, b := range got {
			want := byte(16*len(d.name) + i)
			if d.dtype == Bool {
				want = "\x00\x01\x01\x00\x01\x00"[i]
			}
			if b != want {
				t.Errorf("%s: byte %d is %#x, want %#x", d.name, i, b, want)
				break
			}
		}
	}
	if got, err := f.AppendTensor(nil, "scalar"); err != nil || !bytes.Equal(got, []byte{0, 0, 0xc0, 0xbf}) {
		t.Errorf("scalar -1.5: % x, %v", got, err)
	}
}

// The vectors are of many makers' hands; all of them open and come out
// equivalent.
func TestVectorFiles(t *testing.T) {
	dir := os.Getenv("TURBOTRELLIS_DATA")
	if dir == "" {
		dir = "../../testdata"
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".safetensors" {
			return err
		}
		files++
		f, err := Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		var buf memory
		w, err := NewWriterAt(&buf, f.Metadata(), f.Tensors())
		if err != nil {
			return err
		}
		copyTensors(t, w, f)
		out, err := openBytes(buf.b)
		if err != nil {
			return err
		}
		equivalent(t, f, out)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatalf("no safetensors under %s", dir)
	}
	t.Logf("%d files", files)
}

// rewrite checks that the writer reproduces the file at path byte for byte,
// tensors written in order and last first.
func rewrite(t *testing.T, path string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var buf memory
	w, err := NewWriterAt(&buf, f.Metadata(), f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	copyTensors(t, w, f)
	if !bytes.Equal(buf.b, want) {
		t.Errorf("%s: rewritten file differs", path)
	}

	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w, err = NewWriterAt(out, f.Metadata(), f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	infos := w.Tensors()
	for i := range infos { // last first
		info := infos[len(infos)-1-i]
		tw, err := w.Tensor(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := f.AppendTensor(nil, info.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range data {
			if _, err := tw.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: file written backwards differs (%v)", path, err)
	}
}

func TestHeaderBytes(t *testing.T) {
	var buf memory
	w, err := NewWriterAt(&buf, map[string]string{"b": "2", "a": "1", "c": "<"}, []Info{
		{Name: "z", DType: U8, Shape: []int{1, 3}, Offset: -5, Size: 99},
		{Name: "e", DType: F32, Shape: []int{0}},
		{Name: "a\"", DType: F16},
	})
	if err != nil {
		t.Fatal(err)
	}
	header := `{"__metadata__":{"a":"1","b":"2","c":"<"},` +
		`"z":{"dtype":"U8","shape":[1,3],"data_offsets":[0,3]},` +
		`"e":{"dtype":"F32","shape":[0],"data_offsets":[3,3]},` +
		`"a\"":{"dtype":"F16","shape":[],"data_offsets":[3,5]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	if want := build(header, 0); !bytes.Equal(buf.b, want) {
		t.Errorf("got  %q\nwant %q", buf.b, want)
	}
	data := int64(8 + len(header))
	for i, want := range []Info{{Offset: data, Size: 3}, {Offset: data + 3}, {Offset: data + 3, Size: 2}} {
		if got := w.Tensors()[i]; got.Offset != want.Offset || got.Size != want.Size {
			t.Errorf("tensor %d: offset %d, size %d; want %d, %d", i, got.Offset, got.Size, want.Offset, want.Size)
		}
	}
}

func TestDeclarations(t *testing.T) {
	long := strings.Repeat("x", maxHeader)
	tests := []struct {
		name  string
		meta  map[string]string
		infos []Info
	}{
		{"declared twice", nil, []Info{{Name: "a", DType: U8}, {Name: "b", DType: U8}, {Name: "a", DType: U8}}},
		{"reserved name", nil, []Info{{Name: "__metadata__", DType: U8}}},
		{"no dtype", nil, []Info{{Name: "a"}}},
		{"unknown dtype", nil, []Info{{Name: "a", DType: "F5"}}},
		{"negative dimension", nil, []Info{{Name: "a", DType: U8, Shape: []int{0, -1}}}},
		{"product past 63 bits", nil, []Info{{Name: "a", DType: U16, Shape: []int{1 << 30, 1 << 30, 4}}}},
		{"sum past 63 bits", nil, []Info{{Name: "a", DType: U8, Shape: []int{1 << 30, 1 << 30, 4}}, {Name: "b", DType: U8, Shape: []int{1 << 30, 1 << 30, 4}}}},
		{"no room for a header", nil, []Info{{Name: "a", DType: U8, Shape: []int{7, 7, 73, 127, 337, 92737, 649657}}}}, // 2^63-1
		{"name not UTF-8", nil, []Info{{Name: "\xff", DType: U8}}},
		{"metadata key not UTF-8", map[string]string{"\xff": ""}, nil},
		{"metadata not UTF-8", map[string]string{"a": "\xff"}, nil},
		{"header over the limit", map[string]string{"a": long}, nil},
	}
	for _, tt := range tests {
		var buf memory
		_, err := NewWriterAt(&buf, tt.meta, tt.infos)
		if _, ok := err.(*Error); !ok || !errors.Is(err, ErrFormat) {
			t.Errorf("%s: error %v, want ErrFormat", tt.name, err)
		}
		if len(buf.b) != 0 {
			t.Errorf("%s: %d bytes written", tt.name, len(buf.b))
		}
	}
}

func TestWriteLengths(t *testing.T) {
	infos := []Info{
		{Name: "e", DType: U8, Shape: []int{0}},
		{Name: "a", DType: U8, Shape: []int{3}},
		{Name: "b", DType: U8, Shape: []int{2}},
	}
	var buf memory
	w, err := NewWriterAt(&buf, nil, infos)
	if err != nil {
		t.Fatal(err)
	}
	start := len(buf.b)
	if err := w.Close(); !errors.Is(err, ErrLength) {
		t.Errorf("Close with nothing written: %v", err)
	}
	if _, err := w.Tensor("c"); !errors.Is(err, ErrNoTensor) {
		t.Errorf("undeclared: %v", err)
	}
	a, err := w.Tensor("a")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := a.Write(make([]byte, 4)); n != 0 || !errors.Is(err, ErrLength) {
		t.Errorf("4 bytes into 3: %d, %v", n, err)
	}
	if _, err := a.Write([]byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	b, err := w.Tensor("b")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := a.Write([]byte{4}); n != 0 || !errors.Is(err, ErrLength) {
		t.Errorf("past the end of a: %d, %v", n, err)
	}
	if _, err := b.Write([]byte{5}); err != nil {
		t.Fatal(err)
	}
	e, ok := w.Close().(*Error)
	if !ok || !errors.Is(e, ErrLength) || e.Tensor != "b" {
		t.Errorf("Close within b: %v", e)
	}
	if _, err := b.Write([]byte{6}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if got := buf.b[start:]; !bytes.Equal(got, []byte{1, 2, 3, 5, 6}) {
		t.Errorf("payload % d", got)
	}
}

// A file begun earlier is finished by rewriting what is missing.
func TestResume(t *testing.T) {
	infos := []Info{{Name: "a", DType: U8, Shape: []int{2}}, {Name: "b", DType: U8, Shape: []int{2}}}
	out, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	put := func(w *Writer, name string, p ...byte) {
		t.Helper()
		tw, err := w.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	w, err := NewWriterAt(out, nil, infos)
	if err != nil {
		t.Fatal(err)
	}
	put(w, "b", 3, 4)
	put(w, "a", 9)

	w, err = NewWriterAt(out, nil, infos)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Keep("c"); !errors.Is(err, ErrNoTensor) {
		t.Errorf("Keep of c: %v", err)
	}
	if err := w.Keep("b"); err != nil {
		t.Fatal(err)
	}
	put(w, "a", 1, 2)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := Open(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, err1 := f.AppendTensor(nil, "a")
	all, err2 := f.AppendTensor(a, "b")
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(all, []byte{1, 2, 3, 4}) {
		t.Errorf("% d, %v", all, err)
	}
}

// fullDisk has room for n bytes.
type fullDisk struct{ n int64 }

var errFull = errors.New("no space left")

func (w fullDisk) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > w.n {
		return int(max(0, w.n-off)), errFull
	}
	return len(p), nil
}

// shortWriter breaks the contract of io.WriterAt.
type shortWriter struct{}

func (shortWriter) WriteAt(p []byte, _ int64) (int, error) { return len(p) - 1, nil }

func TestWriteErrors(t *testing.T) {
	infos := []Info{{Name: "a", DType: U8, Shape: []int{100}}}
	if _, err := NewWriterAt(fullDisk{10}, nil, infos); !errors.Is(err, errFull) {
		t.Errorf("header on a full disk: %v", err)
	}
	if _, err := NewWriterAt(shortWriter{}, nil, infos); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short write: %v", err)
	}
	w, err := NewWriterAt(fullDisk{100}, nil, infos)
	if err != nil {
		t.Fatal(err)
	}
	tw, err := w.Tensor("a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = tw.Write(make([]byte, 100))
	if e, ok := err.(*Error); !ok || !errors.Is(err, errFull) || e.Tensor != "a" {
		t.Errorf("data on a full disk: %v", err)
	}
	if err := w.Close(); !errors.Is(err, ErrLength) {
		t.Errorf("Close after a failed write: %v", err)
	}
}

// Copy carries every byte over, the last one of a piece of one byte, too.
func TestCopy(t *testing.T) {
	for _, n := range []int{0, 1, 2, copyBytes - 1, copyBytes, copyBytes + 1, 2*copyBytes + 1} {
		header := fmt.Sprintf(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[%d],"data_offsets":[1,%d]}}`, n, n+1)
		src := build(header, n+1)
		data := src[len(src)-n:]
		for i := range data {
			data[i] = byte(i>>12 ^ i*7 + 1)
		}
		f, err := openBytes(src)
		if err != nil {
			t.Fatal(err)
		}
		var dst memory
		w, err := NewWriterAt(&dst, nil, f.Tensors()[1:])
		if err != nil {
			t.Fatal(err)
		}
		var done int64
		if err := errors.Join(w.Copy(t.Context(), f, "a", func(n int64) { done += n }), w.Close()); err != nil {
			t.Fatal(err)
		}
		if got := dst.b[len(dst.b)-n:]; !bytes.Equal(got, data) || done != int64(n) {
			t.Errorf("%d bytes: the copy differs, or its progress: %d", n, done)
		}
	}
}

func TestCopyErrors(t *testing.T) {
	src := build(`{"a":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}}`, 100)
	f, err := openBytes(src)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriterAt(new(memory), nil, []Info{{Name: "a", DType: U8, Shape: []int{2}}, {Name: "b", DType: U8}})
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := w.Copy(ctx, f, "a", nil); err != gone {
		t.Errorf("with its context done: %v", err)
	}
	for name, want := range map[string]error{"a": ErrLength, "b": ErrNoTensor, "c": ErrNoTensor} {
		if err := w.Copy(t.Context(), f, name, nil); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	short, err := NewFile(bytes.NewReader(src[:len(src)-1]), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	if w, err = NewWriterAt(new(memory), nil, f.Tensors()); err != nil {
		t.Fatal(err)
	}
	if err := w.Copy(t.Context(), short, "a", nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a source that has shrunk: %v", err)
	}
}

func TestWriterHoldsNothing(t *testing.T) {
	w, err := NewWriterAt(fullDisk{math.MaxInt64}, nil, []Info{{Name: "a", DType: F64, Shape: []int{1 << 27}}})
	if err != nil {
		t.Fatal(err)
	}
	tw, err := w.Tensor("a")
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<16)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := tw.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a write", n)
	}
}

func TestSizes(t *testing.T) {
	if DType("F5").Bits() != 0 || DType("").Bits() != 0 || F4.Size() != 0 {
		t.Error("an unknown dtype has bits, or F4 whole bytes")
	}
	if n, err := U8.DataSize([]int{math.MaxInt}); err != nil || n != math.MaxInt {
		t.Errorf("largest size: %d, %v", n, err)
	}
	for _, d := range []pack.DType{pack.F32, pack.F16, pack.BF16} {
		if got, ok := DTypeOf(d).Float(); !ok || got != d || DTypeOf(d).Size() != d.Size() {
			t.Errorf("%v is %q in a file", d, DTypeOf(d))
		}
	}
	if _, ok := F64.Float(); ok || DTypeOf(0) != "" {
		t.Error("F64 or the zero type is taken")
	}
}

// The public implementation writes these bytes for a float4_e2m1fn_x2 of shape
// [2, 2] (safetensors.serialize with a TensorSpec, 0.8.0).
func TestPublicNarrow(t *testing.T) {
	want := []byte("8\x00\x00\x00\x00\x00\x00\x00" + `{"a":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]}} ` + "\x00\x01\x02\x03")
	f, err := openBytes(want)
	if err != nil {
		t.Fatal(err)
	}
	var got memory
	w, err := NewWriterAt(&got, nil, f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Copy(t.Context(), f, "a", nil), w.Close()); err != nil || !bytes.Equal(got.b, want) {
		t.Errorf("rewritten as %q, %v", got.b, err)
	}
}
