package model

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// The unfinished output of OUT is the directory OUT.partial: a journal, and
// under model/ the files that become OUT.
const (
	partialSuffix = ".partial"
	journalName   = "journal"
	modelName     = "model"
	replacedName  = "replaced"

	journalFormat = "turbotrellis journal 1"
)

var errInterrupted = errors.New("interrupted")

// partial is an unfinished output, being written.
type partial struct {
	b        *build
	path     string // OUT.partial
	files    []*os.File
	writers  []*safetensors.Writer
	finished map[string]TensorResult // by job, those that an earlier run made

	mu      sync.Mutex // guards journal
	journal *os.File
}

// The journal is JSON lines: a header, then one line for each finished job.
type journalHeader struct {
	Format  string `json:"format"`
	Options string `json:"options"`
}

type journalLine struct {
	Source string       `json:"source"` // digest of what the job was made from
	Data   string       `json:"data"`   // digest of what it wrote
	Result TensorResult `json:"result"`
}

// begin opens the unfinished output of an earlier run of the same options, or
// starts a new one. sums are the digests of the jobs' sources.
func (b *build) begin(sums []string) (_ *partial, err error) {
	p := &partial{b: b, path: b.out + partialSuffix, finished: map[string]TensorResult{}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	lines, err := p.openJournal()
	if err != nil {
		return nil, err
	}
	for i := range b.files {
		if err := p.open(&b.files[i]); err != nil {
			return nil, err
		}
	}
	for i, j := range b.jobs {
		l, ok := lines[j.name]
		if !ok || l.Source != sums[i] {
			continue
		}
		sum, err := p.digest(j)
		if err != nil {
			return nil, err
		}
		if sum != l.Data {
			continue // its bytes did not reach the disk
		}
		for _, out := range j.outs {
			if err := p.writers[j.file].Keep(out); err != nil {
				return nil, err
			}
		}
		p.finished[j.name] = l.Result
	}
	return p, nil
}

// openJournal opens or creates the journal, locks it against other runs, and
// returns its lines by job.
func (p *partial) openJournal() (map[string]journalLine, error) {
	path := filepath.Join(p.path, journalName)
	if err := os.Mkdir(p.path, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := p.onlyOurs(); err != nil {
		return nil, err
	}
	var err error
	if p.journal, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	if busy(p.journal) {
		return nil, fmt.Errorf("%w: another run is writing %s", ErrPartial, p.path)
	}
	text, err := io.ReadAll(p.journal)
	if err != nil {
		return nil, err
	}
	// Until the header's line is whole nothing else is written.
	head, rest, ok := bytes.Cut(text, []byte("\n"))
	if !ok {
		return nil, p.restart()
	}
	var h journalHeader
	if err := json.Unmarshal(head, &h); err != nil || h.Format != journalFormat {
		return nil, fmt.Errorf("%w: %s is not a journal that this program reads", ErrPartial, path)
	}
	if h.Options != p.b.options {
		if !p.b.force {
			return nil, fmt.Errorf("%w: %s was begun with\n  %s\nand this run has\n  %s\nRemove it, or use --force to begin again", ErrPartial, p.path, h.Options, p.b.options)
		}
		return nil, p.restart()
	}
	lines := map[string]journalLine{}
	keep := int64(len(head) + 1)
	for len(rest) > 0 {
		line, tail, ok := bytes.Cut(rest, []byte("\n"))
		var l journalLine
		if !ok || json.Unmarshal(line, &l) != nil {
			break // written when the run was killed
		}
		lines[l.Result.Name] = l
		keep += int64(len(line) + 1)
		rest = tail
	}
	if err := p.journal.Truncate(keep); err != nil {
		return nil, err
	}
	_, err = p.journal.Seek(keep, io.SeekStart)
	return lines, err
}

// onlyOurs refuses a directory that has other things in it than a run leaves.
func (p *partial) onlyOurs() error {
	entries, err := os.ReadDir(p.path)
	if err != nil {
		return err
	}
	journal := len(entries) == 0
	for _, e := range entries {
		switch e.Name() {
		case journalName:
			journal = true
		case modelName, replacedName:
		default:
			return fmt.Errorf("%w: %s has %q in it, which no run leaves", ErrPartial, p.path, e.Name())
		}
	}
	if !journal {
		return fmt.Errorf("%w: %s has no journal", ErrPartial, p.path)
	}
	return nil
}

// restart empties the unfinished output and begins the journal.
func (p *partial) restart() error {
	if err := p.journal.Truncate(0); err != nil {
		return err
	}
	for _, name := range []string{modelName, replacedName} {
		if err := os.RemoveAll(filepath.Join(p.path, name)); err != nil {
			return err
		}
	}
	if _, err := p.journal.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := p.journal.Write(marshal(journalHeader{journalFormat, p.b.options}))
	return err
}

// husk reports whether path is what is left of a run that was killed between
// putting its result at out and removing the rest.
func husk(path, out string) bool {
	if _, err := os.Stat(filepath.Join(path, journalName)); err != nil {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(path, modelName))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || len(entries) != 1 {
		return false
	}
	a, err1 := os.Stat(filepath.Join(path, modelName, entries[0].Name()))
	b, err2 := os.Stat(out)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// discard removes an unfinished output, its journal last, so that what a kill
// leaves of it is known for what it is.
func discard(path string) error {
	for _, name := range []string{modelName, replacedName, journalName, ""} {
		if err := os.RemoveAll(filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// path of a file of the model, whose directory it makes.
func (p *partial) file(name string) (string, error) {
	path := filepath.Join(p.path, modelName, filepath.FromSlash(name))
	return path, os.MkdirAll(filepath.Dir(path), 0o777)
}

// open opens an output file, keeping what it holds, and writes its header.
func (p *partial) open(o *outFile) error {
	path, err := p.file(o.name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	p.files = append(p.files, f)
	w, err := safetensors.NewWriterAt(f, o.meta, o.infos)
	if err != nil {
		return err
	}
	p.writers = append(p.writers, w)
	o.infos = w.Tensors() // now with offsets and sizes
	st, err := f.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	if n := len(o.infos); n > 0 {
		size = o.infos[n-1].Offset + o.infos[n-1].Size
	}
	return f.Truncate(size)
}

// digest returns the digest of a job's tensors as they are in the file.
func (p *partial) digest(j job) (string, error) {
	h := sha256.New()
	for _, name := range j.outs {
		for _, t := range p.b.files[j.file].infos {
			if t.Name != name {
				continue
			}
			if _, err := io.Copy(h, io.NewSectionReader(p.files[j.file], t.Offset, t.Size)); err != nil {
				return "", err
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// make runs a job and notes in the journal that it is finished.
func (p *partial) make(ctx context.Context, j job, source string, done func(int64)) (TensorResult, error) {
	h := sha256.New()
	dst := make([]io.Writer, len(j.outs))
	for i, name := range j.outs {
		w, err := p.writers[j.file].Tensor(name)
		if err != nil {
			return TensorResult{}, err
		}
		dst[i] = hashed{w, h}
	}
	r, err := j.make(ctx, dst, done)
	if err != nil {
		return TensorResult{}, err
	}
	line := marshal(journalLine{source, hex.EncodeToString(h.Sum(nil)), r})
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.journal.Write(line)
	return r, err
}

type hashed struct {
	io.Writer
	h hash.Hash
}

func (w hashed) Write(p []byte) (int, error) {
	w.h.Write(p)
	return w.Writer.Write(p)
}

// put writes a file of the model that holds no tensors.
func (p *partial) put(name string, fill func(io.Writer) error) error {
	path, err := p.file(name)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// publish moves the finished model to its place.
func (p *partial) publish() error {
	for i, f := range p.files {
		if err := p.writers[i].Close(); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := p.close(); err != nil {
		return err
	}
	from, out := filepath.Join(p.path, modelName), p.b.out
	if !p.b.dir {
		from = filepath.Join(from, filepath.FromSlash(p.b.files[0].name))
	}
	if err := p.move(from, out); err != nil {
		return err
	}
	return discard(p.path)
}

// move renames from to out, and with force first moves what is there away.
func (p *partial) move(from, out string) error {
	if !p.b.dir && !p.b.force {
		// Unlike a rename, a link never replaces a file. Where there are no
		// links the rename has to do.
		if err := os.Link(from, out); err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if p.b.dir && p.b.force {
		old := filepath.Join(p.path, replacedName)
		if err := os.RemoveAll(old); err != nil {
			return err
		}
		if err := os.Rename(out, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if _, err := os.Lstat(out); err == nil && !p.b.force {
		return &fs.PathError{Op: "create", Path: out, Err: fs.ErrExist}
	}
	return os.Rename(from, out)
}

// resumable adds to an error what is left and how to go on.
func (p *partial) resumable(err error) error {
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	return fmt.Errorf("%w (the finished tensors are in %s; the same command goes on from there)", err, p.path)
}

// close closes the files. It may be called more than once.
func (p *partial) close() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	p.files = nil
	if p.journal != nil {
		errs = append(errs, p.journal.Close())
		p.journal = nil
	}
	return errors.Join(errs...)
}
