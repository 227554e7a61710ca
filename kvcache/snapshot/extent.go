package snapshot

import (
	"cmp"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// edges are the numbers of tokens at both ends that stay raw, S and W of docs/format.md.
type edges struct{ first, last int }

func (e edges) none() bool { return e == edges{} }

// extent is the rows of a part: so many leads, positions of the dimensions before the last two, of so many tokens
// each, the first and the last of which are raw.
type extent struct{ leads, tokens, first, last int }

func (p Part) extent(e edges) extent {
	n := len(p.Shape)
	x := extent{leads: product(p.Shape[:n-2]), tokens: p.Shape[n-2]}
	x.first = min(e.first, x.tokens)
	x.last = min(e.last, x.tokens-x.first)
	return x
}

func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// coded returns the coded tokens of a lead.
func (x extent) coded() int { return x.tokens - x.first - x.last }

// piece is a run of rows that are coded at a time: tokens first to first + n − 1 of so many leads. It is all tokens of
// its leads, or of one lead.
type piece struct {
	lead, leads int
	first, n    int
	extent
}

// pieces returns how many pieces of about so many rows x has, and piece i.
func (x extent) pieces(rows int) (count int, at func(i int) piece) {
	if x.leads == 0 {
		return 0, nil
	}
	if x.tokens <= rows { // leads without tokens have centres
		per := rows / max(1, x.tokens)
		return (x.leads + per - 1) / per, func(i int) piece {
			return piece{i * per, min(per, x.leads-i*per), 0, x.tokens, x}
		}
	}
	parts := (x.tokens + rows - 1) / rows
	return x.leads * parts, func(i int) piece {
		first := i % parts * rows
		return piece{i / parts, 1, first, min(rows, x.tokens-first), x}
	}
}

// joined returns x as one lead if all of its rows are stored alike and leads need not be told apart.
func (x extent) joined(apart bool) extent {
	if x.first == 0 && x.last == 0 && !apart {
		return extent{leads: 1, tokens: x.leads * x.tokens}
	}
	return x
}

// rows returns the rows of the piece and where the first of them is among all.
func (p piece) rows() (first, n int) { return p.lead*p.tokens + p.first, p.leads * p.n }

// span is tokens of a piece: those from offset at of each lead's part, and their rows in a stored tensor.
type span struct {
	at, n     int
	stored, m int
}

// coded returns the coded tokens of the piece.
func (p piece) codedSpan() span { return p.span(p.extent.first, p.extent.coded()) }

// rawSpans returns the raw tokens at the beginning and at the end.
func (p piece) rawSpans() (first, last span) {
	return p.span(0, p.extent.first), p.span(p.tokens-p.last, p.last)
}

// span returns what the piece has of tokens from to from + n − 1 of each lead.
func (p piece) span(from, n int) span {
	lo, hi := max(p.first, from), min(p.first+p.n, from+n)
	if hi <= lo {
		return span{}
	}
	return span{at: lo - p.first, n: hi - lo, stored: p.lead*n + lo - from, m: p.leads * (hi - lo)}
}

// view returns the span's rows of the piece's data as a tensor.
func (p piece) view(s span, d codec.DType, dim int, data []byte) codec.Tensor {
	rowBytes := dim * d.Size()
	if p.leads == 1 {
		return codec.Tensor{DType: d, Shape: []int{s.n, dim}, Data: data[s.at*rowBytes:][:s.n*rowBytes]}
	}
	return codec.Tensor{DType: d, Shape: []int{p.leads, s.n, dim}, Stride: []int{p.n * dim, dim, 1}, Data: data[s.at*rowBytes:]}
}

// element returns the index in the whole tensor of an element of the span's view.
func (p piece) element(s span, i, dim int) int {
	row := i / dim
	return ((p.lead+row/s.n)*p.tokens+p.first+s.at+row%s.n)*dim + i%dim
}

// each calls f with the span's rows of each lead.
func (p piece) each(s span, rowBytes int, data []byte, f func(rows []byte) error) error {
	if s.n == 0 {
		return nil
	}
	for l := range p.leads {
		if err := f(data[(l*p.n+s.at)*rowBytes:][:s.n*rowBytes]); err != nil {
			return err
		}
	}
	return nil
}

// stored returns the tensors that hold a layer, in file order.
func (l Layer) stored(p codec.KVParams, e edges) []safetensors.Info {
	var infos []safetensors.Info
	for _, h := range halves {
		part := h.part(&l)
		x := part.extent(e)
		add := func(suffix string, dtype safetensors.DType, tokens, width int) {
			shape := append(slices.Clone(part.Shape[:len(part.Shape)-2]), tokens, width)
			infos = append(infos, safetensors.Info{Name: part.Name + suffix, DType: dtype, Shape: shape})
		}
		for _, pl := range h.stored(p) {
			add(pl.suffix(), pl.dtype, x.coded(), pl.rowLen/pl.dtype.Size())
		}
		if h.centred(p) {
			add(meanSuffix, safetensors.F16, 1, part.dim())
			add(gainSuffix, safetensors.F16, 1, part.dim())
		}
		if e.first > 0 {
			add(firstSuffix, safetensors.DType(part.DType), x.first, part.dim())
		}
		if e.last > 0 {
			add(lastSuffix, safetensors.DType(part.DType), x.last, part.dim())
		}
	}
	return infos
}

// aligned sorts tensors by the width of their elements.
func aligned(infos []safetensors.Info) {
	slices.SortStableFunc(infos, func(a, b safetensors.Info) int { return cmp.Compare(b.DType.Bits(), a.DType.Bits()) })
}

// Size counts what the keys or values of a layer take.
type Size struct {
	Elements int64
	Source   int64 // bytes before packing
	Packed   int64 // bytes in the snapshot: codes, scales, zero points, centres and raw tokens
}

// Bits returns the stored bits per element, 0 of none.
func (s Size) Bits() float64 {
	if s.Elements == 0 {
		return 0
	}
	return 8 * float64(s.Packed) / float64(s.Elements)
}

// Add adds the counts of another.
func (s *Size) Add(o Size) {
	s.Elements += o.Elements
	s.Source += o.Source
	s.Packed += o.Packed
}

// sizes returns what the keys and the values take.
func (l Layer) sizes(p codec.KVParams, e edges) (sizes [2]Size) {
	for i, h := range halves {
		part := h.part(&l)
		d, _ := part.dtype() // an unknown dtype does not get past checkPair
		x, dim := part.extent(e), int64(part.dim())
		s := &sizes[i]
		s.Elements = int64(x.leads) * int64(x.tokens) * dim
		s.Source = s.Elements * int64(d.Size())
		for _, pl := range h.stored(p) {
			s.Packed += int64(x.leads) * int64(x.coded()) * int64(pl.rowLen)
		}
		s.Packed += int64(x.leads) * int64(x.first+x.last) * dim * int64(d.Size())
		if h.centred(p) {
			s.Packed += 2 * int64(x.leads) * dim * int64(codec.F16.Size())
		}
	}
	return sizes
}
