//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package atomicfile

import (
	"errors"
	"io/fs"
	"syscall"
)

func sameDevice(a, b fs.FileInfo) bool {
	x, ok1 := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return !ok1 || !ok2 || x.Dev == y.Dev
}

// links returns the number of names of a file.
func links(st fs.FileInfo) uint64 {
	if x, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(x.Nlink)
	}
	return 1
}

// isUnsupported reports whether err says that a system or a file system does not know a call.
func isUnsupported(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) ||
		errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOTTY)
}
