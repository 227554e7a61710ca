package vectors

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
)

func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestParse(t *testing.T) {
	f, err := parse(file(`{"__metadata__":{"a":"b"},`+
		`"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},`+
		`"h":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]},`+
		`"i":{"dtype":"I32","shape":[],"data_offsets":[10,14]},`+
		`"c":{"dtype":"I8","shape":[2],"data_offsets":[14,16]}}`,
		0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0x34, 0x12, 0xfe, 0xff, 0xff, 0xff, 0x80, 7))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.F32(t, "w"); !slices.Equal(got, []float32{1, -2}) {
		t.Errorf("F32 = %v", got)
	}
	if got := f.U16(t, "h"); !slices.Equal(got, []uint16{0x1234}) {
		t.Errorf("U16 = %#x", got)
	}
	if got := f.I32(t, "i"); !slices.Equal(got, []int32{-2}) {
		t.Errorf("I32 = %v", got)
	}
	if got := f.I8(t, "c"); !slices.Equal(got, []int8{math.MinInt8, 7}) {
		t.Errorf("I8 = %v", got)
	}
	if got := f.Names(); !slices.Equal(got, []string{"c", "h", "i", "w"}) {
		t.Errorf("Names = %v", got)
	}
	if got := f.Shape("w"); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("Shape = %v", got)
	}
	if f.Has("__metadata__") || !f.Has("w") {
		t.Error("Has is wrong")
	}
}

func TestParseRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":         {},
		"header length": binary.LittleEndian.AppendUint64(nil, 1<<63),
		"no tensors":    file(`{}`),
		"not JSON":      file(`{`),
		"dtype":         file(`{"w":{"dtype":"F9","shape":[1],"data_offsets":[0,1]}}`, 0),
		"past the end":  file(`{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 0),
		"reversed":      file(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, 0),
		"size":          file(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}}`, 0, 0),
	} {
		if _, err := parse(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLoadVectorFolder(t *testing.T) {
	f := Load(t, "hadamard.safetensors")
	if len(f.Names()) == 0 {
		t.Fatal("no tensors")
	}
	t.Logf("%d tensors in %s", len(f), Dir(t))
}

// recorder stands in for a test that is expected to fail.
type recorder struct {
	testing.TB
	msg string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.msg = format
	panic(r)
}

func TestFatal(t *testing.T) {
	f := File{"w": {DType: "U8", Shape: []int{1}, Data: []byte{1}}}
	for name, fn := range map[string]func(tb testing.TB){
		"missing tensor": func(tb testing.TB) { f.Bytes(tb, "v") },
		"wrong dtype":    func(tb testing.TB) { f.F32(tb, "w") },
		"missing file":   func(tb testing.TB) { Load(tb, "no/such.safetensors") },
	} {
		r := &recorder{TB: t}
		func() {
			defer func() { recover() }()
			fn(r)
		}()
		if !strings.HasPrefix(r.msg, "vectors: ") {
			t.Errorf("%s: test went on (%q)", name, r.msg)
		}
	}
}
