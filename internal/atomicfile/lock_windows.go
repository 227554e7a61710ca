package atomicfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryLock locks f against other processes until it is closed, and reports false if another open file holds the
// lock. On a file system without locks it reports true.
func TryLock(f *os.File) bool {
	const exclusive = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	// Locks exclude reads and writes too, so the locked byte is far behind the file's end.
	err := windows.LockFileEx(windows.Handle(f.Fd()), exclusive, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
	return !errors.Is(err, windows.ERROR_LOCK_VIOLATION) && !errors.Is(err, windows.ERROR_IO_PENDING)
}
