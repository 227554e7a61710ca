package gpu

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/internal/vectors/vectortest"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Build tags choose the device that the tests run on: device_*_test.go define deviceName, openDevice, source and
// families (Options.families).
// Where none was compiled in, or none is there, they skip, unless REQUIRE_BACKENDS names it.

// open opens the default device, with wrap around it if there is one.
func open(t testing.TB, o Options, wrap ...func(gpu.Device) (gpu.Device, error)) *Backend {
	t.Helper()
	if o.Source == nil {
		o.Source = source
	}
	o.families = o.families || families
	b, err := Open(deviceName, func() (gpu.Device, error) {
		d, err := openDevice()
		for _, w := range wrap {
			if err == nil {
				d, err = w(d)
			}
		}
		return d, err
	}, o)
	if errors.Is(err, codec.ErrUnavailable) && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), deviceName) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil && !errors.Is(err, codec.ErrClosed) {
			t.Error(err)
		}
	})
	return b
}

func newCodec(t testing.TB, b *Backend, p codec.KVParams) codec.KV {
	t.Helper()
	kv, err := b.KV(p)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func newWeights(t testing.TB, b *Backend, p trellis.Params) codec.Trellis {
	t.Helper()
	c, err := b.Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openBackend() (codec.Backend, error) {
	return Open(deviceName, openDevice, Options{Source: source, families: families})
}

func TestConformance(t *testing.T) { conftest.Run(t, deviceName, openBackend) }

func TestVectors(t *testing.T) { vectortest.Run(t, deviceName, openBackend) }
