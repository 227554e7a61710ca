//go:build metal && ((darwin && arm64 && (!cgo || purego)) || (linux && hostmetal && (amd64 || arm64) && (!cgo || purego || !darwinkit)))

package driver

import (
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/mtl"
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/purego"
)

// Name is the sender's name, empty if none was compiled in.
const Name = "purego"

func load() (mtl.Sender, error) { return purego.Load() }
