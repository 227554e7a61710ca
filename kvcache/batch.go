package kvcache

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/codec"
)

// What is wrong with a call, by class.
var (
	// ErrLayout reports a layout that describes no cache, or caches of different layouts.
	ErrLayout = errors.New("layout does not fit")
	// ErrData reports data whose planes or lengths do not fit the layout.
	ErrData = errors.New("data does not fit")
	// ErrIndex reports a sequence or a number of tokens that the cache does not have.
	ErrIndex = errors.New("out of range")
	// ErrDropped reports a call that needs tokens that a sliding window has dropped.
	ErrDropped = errors.New("tokens were dropped by the window")
)

// Layout says what one layer's cache holds.
type Layout struct {
	Heads        int
	Keys, Values Format // a format without planes is an empty side

	// Window, if not 0, bounds each sequence to its newest Window tokens, with its first Sinks tokens kept besides.
	Window, Sinks int

	// Memory grows by a half, in multiples of Step tokens; 0 means 256.
	Step int

	// Memory, if not nil, is where rows lie and what moves them, in place of Go's. Close gives it back.
	Memory Memory
}

// Memory holds caches. The backends of package codec/gpu are one: their codecs work on the rows in place, and their
// kernels move them. A Memory is comparable.
type Memory interface {
	// Alloc returns n zeroed bytes that Go can read and write, n at least 1.
	Alloc(n int) ([]byte, error)
	// Free gives back what Alloc returned.
	Free(data []byte) error
	// Copy copies within memory from Alloc. No copy reads or writes what another writes.
	Copy(list ...codec.RowCopy) error
}

const defaultStep = 256

func (l Layout) validate() error {
	if l.Heads < 0 || l.Window < 0 || l.Sinks < 0 || l.Step < 0 || max(l.Heads, l.Window, l.Sinks, l.Step) > math.MaxInt32 {
		return fmt.Errorf("%w: %d heads, window %d, sinks %d, step %d", ErrLayout, l.Heads, l.Window, l.Sinks, l.Step)
	}
	if l.Sinks > 0 && l.Window == 0 {
		return fmt.Errorf("%w: sinks without a window", ErrLayout)
	}
	if err := l.Keys.validate("key"); err != nil {
		return err
	}
	return l.Values.validate("value")
}

func (l Layout) equal(m Layout) bool {
	return l.Heads == m.Heads && l.Window == m.Window && l.Sinks == m.Sinks &&
		slices.Equal(l.Keys.Planes, m.Keys.Planes) && slices.Equal(l.Values.Planes, m.Values.Planes)
}

// planes returns those of both sides, the keys' first.
func (l Layout) planes() []Plane { return slices.Concat(l.Keys.Planes, l.Values.Planes) }

// A Batch is the cache of one layer for several sequences. Sequences end in the same column, so a shorter one has
// padding on its left; Width is the number of columns. It is not safe for concurrent use, but caches that share
// memory are independent of each other.
type Batch struct {
	layout Layout
	planes []Plane
	width  int
	seqs   []sequence
	store  *store
	base   int // the store's column that is column 0 of the ring; the ring has store.cols columns
	ring   int // columns in the ring: the newest is ring − 1
}

// sequence is one row of a batch.
type sequence struct {
	row  int // in the store
	seen int // tokens ever appended, and not trimmed
	held int // of them, tokens that are still there
}

// store is the memory of one or several batches, by plane: sinks and ring of each row and head.
type store struct {
	refs  atomic.Int32
	rows  int
	heads int
	sinks int
	cols  int
	data  [][]byte
	mem   Memory
}

// New returns an empty cache of n sequences.
func New(l Layout, n int) (*Batch, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, fmt.Errorf("%w: %d sequences", ErrIndex, n)
	}
	if l.Step == 0 {
		l.Step = defaultStep
	}
	b := &Batch{layout: l, planes: l.planes(), seqs: make([]sequence, n)}
	for i := range b.seqs {
		b.seqs[i].row = i
	}
	var err error
	if b.store, err = b.newStore(n, 0); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Batch) newStore(rows, cols int) (*store, error) {
	s := &store{rows: rows, heads: b.layout.Heads, sinks: b.layout.Sinks, cols: cols, mem: b.layout.Memory}
	s.refs.Store(1)
	for _, p := range b.planes {
		n := rows * s.heads * (s.sinks + cols) * p.RowLen
		if s.mem == nil || n == 0 {
			s.data = append(s.data, make([]byte, n))
			continue
		}
		data, err := s.mem.Alloc(n)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%d bytes for the %s of %d tokens: %w", n, p.Name, s.sinks+cols, err), s.release())
		}
		s.data = append(s.data, data)
	}
	return s, nil
}

// release gives up one use of the memory.
func (s *store) release() error {
	if s.refs.Add(-1) > 0 || s.mem == nil {
		return nil
	}
	var err error
	for _, d := range s.data {
		if len(d) > 0 {
			err = errors.Join(err, s.mem.Free(d))
		}
	}
	return err
}

// at returns n rows of a plane from the given slot of a row and head on: slots 0 to sinks − 1, then the ring.
func (s *store) at(plane, rowLen, row, head, slot, n int) []byte {
	return s.data[plane][s.offset(row, head, slot)*rowLen:][:n*rowLen]
}

// offset returns the number of a slot of a row and head among all of them.
func (s *store) offset(row, head, slot int) int { return (row*s.heads+head)*(s.sinks+s.cols) + slot }

// Close gives the memory back. The cache must not be used afterwards. It is needed only with Layout.Memory.
func (b *Batch) Close() error {
	s := b.store
	if s == nil {
		return nil
	}
	b.store = nil
	return s.release()
}

// Layout returns the layout, with its step filled in.
func (b *Batch) Layout() Layout { return b.layout }

// Len returns the number of sequences.
func (b *Batch) Len() int { return len(b.seqs) }

// Width returns the number of columns: every sequence's padding and tokens. Without a window it shrinks by Trim and
// Truncate only.
func (b *Batch) Width() int { return b.width }

// Tokens returns the number of tokens held of sequence i.
func (b *Batch) Tokens(i int) int { return b.seqs[i].held }

// Padding returns the columns of padding left of each sequence.
func (b *Batch) Padding() []int {
	pads := make([]int, len(b.seqs))
	for i, s := range b.seqs {
		pads[i] = b.width - s.held
	}
	return pads
}

// Offsets returns each sequence's number of tokens so far, dropped ones included: the position, for a rotary
// embedding, of its next token.
func (b *Batch) Offsets() []int {
	offsets := make([]int, len(b.seqs))
	for i, s := range b.seqs {
		offsets[i] = s.seen
	}
	return offsets
}

// Append adds k.Tokens = v.Tokens tokens to every sequence, the data of sequence 0 first. An empty side's data is
// not looked at.
func (b *Batch) Append(k, v Data) error {
	n, err := b.check(k, v)
	if err != nil || n == 0 || len(b.seqs) == 0 {
		return err
	}
	var room [8][]byte
	from := append(append(room[:0], k.Planes[:len(b.layout.Keys.Planes)]...), v.Planes[:len(b.layout.Values.Planes)]...)
	if err := b.reserve(n); err != nil {
		return err
	}
	first := b.ring
	b.ring += n
	for i := range b.seqs {
		s := &b.seqs[i]
		for t := 0; t < n; {
			slot, run := b.slot(s.seen+t, first+t, n-t)
			if slot >= 0 {
				for p, plane := range b.planes {
					for h := range b.layout.Heads {
						src := from[p][((i*b.layout.Heads+h)*n+t)*plane.RowLen:]
						copy(b.store.at(p, plane.RowLen, s.row, h, slot, run), src)
					}
				}
			}
			t += run
		}
		s.seen += n
		s.held = b.bound(s.seen, s.held+n)
	}
	b.width += n
	if w := b.layout.Window; w > 0 {
		b.width = min(b.width, b.layout.Sinks+w)
		if drop := b.ring - w; drop > 0 {
			b.base = (b.base + drop) % w
			b.ring = w
		}
	}
	return nil
}

// bound returns how many of held tokens a window keeps of a sequence of seen tokens.
func (b *Batch) bound(seen, held int) int {
	if b.layout.Window == 0 {
		return held
	}
	return min(held, min(seen, b.layout.Sinks)+b.layout.Window)
}

// slot returns where the token goes that is number seen of its sequence and belongs in ring column col, and how many
// of n tokens follow it there. The slot is −1 for tokens that later ones of the same call push out.
func (b *Batch) slot(seen, col, n int) (slot, run int) {
	if seen < b.layout.Sinks {
		return seen, min(n, b.layout.Sinks-seen)
	}
	if w := b.layout.Window; w > 0 {
		if out := b.ring - w - col; out > 0 {
			return -1, min(n, out)
		}
	}
	c := (b.base + col) % b.store.cols
	return b.layout.Sinks + c, min(n, b.store.cols-c)
}

// check returns the number of tokens of data for every sequence.
func (b *Batch) check(k, v Data) (n int, err error) {
	for _, side := range []struct {
		name   string
		planes []Plane
		data   Data
	}{{"keys", b.layout.Keys.Planes, k}, {"values", b.layout.Values.Planes, v}} {
		if len(side.planes) == 0 {
			continue
		}
		if side.data.Tokens < 0 || len(side.data.Planes) != len(side.planes) {
			return 0, fmt.Errorf("%w: %s: %d tokens in %d planes, want %d planes", ErrData, side.name, side.data.Tokens, len(side.data.Planes), len(side.planes))
		}
		for i, p := range side.planes {
			if want := len(b.seqs) * b.layout.Heads * side.data.Tokens * p.RowLen; len(side.data.Planes[i]) != want {
				return 0, fmt.Errorf("%w: %s %s: %d bytes, want %d sequences of %d heads of %d tokens of %d bytes",
					ErrData, side.name, p.Name, len(side.data.Planes[i]), len(b.seqs), b.layout.Heads, side.data.Tokens, p.RowLen)
			}
		}
		if side.name == "values" && len(b.layout.Keys.Planes) > 0 && n != side.data.Tokens {
			return 0, fmt.Errorf("%w: values of %d tokens beside keys of %d", ErrData, side.data.Tokens, n)
		}
		n = side.data.Tokens
	}
	if n > math.MaxInt32-b.width {
		return 0, fmt.Errorf("%w: %d tokens more", ErrData, n)
	}
	return n, nil
}

// reserve makes room for n more columns in memory that is b's alone.
func (b *Batch) reserve(n int) error {
	step, cols := b.layout.Step, b.store.cols
	if need := b.ring + n; need > cols { // by a half at least, so that moving costs a few copies of each row
		cols = (max(need, cols+cols/2) + step - 1) / step * step
	}
	if w := b.layout.Window; w > 0 {
		cols = min(cols, w)
	}
	if cols > b.store.cols || b.store.refs.Load() > 1 {
		return b.rebuild(b.all(), b.width, b.ring, cols)
	}
	return nil
}

// own makes b's memory its own.
func (b *Batch) own() error {
	if b.store.refs.Load() > 1 {
		return b.rebuild(b.all(), b.width, b.ring, b.store.cols)
	}
	return nil
}

// rebuild makes b what build returns and gives up its memory.
func (b *Batch) rebuild(parts []part, width, ring, cols int) error {
	c, err := b.build(parts, width, ring, cols)
	if err != nil {
		return err
	}
	old := b.store
	*b = *c
	return old.release()
}

// part is the first n tokens held of a sequence: all of them, or of a sequence that has dropped none.
type part struct {
	of *Batch
	sequence
	n int
}

func (b *Batch) all() []part {
	parts := make([]part, len(b.seqs))
	for i, s := range b.seqs {
		parts[i] = part{b, s, s.held}
	}
	return parts
}

// split returns how many of the part's tokens lie in its sinks and how many in its ring, and the first of these in
// the ring's columns.
func (p part) split() (sinks, ring, first int) {
	all := min(p.seen, p.of.layout.Sinks)
	sinks = min(all, p.n)
	return sinks, p.n - sinks, p.of.ring - (p.held - all)
}

// build returns a cache of parts, with at least the given numbers of columns, in memory of its own.
func (b *Batch) build(parts []part, width, ring, cols int) (*Batch, error) {
	for _, p := range parts {
		_, r, _ := p.split()
		width, ring = max(width, p.n), max(ring, r)
	}
	c := &Batch{layout: b.layout, planes: b.planes, width: width, ring: ring, seqs: make([]sequence, len(parts))}
	var err error
	if c.store, err = c.newStore(len(parts), max(cols, ring)); err != nil {
		return nil, err
	}
	var list []codec.RowCopy
	for i, p := range parts {
		c.seqs[i] = sequence{row: i, seen: p.seen, held: p.n}
		if p.n < p.held {
			c.seqs[i].seen = p.n
		}
		sinks, r, first := p.split()
		from := p.of.store
		for j, plane := range c.planes {
			list = c.store.add(list, j, plane.RowLen, i, 0, from, p.row, 0, sinks)
			for done := 0; done < r; {
				col := (p.of.base + first + done) % from.cols
				run := min(r-done, from.cols-col)
				list = c.store.add(list, j, plane.RowLen, i, c.layout.Sinks+ring-r+done, from, p.row, c.layout.Sinks+col, run)
				done += run
			}
		}
	}
	if len(list) > 0 {
		if err := c.layout.Memory.Copy(list...); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// add moves n rows of a plane, of all heads, from a slot of a row of one store to one of another: it copies them, or
// where both are in the same Memory adds the copy to list.
func (s *store) add(list []codec.RowCopy, plane, rowLen, row, slot int, from *store, fromRow, fromSlot, n int) []codec.RowCopy {
	if n == 0 || rowLen == 0 {
		return list
	}
	if s.mem == nil || s.mem != from.mem {
		for h := range s.heads {
			copy(s.at(plane, rowLen, row, h, slot, n), from.at(plane, rowLen, fromRow, h, fromSlot, n))
		}
		return list
	}
	return append(list, codec.RowCopy{
		Dst: s.data[plane][s.offset(row, 0, slot)*rowLen:], Src: from.data[plane][from.offset(fromRow, 0, fromSlot)*rowLen:],
		Rows: s.heads, Len: n * rowLen, DstStep: (s.sinks + s.cols) * rowLen, SrcStep: (from.sinks + from.cols) * rowLen,
	})
}

func (b *Batch) checkSequence(i int) error {
	if i < 0 || i >= len(b.seqs) {
		return fmt.Errorf("%w: sequence %d of %d", ErrIndex, i, len(b.seqs))
	}
	return nil
}

// Merge returns a cache of the sequences of all rows, in their order and in memory of its own. The longest has no
// padding. The layouts agree; the step is the first one's. Merging nothing is ErrIndex.
func Merge(rows ...*Batch) (*Batch, error) {
	if len(rows) == 0 {
		return nil, fmt.Errorf("%w: nothing to merge", ErrIndex)
	}
	var parts []part
	for i, r := range rows {
		if !r.layout.equal(rows[0].layout) {
			return nil, fmt.Errorf("%w: cache %d has another layout than cache 0", ErrLayout, i)
		}
		parts = append(parts, r.all()...)
	}
	return rows[0].build(parts, 0, 0, 0)
}

// Extend adds the sequences of rows behind those of b. What is wider stays as wide: padding grows and never shrinks.
func (b *Batch) Extend(rows *Batch) error {
	if !b.layout.equal(rows.layout) {
		return fmt.Errorf("%w: the sequences to add have another layout", ErrLayout)
	}
	return b.rebuild(append(b.all(), rows.all()...), b.width, b.ring, b.store.cols)
}

// Extract returns sequence i without its padding, in memory of its own.
func (b *Batch) Extract(i int) (*Batch, error) {
	if err := b.checkSequence(i); err != nil {
		return nil, err
	}
	return b.build(b.all()[i:i+1], 0, 0, 0)
}

// Filter keeps the given sequences, in the given order. An index may repeat, and there may be none. The width stays.
func (b *Batch) Filter(keep []int) error {
	all := b.all()
	parts := make([]part, len(keep))
	for n, i := range keep {
		if err := b.checkSequence(i); err != nil {
			return err
		}
		parts[n] = all[i]
	}
	return b.rebuild(parts, b.width, b.ring, b.store.cols)
}

// Trim takes the last n tokens off every sequence and zeroes their memory. It is ErrIndex if a sequence has fewer,
// and ErrDropped if its window has dropped tokens, which could not come back.
func (b *Batch) Trim(n int) error {
	if n < 0 {
		return fmt.Errorf("%w: trim of %d tokens", ErrIndex, n)
	}
	for i, s := range b.seqs {
		if s.seen < n {
			return fmt.Errorf("%w: trim of %d tokens of sequence %d, which has %d", ErrIndex, n, i, s.seen)
		}
		if s.held < s.seen && n > 0 {
			return fmt.Errorf("%w: sequence %d holds %d of %d", ErrDropped, i, s.held, s.seen)
		}
	}
	if n == 0 || len(b.seqs) == 0 {
		return nil
	}
	if err := b.own(); err != nil {
		return err
	}
	for i := range b.seqs {
		s := &b.seqs[i]
		for p, plane := range b.planes {
			for h := range b.layout.Heads {
				if from, to := s.seen-n, min(s.seen, b.layout.Sinks); from < to {
					clear(b.store.at(p, plane.RowLen, s.row, h, from, to-from))
				}
				for col := max(b.ring-n, 0); col < b.ring; col++ {
					clear(b.store.at(p, plane.RowLen, s.row, h, b.layout.Sinks+(b.base+col)%b.store.cols, 1))
				}
			}
		}
		s.seen -= n
		s.held -= n
	}
	b.ring = max(b.ring-n, 0)
	b.width -= n
	return nil
}

// Truncate keeps the first n tokens of every sequence, all of those that have fewer. The longest then has no
// padding. It is ErrDropped if a window has dropped some of them.
func (b *Batch) Truncate(n int) error {
	parts := b.all()
	for i := range parts {
		var err error
		if parts[i], err = parts[i].prefix(i, n); err != nil {
			return err
		}
	}
	return b.rebuild(parts, 0, 0, 0)
}

// prefix returns the first n tokens of a part, or all of it if it has fewer.
func (p part) prefix(i, n int) (part, error) {
	switch {
	case n < 0:
		return p, fmt.Errorf("%w: a prefix of %d tokens", ErrIndex, n)
	case n >= p.seen:
		return p, nil
	case p.held < p.seen && n > p.of.layout.Sinks:
		return p, fmt.Errorf("%w: sequence %d holds %d of %d, without all of the first %d", ErrDropped, i, p.held, p.seen, n)
	}
	p.n = n
	return p, nil
}

// Share returns a cache of the first n tokens of sequence i, or of all if it has fewer, that shares b's memory: the
// first of the two to be written to copies what it holds.
func (b *Batch) Share(i, n int) (*Batch, error) {
	if err := b.checkSequence(i); err != nil {
		return nil, err
	}
	p, err := b.all()[i].prefix(i, n)
	if err != nil {
		return nil, err
	}
	_, r, first := p.split()
	c := *b
	c.seqs = []sequence{{row: p.row, seen: p.seen, held: p.n}}
	if p.n < p.held {
		c.seqs[0].seen = p.n
	}
	c.width = p.n
	c.ring = first + r
	c.store.refs.Add(1)
	return &c, nil
}

// Read copies columns first to first + n − 1 of every sequence to k and v, whose planes it reuses where they are
// large enough. Padding is zero.
func (b *Batch) Read(k, v *Data, first, n int) error {
	if first < 0 || n < 0 || n > b.width-first {
		return fmt.Errorf("%w: columns %d to %d of %d", ErrIndex, first, first+n, b.width)
	}
	at := 0
	for _, side := range []struct {
		data   *Data
		planes []Plane
	}{{k, b.layout.Keys.Planes}, {v, b.layout.Values.Planes}} {
		side.data.Tokens = n
		side.data.Planes = slices.Grow(side.data.Planes[:0], len(side.planes))[:len(side.planes)]
		for i, p := range side.planes {
			size := len(b.seqs) * b.layout.Heads * n * p.RowLen
			side.data.Planes[i] = slices.Grow(side.data.Planes[i][:0], size)[:size]
			b.read(side.data.Planes[i], at, p.RowLen, first, n)
			at++
		}
	}
	return nil
}

func (b *Batch) read(dst []byte, plane, rowLen, first, n int) {
	for i := range b.seqs {
		pad := b.width - b.seqs[i].held
		for h := range b.layout.Heads {
			row := dst[(i*b.layout.Heads+h)*n*rowLen:][:n*rowLen]
			zero := min(max(pad-first, 0), n)
			clear(row[:zero*rowLen])
			for t := zero; t < n; {
				slot, run := b.find(i, first+t-pad, n-t)
				copy(row[t*rowLen:], b.store.at(plane, rowLen, b.seqs[i].row, h, slot, run))
				t += run
			}
		}
	}
}

// find returns the slot of token t of those held of sequence i, and how many of n follow it there.
func (b *Batch) find(i, t, n int) (slot, run int) {
	s := b.seqs[i]
	sinks := min(s.seen, b.layout.Sinks)
	if t < sinks {
		return t, min(n, sinks-t)
	}
	c := (b.base + b.ring - (s.held - t)) % b.store.cols
	return b.layout.Sinks + c, min(n, b.store.cols-c)
}

// Runs yields the tokens held of one sequence and head, oldest first, as runs that lie in b's memory: the number of
// the run's first token among those held, and its rows by plane, the keys' first. They must not be written to, and
// are valid until b changes.
func (b *Batch) Runs(i, head int) iter.Seq2[int, [][]byte] {
	return func(yield func(int, [][]byte) bool) {
		s := b.seqs[i]
		for t := 0; t < s.held; {
			slot, run := b.find(i, t, s.held-t)
			rows := make([][]byte, len(b.planes))
			for p, plane := range b.planes {
				rows[p] = b.store.at(p, plane.RowLen, s.row, head, slot, run)
			}
			if !yield(t, rows) {
				return
			}
			t += run
		}
	}
}
