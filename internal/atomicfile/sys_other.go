//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package atomicfile

import (
	"errors"
	"io/fs"
)

func sameDevice(_, _ fs.FileInfo) bool { return true }

func links(fs.FileInfo) uint64     { return 1 }
func isUnsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }
