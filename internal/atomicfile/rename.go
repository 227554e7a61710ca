package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// MoveNew renames from to to, which must not exist: the error then wraps fs.ErrExist. It is atomic where the
// system and the file system can refuse to replace; elsewhere a file that another process creates at to at the
// same moment may be replaced.
func MoveNew(from, to string) error {
	err := renameNew(from, to)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
	}
	// The system or the file system does not know the call, or the error shows again below.
	return moveNew(from, to)
}

// moveNew is MoveNew without a system call for it.
func moveNew(from, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if st.IsDir() {
		if _, err := os.Lstat(to); err == nil {
			return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
		}
		return os.Rename(from, to)
	}
	err = os.Link(from, to)
	switch {
	case err == nil:
		return os.Remove(from)
	case errors.Is(err, fs.ErrExist):
		return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
	}
	return moveClaimed(from, to)
}

// moveClaimed is moveNew for file systems without hard links: it creates the target, empty, and then replaces
// its own file.
func moveClaimed(from, to string) error {
	claim, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	claim.Close()
	if err := os.Rename(from, to); err != nil {
		os.Remove(to)
		return err
	}
	return nil
}

// Exchange swaps two files or directories atomically. Where the system or the file system cannot, it changes
// nothing and the error wraps errors.ErrUnsupported.
func Exchange(a, b string) error {
	err := exchange(a, b)
	switch {
	case err == nil:
		return nil
	case isUnsupported(err):
		err = errors.ErrUnsupported
	}
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
}

// SyncDir makes the names in a directory durable, where the system can.
func SyncDir(path string) error {
	if runtime.GOOS == "windows" || runtime.GOOS == "plan9" || runtime.GOOS == "wasip1" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if isUnsupported(err) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// Movable reports why the file or directory at path, which exists, cannot be renamed within its folder: it is a
// mount point, or lies on another device than its folder.
func Movable(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	parent, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	if mounted(path) || !sameDevice(st, parent) {
		return &fs.PathError{Op: "replace", Path: path, Err: errors.New("it is a mount point")}
	}
	return nil
}

// Links returns how many names the described file has, or 1 where the system does not say.
func Links(st fs.FileInfo) uint64 { return links(st) }
