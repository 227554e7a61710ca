//go:build !(cuda && linux && (amd64 || arm64))

package cuda

import "errors"

// Name is the driver's name, empty if it was not compiled in.
const Name = ""

func load() (driver, compiler, error) {
	return nil, nil, errors.New("built without a CUDA driver (on linux/amd64 and linux/arm64 build with -tags cuda)")
}
