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
	"path"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/turbotrellis/turbotrellis/internal/atomicfile"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// The unfinished output of OUT is the directory OUT.partial: a journal, which the run that writes it holds a lock
// on, and under model/ the files that become OUT. docs/promises.md says what holds when a run is killed.
const (
	partialSuffix = ".partial"
	journalName   = "journal"
	modelName     = "model"
	replacedName  = "replaced" // what was at OUT, where the system cannot exchange two directories

	journalFormat = "turbotrellis journal 1"
)

// errInterrupted is a context.Canceled that reads well.
var errInterrupted error = interrupted{}

type interrupted struct{}

func (interrupted) Error() string { return "interrupted" }

// Is makes it context.Canceled for errors.Is.
func (interrupted) Is(target error) bool { return target == context.Canceled }

// partial is an unfinished output, being written. Everything below it is reached through root, so that no
// symbolic link leads out of it.
type partial struct {
	b        *build
	path     string // OUT.partial
	root     *os.Root
	fresh    bool // this run has begun it
	files    []*os.File
	writers  []*safetensors.Writer
	finished map[string]TensorResult // by job, those that an earlier run made

	mu      sync.Mutex // guards journal
	journal *os.File
}

// The journal is JSON lines: a header, one line for each finished job, and one that says that the model is whole
// and about to be moved to OUT. After that last line nothing below model/ is written to.
type journalHeader struct {
	Format  string `json:"format"`
	Options string `json:"options"`
}

type journalLine struct {
	Source     string       `json:"source,omitempty"` // digest of what the job was made from
	Data       string       `json:"data,omitempty"`   // digest of what it wrote
	Result     TensorResult `json:"result,omitzero"`
	Publishing bool         `json:"publishing,omitempty"`
}

// journal is what a journal says.
type journal struct {
	whole      bool // it has a header
	options    string
	lines      map[string]journalLine // by job
	publishing bool
	end        int64 // bytes, without the publishing line and what was torn
}

func parseJournal(text []byte) (journal, error) {
	j := journal{lines: map[string]journalLine{}}
	head, rest, ok := bytes.Cut(text, []byte("\n"))
	if !ok {
		return j, nil // nothing else is written until the header's line is whole
	}
	var h journalHeader
	if err := json.Unmarshal(head, &h); err != nil || h.Format != journalFormat {
		return j, errors.New("not a journal that this program reads")
	}
	j.whole, j.options, j.end = true, h.Options, int64(len(head)+1)
	for len(rest) > 0 {
		line, tail, ok := bytes.Cut(rest, []byte("\n"))
		var l journalLine
		if !ok || json.Unmarshal(line, &l) != nil {
			break // written when the run was killed
		}
		if l.Publishing {
			j.publishing = true
			break
		}
		j.lines[l.Result.Name] = l
		j.end += int64(len(line) + 1)
		rest = tail
	}
	return j, nil
}

// begin locks the unfinished output, or begins one, after it has put right what a killed run left, and checks
// that OUT may be written.
func (b *build) begin() (_ *partial, err error) {
	p := &partial{b: b, path: b.out + partialSuffix, finished: map[string]TensorResult{}}
	defer func() {
		if err != nil {
			p.abandon()
		}
	}()
	switch st, err := os.Lstat(p.path); {
	case errors.Is(err, fs.ErrNotExist):
		if err := b.target(); err != nil { // leaves no trace
			return nil, err
		}
	case err != nil:
		return nil, err
	case !st.IsDir():
		return nil, fmt.Errorf("%w: %s is not a folder that a run leaves", ErrPartial, p.path)
	}
	if err := b.workplace(); err != nil {
		return nil, err
	}
	if err := p.lock(); err != nil {
		return nil, err
	}
	if err := p.recover(); err != nil {
		return nil, err
	}
	return p, b.target()
}

// lock opens or makes OUT.partial and takes the lock on its journal.
func (p *partial) lock() error {
	for range 100 {
		err := os.Mkdir(p.path, 0o777)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		p.fresh = err == nil
		err = p.tryLock()
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		p.close() // another run has just finished and removed it
	}
	return fmt.Errorf("%w: %s comes and goes", ErrPartial, p.path)
}

// tryLock is lock for a directory that exists. The error wraps fs.ErrNotExist if it has gone meanwhile.
func (p *partial) tryLock() error {
	if err := atomicfile.Movable(p.path); err != nil {
		return err
	}
	var err error
	if p.root, err = os.OpenRoot(p.path); err != nil {
		return err
	}
	if err := p.onlyOurs(); err != nil {
		return err
	}
	f, err := p.root.OpenFile(journalName, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	if !atomicfile.TryLock(f) {
		f.Close()
		return fmt.Errorf("%w: another run is writing %s", ErrPartial, p.path)
	}
	// The lock counts only if the file still has its name.
	have, err := f.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = os.Lstat(filepath.Join(p.path, journalName)); err == nil && !os.SameFile(have, named) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return err
	}
	p.journal, p.fresh = f, p.fresh || have.Size() == 0
	return nil
}

// onlyOurs refuses a directory that holds anything but what a run leaves.
func (p *partial) onlyOurs() error {
	entries, err := fs.ReadDir(p.root.FS(), ".")
	if err != nil {
		return err
	}
	journal := len(entries) == 0
	for _, e := range entries {
		ours := e.IsDir() && (e.Name() == modelName || e.Name() == replacedName)
		if e.Name() == journalName && e.Type().IsRegular() {
			ours, journal = true, true
		}
		if !ours {
			return fmt.Errorf("%w: %s has %q in it, which no run leaves", ErrPartial, p.path, e.Name())
		}
	}
	if !journal {
		return fmt.Errorf("%w: %s has no journal", ErrPartial, p.path)
	}
	return nil
}

// recover puts right what a run left that was killed while it moved its result to OUT.
func (p *partial) recover() error {
	j, err := p.read()
	if err != nil {
		return err
	}
	_, gone := os.Lstat(p.b.out)
	_, noModel := p.root.Lstat(modelName)
	if _, err := p.root.Lstat(replacedName); err == nil {
		switch {
		case gone != nil:
			// The only copy of what was at OUT. The result, if whole, is still in model/.
			if err := atomicfile.MoveNew(filepath.Join(p.path, replacedName), p.b.out); err != nil {
				return err
			}
			if err := atomicfile.SyncDir(filepath.Dir(p.b.out)); err != nil {
				return err
			}
			return p.truncate(j.end)
		case noModel == nil:
			return fmt.Errorf("%w: %s holds what was at %s, where there is something else now; move one of them away",
				ErrPartial, filepath.Join(p.path, replacedName), p.b.out)
		}
	}
	switch {
	case !j.publishing:
		return nil
	case gone != nil && noModel == nil:
		return p.truncate(j.end) // whole, but not moved
	}
	// OUT is there: model/ is what was exchanged for it, another name of its file, or a result that was about to
	// be moved. Nothing may write to it.
	return p.restart("")
}

// read reads the journal.
func (p *partial) read() (journal, error) {
	text, err := io.ReadAll(io.NewSectionReader(p.journal, 0, 1<<62))
	if err != nil {
		return journal{}, err
	}
	j, err := parseJournal(text)
	if err != nil {
		return j, fmt.Errorf("%w: %s: %w", ErrPartial, filepath.Join(p.path, journalName), err)
	}
	return j, nil
}

// truncate cuts the journal and puts the next line there.
func (p *partial) truncate(end int64) error {
	if err := p.journal.Truncate(end); err != nil {
		return err
	}
	_, err := p.journal.Seek(end, io.SeekStart)
	return err
}

// restart empties the unfinished output and begins the journal, with no header for no options.
func (p *partial) restart(options string) error {
	p.fresh = true
	if err := p.truncate(0); err != nil {
		return err
	}
	for _, name := range []string{modelName, replacedName} {
		if err := p.root.RemoveAll(name); err != nil {
			return err
		}
	}
	if options == "" {
		return nil
	}
	_, err := p.journal.Write(marshal(journalHeader{journalFormat, options}))
	return err
}

// resume opens the output files and finds the jobs that an earlier run of the same options has finished. sums
// are the digests of the jobs' sources.
func (p *partial) resume(ctx context.Context, sums []string) error {
	j, err := p.read()
	if err != nil {
		return err
	}
	if j.whole && j.options != p.b.options && !p.b.force {
		return fmt.Errorf("%w: %s was begun with\n  %s\nand this run has\n  %s\nRemove it, or use --force to begin again", ErrPartial, p.path, j.options, p.b.options)
	}
	if !j.whole || j.options != p.b.options {
		if err := p.restart(p.b.options); err != nil {
			return err
		}
		j = journal{}
	} else if err := p.truncate(j.end); err != nil {
		return err
	}
	if err := p.tidy(); err != nil {
		return err
	}
	for i := range p.b.files {
		if err := p.open(&p.b.files[i]); err != nil {
			return err
		}
	}
	for i, job := range p.b.jobs {
		l, ok := j.lines[job.name]
		if !ok || l.Source != sums[i] {
			continue
		}
		sum, err := p.digest(ctx, job)
		if err != nil {
			return err
		}
		if sum != l.Data {
			continue // its bytes did not reach the disk
		}
		for _, out := range job.outs {
			if err := p.writers[job.file].Keep(out); err != nil {
				return err
			}
		}
		p.finished[job.name] = l.Result
	}
	return nil
}

// tidy removes from model/ all files but those with tensors that this run writes. It refuses links.
func (p *partial) tidy() error {
	ours := map[string]bool{}
	for _, f := range p.b.files {
		ours[path.Join(modelName, f.name)] = true
	}
	err := fs.WalkDir(p.root.FS(), modelName, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
			return err
		case !d.Type().IsRegular():
			return fmt.Errorf("%w: %s is not a regular file", ErrPartial, filepath.Join(p.path, filepath.FromSlash(name)))
		case ours[name]:
			st, err := d.Info()
			if err != nil || atomicfile.Links(st) == 1 {
				return err
			}
			// It has another name, under which it must not change.
		}
		return p.root.Remove(name)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// create makes a file of the model, and the directories that it is in. It fails if another file of this run has
// that name, be it in another case or spelling.
func (p *partial) create(name string, flag int, perm fs.FileMode) (*os.File, error) {
	name = path.Join(modelName, name)
	if err := p.root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return nil, err
	}
	return p.root.OpenFile(name, os.O_RDWR|os.O_CREATE|flag, perm)
}

// open opens an output file, keeping what it holds, and writes its header.
func (p *partial) open(o *outFile) error {
	f, err := p.create(o.name, 0, 0o666)
	if err != nil {
		return err
	}
	p.files = append(p.files, f)
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for i, other := range p.files[:len(p.files)-1] {
		if have, err := other.Stat(); err != nil || os.SameFile(have, st) {
			return errors.Join(err, fmt.Errorf("%w: %q and %q are one file here", ErrModel, p.b.files[i].name, o.name))
		}
	}
	if len(o.infos) == 0 { // nothing but the header
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	w, err := safetensors.NewWriterAt(f, o.meta, o.infos)
	if err != nil {
		return err
	}
	p.writers = append(p.writers, w)
	o.infos = w.Tensors() // now with offsets and sizes
	if n := len(o.infos); n > 0 {
		return f.Truncate(o.infos[n-1].Offset + o.infos[n-1].Size)
	}
	return nil
}

// digest returns the digest of a job's tensors as they are in the file.
func (p *partial) digest(ctx context.Context, j job) (string, error) {
	h := sha256.New()
	for _, name := range j.outs {
		for _, t := range p.b.files[j.file].infos {
			if t.Name != name {
				continue
			}
			if _, err := io.Copy(h, untilDone{ctx, io.NewSectionReader(p.files[j.file], t.Offset, t.Size)}); err != nil {
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
	r, err := j.make(ctx, dst, source, done)
	if err != nil {
		return TensorResult{}, err
	}
	return r, p.note(journalLine{Source: source, Data: hex.EncodeToString(h.Sum(nil)), Result: r})
}

// note adds a line to the journal.
func (p *partial) note(l journalLine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.journal.Write(marshal(l))
	return err
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
func (p *partial) put(name string, perm fs.FileMode, fill func(io.Writer) error) error {
	f, err := p.create(name, os.O_EXCL, perm)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: two files of the output would have the name %q here", ErrModel, name)
	}
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// publish moves the finished model to its place. When it returns nil the result is there for good.
func (p *partial) publish() error {
	for i, f := range p.files {
		if err := p.writers[i].Close(); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := p.closeFiles(); err != nil {
		return err
	}
	if err := p.syncDirs(); err != nil {
		return err
	}
	if err := p.b.unchanged(); err != nil {
		return err
	}
	end, err := p.journal.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	err = p.note(journalLine{Publishing: true})
	if err == nil {
		err = p.journal.Sync()
	}
	if err == nil {
		err = p.move()
	}
	if err != nil {
		return errors.Join(err, p.truncate(end))
	}
	return atomicfile.SyncDir(filepath.Dir(p.b.out))
}

// syncDirs makes the names of all files durable.
func (p *partial) syncDirs() error {
	err := fs.WalkDir(p.root.FS(), modelName, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return atomicfile.SyncDir(filepath.Join(p.path, filepath.FromSlash(name)))
	})
	return errors.Join(err, atomicfile.SyncDir(p.path))
}

// move puts the model at OUT, in exchange for what is there if that was to be replaced.
func (p *partial) move() error {
	from, out := filepath.Join(p.path, modelName), p.b.out
	if !p.b.dir {
		from = filepath.Join(from, filepath.FromSlash(p.b.files[0].name))
	}
	if _, err := os.Lstat(out); errors.Is(err, fs.ErrNotExist) || !p.b.force {
		return atomicfile.MoveNew(from, out)
	}
	if err := p.b.target(); err != nil { // once more: it may have changed
		return err
	}
	if !p.b.dir {
		return os.Rename(from, out)
	}
	err := exchange(from, out)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	replaced := filepath.Join(p.path, replacedName)
	if err := atomicfile.MoveNew(out, replaced); err != nil {
		return err
	}
	if err := atomicfile.MoveNew(from, out); err != nil {
		return errors.Join(err, atomicfile.MoveNew(replaced, out))
	}
	return nil
}

var exchange = atomicfile.Exchange // tests replace it

// failed adds to an error what is left of the run and, where that is so, that the same command continues.
func (p *partial) failed(err error) error {
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	_, path := errors.AsType[*fs.PathError](err) // a full disk, and the like
	_, link := errors.AsType[*os.LinkError](err)
	if err == errInterrupted || !errors.Is(err, ErrChanged) && (path || link) && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w (the finished tensors are in %s; the same command continues from there)", err, p.path)
	}
	return fmt.Errorf("%w (the finished tensors are in %s)", err, p.path)
}

// remove removes the unfinished output, its journal last, so that what a kill leaves of it is known for what it
// is.
func (p *partial) remove() error {
	if err := p.closeFiles(); err != nil {
		return err
	}
	for _, name := range []string{modelName, replacedName} {
		if err := p.root.RemoveAll(name); err != nil {
			return err
		}
	}
	if runtime.GOOS == "windows" {
		p.journal.Close() // an open file cannot be removed
	}
	if err := p.root.Remove(journalName); err != nil {
		return err
	}
	p.close()
	if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		if entries, e := os.ReadDir(p.path); e == nil && len(entries) > 0 {
			return nil // another run has begun to use it
		}
		return err
	}
	return nil
}

// abandon ends a run that has come to nothing: what it began is removed, what it found is kept.
func (p *partial) abandon() {
	if p.journal != nil && p.fresh {
		p.remove()
	}
	p.close()
}

func (p *partial) closeFiles() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	p.files = nil
	return errors.Join(errs...)
}

// close closes everything, and so gives up the lock. It may be called more than once.
func (p *partial) close() {
	p.closeFiles()
	if p.journal != nil {
		p.journal.Close()
		p.journal = nil
	}
	if p.root != nil {
		p.root.Close()
		p.root = nil
	}
}
