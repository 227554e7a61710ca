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
	"strconv"
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
		return nil, fmt.Errorf("atomicfile: %w", &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist})
	case exists && st.Mode().Type() == fs.ModeSymlink: // leads nowhere: replace the link
	case exists && !st.Mode().IsRegular():
		return nil, fmt.Errorf("atomicfile: %w", &fs.PathError{Op: "replace", Path: path, Err: errors.New("not a regular file")})
	case exists:
		perm, keep = st.Mode().Perm(), true
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, fmt.Errorf("atomicfile: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("atomicfile: %w", err)
	}
	f, err := createTemp(filepath.Dir(path), perm)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = &fs.PathError{Op: "create", Path: path, Err: e.Err} // the temporary name tells nobody anything
		}
		return nil, fmt.Errorf("atomicfile: %w", err)
	}
	a := &File{f: f, path: path, force: opts.Force}
	if keep {
		if err := f.Chmod(perm); err != nil {
			a.Close()
			return nil, fmt.Errorf("atomicfile: %w", err)
		}
	}
	return a, nil
}

// createTemp is os.CreateTemp with permissions that the umask narrows as usual.
func createTemp(dir string, perm fs.FileMode) (*os.File, error) {
	for range 100 {
		name := ".turbotrellis-" + strconv.FormatUint(rand.Uint64(), 36) + ".tmp"
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
	return nil, &fs.PathError{Op: "createtemp", Path: dir, Err: fs.ErrExist}
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
	err = fmt.Errorf("atomicfile: %s: %w", a.path, err)
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
		return fmt.Errorf("atomicfile: %s: %w", a.path, fs.ErrClosed)
	}
	if a.failed != nil {
		return a.failed
	}
	if err := a.note(a.f.Sync()); err != nil {
		return err
	}
	if err := a.note(a.f.Close()); err != nil {
		return err
	}
	var err error
	if a.force {
		err = os.Rename(a.f.Name(), a.path)
	} else {
		err = moveNew(a.f.Name(), a.path)
	}
	if err != nil {
		return fmt.Errorf("atomicfile: %w", err)
	}
	a.done = true
	return nil
}

// moveNew renames from to to, which must not exist.
func moveNew(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil:
		return os.Remove(from)
	case errors.Is(err, fs.ErrExist):
		return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
	}
	return moveClaimed(from, to)
}

// moveClaimed is moveNew for file systems without hard links: it creates the
// target, empty, and then replaces its own file.
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

// Close removes the temporary file unless it has been committed. It may be
// called more than once, so that it can be deferred.
func (a *File) Close() error {
	if a.done {
		return nil
	}
	a.done = true
	a.f.Close()
	if err := os.Remove(a.f.Name()); err != nil {
		return fmt.Errorf("atomicfile: %w", err)
	}
	return nil
}
