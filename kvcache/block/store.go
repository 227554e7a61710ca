package block

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Chain returns the keys of the blocks of n tokens that tokens fill, in order: each is the SHA-256 of the
// fingerprint, the key before (zero for the first) and the block's tokens, as little-endian uint32. Tokens that fill
// no block have no key. n is at least 1.
func Chain(fingerprint Hash, tokens []uint32, n int) []Hash {
	if n < 1 {
		return nil
	}
	keys := make([]Hash, 0, len(tokens)/n)
	var parent Hash
	text := make([]byte, 0, 4*n)
	for ; len(tokens) >= n; tokens = tokens[n:] {
		parent = link(fingerprint, parent, tokens[:n], text)
		keys = append(keys, parent)
	}
	return keys
}

func link(fingerprint, parent Hash, tokens []uint32, text []byte) Hash {
	h := sha256.New()
	h.Write(fingerprint[:])
	h.Write(parent[:])
	for _, t := range tokens {
		text = binary.LittleEndian.AppendUint32(text, t)
	}
	h.Write(text)
	return Hash(h.Sum(nil))
}

// String returns the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash is the inverse of String.
func ParseHash(s string) (h Hash, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, fmt.Errorf("%w: %q is not 64 hexadecimal digits", ErrSpec, s)
	}
	return Hash(b), nil
}

// ErrNotFound reports a key that a store does not have.
var ErrNotFound = errors.New("no such block")

const (
	suffix     = ".ttkb"
	tempPrefix = ".tmp-"

	// staleTemp is the age at which a temporary file is taken for a killed process's.
	staleTemp = time.Hour
)

// StoreOptions bound a store. The zero value does not.
type StoreOptions struct {
	// MaxBytes, if not 0, is what GC leaves at most. Put calls GC when it has written a sixteenth of it.
	MaxBytes int64
}

// Store keeps frames in a directory, each in a file named by its key. Several processes may use one directory at
// once: files appear complete or not at all, and what one removes while another reads it is still read whole. A
// Store is safe for concurrent use.
type Store struct {
	root    *os.Root
	opts    StoreOptions
	written chan int64 // one number: bytes since the last GC
}

// OpenStore opens the store in a directory, which it makes if it is not there.
func OpenStore(dir string, o StoreOptions) (*Store, error) {
	if o.MaxBytes < 0 {
		return nil, fmt.Errorf("%w: a store of at most %d bytes", ErrSpec, o.MaxBytes)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, opts: o, written: make(chan int64, 1)}
	s.written <- 0
	return s, nil
}

// check refuses a Store that OpenStore did not return.
func (s *Store) check() error {
	if s == nil || s.root == nil {
		return fmt.Errorf("%w: a Store that OpenStore did not return", ErrSpec)
	}
	return nil
}

// Close releases the directory.
func (s *Store) Close() error {
	if err := s.check(); err != nil {
		return err
	}
	return s.root.Close()
}

// path returns the file of a key: two digits choose the folder.
func (k Hash) path() (folder, file string) {
	name := k.String()
	return name[:2], filepath.Join(name[:2], name+suffix)
}

// Put stores a frame under its key, after checking it. A frame that is there already is written again if it
// differs or is damaged, else marked as used. Put writes beside and renames, so a reader never sees a part.
func (s *Store) Put(ctx context.Context, frame []byte) error {
	if err := s.check(); err != nil {
		return err
	}
	id, _, _, err := parse(frame)
	if err != nil {
		return err
	}
	folder, file := id.Key.path()
	if old, err := s.read(nil, file); err == nil && string(old) == string(frame) {
		if err := s.touch(file); !errors.Is(err, fs.ErrNotExist) { // else it was removed meanwhile
			return err
		}
	}
	if err := s.root.Mkdir(folder, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := s.write(folder, file, frame); err != nil {
		return fmt.Errorf("put %v: %w", id.Key, err)
	}
	if s.opts.MaxBytes > 0 {
		n := <-s.written + int64(len(frame))
		if n >= s.opts.MaxBytes/16 {
			_, err = s.GC(ctx)
			n = 0
		}
		s.written <- n
	}
	return err
}

func (s *Store) write(folder, file string, frame []byte) (err error) {
	temp := filepath.Join(folder, fmt.Sprintf("%s%016x", tempPrefix, rand.Uint64()))
	f, err := s.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.root.Remove(temp))
		}
	}()
	_, err = f.Write(frame)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return s.root.Rename(temp, file)
}

// touch marks a file as used now.
func (s *Store) touch(file string) error {
	now := time.Now()
	return s.root.Chtimes(file, now, now)
}

// Get appends the frame of a key to dst, marks it as used, and returns the extended slice. It is ErrNotFound if
// there is none, and ErrDamaged, ErrFormat or ErrForeign if what is there is not a sound frame of that key: Put then
// writes it anew.
func (s *Store) Get(dst []byte, key Hash) ([]byte, error) {
	out, err := s.Peek(dst, key)
	if err != nil {
		return out, err
	}
	_, file := key.path()
	// It may have been removed meanwhile.
	if err := s.touch(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return dst, err
	}
	return out, nil
}

// Peek is Get, but for marking the block as used.
func (s *Store) Peek(dst []byte, key Hash) ([]byte, error) {
	if err := s.check(); err != nil {
		return dst, err
	}
	_, file := key.path()
	out, err := s.read(dst, file)
	if errors.Is(err, fs.ErrNotExist) {
		return dst, fmt.Errorf("%w: %v", ErrNotFound, key)
	}
	if err == nil {
		var id ID
		if id, _, _, err = parse(out[len(dst):]); err == nil && id.Key != key {
			err = fmt.Errorf("%w: it holds %v", ErrForeign, id.Key)
		}
	}
	if err != nil {
		return dst, fmt.Errorf("%v: %w", key, err)
	}
	return out, nil
}

// read appends a file to dst.
func (s *Store) read(dst []byte, file string) ([]byte, error) {
	f, err := s.root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrFormat, file)
	}
	// The header first: what damage has made long takes no memory.
	at, header := len(dst), int(min(info.Size(), headerLen))
	dst = slices.Grow(dst, header)[:at+header]
	if _, err := io.ReadFull(f, dst[at:]); err != nil {
		return nil, err
	}
	if _, err := checkLengths(dst[at:], uint64(info.Size())); err != nil {
		return nil, err
	}
	size := int(info.Size())
	if int64(size) != info.Size() {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, info.Size())
	}
	dst = slices.Grow(dst, size-header)[:at+size]
	_, err = io.ReadFull(f, dst[at+header:])
	return dst, err
}

// Longest returns the keys of the blocks of n tokens, from the first on, that cover most of tokens without a gap.
// It marks them as used, all at one time, and asks only whether files are there: Get may still refuse one.
func (s *Store) Longest(fingerprint Hash, tokens []uint32, n int) ([]Hash, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: blocks of %d tokens", ErrSpec, n)
	}
	var keys []Hash
	var parent Hash
	now := time.Now()
	text := make([]byte, 0, 4*min(n, len(tokens)))
	for ; len(tokens) >= n; tokens = tokens[n:] {
		parent = link(fingerprint, parent, tokens[:n], text)
		_, file := parent.path()
		if err := s.root.Chtimes(file, now, now); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return keys, err
		}
		keys = append(keys, parent)
	}
	return keys, nil
}

// Entry is a file of a store.
type Entry struct {
	Key  Hash
	Size int64
	Used time.Time // when it was last put or got
}

// List returns the entries, the longest unused first and those of one time by key.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	entries, _, err := s.list(ctx)
	return entries, err
}

// list also returns the temporary files.
func (s *Store) list(ctx context.Context) (entries []Entry, temps []string, err error) {
	if err := s.check(); err != nil {
		return nil, nil, err
	}
	err = fs.WalkDir(s.root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(d.Name(), tempPrefix) {
			if age := time.Since(info.ModTime()); age > staleTemp {
				temps = append(temps, filepath.FromSlash(path))
			}
			return nil
		}
		name, ok := strings.CutSuffix(d.Name(), suffix)
		if !ok {
			return nil
		}
		key, err := ParseHash(name)
		if err != nil {
			return nil // somebody else's file
		}
		entries = append(entries, Entry{key, info.Size(), info.ModTime()})
		return nil
	})
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(a.Used.Compare(b.Used), slices.Compare(a.Key[:], b.Key[:]))
	})
	return entries, temps, err
}

// GC removes what processes that were killed have left, and then the longest unused blocks until the rest fits
// MaxBytes. It returns what it removed. A clock that goes back changes which blocks go first, nothing else.
func (s *Store) GC(ctx context.Context) (removed []Entry, err error) {
	entries, temps, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range temps {
		if err := s.remove(t); err != nil {
			return nil, err
		}
	}
	if s.opts.MaxBytes == 0 {
		return nil, nil
	}
	var total int64
	for _, e := range entries {
		total += e.Size
	}
	for len(entries) > 0 && total > s.opts.MaxBytes {
		// Of those last used in the same minute the ones furthest into their sequences go first: a block without
		// those before it serves nobody.
		minute := entries[0].Used.Truncate(time.Minute)
		n := slices.IndexFunc(entries, func(e Entry) bool { return !e.Used.Truncate(time.Minute).Equal(minute) })
		if n < 0 {
			n = len(entries)
		}
		first := make(map[Hash]uint64, n)
		for _, e := range entries[:n] {
			if err := ctx.Err(); err != nil {
				return removed, err
			}
			first[e.Key] = s.first(e.Key)
		}
		slices.SortStableFunc(entries[:n], func(a, b Entry) int { return cmp.Compare(first[b.Key], first[a.Key]) })
		for _, e := range entries[:n] {
			if total <= s.opts.MaxBytes {
				break
			}
			_, file := e.Key.path()
			if err := s.remove(file); err != nil {
				return removed, err
			}
			total -= e.Size
			removed = append(removed, e)
		}
		entries = entries[n:]
	}
	return removed, nil
}

// first returns the first token of a stored block, as its header says: the largest number where it cannot be read.
func (s *Store) first(key Hash) uint64 {
	_, file := key.path()
	f, err := s.root.Open(file)
	if err != nil {
		return math.MaxUint64
	}
	defer f.Close()
	var header [headerLen]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return math.MaxUint64
	}
	return binary.LittleEndian.Uint64(header[atFirst:])
}

// remove removes a file that another process may have removed.
func (s *Store) remove(file string) error {
	if err := s.root.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
