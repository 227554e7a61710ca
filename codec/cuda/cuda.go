// Package cuda is the backend for NVIDIA GPUs: a CUDA device under the planner of codec/gpu.
//
// The package builds everywhere. Open needs -tags cuda on linux/amd64 or linux/arm64, and at run time the CUDA
// driver (libcuda.so.1) and NVRTC (libnvrtc.so.12 or .13, of the driver's CUDA version or an earlier one);
// nothing is linked and cgo is not used. Package gpu/cuda says where it looks for NVRTC and where it keeps
// compiled kernels.
package cuda

import (
	"log/slog"

	planner "github.com/turbotrellis/turbotrellis/codec/gpu"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/cuda"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// Options choose and observe a device. The zero value is the first device, unobserved.
type Options struct {
	Name   string // only devices of this name, if not empty
	Number int    // the device of this number, from 0, among all or those of the name

	// Log, if not nil, receives one debug record per dispatch, as in codec/gpu.Options.
	Log *slog.Logger
}

// Open opens a device, in a CUDA context of its own, and checks that it does arithmetic as docs/numerics.md
// needs. It fails with codec.ErrUnavailable and the reason if the tag was not set, the driver or NVRTC is not
// installed, there is no such device, or the device fails a check of the canary.
//
// A kernel that fails in a way that ends its context fails the call with gpu.ErrLost. The next call asks the
// driver for a new context, once; where the driver refuses, as some do to the whole process, it and every later
// call return gpu.ErrLost. Memory from Alloc outlives the context.
func Open(o Options) (*planner.Backend, error) {
	return planner.Open("cuda", func() (gpu.Device, error) {
		return cuda.Open(cuda.Options{Name: o.Name, Number: o.Number})
	}, planner.Options{Log: o.Log, Source: shaders.CUDASource})
}
