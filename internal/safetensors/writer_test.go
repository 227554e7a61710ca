package safetensors

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		var buf bytes.Buffer
		w, err := NewWriter(&buf, f.Metadata(), f.Tensors())
		if err != nil {
			return err
		}
		copyTensors(t, w, f)
		out, err := openBytes(buf.Bytes())
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

// rewrite checks that both writers reproduce the file at path byte for byte.
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
	var buf bytes.Buffer
	w, err := NewWriter(&buf, f.Metadata(), f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	copyTensors(t, w, f)
	if !bytes.Equal(buf.Bytes(), want) {
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
	var buf bytes.Buffer
	w, err := NewWriter(&buf, map[string]string{"b": "2", "a": "1", "c": "<"}, []Info{
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
	if want := build(header, 0); !bytes.Equal(buf.Bytes(), want) {
		t.Errorf("got  %q\nwant %q", buf.Bytes(), want)
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
		{"unknown dtype", nil, []Info{{Name: "a", DType: "F4"}}},
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
		var buf bytes.Buffer
		_, err := NewWriter(&buf, tt.meta, tt.infos)
		if _, ok := err.(*Error); !ok || !errors.Is(err, ErrFormat) {
			t.Errorf("%s: error %v, want ErrFormat", tt.name, err)
		}
		if buf.Len() != 0 {
			t.Errorf("%s: %d bytes written", tt.name, buf.Len())
		}
	}
}

func TestWriteLengths(t *testing.T) {
	infos := []Info{
		{Name: "e", DType: U8, Shape: []int{0}},
		{Name: "a", DType: U8, Shape: []int{3}},
		{Name: "b", DType: U8, Shape: []int{2}},
	}
	var buf bytes.Buffer
	w, err := NewWriter(&buf, nil, infos)
	if err != nil {
		t.Fatal(err)
	}
	start := buf.Len()
	if err := w.Close(); !errors.Is(err, ErrLength) {
		t.Errorf("Close with nothing written: %v", err)
	}
	if _, err := w.Tensor("b"); !errors.Is(err, ErrLength) {
		t.Errorf("b before a: %v", err)
	}
	if _, err := w.Tensor("c"); !errors.Is(err, ErrNoTensor) {
		t.Errorf("undeclared: %v", err)
	}
	if err := w.Keep("a"); !errors.Is(err, ErrLength) {
		t.Errorf("Keep of a sequential writer: %v", err)
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
	if _, err := w.Tensor("b"); !errors.Is(err, ErrLength) {
		t.Errorf("b within a: %v", err)
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
	if got := buf.Bytes()[start:]; !bytes.Equal(got, []byte{1, 2, 3, 5, 6}) {
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

// fullWriter takes n bytes and then fails.
type fullWriter struct{ n int }

var errFull = errors.New("no space left")

func (w *fullWriter) Write(p []byte) (int, error) {
	if len(p) > w.n {
		n := w.n
		w.n = 0
		return n, errFull
	}
	w.n -= len(p)
	return len(p), nil
}

// shortWriter breaks the contract of io.Writer.
type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) - 1, nil }

func TestWriteErrors(t *testing.T) {
	infos := []Info{{Name: "a", DType: U8, Shape: []int{100}}}
	if _, err := NewWriter(&fullWriter{10}, nil, infos); !errors.Is(err, errFull) {
		t.Errorf("header on a full disk: %v", err)
	}
	if _, err := NewWriter(shortWriter{}, nil, infos); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short write: %v", err)
	}
	w, err := NewWriter(&fullWriter{100}, nil, infos)
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

func TestWriterHoldsNothing(t *testing.T) {
	w, err := NewWriter(io.Discard, nil, []Info{{Name: "a", DType: F64, Shape: []int{1 << 27}}})
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
	if DType("F4").Size() != 0 || DType("").Size() != 0 {
		t.Error("an unknown dtype has a size")
	}
	if n, err := dataSize(U8, []int{math.MaxInt}); err != nil || n != math.MaxInt {
		t.Errorf("largest size: %d, %v", n, err)
	}
}
