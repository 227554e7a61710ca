//go:build metal && cgo && !purego && ((darwin && arm64) || (linux && hostmetal && darwinkit && (amd64 || arm64)))

package driver

import (
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/darwinkit"
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/mtl"
)

// Name is the sender's name, empty if none was compiled in.
const Name = "darwinkit"

func load() (mtl.Sender, error) { return darwinkit.Load() }
