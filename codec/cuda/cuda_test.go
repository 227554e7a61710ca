package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cuda"
	device "github.com/turbotrellis/turbotrellis/gpu/cuda"
)

// Without the tag, a driver or a device, Open says which is missing.
func TestOpen(t *testing.T) {
	b, err := cuda.Open(cuda.Options{})
	if err == nil {
		if b.Name() != "cuda" || b.Info().Driver != "cuda" {
			t.Errorf("%s, %+v", b.Name(), b.Info())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, codec.ErrUnavailable) || b != nil {
		t.Fatal(b, err)
	}
	if device.Name == "" && !strings.Contains(err.Error(), "build with -tags cuda") {
		t.Error(err)
	}
	t.Log(err)
}

// No machine has a device of this name.
func TestNoSuchDevice(t *testing.T) {
	if b, err := cuda.Open(cuda.Options{Name: "abacus"}); !errors.Is(err, codec.ErrUnavailable) || b != nil {
		t.Error(b, err)
	}
}
