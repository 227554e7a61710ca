//go:build !(metal && ((darwin && arm64) || (linux && hostmetal && (amd64 || arm64))))

package metal

import (
	"errors"

	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// Name is the sender's name, empty if none was compiled in.
const Name = ""

func load() (mtl.Sender, error) {
	return nil, errors.New("built without a Metal driver (on darwin/arm64 build with -tags metal)")
}
