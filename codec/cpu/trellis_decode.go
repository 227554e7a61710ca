package cpu

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// maxDistinct is the most distinct code values that a row's table has.
const maxDistinct = 1024

// distinct are the different values among a code's: the code 1mad has 1021 of them. The weights of a long row
// are looked up among the products of its scale with them, rounded once.
type distinct struct {
	values []float32 // nil where there are more than maxDistinct
	of     []uint16  // by state: its value's index
}

func newDistinct(values []float32) distinct {
	d := distinct{of: make([]uint16, len(values))}
	index := make(map[float32]uint16)
	for s, f := range values {
		i, ok := index[f]
		if !ok {
			if i = uint16(len(d.values)); i == maxDistinct {
				return distinct{}
			}
			d.values = append(d.values, f)
			index[f] = i
		}
		d.of[s] = i
	}
	return d
}

// rowTable is stored weights by index of a distinct value, of 2 or 4 bytes.
type rowTable struct {
	two  [maxDistinct]uint16
	four [maxDistinct]uint32
}

// tabulate fills the table for a row of scale s and type t.
func (w *coder) tabulate(d distinct, s float32, t codec.DType) {
	if w.table == nil {
		w.table = new(rowTable)
	}
	switch t {
	case codec.F32:
		for i, f := range d.values {
			w.table.four[i%maxDistinct] = math.Float32bits(f * s)
		}
	case codec.F16:
		for i, f := range d.values {
			w.table.two[i%maxDistinct] = pack.ToF16(f * s)
		}
	case codec.BF16:
		for i, f := range d.values {
			w.table.two[i%maxDistinct] = toBF16(f * s)
		}
	}
}

// after is the number of a block's first bytes that follow its last in a ring.
const after = 16

// unroll copies a block's bytes to w.ring and its first ones after them, so that every window lies in one piece.
func (w *coder) unroll(block []uint32) []byte {
	w.ring = unroll(w.ring[:0], block)
	return w.ring
}

func unroll(ring []byte, block []uint32) []byte {
	at, n := len(ring), 4*len(block)
	ring = slices.Grow(ring, n+after)[:at+n+after]
	for i, v := range block {
		binary.LittleEndian.PutUint32(ring[at+4*i:], v)
	}
	for i := at + n; i < len(ring); i += 4 {
		copy(ring[i:i+4], ring[i-n:])
	}
	return ring
}

// octets reports whether the windows of 8 states that follow each other fit 8 bytes, from a whole byte on.
func (c *weights) octets() bool { return c.p.T%8 == 0 && 7*c.p.K+c.p.L <= 64 }

// decodeRow decodes row r of the output.
func (a *trellisCall) decodeRow(w *coder, r int) {
	c, g, p := a.c, a.m.Geometry, a.c.p
	scale := pack.FromF16(a.m.Scales[a.first+r])
	n := g.In * a.x.size
	var dst []byte
	if a.x.contiguous {
		dst = a.x.Data[r*n : (r+1)*n]
	} else {
		w.dst = slices.Grow(w.dst[:0], n)[:n]
		dst = w.dst
	}
	if c.simd.decode != nil && a.x.DType == codec.BF16 {
		w.rings = w.rings[:0]
		for b := range g.In / p.T {
			w.rings = unroll(w.rings, a.m.Codes[blockAt(g, p, a.first+r, b):][:p.BlockWords()])
		}
		if c.simd.decode(dst, w.rings, scale, a.x.DType) {
			if !a.x.contiguous {
				scatter(a.x.Tensor, r, dst)
			}
			return
		}
	}
	long := c.distinct.values != nil && c.octets() && g.In >= 2*len(c.distinct.values)
	if long {
		w.tabulate(c.distinct, scale, a.x.DType)
	}
	step := p.T * a.x.size
	for b := range g.In / p.T {
		block := a.m.Codes[blockAt(g, p, a.first+r, b):][:p.BlockWords()]
		out := dst[b*step : (b+1)*step]
		switch {
		case long && a.x.size == 2 && p.L == 12:
			look12(out, w.unroll(block), (*[4096]uint16)(c.distinct.of), &w.table.two, uint(p.K))
		case long && a.x.size == 2:
			look(out, w.unroll(block), c.distinct.of, &w.table.two, uint(p.K))
		case long:
			lookF32(out, w.unroll(block), c.distinct.of, &w.table.four, uint(p.K))
		default:
			c.decodeBlock(w, w.samples, block, scale)
			narrow(out, w.samples, a.x.DType, false)
		}
	}
	if !a.x.contiguous {
		scatter(a.x.Tensor, r, dst)
	}
}

// look12 writes weights of 2 bytes for L = 12, where the compiler sees that no state is beyond the table. State
// t starts at bit (T−1−t)·K: the bytes run against the weights.
func look12(dst, ring []byte, of *[4096]uint16, table *[maxDistinct]uint16, k uint) {
	k &= 7
	for len(dst) >= 16 {
		d := (*[16]byte)(dst[len(dst)-16:])
		v := binary.LittleEndian.Uint64(ring)
		binary.LittleEndian.PutUint16(d[14:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[12:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[10:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[8:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[6:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[4:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[2:], table[of[v%4096]%maxDistinct])
		v >>= k
		binary.LittleEndian.PutUint16(d[0:], table[of[v%4096]%maxDistinct])
		dst, ring = dst[:len(dst)-16], ring[k:]
	}
}

// look is look12 for any L.
func look(dst, ring []byte, of []uint16, table *[maxDistinct]uint16, k uint) {
	mask := uint64(len(of) - 1)
	for len(dst) >= 16 {
		d := (*[16]byte)(dst[len(dst)-16:])
		v := binary.LittleEndian.Uint64(ring)
		for j := 14; j >= 0; j -= 2 {
			binary.LittleEndian.PutUint16(d[j:], table[of[v&mask]%maxDistinct])
			v >>= k & 63
		}
		dst, ring = dst[:len(dst)-16], ring[k:]
	}
}

// lookF32 is look for weights of 4 bytes.
func lookF32(dst, ring []byte, of []uint16, table *[maxDistinct]uint32, k uint) {
	mask := uint64(len(of) - 1)
	for len(dst) >= 32 {
		d := (*[32]byte)(dst[len(dst)-32:])
		v := binary.LittleEndian.Uint64(ring)
		for j := 28; j >= 0; j -= 4 {
			binary.LittleEndian.PutUint32(d[j:], table[of[v&mask]%maxDistinct])
			v >>= k & 63
		}
		dst, ring = dst[:len(dst)-32], ring[k:]
	}
}

// decodeBlock writes the weights of one block: f(state)·s.
func (c *weights) decodeBlock(w *coder, dst []float32, block []uint32, s float32) {
	if !c.octets() {
		for t := range dst {
			dst[t] = c.values[stateAt(block, c.p, t)] * s
		}
		return
	}
	ring := w.unroll(block)
	values, mask, k := c.values, uint64(len(c.values)-1), uint(c.p.K)
	for len(dst) >= 8 {
		d := (*[8]float32)(dst[len(dst)-8:])
		v := binary.LittleEndian.Uint64(ring)
		for j := 7; j >= 0; j-- {
			d[j] = values[v&mask] * s
			v >>= k & 63
		}
		dst, ring = dst[:len(dst)-8], ring[k:]
	}
}

// tile is the number of columns that decodeTile takes.
const tile = 32

// decodeTile decodes, of a matrix coded along its columns, a block of a tile of columns: tile i counts tiles
// first, then blocks.
func (a *trellisCall) decodeTile(w *coder, i int) {
	c, g, p := a.c, a.m.Geometry, a.c.p
	tiles := (g.In + tile - 1) / tile
	b := a.first/p.T + i/tiles
	left := i % tiles * tile
	right := min(left+tile, g.In)
	w.row = slices.Grow(w.row[:0], tile*p.T)[:tile*p.T]
	for col := left; col < right; col++ {
		block := a.m.Codes[blockAt(g, p, col, b):][:p.BlockWords()]
		c.decodeBlock(w, w.row[(col-left)*p.T:][:p.T], block, pack.FromF16(a.m.Scales[col]))
	}
	n, size := right-left, a.x.size
	var line [tile]float32
	var bytes [4 * tile]byte
	for out := max(b*p.T, a.first); out < min((b+1)*p.T, a.first+a.x.Shape[0]); out++ {
		for j := range line[:n] {
			line[j] = w.row[j*p.T+out-b*p.T]
		}
		narrow(bytes[:n*size], line[:n], a.x.DType, false)
		off, stride := a.x.RowOffset(out - a.first)
		dst := a.x.Data[(off+left*stride)*size:]
		if stride == 1 {
			copy(dst, bytes[:n*size])
			continue
		}
		for j := range n {
			copy(dst[j*stride*size:][:size], bytes[j*size:])
		}
	}
}

// stateAt returns state t of a block.
func stateAt(block []uint32, p trellis.Params, t int) uint32 {
	bit := (p.T - 1 - t) * p.K
	lo := bit / 32
	hi := lo + 1
	if hi == len(block) {
		hi = 0
	}
	return uint32((uint64(block[hi])<<32|uint64(block[lo]))>>(bit%32)) & (1<<p.L - 1)
}
