package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/turbotrellis/turbotrellis/codec/metal/gpu"
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/device"
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/internal/mtlfake"
)

// twoRecords is a trace written by hand from the package's documentation.
const twoRecords = "5454545241434531" + // TTTRACE1
	"44495350" + // DISP
	"03000000616464" + // kernel "add"
	"0400000001000000" + // args: 1
	"020000001000000020000000" + // threadgroup memory 16, 32
	"020000000100000001000000" + "040000000100000001000000" + // 2 groups of 4
	"02000000" + // two buffers
	"0a00000000000000" + "61616161616161616161" + "01" + "61616262626262626262" + // changed from offset 2 on
	"0100000000000000" + "7a" + "00" + // not changed
	"02000000" + "00000000" + "0200000000000000" + "01000000" + "0000000000000000" + // bindings: buffer 0 at 2, buffer 1 at 0
	"SUM0" +
	"44495350" + "0100000078" + "00000000" + "00000000" + "000000000100000001000000010000000100000001000000" + "00000000" + "00000000" + "SUM1"

// zlib.crc32 of each record, computed in Python.
const (
	sum0 = "4f1a1c04"
	sum1 = "7b1c35cc"
)

func handmade(t testing.TB) []byte {
	t.Helper()
	s := strings.NewReplacer("SUM0", sum0, "SUM1", sum1).Replace(twoRecords)
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var handmadeRecords = []Record{
	{
		Kernel:            "add",
		Args:              []byte{1, 0, 0, 0},
		ThreadgroupMemory: []int{16, 32},
		Groups:            [3]int{2, 1, 1},
		GroupSize:         [3]int{4, 1, 1},
		Buffers:           []Buffer{{Before: []byte("aaaaaaaaaa"), After: []byte("aabbbbbbbb")}, {Before: []byte("z")}},
		Bindings:          []Binding{{0, 2}, {1, 0}},
	},
	{Kernel: "x", Groups: [3]int{0, 1, 1}, GroupSize: [3]int{1, 1, 1}},
}

func readAll(data []byte) (list []Record, err error) {
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, *rec)
	}
}

func TestFormat(t *testing.T) {
	data := handmade(t)
	got, err := readAll(data)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(handmadeRecords, got, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	var out bytes.Buffer
	w, err := NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if err := w.Write(&got[i]); err != nil {
			t.Error(err)
		}
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("wrote\n%x, want\n%x", out.Bytes(), data)
	}
}

// Every shortened trace is an error, and so is every trace with one bit changed.
func TestDamaged(t *testing.T) {
	data := handmade(t)
	first := bytes.LastIndex(data, []byte(recordMagic)) // where the second record begins
	for n := range len(data) {
		_, err := readAll(data[:n])
		if whole := n == 8 || n == first; whole != (err == nil) || !whole && !errors.Is(err, ErrFormat) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for bit := range 8 * len(data) {
		bad := bytes.Clone(data)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := readAll(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	w, err := NewWriter(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range []Record{
		{},
		{Kernel: strings.Repeat("k", 256)},
		{Kernel: "k", Args: make([]byte, 4096)},
		{Kernel: "k", ThreadgroupMemory: make([]int, 32)},
		{Kernel: "k", ThreadgroupMemory: []int{-16}},
		{Kernel: "k", Groups: [3]int{0, -1, 0}},
		{Kernel: "k", GroupSize: [3]int{0, 0, -1}},
		{Kernel: "k", Buffers: make([]Buffer, 32)},
		{Kernel: "k", Buffers: []Buffer{{}}},
		{Kernel: "k", Buffers: []Buffer{{Before: []byte{1}, After: []byte{1}}}},
		{Kernel: "k", Buffers: []Buffer{{Before: []byte{1}, After: []byte{1, 2}}}},
		{Kernel: "k", Bindings: []Binding{{0, 0}}},
		{Kernel: "k", Buffers: []Buffer{{Before: []byte{1}}}, Bindings: []Binding{{0, 1}}},
		{Kernel: "k", Buffers: []Buffer{{Before: []byte{1}}}, Bindings: []Binding{{0, -1}}},
		{Kernel: "k", Buffers: []Buffer{{Before: []byte{1}}}, Bindings: []Binding{{-1, 0}}},
	} {
		if err := w.Write(&r); !errors.Is(err, ErrFormat) {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

var kernels = map[string]mtlfake.Kernel{
	"add": func(b [][]byte, args []byte, threads int) {
		for i := range threads {
			b[0][i] += byte(binary.LittleEndian.Uint32(args))
		}
	},
	"addTo": func(b [][]byte, args []byte, threads int) {
		for i := range threads {
			b[1][i] += b[0][i]
		}
	},
}

func open(t *testing.T) (gpu.Device, gpu.Library) {
	t.Helper()
	d, err := device.Open(&mtlfake.Runtime{Kernels: kernels}, "fake", gpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.NewLibrary("source", gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, l
}

func record(t *testing.T) []byte {
	t.Helper()
	d, l := open(t)
	var out bytes.Buffer
	r, err := NewRecorder(d, &out)
	if err != nil {
		t.Fatal(err)
	}
	add, err := l.Pipeline("add")
	if err != nil {
		t.Fatal(err)
	}
	addTo, err := l.Pipeline("addTo")
	if err != nil {
		t.Fatal(err)
	}
	x, err := r.NewBuffer(8)
	if err != nil {
		t.Fatal(err)
	}
	y, err := r.NewBuffer(6)
	if err != nil {
		t.Fatal(err)
	}
	size := [3]int{4, 1, 1}
	one := [3]int{1, 1, 1}
	list := []gpu.Dispatch{
		{Pipeline: add, Buffers: []gpu.Binding{{Buffer: x, Offset: 1}}, Args: []byte{5, 0, 0, 0}, ThreadgroupMemory: []int{16}, Groups: one, GroupSize: size},
		{Pipeline: add, Buffers: []gpu.Binding{{Buffer: x}}, Args: []byte{1, 0, 0, 0}, Groups: [3]int{0, 1, 1}, GroupSize: size}, // no work: no record
		{Pipeline: addTo, Buffers: []gpu.Binding{{Buffer: x, Offset: 2}, {Buffer: y, Offset: 1}}, Groups: one, GroupSize: size},
		{Pipeline: addTo, Buffers: []gpu.Binding{{Buffer: x}, {Buffer: x, Offset: 4}}, Groups: one, GroupSize: size},
	}
	spent, err := r.Run(list...)
	if err != nil || spent.Milliseconds() != 750 {
		t.Fatal(spent, err)
	}
	if !bytes.Equal(x.Bytes(), []byte{0, 5, 5, 5, 5, 5, 5, 5}) || !bytes.Equal(y.Bytes(), []byte{0, 5, 5, 5, 0, 0}) {
		t.Error(x.Bytes(), y.Bytes())
	}
	n := out.Len()
	list[1].Args = make([]byte, 5000)
	if _, err := r.Run(list...); !errors.Is(err, gpu.ErrInvalid) || out.Len() != n {
		t.Error("a list with a bad dispatch:", err, out.Len()-n)
	}
	y.Release()
	if _, err := r.Run(list[2]); !errors.Is(err, gpu.ErrReleased) || out.Len() != n {
		t.Error("a released buffer:", err, out.Len()-n)
	}
	return out.Bytes()
}

func TestRecord(t *testing.T) {
	got, err := readAll(record(t))
	if err != nil {
		t.Fatal(err)
	}
	size, one := [3]int{4, 1, 1}, [3]int{1, 1, 1}
	want := []Record{
		{Kernel: "add", Args: []byte{5, 0, 0, 0}, ThreadgroupMemory: []int{16}, Groups: one, GroupSize: size,
			Buffers: []Buffer{{make([]byte, 8), []byte{0, 5, 5, 5, 5, 0, 0, 0}}}, Bindings: []Binding{{0, 1}}},
		{Kernel: "addTo", Groups: one, GroupSize: size,
			Buffers:  []Buffer{{[]byte{0, 5, 5, 5, 5, 0, 0, 0}, nil}, {make([]byte, 6), []byte{0, 5, 5, 5, 0, 0}}},
			Bindings: []Binding{{0, 2}, {1, 1}}},
		{Kernel: "addTo", Groups: one, GroupSize: size,
			Buffers: []Buffer{{[]byte{0, 5, 5, 5, 5, 0, 0, 0}, []byte{0, 5, 5, 5, 5, 5, 5, 5}}}, Bindings: []Binding{{0, 0}, {0, 4}}},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestReplay(t *testing.T) {
	data := record(t)
	d, l := open(t)
	result, err := Replay(bytes.NewReader(data), d, l.Pipeline)
	if err != nil || result.Dispatches != 3 || result.Bytes != 8+8+6+8 || result.Kernels["addTo"] != 2 {
		t.Error(result, err)
	}
	// A kernel that answers otherwise is a mismatch that says where.
	kernels := map[string]mtlfake.Kernel{"add": kernels["add"], "addTo": func(b [][]byte, _ []byte, threads int) { b[1][2] = 9 }}
	other, err := device.Open(&mtlfake.Runtime{Kernels: kernels}, "fake", gpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	wrong, err := other.NewLibrary("source", gpu.CompileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	result, err = Replay(bytes.NewReader(data), other, wrong.Pipeline)
	var m *Mismatch
	if !errors.As(err, &m) || *m != (Mismatch{Record: 1, Kernel: "addTo", Buffer: 1, Offset: 1, Got: 0, Want: 5}) || result.Dispatches != 1 {
		t.Error(result, err)
	}
	_, err = Replay(bytes.NewReader(data), d, func(name string) (gpu.Pipeline, error) { return l.Pipeline("none") })
	if !errors.Is(err, gpu.ErrNoFunction) {
		t.Error(err)
	}
	if _, err := Replay(strings.NewReader("TTTRACE2"), d, l.Pipeline); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
}

// A parser of any bytes returns records that write back as the same bytes, or ErrFormat.
func FuzzReader(f *testing.F) {
	data := handmade(f)
	f.Add(data)
	f.Add(data[:60])
	f.Add([]byte(fileMagic))
	huge := append([]byte(fileMagic+recordMagic+"\x01\x00\x00\x00k"), make([]byte, 8+24)...)
	f.Add(append(huge, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)) // a buffer that claims 2^40 bytes
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := readAll(data)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		var out bytes.Buffer
		w, err := NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if err := w.Write(&list[i]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(out.Bytes(), data) {
			t.Fatalf("wrote %x", out.Bytes())
		}
	})
}
