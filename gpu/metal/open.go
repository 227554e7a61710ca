package metal

import (
	"os"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// EnvPrebuilt is the environment variable that names the folder of compiled libraries where
// gpu.Options do not.
const EnvPrebuilt = "TURBOTRELLIS_METALLIB"

// Open opens the device that o chooses. It fails with gpu.ErrUnavailable, saying why, when no
// sender was compiled in, when the system lacks Metal, and when there is no such device.
func Open(o gpu.Options) (gpu.Device, error) {
	s, err := load()
	if err != nil {
		return nil, unavailable("open", err)
	}
	if o.Prebuilt == "" {
		o.Prebuilt = os.Getenv(EnvPrebuilt)
	}
	return open(s, Name, o)
}

// List describes the devices, each once. It fails with gpu.ErrUnavailable like Open; no
// device at all is an empty list.
func List() ([]gpu.Info, error) {
	s, err := load()
	if err != nil {
		return nil, unavailable("list", err)
	}
	return list(s, Name), nil
}

func unavailable(op string, err error) error {
	return &gpu.Error{Op: op, Err: gpu.ErrUnavailable, Detail: err.Error()}
}
