//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package model

import (
	"errors"
	"os"
	"syscall"
)

// busy locks a file until it is closed, and reports whether another process
// has. A file system without locks has no say.
func busy(f *os.File) bool {
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
