//go:build metal

package gpu

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// The tests of this tag run on whichever driver was compiled in. Without one, or
// without a device, they skip, unless the environment variable REQUIRE_BACKENDS
// names metal.

func openDevice() (gpu.Device, error) { return metal.Open(gpu.Options{}) }

// open opens the default device, with wrap around it if there is one.
func open(t testing.TB, o Options, wrap ...func(gpu.Device) (gpu.Device, error)) *Backend {
	t.Helper()
	b, err := Open("metal", func() (gpu.Device, error) {
		d, err := openDevice()
		for _, w := range wrap {
			if err == nil {
				d, err = w(d)
			}
		}
		return d, err
	}, o)
	if errors.Is(err, codec.ErrUnavailable) && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), "metal") {
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

func newWeights(t testing.TB, b *Backend, p trellis.Params) *Trellis {
	t.Helper()
	c, err := b.Trellis(p)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Trellis)
}
