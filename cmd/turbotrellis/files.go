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
	"github.com/turbotrellis/turbotrellis/model"
)

// source is a file that is read from anywhere in it.
type source struct {
	*os.File
	size int64
	was  os.FileInfo // when it was opened; nil for standard input
}

// openSource opens a file for reading. "-" is standard input, which is first
// copied to an unnamed temporary file, since readers seek.
func openSource(path string, stdin io.Reader) (*source, error) {
	if path != "-" {
		f, info, err := openRegular(path)
		if err != nil {
			return nil, err
		}
		return &source{f, info.Size(), info}, nil
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
	return &source{f, n, nil}, nil
}

// unchanged returns an error if the file was written to since it was opened.
func (s *source) unchanged() error {
	if s.was == nil {
		return nil
	}
	now, err := s.Stat()
	if err != nil {
		return err
	}
	if now.Size() != s.was.Size() || !now.ModTime().Equal(s.was.ModTime()) {
		return errors.New("the file changed while it was read")
	}
	return nil
}

// openRegular opens a regular file. It does not open anything else: opening a
// pipe waits for its writer.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// readRegular returns the contents of a regular file.
func readRegular(path string) ([]byte, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
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

// convert opens in, gives work a file to fill, and lets that appear at out once
// it is complete. An existing file is refused unless force is set, and the input
// itself always. "-" stands for the command's standard streams. Once the
// command's context is done, as after an interrupt, writes fail, and nothing of
// the file is left. Errors of work get the input's name.
func convert(cmd *cobra.Command, in, out string, force bool, work func(io.WriterAt, *source) error) error {
	if out == "" {
		return usagef("the output has no name")
	}
	if err := distinct(in, out, cmd.InOrStdin()); err != nil {
		return err
	}
	var w interface {
		io.WriterAt
		io.Closer
	}
	var finish func() error
	if out == "-" {
		f, err := tempFile()
		if err != nil {
			return err
		}
		w = f
		finish = func() error {
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
			_, err := io.Copy(cmd.OutOrStdout(), f)
			return err
		}
	} else {
		f, err := atomicfile.Create(out, atomicfile.Options{Force: force})
		if err != nil {
			return advised(err)
		}
		w = f
		finish = func() error { return advised(f.Commit()) }
		defer cleanups.add(func() { f.Close() })()
	}
	defer w.Close()
	src, err := openSource(in, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer src.Close()
	err = work(whileRunning{cmd.Context(), w}, src)
	if cmd.Context().Err() != nil {
		return context.Cause(cmd.Context())
	}
	if err != nil {
		return named(in, err)
	}
	if err := src.unchanged(); err != nil {
		return named(in, err)
	}
	return finish()
}

// named puts the name of a file before an error of it.
func named(path string, err error) error {
	if path == "-" {
		path = "standard input"
	}
	return fmt.Errorf("%s: %w", path, err)
}

// distinct checks that out is not the file that in or standard input is, by
// whatever name or link.
func distinct(in, out string, stdin io.Reader) error {
	if out == "-" {
		return nil
	}
	to, err := os.Stat(out)
	if err != nil {
		return nil // creating it says what is wrong
	}
	from, err := os.Stat(in)
	if in == "-" {
		f, ok := stdin.(*os.File)
		if !ok {
			return nil
		}
		from, err = f.Stat()
	}
	if err != nil {
		return err
	}
	if os.SameFile(from, to) {
		return fmt.Errorf("%s: the output is the input itself", out)
	}
	return nil
}

// haveNames refuses empty file names, such as those of unset variables, in flags that are given.
func haveNames(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return usagef("--%s: the file has no name", name)
		}
	}
	return nil
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

// advised adds to an error the flag that permits what was refused.
func advised(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w (use --force to replace it)", err)
	}
	if errors.Is(err, model.ErrTwice) {
		return fmt.Errorf("%w (use --copy-duplicates to copy it)", err)
	}
	return err
}
