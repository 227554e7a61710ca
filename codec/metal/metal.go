// Package metal is the backend for Apple GPUs: a Metal device under the planner of codec/gpu.
//
// The package builds everywhere. Open needs a message sender, which -tags metal brings
// in on a Mac with Apple silicon; docs/metal.md lists the kernels, what each
// moves, and what has run where.
package metal

import (
	"log/slog"

	planner "github.com/turbotrellis/turbotrellis/codec/gpu"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

// Options choose and observe a device. The zero value is the system's default
// device, unobserved.
type Options struct {
	Name       string // the device of this name, if not empty
	RegistryID uint64 // the device with this registry id, if not zero

	// Log, if not nil, gets a debug record for each dispatch: the kernel, why a
	// more special one was passed over, rows, grid and bytes of threadgroup memory.
	Log *slog.Logger
}

// Open opens a device and makes sure that it does arithmetic as docs/numerics.md
// needs. It fails with codec.ErrUnavailable, naming the reason, where no sender was
// compiled in, where there is no such device, and where the device fails a check of the canary.
func Open(o Options) (*planner.Backend, error) {
	return planner.Open("metal", func() (gpu.Device, error) {
		return metal.Open(gpu.Options{Name: o.Name, RegistryID: o.RegistryID})
	}, planner.Options{Log: o.Log})
}
