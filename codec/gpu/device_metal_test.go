//go:build metal

package gpu

import (
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
	"github.com/turbotrellis/turbotrellis/shaders"
)

const deviceName = "metal"

var source = shaders.FamilySource

func openDevice() (gpu.Device, error) { return metal.Open(gpu.Options{}) }
