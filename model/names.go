package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/turbotrellis/turbotrellis/internal/atomicfile"
)

// cleanName returns the one spelling of a slash-separated path below a model's directory.
func cleanName(name string) (string, error) {
	clean := path.Clean(name)
	if name == "" || clean == "." || !filepath.IsLocal(filepath.FromSlash(clean)) {
		return "", fmt.Errorf("%q is outside of the directory", name)
	}
	return clean, nil
}

// fold returns the same string for names that differ in case alone, which some file systems take for one.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}

// distinct refuses names of which two are one file on some file system, or one is a folder of another.
func distinct(names []string) error {
	files := map[string]string{}
	for _, name := range names {
		key := fold(name)
		if other, ok := files[key]; ok {
			return fmt.Errorf("%w: %q and %q would be the same file of the output on some file systems", ErrModel, other, name)
		}
		files[key] = name
	}
	for _, name := range names {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if other, ok := files[fold(dir)]; ok {
				return fmt.Errorf("%w: the output would have the file %q and, in a folder of that name, %q", ErrModel, other, name)
			}
		}
	}
	return nil
}

// origin is a file that a run reads, as it was when it was first looked at.
type origin struct {
	path string
	info fs.FileInfo
}

// originOf looks at a file. It refuses what is not a regular file, which is not opened: a FIFO would wait.
func originOf(path string) (origin, error) {
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		reason := "not a regular file"
		if st.IsDir() {
			reason = "it is a directory"
		}
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New(reason)}
	}
	return origin{path, st}, err
}

// readFile is os.ReadFile for regular files.
func readFile(path string) ([]byte, origin, error) {
	o, err := originOf(path)
	if err != nil {
		return nil, o, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, o, err
	}
	return text, o, o.unchanged()
}

// unchanged returns an error that wraps ErrChanged if the path leads to another file now, or to one that was
// written to.
func (o origin) unchanged() error {
	st, err := os.Stat(o.path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if !os.SameFile(o.info, st) || st.Size() != o.info.Size() || !st.ModTime().Equal(o.info.ModTime()) {
		return fmt.Errorf("%w: %s", ErrChanged, o.path)
	}
	return nil
}

// apart refuses an output that is the source, or one of which one lies within the other, whatever they are
// called: links, mounts and the case of names are seen through.
func apart(source, out string) error {
	in, err := os.Stat(source)
	if err != nil {
		return err
	}
	if within(out, in) {
		return fmt.Errorf("%w: %s is the source itself or within it", ErrOutput, out)
	}
	if to, err := os.Stat(out); err == nil && within(source, to) {
		return fmt.Errorf("%w: the source %s is within %s", ErrOutput, source, out)
	}
	return nil
}

// within reports whether path, of which the last element need not exist, is dir or below it.
func within(path string, dir fs.FileInfo) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	} else if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(parent, filepath.Base(path))
	}
	for {
		if st, err := os.Stat(path); err == nil && os.SameFile(st, dir) {
			return true
		}
		up := filepath.Dir(path)
		if up == path {
			return false
		}
		path = up
	}
}

// target checks that the output may be written, and with force that what is there may be replaced.
func (b *build) target() error {
	switch base := filepath.Base(b.out); {
	case b.given == "":
		return fmt.Errorf("%w: it has no name", ErrOutput)
	case base == "." || base == ".." || base == string(filepath.Separator) || filepath.Dir(b.out) == b.out:
		return fmt.Errorf("%w: %q does not name a new file or folder", ErrOutput, b.given)
	}
	parent, err := os.Stat(filepath.Dir(b.out))
	if err != nil {
		return err
	}
	refuse := func(why string) error {
		return &fs.PathError{Op: "replace", Path: b.out, Err: errors.New(why)}
	}
	if err := b.workplace(); err != nil {
		return err
	}
	if !parent.IsDir() {
		return &fs.PathError{Op: "create", Path: b.out, Err: errors.New("its folder is not a directory")}
	}
	for _, source := range b.apart {
		if err := apart(source, b.out); err != nil {
			return err
		}
	}
	if to, err := os.Stat(b.out); err == nil {
		for _, path := range b.keep {
			if within(path, to) {
				return fmt.Errorf("%w: %s is or holds %s, which the run reads", ErrOutput, b.out, path)
			}
		}
	}
	st, err := os.Lstat(b.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !b.force:
		return &fs.PathError{Op: "create", Path: b.out, Err: fs.ErrExist}
	case st.Mode().Type() == fs.ModeSymlink:
		return refuse("it is a symbolic link")
	case b.dir && !st.IsDir():
		return refuse("not a directory")
	case !b.dir && !st.Mode().IsRegular():
		return refuse("not a regular file")
	}
	if err := atomicfile.Movable(b.out); err != nil || !b.dir {
		return err
	}
	strange, err := b.strange()
	if err != nil || len(strange) == 0 {
		return err
	}
	more := ""
	if n := len(strange) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return refuse(fmt.Sprintf("it holds what this run does not write: %q%s; move that away or choose another output", strange[0], more))
}

// workplace refuses an unfinished output that holds what the run reads: the run would empty it.
func (b *build) workplace() error {
	st, err := os.Stat(b.out + partialSuffix)
	if err != nil {
		return nil // there is none
	}
	for _, path := range slices.Concat(b.apart, b.keep) {
		if within(path, st) {
			return fmt.Errorf("%w: %s, which the run reads, is in %s, where the run would work", ErrOutput, path, b.out+partialSuffix)
		}
	}
	return nil
}

// strange lists what the existing output holds beside files that this run writes again and the tensors of the
// model that the output itself describes.
func (b *build) strange() ([]string, error) {
	own := map[string]bool{configName: true, indexName: true, singleName: true, partName: true}
	for _, name := range b.names() {
		own[name] = true
	}
	if text, _, err := readFile(filepath.Join(b.out, indexName)); err == nil {
		shards, _ := parseWeightMap(text)
		for _, name := range shards {
			own[name] = true
		}
	}
	if m, err := readManifest(b.out); err == nil {
		for _, f := range m.Files {
			own[f.Name] = true
		}
	}
	var strange []string
	err := fs.WalkDir(os.DirFS(b.out), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && left(d):
			strange = append(strange, name)
			return fs.SkipDir
		case !d.IsDir() && (!d.Type().IsRegular() || !own[name]):
			strange = append(strange, name)
		}
		return nil
	})
	return strange, err
}

// left reports whether an entry of a model's directory is never carried along: what Git and download caches
// keep there. In a worktree .git is a file.
func left(d fs.DirEntry) bool { return d.Name() == ".git" || d.Name() == ".cache" && d.IsDir() }

// names returns the names of all files to write.
func (b *build) names() []string {
	var names []string
	for _, f := range b.files {
		names = append(names, f.name)
	}
	for name := range b.texts {
		names = append(names, name)
	}
	for name := range b.links {
		names = append(names, name)
	}
	return names
}
