// Package vectors reads the committed test vectors. It is for tests only: every
// problem ends the test, so a missing or malformed file can never pass for an
// empty one.
package vectors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// Env names the environment variable that replaces the repository's testdata
// folder. The folder it holds is laid out the same way.
const Env = "TURBOTRELLIS_DATA"

// Tensor is one entry of a safetensors file. Data is little-endian, row-major.
type Tensor struct {
	DType string
	Shape []int
	Data  []byte
}

// File is a safetensors file held in memory, by tensor name. Treat it as
// read-only.
type File map[string]Tensor

// Dir returns the folder the vectors are read from: $TURBOTRELLIS_DATA, else
// testdata beside the go.mod found by walking up from the working directory.
func Dir(tb testing.TB) string {
	tb.Helper()
	if dir := os.Getenv(Env); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("vectors: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "testdata")
		}
		up := filepath.Dir(dir)
		if up == dir {
			tb.Fatalf("vectors: no go.mod above the working directory; set %s", Env)
		}
		dir = up
	}
}

// ReadFile returns the bytes of the file at rel, a slash-separated path below
// Dir, and ends the test where it cannot.
func ReadFile(tb testing.TB, rel string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(Dir(tb), filepath.FromSlash(rel)))
	if err != nil {
		tb.Fatalf("vectors: %v", err)
	}
	return b
}

// Load reads the safetensors file at rel, a slash-separated path below Dir,
// such as "kv/kv_d64.safetensors".
func Load(tb testing.TB, rel string) File {
	tb.Helper()
	f, err := parse(ReadFile(tb, rel))
	if err != nil {
		tb.Fatalf("vectors: %s: %v", rel, err)
	}
	return f
}

func parse(b []byte) (File, error) {
	in, err := safetensors.NewFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, err
	}
	f := File{}
	for _, t := range in.Tensors() {
		f[t.Name] = Tensor{string(t.DType), t.Shape, b[t.Offset:][:t.Size:t.Size]}
	}
	if len(f) == 0 {
		return nil, errors.New("no tensors")
	}
	return f, nil
}

// Has reports whether the file holds a tensor of that name.
func (f File) Has(name string) bool {
	_, ok := f[name]
	return ok
}

// Names returns the tensors' names, sorted.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f)) }

// Shape returns the shape of the named tensor, nil where there is none.
func (f File) Shape(name string) []int { return f[name].Shape }

// Bytes returns the raw little-endian bytes of the named tensor of any dtype.
func (f File) Bytes(tb testing.TB, name string) []byte {
	tb.Helper()
	return f.tensor(tb, name).Data
}

// F32 returns the elements of the named F32 tensor.
func (f File) F32(tb testing.TB, name string) []float32 {
	tb.Helper()
	return f.tensor(tb, name, "F32").F32(tb)
}

// F32 returns the elements of an F32 tensor.
func (t Tensor) F32(tb testing.TB) []float32 {
	tb.Helper()
	if t.DType != "F32" {
		tb.Fatalf("vec: tensor is %s, want F32", t.DType)
	}
	out := make([]float32, len(t.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return out
}

// U32 returns the elements of the named U32 tensor.
func (f File) U32(tb testing.TB, name string) []uint32 {
	tb.Helper()
	data := f.tensor(tb, name, "U32").Data
	out := make([]uint32, len(data)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return out
}

// I32 returns the elements of the named I32 tensor.
func (f File) I32(tb testing.TB, name string) []int32 {
	tb.Helper()
	data := f.tensor(tb, name, "I32").Data
	out := make([]int32, len(data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

// I8 returns the elements of the named I8 tensor.
func (f File) I8(tb testing.TB, name string) []int8 {
	tb.Helper()
	data := f.tensor(tb, name, "I8").Data
	out := make([]int8, len(data))
	for i, b := range data {
		out[i] = int8(b)
	}
	return out
}

// U16 returns the bit patterns of the named F16 or BF16 tensor.
func (f File) U16(tb testing.TB, name string) []uint16 {
	tb.Helper()
	return f.tensor(tb, name, "F16", "BF16").U16(tb)
}

// U16 returns the bit patterns of an F16 or BF16 tensor.
func (t Tensor) U16(tb testing.TB) []uint16 {
	tb.Helper()
	if t.DType != "F16" && t.DType != "BF16" {
		tb.Fatalf("vec: tensor is %s, want F16 or BF16", t.DType)
	}
	out := make([]uint16, len(t.Data)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(t.Data[2*i:])
	}
	return out
}

// tensor returns the named tensor, which must have one of the dtypes if any
// are given.
func (f File) tensor(tb testing.TB, name string, dtypes ...string) Tensor {
	tb.Helper()
	t, ok := f[name]
	if !ok {
		tb.Fatalf("vectors: no tensor %q", name)
	}
	if len(dtypes) > 0 && !slices.Contains(dtypes, t.DType) {
		tb.Fatalf("vectors: tensor %q is %s, want one of %v", name, t.DType, dtypes)
	}
	return t
}
