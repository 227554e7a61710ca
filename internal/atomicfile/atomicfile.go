// Package atomicfile writes files that appear under their name complete or not
// at all, and that replace nothing unless told to.
//
// github.com/google/renameio/v2 and github.com/natefinch/atomic were looked at
// first: both only ever replace the target, so a file that another process
// creates meanwhile would be lost, and the former has no Windows version.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Options say how a file is created. The zero value replaces nothing.
type Options struct {
	Force bool // replace an existing regular file, keeping its permissions
}

// File is a file being written under a temporary name in the target's folder.
type File struct {
	f      *os.File
	path   string
	force  bool
	failed error // first error of a write
	done   bool  // committed or removed
}

// Create begins a file that Commit puts at path. Where path is a symbolic link
// to a file and is to be replaced, the file it leads to is.
// An existing target is refused with an error that wraps fs.ErrExist, unless
// opts.Force is set and it is a regular file.
func Create(path string, opts Options) (*File, error) {
	perm, keep := fs.FileMode(0o666), false
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// A link that leads nowhere exists as well.
		st, err = os.Lstat(path)
	}
	exists := err == nil
	switch {
	case exists && !opts.Force:
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	case exists && st.Mode().Type() == fs.ModeSymlink: // leads nowhere: replace the link
	case exists && !st.Mode().IsRegular():
		return nil, &fs.PathError{Op: "replace", Path: path, Err: errors.New("not a regular file")}
	case exists:
		perm, keep = st.Mode().Perm(), true
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
		if err := Movable(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	removeStale(filepath.Dir(path))
	f, err := createTemp(filepath.Dir(path), perm)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = &fs.PathError{Op: "create", Path: path, Err: e.Err} // the temporary name tells nobody anything
		}
		return nil, err
	}
	a := &File{f: f, path: path, force: opts.Force}
	if keep {
		if err := f.Chmod(perm); err != nil {
			a.Close()
			return nil, err
		}
	}
	return a, nil
}

// Temporary files have names between these. Their writer holds a lock on them.
const (
	tempPrefix = ".turbotrellis-"
	tempSuffix = ".tmp"
)

// createTemp is os.CreateTemp with permissions that the umask narrows as usual, and with a lock that tells the
// file from one that a killed process left.
func createTemp(dir string, perm fs.FileMode) (*os.File, error) {
	for range 100 {
		path := filepath.Join(dir, tempPrefix+strconv.FormatUint(rand.Uint64(), 36)+tempSuffix)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Between the two calls another process may have taken the file for a killed one's.
		if TryLock(f) && named(f, path) {
			return f, nil
		}
		f.Close()
	}
	return nil, &fs.PathError{Op: "createtemp", Path: dir, Err: fs.ErrExist}
}

// named reports whether path names the open file f.
func named(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// removeStale removes the temporary files that killed processes left in dir. It leaves alone whatever it cannot
// open, lock or remove.
func removeStale(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), tempPrefix) || !strings.HasSuffix(e.Name(), tempSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if !TryLock(f) || !named(f, path) {
			f.Close()
			continue
		}
		if runtime.GOOS == "windows" {
			f.Close() // an open file cannot be removed
		}
		os.Remove(path)
		f.Close()
	}
}

// Write writes at the end of what was written by Write.
func (a *File) Write(p []byte) (int, error) {
	n, err := a.f.Write(p)
	return n, a.note(err)
}

// WriteAt writes at the given offset.
func (a *File) WriteAt(p []byte, off int64) (int, error) {
	n, err := a.f.WriteAt(p, off)
	return n, a.note(err)
}

func (a *File) note(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Path == a.f.Name() {
		err = e.Err // as in Create
	}
	err = fmt.Errorf("%s: %w", a.path, err)
	if a.failed == nil {
		a.failed = err
	}
	return err
}

// Commit syncs the file to disk and puts it at its path. Unless the file was
// created with Force, a target that has appeared since is left alone and
// the error wraps fs.ErrExist. After a failed write, as on a full disk, Commit
// does nothing but return its error. After an error the caller must still Close.
func (a *File) Commit() error {
	if a.done {
		return fmt.Errorf("%s: %w", a.path, fs.ErrClosed)
	}
	if a.failed != nil {
		return a.failed
	}
	if err := a.note(a.f.Sync()); err != nil {
		return err
	}
	// The lock goes with the file, so the file stays open until its name is final.
	if runtime.GOOS == "windows" {
		if err := a.note(a.f.Close()); err != nil {
			return err
		}
	}
	var err error
	if a.force {
		err = os.Rename(a.f.Name(), a.path)
	} else {
		err = MoveNew(a.f.Name(), a.path)
	}
	if err != nil {
		return err
	}
	a.done = true
	if runtime.GOOS != "windows" {
		if err := a.note(a.f.Close()); err != nil {
			return err
		}
	}
	if err := SyncDir(filepath.Dir(a.path)); err != nil {
		return fmt.Errorf("%s is written, but its folder could not be synced: %w", a.path, err)
	}
	return nil
}

// Close removes the temporary file unless it has been committed. It may be
// called more than once, so that it can be deferred.
func (a *File) Close() error {
	if a.done {
		return nil
	}
	a.done = true
	a.f.Close()
	if err := os.Remove(a.f.Name()); err != nil {
		return err
	}
	return nil
}
