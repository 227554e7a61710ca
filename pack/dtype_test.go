package pack

import (
	"bytes"
	"testing"
)

// TestDType stores and loads values whose bytes are known.
func TestDType(t *testing.T) {
	for _, test := range []struct {
		d     DType
		name  string
		x     float32
		bytes []byte
		back  float32
	}{
		{F32, "f32", 1.1, []byte{0xcd, 0xcc, 0x8c, 0x3f}, 1.1},
		{F16, "f16", -1.5, []byte{0x00, 0xbe}, -1.5},
		{F16, "f16", 2049, []byte{0x00, 0x68}, 2048},
		{BF16, "bf16", -1.5, []byte{0xc0, 0xbf}, -1.5},
		{BF16, "bf16", 257, []byte{0x80, 0x43}, 256},
	} {
		if test.d.String() != test.name || test.d.Size() != len(test.bytes) {
			t.Errorf("%v has %d bytes, want %s with %d", test.d, test.d.Size(), test.name, len(test.bytes))
		}
		b := []byte{7, 7, 7, 7, 7}
		test.d.Store(b, test.x)
		if n := len(test.bytes); !bytes.Equal(b[:n], test.bytes) || b[n] != 7 {
			t.Errorf("%v of %v: % x, want % x", test.d, test.x, b, test.bytes)
		}
		if got := test.d.Load(b); got != test.back {
			t.Errorf("%v of %v loads as %v, want %v", test.d, test.x, got, test.back)
		}
		if got := test.d.Round(test.x); got != test.back {
			t.Errorf("%v rounds %v to %v, want %v", test.d, test.x, got, test.back)
		}
	}
	for _, d := range []DType{0, 4} {
		if d.Size() != 0 {
			t.Errorf("%v has size %d", d, d.Size())
		}
		for what, f := range map[string]func(){
			"Load":  func() { d.Load(make([]byte, 8)) },
			"Store": func() { d.Store(make([]byte, 8), 1) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s of %v does not panic", what, d)
					}
				}()
				f()
			}()
		}
	}
}
