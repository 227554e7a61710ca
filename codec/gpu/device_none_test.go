//go:build !metal

package gpu

import "github.com/turbotrellis/turbotrellis/gpu"

const deviceName = "gpu"

func openDevice() (gpu.Device, error) {
	return nil, &gpu.Error{Op: "open", Err: gpu.ErrUnavailable, Detail: "no device was compiled in"}
}
