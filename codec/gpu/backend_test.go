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
	"github.com/turbotrellis/turbotrellis/shaders"
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

// The suite, which in its normal form meets every kernel.
func TestConformance(t *testing.T) {
	var s spy
	conftest.Run(t, deviceName, func() (codec.Backend, error) {
		return Open(deviceName, func() (gpu.Device, error) {
			d, err := openDevice()
			if err != nil {
				return nil, err
			}
			return s.wrap(d)
		}, Options{Source: source, families: families})
	})
	if os.Getenv(conftest.EnvForm) != "normal" || os.Getenv(conftest.EnvFilter) != "" {
		return
	}
	for _, v := range shaders.Variants() {
		if s.kernels[v.Name] == 0 && v.Name != "copy_1" { // for codes in memory of the device: TestConformanceOwned
			t.Errorf("the suite does not meet %s", v.Name)
		}
	}
}

func TestVectors(t *testing.T) { vectortest.Run(t, deviceName, openBackend) }
