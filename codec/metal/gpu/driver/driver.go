// Package driver opens a GPU through the message sender that was compiled in. It is the only
// package that imports senders.
package driver

import (
	"os"

	"github.com/turbotrellis/turbotrellis/codec/metal/gpu"
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/device"
)

// EnvPrebuilt is the environment variable that names the folder of compiled libraries where
// gpu.Options do not.
const EnvPrebuilt = "TURBOTRELLIS_METALLIB"

// Open opens the device that o chooses. It fails with gpu.ErrUnavailable, saying why, when no
// driver was compiled in, when the system lacks Metal, and when there is no such device.
func Open(o gpu.Options) (gpu.Device, error) {
	s, err := load()
	if err != nil {
		return nil, unavailable("open", err)
	}
	if o.Prebuilt == "" {
		o.Prebuilt = os.Getenv(EnvPrebuilt)
	}
	return device.Open(s, Name, o)
}

// List describes the devices, the default one first. It fails with gpu.ErrUnavailable like Open; no
// device at all is an empty list.
func List() ([]gpu.Info, error) {
	s, err := load()
	if err != nil {
		return nil, unavailable("list", err)
	}
	return device.List(s, Name), nil
}

func unavailable(op string, err error) error {
	return &gpu.Error{Op: op, Err: gpu.ErrUnavailable, Detail: err.Error()}
}
