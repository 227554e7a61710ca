package ref_test

import (
	"bytes"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/vectors/vectortest"
)

func TestVectors(t *testing.T) {
	vectortest.Run(t, "ref", func() (codec.Backend, error) { return ref.New(), nil })
}

func newKV(t testing.TB, p codec.KVParams) codec.KV {
	t.Helper()
	kv, err := ref.New().KV(p)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// stages returns the codec of p with its stages.
func stages(t testing.TB, p codec.KVParams) *ref.KV {
	t.Helper()
	kv, err := ref.NewKV(p)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// keyStages and valueStages return the stages of a row that can be encoded.
func keyStages(t testing.TB, p codec.KVParams, x []float32) ref.KeyStages {
	t.Helper()
	s, found := stages(t, p).KeyStages(x)
	if found != driver.Nothing {
		t.Fatalf("found %+v", found)
	}
	return s
}

func valueStages(t testing.TB, p codec.KVParams, x []float32) ref.ValueStages {
	t.Helper()
	s, found := stages(t, p).ValueStages(x)
	if found != driver.Nothing {
		t.Fatalf("found %+v", found)
	}
	return s
}

// diff fails the test at the first element where got and want differ, NaN
// equal to NaN, and returns the number of elements it compared.
func diff(t *testing.T, what string, d codec.DType, got, want []byte) int {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	if d == 0 { // plain bytes
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s: byte %d = %#02x, want %#02x", what, i, got[i], want[i])
			}
		}
		return len(got)
	}
	for i := 0; i < len(got); i += d.Size() {
		if !bytes.Equal(got[i:i+d.Size()], want[i:i+d.Size()]) {
			g, w := d.Load(got[i:]), d.Load(want[i:])
			if g != g && w != w {
				continue
			}
			t.Fatalf("%s: element %d = %x (%v), want %x (%v)", what, i/d.Size(), got[i:i+d.Size()], g, want[i:i+d.Size()], w)
		}
	}
	return len(got) / d.Size()
}

// keyFormat and valueFormat return the format of so many bits, or none.
func keyFormat(bits int, signed bool) codec.Format {
	f, _ := codec.KeyFormat(bits, signed)
	return f
}

func valueFormat(bits int) codec.Format {
	f, _ := codec.ValueFormat(bits)
	return f
}
