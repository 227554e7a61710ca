package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/internal/atomicfile"
)

// source is a file that is read from anywhere in it.
type source struct {
	*os.File
	size int64
}

// openSource opens a file for reading. "-" is standard input, which is first
// copied to an unnamed temporary file, since readers seek.
func openSource(path string, stdin io.Reader) (*source, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if !info.Mode().IsRegular() {
			f.Close()
			return nil, fmt.Errorf("%s is not a regular file", path)
		}
		return &source{f, info.Size()}, nil
	}
	f, err := tempFile()
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(f, stdin)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return &source{f, n}, nil
}

// tempFile returns a file that is gone when it is closed.
func tempFile() (*os.File, error) {
	f, err := os.CreateTemp("", "turbotrellis-*")
	if err != nil {
		return nil, err
	}
	// Where an open file cannot be removed it stays until the system cleans up.
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrPermission) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeTo gives write a file to fill, which then appears at path whole. An
// existing file is refused unless force is set. "-" is the command's standard
// output. Once the command's context is done, as after an interrupt, writes
// fail, and nothing of the file is left.
func writeTo(cmd *cobra.Command, path string, force bool, write func(io.WriterAt) error) error {
	if path == "-" {
		f, err := tempFile()
		if err != nil {
			return err
		}
		defer f.Close()
		if err := write(whileRunning{cmd.Context(), f}); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err = io.Copy(cmd.OutOrStdout(), f)
		return err
	}
	f, err := atomicfile.Create(path, atomicfile.Options{Force: force})
	if err != nil {
		return existing(err)
	}
	defer f.Close()
	if err := write(whileRunning{cmd.Context(), f}); err != nil {
		return err
	}
	return existing(f.Commit())
}

// noStreams refuses "-" where standard streams cannot serve.
func noStreams(paths ...string) error {
	if slices.Contains(paths, "-") {
		return usagef("standard streams cannot be used here; ./- is a file called -")
	}
	return nil
}

// whileRunning is a writer that fails once a context is done.
type whileRunning struct {
	ctx context.Context
	io.WriterAt
}

func (w whileRunning) WriteAt(p []byte, off int64) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.WriterAt.WriteAt(p, off)
}

// existing adds to an error about an existing output how to replace it.
func existing(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w (use --force to replace it)", err)
	}
	return err
}
