//go:build !metal && !cuda

package gpu

import (
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

const deviceName = "gpu"

const families = false

var source = shaders.Source

func openDevice() (gpu.Device, error) {
	return nil, &gpu.Error{Op: "open", Err: gpu.ErrUnavailable, Detail: "no device was compiled in"}
}
