package cpu

import (
	"encoding/binary"
)

// bitPacker packs indices of one byte into a little-endian bit stream and back, 8 at a time (docs/numerics.md §5).
// A word of 8 bytes shrinks to 8·bits bits by closing the gaps between neighbours, then between pairs, then
// between quadruples.
type bitPacker struct {
	bits       uint
	a1, a2, a3 uint64 // the first of two bytes, pairs and quadruples, where they lie both apart and packed
	b1, b2, b3 uint64 // the second, where it lies packed
}

func newBitPacker(bits int) bitPacker {
	b := uint(bits)
	mask := func(n uint, lanes uint64) uint64 { return (1<<n - 1) * lanes }
	p := bitPacker{
		bits: b,
		a1:   mask(b, 0x0001000100010001),
		a2:   mask(2*b, 0x0000000100000001),
		a3:   mask(4*b, 1),
	}
	p.b1, p.b2, p.b3 = p.a1<<b, p.a2<<(2*b), p.a3<<(4*b)
	return p
}

// pack packs len(index) indices, a multiple of 8, into dst.
func (p *bitPacker) pack(dst, index []byte) {
	if p.bits == 8 {
		copy(dst, index)
		return
	}
	s := 8 - p.bits
	n := int(p.bits)
	for i := 0; i+8 <= len(index); i += 8 {
		w := binary.LittleEndian.Uint64(index[i:])
		w = p.shrink(w, s)
		if len(dst) >= 8 { // the bytes beyond n are written again
			binary.LittleEndian.PutUint64(dst, w)
		} else {
			put(dst[:n], w)
		}
		dst = dst[n:]
	}
}

// shrink packs the 8 bytes of w into its low 8·bits bits; s is 8 − bits.
func (p *bitPacker) shrink(w uint64, s uint) uint64 {
	w = w&p.a1 | w>>(s&63)&p.b1
	w = w&p.a2 | w>>(2*s&63)&p.b2
	return w&p.a3 | w>>(4*s&63)&p.b3
}

// put writes the low len(dst) bytes of w, at most 8.
func put(dst []byte, w uint64) {
	for i := range dst {
		dst[i] = byte(w)
		w >>= 8
	}
}

// get reads len(src) bytes, at most 8, as the low ones of a word.
func get(src []byte) uint64 {
	if len(src) >= 8 {
		return binary.LittleEndian.Uint64(src)
	}
	var w uint64
	for i := len(src) - 1; i >= 0; i-- {
		w = w<<8 | uint64(src[i])
	}
	return w
}

// unpack unpacks len(index) indices, a multiple of 8.
func (p *bitPacker) unpack(index, src []byte) {
	if p.bits == 8 {
		copy(index, src)
		return
	}
	s := 8 - p.bits
	n := int(p.bits)
	for i := 0; i+8 <= len(index); i += 8 {
		binary.LittleEndian.PutUint64(index[i:], p.spread(get(src), s))
		src = src[n:]
	}
}

// spread undoes shrink, whatever the other bits of w are.
func (p *bitPacker) spread(w uint64, s uint) uint64 {
	w = w&p.a3 | w&p.b3<<(4*s&63)
	w = w&p.a2 | w&p.b2<<(2*s&63)
	return w&p.a1 | w&p.b1<<(s&63)
}
