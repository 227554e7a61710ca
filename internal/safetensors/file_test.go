package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build returns a file of the given header and n bytes of payload.
func build(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, n)...)
}

// memory is a file in memory.
type memory struct{ b []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if n := int(off) + len(p); n > len(m.b) {
		m.b = append(m.b, make([]byte, n-len(m.b))...)
	}
	return copy(m.b[off:], p), nil
}

func openBytes(b []byte) (*File, error) { return NewFile(bytes.NewReader(b), int64(len(b))) }

func TestMalformed(t *testing.T) {
	u8 := func(name, shape, offsets string) string {
		return fmt.Sprintf(`%q:{"dtype":"U8","shape":%s,"data_offsets":%s}`, name, shape, offsets)
	}
	huge := binary.LittleEndian.AppendUint64(nil, math.MaxUint64)
	tests := []struct {
		name   string
		file   []byte
		tensor string // named by the error
		reason string // part of it
	}{
		{"empty file", nil, "", "0 bytes are too few"},
		{"seven bytes", []byte{2, 0, 0, 0, 0, 0, 0}, "", "7 bytes are too few"},
		{"no header", build("", 0), "", "does not begin with '{'"},
		{"header past the end", build("{}", 0)[:9], "", "truncated?"},
		{"header of 2^64-1", append(huge, "{}"...), "", "over the limit"},
		{"header over the limit", append(binary.LittleEndian.AppendUint64(nil, maxHeader+1), "{}"...), "", "over the limit"},
		{"space before the brace", build(" {}", 0), "", "does not begin with '{'"},
		{"array", build("[]", 0), "", "does not begin with '{'"},
		{"null", build("null", 0), "", "does not begin with '{'"},
		{"half a surrogate", build(`{"\ud800.k":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), "", "half a surrogate pair"},
		{"half a surrogate and an escaped backslash", build(`{"\ud800\\ufffd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "", "half a surrogate pair"},
		{"half a surrogate and the character it becomes", build(`{"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\ufffd":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), "", "half a surrogate pair"},
		{"half a surrogate in metadata", build(`{"__metadata__":{"a":"\ufffd\uDC00"}}`, 0), "", "half a surrogate pair"},
		{"not UTF-8", build("{\"a\xff\":{}}", 0), "", "not UTF-8"},
		{"NUL padding", build("{}\x00\x00", 0), "", "after the closing brace"},
		{"second object", build("{}{}", 0), "", "after the closing brace"},
		{"unclosed", build(`{`, 0), "", "unexpected EOF"},
		{"unclosed tensor", build(`{"a":{"dtype":"U8"`, 0), "a", "unexpected EOF"},
		{"trailing comma", build(`{`+u8("a", "[1]", "[0,1]")+`,}`, 1), "", "header byte"},
		{"missing comma", build(`{`+u8("a", "[1]", "[0,1]")+u8("b", "[1]", "[1,2]")+`}`, 2), "", "header byte"},

		{"duplicate tensor", build(`{`+u8("a", "[1]", "[0,1]")+`,`+u8("a", "[1]", "[0,1]")+`}`, 1), "", `duplicate key "a"`},
		{"duplicate tensor, escaped", build(`{`+u8("a", "[1]", "[0,1]")+`,"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), "", `duplicate key "a"`},
		{"duplicate field", build(`{"a":{"dtype":"F32","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "a", `duplicate key "dtype"`},
		{"duplicate metadata", build(`{"__metadata__":{},"__metadata__":{}}`, 0), "", `duplicate key "__metadata__"`},
		{"duplicate metadata key", build(`{"__metadata__":{"x":"1","x":"1"}}`, 0), "", `duplicate key "x"`},

		{"metadata number", build(`{"__metadata__":{"x":1}}`, 0), "", `metadata "x"`},
		{"metadata null", build(`{"__metadata__":{"x":null}}`, 0), "", `metadata "x"`},
		{"metadata object", build(`{"__metadata__":{"x":{}}}`, 0), "", `metadata "x"`},
		{"metadata not an object", build(`{"__metadata__":"x"}`, 0), "", "where an object belongs"},

		{"tensor null", build(`{"a":null}`, 0), "a", "null where an object belongs"},
		{"tensor array", build(`{"a":[]}`, 0), "a", "where an object belongs"},
		{"no dtype", build(`{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1), "a", "missing"},
		{"no shape", build(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1), "a", "missing"},
		{"no offsets", build(`{"a":{"dtype":"U8","shape":[0]}}`, 0), "a", "missing"},
		{"unknown field", build(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}`, 1), "a", `unknown field "strides"`},
		{"unknown dtype", build(`{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}`, 4), "a", `unknown dtype "F31"`},
		{"dtype in lower case", build(`{"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}`, 4), "a", "unknown dtype"},
		{"half a byte", build(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2), "a", "ends within a byte"},
		{"part of a byte", build(`{"a":{"dtype":"F6_E3M2","shape":[2],"data_offsets":[0,2]}}`, 2), "a", "ends within a byte"},
		{"nibbles past 2^63 bytes", build(`{"a":{"dtype":"F4","shape":[4294967296,4294967296,2],"data_offsets":[0,0]}}`, 0), "a", "overflows 63 bits"},
		{"dtype number", build(`{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}`, 1), "a", "8 where a string belongs"},

		{"shape number", build(`{`+u8("a", "1", "[0,1]")+`}`, 1), "a", "shape: "},
		{"shape of float", build(`{`+u8("a", "[1.0]", "[0,1]")+`}`, 1), "a", "shape: "},
		{"shape of string", build(`{`+u8("a", `["1"]`, "[0,1]")+`}`, 1), "a", "shape: "},
		{"shape negative", build(`{`+u8("a", "[-1]", "[0,1]")+`}`, 1), "a", "shape: "},
		{"shape nested", build(`{`+u8("a", "[[1]]", "[0,1]")+`}`, 1), "a", "shape: "},
		{"dimension of 2^63", build(`{`+u8("a", "[9223372036854775808]", "[0,0]")+`}`, 0), "a", "shape: "},
		{"product of 2^64", build(`{"a":{"dtype":"U8","shape":[65536,65536,65536,65536],"data_offsets":[0,0]}}`, 0), "a", "overflows 63 bits"},
		{"product of 2^63", build(`{"a":{"dtype":"F64","shape":[1073741824,1073741824],"data_offsets":[0,0]}}`, 0), "a", "overflows 63 bits"},
		{"overflow beside a zero", build(`{`+u8("a", "[0,1073741824,1073741824,1073741824]", "[0,0]")+`}`, 0), "a", "overflows 63 bits"},

		{"offset float", build(`{`+u8("a", "[1]", "[0,1.0]")+`}`, 1), "a", "data_offsets: "},
		{"offset exponent", build(`{`+u8("a", "[1]", "[0,1e0]")+`}`, 1), "a", "data_offsets: "},
		{"offset string", build(`{`+u8("a", "[1]", `["0","1"]`)+`}`, 1), "a", "data_offsets: "},
		{"offset negative", build(`{`+u8("a", "[1]", "[-1,0]")+`}`, 1), "a", "data_offsets: "},
		{"offset null", build(`{`+u8("a", "[1]", "[0,null]")+`}`, 1), "a", "null where an integer belongs"},
		{"offset of 2^63", build(`{`+u8("a", "[1]", "[0,9223372036854775808]")+`}`, 1), "a", "data_offsets: "},
		{"offset of 2^64+1", build(`{`+u8("a", "[1]", "[0,18446744073709551617]")+`}`, 1), "a", "data_offsets: "},
		{"no offset", build(`{`+u8("a", "[0]", "[]")+`}`, 0), "a", "fewer than two"},
		{"one offset", build(`{`+u8("a", "[1]", "[0]")+`}`, 1), "a", "fewer than two"},
		{"three offsets", build(`{`+u8("a", "[1]", "[0,1,1]")+`}`, 1), "a", "more than two"},
		{"begin past end", build(`{`+u8("a", "[1]", "[1,0]")+`}`, 1), "a", "begin 1 is past end 0"},
		{"end past the file", build(`{`+u8("a", "[2]", "[0,2]")+`}`, 1), "a", "past the payload's 1 bytes"},
		{"range too short", build(`{`+u8("a", "[3]", "[0,2]")+`}`, 2), "a", "range of 2 bytes, but U8 [3] takes 3"},
		{"second range too short", build(`{`+u8("a", "[2]", "[0,2]")+`,`+u8("b", "[3]", "[2,3]")+`}`, 3), "b", "range of 1 bytes"},
		{"range too long", build(`{`+u8("a", "[1]", "[0,2]")+`}`, 2), "a", "range of 2 bytes"},
		{"range of an empty tensor", build(`{`+u8("a", "[0]", "[0,1]")+`}`, 1), "a", "range of 1 bytes"},

		{"overlap", build(`{`+u8("a", "[2]", "[0,2]")+`,`+u8("b", "[2]", "[1,3]")+`}`, 3), "b", "overlaps"},
		{"same range", build(`{`+u8("a", "[2]", "[0,2]")+`,`+u8("b", "[2]", "[0,2]")+`}`, 2), "b", "overlaps"},
		{"range inside another", build(`{`+u8("b", "[1]", "[1,2]")+`,`+u8("a", "[3]", "[0,3]")+`}`, 3), "b", "overlaps"},
		{"empty range inside another", build(`{`+u8("a", "[2]", "[0,2]")+`,`+u8("b", "[0]", "[1,1]")+`}`, 2), "b", "overlaps"},
		{"hole at the start", build(`{`+u8("a", "[1]", "[1,2]")+`}`, 2), "a", "bytes 0 to 1"},
		{"hole between", build(`{`+u8("b", "[1]", "[2,3]")+`,`+u8("a", "[1]", "[0,1]")+`}`, 3), "b", "bytes 1 to 2"},
		{"trailing byte", build(`{`+u8("a", "[1]", "[0,1]")+`}`, 2), "", "bytes 1 to 2, at the end"},
		{"payload of no tensor", build(`{}`, 1), "", "bytes 0 to 1, at the end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := openBytes(tt.file)
			e, ok := err.(*Error)
			if !ok || !errors.Is(err, ErrFormat) || errors.Is(err, ErrNotSafetensors) {
				t.Fatalf("error %v, want ErrFormat in an *Error", err)
			}
			if e.Tensor != tt.tensor || !strings.Contains(e.Reason, tt.reason) {
				t.Errorf("tensor %q, reason %q; want tensor %q, reason with %q", e.Tensor, e.Reason, tt.tensor, tt.reason)
			}
		})
	}
}

func TestDeepNesting(t *testing.T) {
	for _, h := range []string{`{"a":`, `{"a":{"shape":`, `{"__metadata__":`} {
		if _, err := openBytes(build(h+strings.Repeat("[", 1<<20), 0)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s[[[...: error %v, want ErrFormat", h, err)
		}
	}
}

func TestTruncated(t *testing.T) {
	whole := build(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[],"data_offsets":[2,6]}}`, 6)
	for n := range whole {
		if _, err := openBytes(whole[:n]); !errors.Is(err, ErrFormat) {
			t.Errorf("first %d bytes of %d: error %v, want ErrFormat", n, len(whole), err)
		}
	}
	if _, err := openBytes(whole); err != nil {
		t.Error(err)
	}
}

func TestOtherTypes(t *testing.T) {
	tests := []struct{ name, file, kind string }{
		{"zip", "PK\x03\x04\x14\x00\x00\x08\x08\x00archive/data.pkl", "zip"},
		{"pickle", "\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01u.", "pickle"},
		{"short pickle", "\x80\x04N.", "pickle"},
		{"LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"},
		{"GGUF", "GGUF\x03\x00\x00\x00\x23\x01\x00\x00\x00\x00\x00\x00", "GGUF"},
		{"npy", "\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "NumPy"},
		{"HDF5", "\x89HDF\r\n\x1a\n\x00\x00\x00\x00", "HDF5"},
		{"gzip", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x00\x00", "gzip"},
		{"HTML", "<!DOCTYPE html><html><title>401</title></html>", "HTML"},
		{"index", `{"metadata":{},"weight_map":{}}`, "JSON"},
		{"text", "hello, world, this is no model\n", "neither a header's length nor a header"},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		if err := os.WriteFile(path, []byte(tt.file), 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		e, ok := err.(*Error)
		if !ok || !errors.Is(err, ErrNotSafetensors) || e.File != path || !strings.Contains(e.Reason, tt.kind) {
			t.Errorf("%s: error %v, want ErrNotSafetensors that names %q and the path", tt.name, err, tt.kind)
		}
		if !strings.Contains(fmt.Sprint(err), "not a safetensors file") {
			t.Errorf("%s: error %v does not say so", tt.name, err)
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNotSafetensors) {
		t.Errorf("directory: error %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: error %v", err)
	}
}

// A header's length may begin like another type's file.
func TestLengthLikeMagic(t *testing.T) {
	header := `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`
	header += strings.Repeat(" ", 0x8b1f-len(header))
	if _, err := openBytes(build(header, 1)); err != nil {
		t.Error(err)
	}
}

func TestValid(t *testing.T) {
	tests := []struct {
		name, header string
		payload      int
		want         []Info // offsets within the payload
	}{
		{"nothing", `{}`, 0, nil},
		{"white space", "{ \"a\" :\t{\"shape\":[ ],\n\"data_offsets\":[0 , 8],\"dtype\":\"F64\"}}\r\n ", 8,
			[]Info{{"a", F64, []int{}, 0, 8}}},
		{"null metadata", `{"__metadata__" : null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1,
			[]Info{{"a", U8, []int{1}, 0, 1}}},
		{"a replacement character", `{"\ufffd\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1,
			[]Info{{"\ufffd" + `\ud800`, U8, []int{1}, 0, 1}}},
		{"narrow elements", `{"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},"b":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[3,6]},` +
			`"c":{"dtype":"F6_E3M2","shape":[8],"data_offsets":[6,12]},"d":{"dtype":"F4","shape":[3,0],"data_offsets":[12,12]}}`, 12,
			[]Info{{"a", F4, []int{3, 2}, 0, 3}, {"b", F6E2M3, []int{4}, 3, 3}, {"c", F6E3M2, []int{8}, 6, 6}, {"d", F4, []int{3, 0}, 12, 0}}},
		{"empty name", `{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1,
			[]Info{{"", U8, []int{1}, 0, 1}}},
		{"any order, empty tensors anywhere",
			`{"z":{"dtype":"F16","shape":[0],"data_offsets":[6,6]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[2,6]},` +
				`"y":{"dtype":"F16","shape":[3,0],"data_offsets":[2,2]},"a":{"dtype":"U16","shape":[],"data_offsets":[0,2]},` +
				`"x":{"dtype":"F16","shape":[0],"data_offsets":[2,2]}}`, 6,
			[]Info{{"a", U16, []int{}, 0, 2}, {"y", F16, []int{3, 0}, 2, 0}, {"x", F16, []int{0}, 2, 0},
				{"b", BF16, []int{2}, 2, 4}, {"z", F16, []int{0}, 6, 0}}},
	}
	for _, tt := range tests {
		f, err := openBytes(build(tt.header, tt.payload))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for i := range tt.want {
			tt.want[i].Offset += int64(8 + len(tt.header))
		}
		if diff := cmp.Diff(tt.want, f.Tensors()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
	}
}

// Every value read comes from these bytes by arithmetic on them, so the test is
// the same on big-endian machines.
func TestByteOrder(t *testing.T) {
	header := `{"h":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"f":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}    `
	file := []byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}
	file = append(file, header...)
	file = append(file, 0x80, 0x3f, 0x00, 0xc0, 0x00, 0x00, 0xc0, 0x3f) // 1, -2; 1.5
	f, err := openBytes(file)
	if err != nil {
		t.Fatal(err)
	}
	h := make([]byte, 4)
	if err := f.ReadInto(h, "h"); err != nil {
		t.Fatal(err)
	}
	if a, b := binary.LittleEndian.Uint16(h), binary.LittleEndian.Uint16(h[2:]); a != 0x3f80 || b != 0xc000 {
		t.Errorf("bf16 %04x %04x, want 3f80 c000", a, b)
	}
	b, err := f.AppendTensor(nil, "f")
	if err != nil {
		t.Fatal(err)
	}
	if x := math.Float32frombits(binary.LittleEndian.Uint32(b)); x != 1.5 {
		t.Errorf("f32 %v, want 1.5", x)
	}
	var out memory
	w, err := NewWriterAt(&out, nil, f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	copyTensors(t, w, f)
	if !bytes.Equal(out.b, file) {
		t.Errorf("rewritten:\n% x, want\n% x", out.b, file)
	}
}

func TestRead(t *testing.T) {
	file := build(`{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}}`, 0)
	file = append(file, 1, 2, 3, 4, 5)
	f, err := openBytes(file)
	if err != nil {
		t.Fatal(err)
	}
	buf := []byte{9, 9, 9, 9, 9} // guard words around the tensor
	if err := f.ReadInto(buf[1:4], "b"); err != nil || !bytes.Equal(buf, []byte{9, 3, 4, 5, 9}) {
		t.Errorf("ReadInto: % d, %v", buf, err)
	}
	for _, n := range []int{0, 2, 4} {
		if err := f.ReadInto(make([]byte, n), "b"); !errors.Is(err, ErrLength) {
			t.Errorf("ReadInto of %d bytes for 3: error %v", n, err)
		}
	}
	got, err := f.AppendTensor([]byte{7}, "a")
	if err != nil || !bytes.Equal(got, []byte{7, 1, 2}) {
		t.Errorf("AppendTensor: % d, %v", got, err)
	}
	r, err := f.Reader("b")
	if err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 2)
	if n, err := r.ReadAt(part, 2); n != 1 || err != io.EOF || part[0] != 5 {
		t.Errorf("ReadAt past the tensor's end: %d, %v, % d", n, err, part)
	}
	if all, err := io.ReadAll(r); err != nil || !bytes.Equal(all, []byte{3, 4, 5}) {
		t.Errorf("Reader: % d, %v", all, err)
	}
	_, err1 := f.Reader("c")
	_, err2 := f.AppendTensor(nil, "c")
	for _, err := range []error{err1, err2, f.ReadInto(nil, "c")} {
		if e, ok := err.(*Error); !ok || !errors.Is(err, ErrNoTensor) || e.Tensor != "c" {
			t.Errorf("tensor c: error %v", err)
		}
	}
	if _, ok := f.Lookup("c"); ok {
		t.Error("Lookup finds c")
	}
	f.Metadata()["k"] = "changed"
	if f.Metadata()["k"] != "v" {
		t.Error("Metadata gives away the file's own map")
	}
	if n := testing.AllocsPerRun(100, func() { _ = f.ReadInto(buf[1:4], "b") }); n != 0 {
		t.Errorf("ReadInto: %v allocations", n)
	}
}

func TestShrunkWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	file := build(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}`, 8)
	if err := os.WriteFile(path, file, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, int64(len(file)-1)); err != nil {
		t.Fatal(err)
	}
	err = f.ReadInto(make([]byte, 8), "a")
	if e, ok := err.(*Error); !ok || !errors.Is(err, io.ErrUnexpectedEOF) || e.File != path || e.Tensor != "a" {
		t.Errorf("error %v", err)
	}
	if got, err := f.AppendTensor([]byte{1}, "a"); err == nil || !bytes.Equal(got, []byte{1}) {
		t.Errorf("AppendTensor: % d, %v", got, err)
	}
}

// A file of more than 4 GiB is read tensor by tensor in little memory.
func TestLarge(t *testing.T) {
	const big = 5 << 30
	path := filepath.Join(t.TempDir(), "sparse")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriterAt(out, nil, []Info{
		{Name: "big", DType: F32, Shape: []int{big / 4096, 1024}},
		{Name: "last", DType: U32, Shape: []int{1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Keep("big"); err != nil { // a hole
		t.Fatal(err)
	}
	last, err := w.Tensor("last")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := last.Write([]byte{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := f.AppendTensor(nil, "last")
	if err != nil || !bytes.Equal(got, []byte{1, 2, 3, 4}) {
		t.Errorf("last: % d, %v", got, err)
	}
	r, err := f.Reader("big")
	if err != nil {
		t.Fatal(err)
	}
	tail := []byte{1, 1, 1, 1}
	if _, err := r.ReadAt(tail, big-4); err != nil || !bytes.Equal(tail, make([]byte, 4)) {
		t.Errorf("end of big: % d, %v", tail, err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated to read 8 of a file of %d", n, int64(big))
	}
	if err := os.Truncate(path, big); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, ErrFormat) {
		t.Errorf("truncated: error %v", err)
	}
}

// A file that claims much costs no more memory than it has bytes.
func TestClaims(t *testing.T) {
	for _, file := range [][]byte{
		append(binary.LittleEndian.AppendUint64(nil, maxHeader), '{'),
		build(`{"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}`, 8),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := openBytes(file)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrFormat) {
			t.Errorf("error %v", err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<16 {
			t.Errorf("%d bytes allocated for a file of %d", n, len(file))
		}
	}
}

// spaces is a file of a header's length, '{' and spaces without end.
type spaces struct{ length uint64 }

func (r spaces) ReadAt(p []byte, off int64) (int, error) {
	start := append(binary.LittleEndian.AppendUint64(nil, r.length), '{')
	for i := range p {
		p[i] = ' '
		if off+int64(i) < int64(len(start)) {
			p[i] = start[off+int64(i)]
		}
	}
	return len(p), nil
}

// The limit on headers holds where the file is large enough for a longer one.
func TestHeaderLimit(t *testing.T) {
	for _, length := range []uint64{maxHeader + 1, 1 << 33, math.MaxInt64, math.MaxUint64} {
		_, err := NewFile(spaces{length}, 1<<40)
		if e, ok := err.(*Error); !ok || !errors.Is(err, ErrFormat) || !strings.Contains(e.Reason, "over the limit") {
			t.Errorf("header of %d bytes: error %v", length, err)
		}
	}
}

// Tensors of no bytes share a place; they keep the order of the header.
func TestEmptyTensorsKeepOrder(t *testing.T) {
	var before, after []string
	header := `{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`
	for i := range 100 {
		name := fmt.Sprint(i * 37 % 100)
		at := i * 7 % 3 % 2
		if at == 0 {
			before = append(before, name)
		} else {
			after = append(after, name)
		}
		header += fmt.Sprintf(`,%q:{"dtype":"U8","shape":[0],"data_offsets":[%d,%d]}`, name, at, at)
	}
	want := slices.Concat(before, []string{"x"}, after)
	f, err := openBytes(build(header+"}", 1))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, info := range f.Tensors() {
		got = append(got, info.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func BenchmarkOpen(b *testing.B) {
	const n = 1000
	header := "{"
	for i := range n {
		header += fmt.Sprintf(`"model.layers.%d.mlp.down_proj.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[%d,%d]},`, i, 64*i, 64*i+64)
	}
	file := build(strings.TrimSuffix(header, ",")+"}", 64*n)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openBytes(file); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtensor/s")
}

func FuzzOpen(f *testing.F) {
	for _, name := range []string{"dtypes", "numpy"} {
		b, err := os.ReadFile("testdata/" + name + ".safetensors")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(build(`{}`, 0))
	f.Add(build(`{"__metadata__":{"a":"\ud800"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	f.Add(build(`{"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	f.Add(build(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 3))
	f.Add([]byte("PK\x03\x04"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := openBytes(b)
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Fatalf("error %v of type %T", err, err)
			}
			return
		}
		var buf memory
		w, err := NewWriterAt(&buf, in.Metadata(), in.Tensors())
		if err != nil {
			t.Fatal(err)
		}
		copyTensors(t, w, in)
		out, err := openBytes(buf.b)
		if err != nil {
			t.Fatalf("rewritten: %v", err)
		}
		equivalent(t, in, out)
	})
}

// copyTensors writes the tensors of f and closes w.
func copyTensors(t *testing.T, w *Writer, f *File) {
	t.Helper()
	for _, info := range f.Tensors() {
		tw, err := w.Tensor(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := f.Reader(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(tw, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// equivalent checks that a and b hold the same tensors, data and metadata.
func equivalent(t *testing.T, a, b *File) {
	t.Helper()
	if len(a.Metadata()) != 0 || len(b.Metadata()) != 0 {
		if diff := cmp.Diff(a.Metadata(), b.Metadata()); diff != "" {
			t.Fatalf("metadata:\n%s", diff)
		}
	}
	as, bs := a.Tensors(), b.Tensors()
	if len(as) != len(bs) {
		t.Fatalf("%d and %d tensors", len(as), len(bs))
	}
	for i := range as {
		x, y := as[i], bs[i]
		if x.Name != y.Name || x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) || x.Size != y.Size {
			t.Fatalf("tensor %d: %v and %v", i, x, y)
		}
		p, err1 := a.AppendTensor(nil, x.Name)
		q, err2 := b.AppendTensor(nil, x.Name)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, q) {
			t.Fatalf("tensor %q differs", x.Name)
		}
	}
}
