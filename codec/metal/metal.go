// Package metal is the backend for Apple GPUs: a Metal device under the planner of codec/gpu.
//
// The package builds everywhere. Open needs a message sender, which -tags metal compiles in on
// a Mac with Apple silicon. docs/metal.md lists the kernels, what each moves, and what has run
// where.
package metal

import (
	"log/slog"

	planner "github.com/turbotrellis/turbotrellis/codec/gpu"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

// Options choose and observe a device. The zero value takes the first device that the system
// lists, and does not observe it.
type Options struct {
	Name       string // the device of this name, if not empty
	RegistryID uint64 // the device with this registry id, if not zero

	// Log, if not nil, receives one debug record per dispatch: the kernel, why a more specialised
	// one was not used, rows, grid, and bytes of threadgroup memory.
	Log *slog.Logger
}

// Open opens a device and checks that its arithmetic is that of docs/numerics.md. It fails with
// codec.ErrUnavailable and the reason if no sender was compiled in, if there is no such device, and
// if the device fails a check of the canary.
func Open(o Options) (*planner.Backend, error) {
	return planner.Open("metal", func() (gpu.Device, error) {
		return metal.Open(gpu.Options{Name: o.Name, RegistryID: o.RegistryID})
	}, planner.Options{Log: o.Log})
}
