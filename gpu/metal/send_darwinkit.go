//go:build metal && cgo && !purego && ((darwin && arm64) || (linux && hostmetal && darwinkit && (amd64 || arm64)))

package metal

import (
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl/senddarwinkit"
)

// Name is the sender's name, empty if none was compiled in.
const Name = "darwinkit"

func load() (mtl.Sender, error) { return senddarwinkit.Load() }
