//go:build metal && ((darwin && arm64 && (!cgo || purego)) || (linux && hostmetal && (amd64 || arm64) && (!cgo || purego || !darwinkit)))

package metal

import (
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl/sendpurego"
)

// Name is the sender's name, empty if none was compiled in.
const Name = "purego"

func load() (mtl.Sender, error) { return sendpurego.Load() }
