package trellis

import (
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// stateAt returns state t of a block of p.BlockWords() words: the L bits from
// bit (T−1−t)·K on, wrapping at the end. They span at most two words, since
// L ≤ 16.
func stateAt(block []uint32, p Params, t int) uint32 {
	bit := (p.T - 1 - t) * p.K
	w := bit / 32
	next := w + 1
	if next == len(block) {
		next = 0
	}
	window := uint64(block[next])<<32 | uint64(block[w])
	return uint32(window>>(bit%32)) & p.stateMask()
}

// PackStates packs whole blocks of T states each into dst, p.BlockWords() words
// a block; both lengths must match exactly. Only symbols are stored, so states
// that do not follow from each other, or whose last does not lead to their
// first, are an ErrNotTailBiting that names the first such state. On any error
// dst is left as it was.
func PackStates(dst []uint32, states []uint16, p Params) error {
	n, err := blocks(len(states), p)
	if err != nil {
		return err
	}
	if len(dst) != n*p.BlockWords() {
		return fault.New(ErrShape, "%d words for %d blocks, want %d", len(dst), n, n*p.BlockWords())
	}
	for b := range n {
		if err := checkPath(states[b*p.T:][:p.T], p); err != nil {
			return fmt.Errorf("%w (block %d)", err, b)
		}
	}
	for b := range n {
		packBlock(dst[b*p.BlockWords():][:p.BlockWords()], states[b*p.T:][:p.T], p)
	}
	return nil
}

// UnpackStates reads the states of whole blocks of p.BlockWords() words into
// dst, T states a block; both lengths must match exactly. Any words are valid.
func UnpackStates(dst []uint16, words []uint32, p Params) error {
	n, err := blocks(len(dst), p)
	if err != nil {
		return err
	}
	if len(words) != n*p.BlockWords() {
		return fault.New(ErrShape, "%d words for %d blocks, want %d", len(words), n, n*p.BlockWords())
	}
	for i := range dst {
		b, t := i/p.T, i%p.T
		dst[i] = uint16(stateAt(words[b*p.BlockWords():][:p.BlockWords()], p, t))
	}
	return nil
}

// AppendUnpackStates appends the states of the whole blocks in words to dst
// and returns the extended slice. Errors are as in UnpackStates; dst is then
// returned unchanged.
func AppendUnpackStates(dst []uint16, words []uint32, p Params) ([]uint16, error) {
	if err := p.Validate(); err != nil {
		return dst, err
	}
	if len(words)%p.BlockWords() != 0 {
		return dst, fault.New(ErrShape, "%d words, want a multiple of %d", len(words), p.BlockWords())
	}
	n := len(words) / p.BlockWords() * p.T
	out := slices.Grow(dst, n)[:len(dst)+n]
	if err := UnpackStates(out[len(dst):], words, p); err != nil {
		return dst, err
	}
	return out, nil
}

// blocks returns the number of blocks of T in n, having checked p.
func blocks(n int, p Params) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if n%p.T != 0 {
		return 0, fault.New(ErrShape, "%d states, want a multiple of T = %d", n, p.T)
	}
	return n / p.T, nil
}

// checkPath reports the first state of a block that does not follow from the
// one before it; the first must follow from the last.
func checkPath(states []uint16, p Params) error {
	prev := uint32(states[len(states)-1])
	for t, s := range states {
		s := uint32(s)
		if s > p.stateMask() {
			return fault.New(ErrNotTailBiting, "state %d at t = %d has more than %d bits", s, t, p.L)
		}
		if s>>p.K != prev&(p.stateMask()>>p.K) {
			return fault.New(ErrNotTailBiting, "state %#x at t = %d does not follow %#x", s, t, prev)
		}
		prev = s
	}
	return nil
}

// packBlock packs the symbols of one block whose path has been checked.
func packBlock(dst []uint32, states []uint16, p Params) {
	clear(dst)
	for t, s := range states {
		bit := (p.T - 1 - t) * p.K
		window := uint64(s) & (1<<p.K - 1) << (bit % 32)
		dst[bit/32] |= uint32(window)
		if hi := uint32(window >> 32); hi != 0 {
			dst[bit/32+1] |= hi
		}
	}
}
