// Package safetensorstest makes safetensors files in memory for tests.
package safetensorstest

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// Tensor is a tensor and its bytes.
type Tensor struct {
	Name  string
	DType safetensors.DType
	Shape []int
	Data  []byte
}

// Memory is a file in memory, for writing. Its zero value is empty.
type Memory struct{ Data []byte }

// WriteAt implements io.WriterAt.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	if n := int(off) + len(p); n > len(m.Data) {
		m.Data = append(m.Data, make([]byte, n-len(m.Data))...)
	}
	return copy(m.Data[off:], p), nil
}

// File returns the bytes of a file of the given metadata and tensors, in their order.
func File(tb testing.TB, meta map[string]string, tensors ...Tensor) []byte {
	tb.Helper()
	infos := make([]safetensors.Info, len(tensors))
	for i, x := range tensors {
		infos[i] = safetensors.Info{Name: x.Name, DType: x.DType, Shape: x.Shape}
	}
	var m Memory
	w, err := safetensors.NewWriterAt(&m, meta, infos)
	if err != nil {
		tb.Fatal(err)
	}
	for _, x := range tensors {
		t, err := w.Tensor(x.Name)
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := t.Write(x.Data); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return m.Data
}
