//go:build metal

package gpu

import (
	"runtime"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
	"github.com/turbotrellis/turbotrellis/shaders"
)

const deviceName = "metal"

var source = shaders.Source

// hostmetal is on Linux: clang takes nearly as long for a kernel as for its family.
const families = runtime.GOOS == "linux"

func openDevice() (gpu.Device, error) { return metal.Open(gpu.Options{}) }
