//go:build metal

package gpu

import (
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

const deviceName = "metal"

func openDevice() (gpu.Device, error) { return metal.Open(gpu.Options{}) }
