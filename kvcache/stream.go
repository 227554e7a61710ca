package kvcache

import (
	"fmt"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
)

// StreamOptions say which tokens of a stream stay raw. The zero value packs all of them, 32 at a time.
type StreamOptions struct {
	First  int // the first tokens, which stay raw
	Recent int // the newest tokens, which are raw until they age

	// Chunk is the number of tokens that are packed at a time; 0 means 32. Up to Chunk − 1 more than Recent are raw.
	Chunk int

	// Keys and Values are the centres of centred formats. Where one is missing it is computed from the first tokens
	// that are packed, CentreTokens of them at least (0 means 128), and stays.
	Keys, Values *codec.Centre
	CentreTokens int
}

// Stream is the cache of one layer of one sequence that packs its tokens as they age. What it packs are the rows
// that the codec gives for the same tokens at once. It is not safe for concurrent use.
type Stream struct {
	kv            codec.KV
	t             codec.DType
	heads         int
	dimK, dimV    int
	o             StreamOptions
	first, recent *Batch // raw
	packed        *Batch // what is between them
	keys, values  *codec.Centre

	// Scratch.
	k            codec.Keys
	v            codec.Values
	rawK, rawV   Data
	packK, packV Data
}

// NewStream returns an empty stream of so many heads, whose raw rows are of type t.
func NewStream(kv codec.KV, t codec.DType, heads int, o StreamOptions) (*Stream, error) {
	if kv == nil || t.Size() == 0 || heads < 1 || o.First < 0 || o.Recent < 0 || o.Chunk < 0 || o.CentreTokens < 0 {
		return nil, fmt.Errorf("%w: a stream of %d heads of %v, %d first, %d recent, %d at a time, %d for the centre", ErrLayout, heads, t, o.First, o.Recent, o.Chunk, o.CentreTokens)
	}
	p := kv.Params()
	s := &Stream{kv: kv, t: t, heads: heads, o: o, keys: o.Keys, values: o.Values, dimK: p.HeadDim, dimV: p.ValueHeadDim}
	if s.o.Chunk == 0 {
		s.o.Chunk = 32
	}
	if s.o.CentreTokens == 0 {
		s.o.CentreTokens = 128
	}
	raw := Layout{Heads: heads, Keys: Raw(t, s.dimK), Values: Raw(t, s.dimV)}
	var err error
	if s.first, err = New(raw, 1); err != nil {
		return nil, err
	}
	if s.recent, err = New(raw, 1); err != nil {
		return nil, err
	}
	s.packed, err = New(Layout{Heads: heads, Keys: PackedKeys(p), Values: PackedValues(p)}, 1)
	return s, err
}

// Len returns the number of tokens.
func (s *Stream) Len() int { return s.first.Width() + s.packed.Width() + s.recent.Width() }

// Packed returns the number of tokens that are packed.
func (s *Stream) Packed() int { return s.packed.Width() }

// Centres returns the centres of keys and values, nil where the format has none or it is not known yet.
func (s *Stream) Centres() (keys, values *codec.Centre) { return s.keys, s.values }

// Append adds tokens, of shape [heads, n, head dimension] and the stream's type, and packs what has aged. If packing
// fails the tokens are in the stream, raw, and the next Append tries again.
func (s *Stream) Append(k, v codec.Tensor) error {
	for _, side := range []struct {
		name string
		x    *codec.Tensor
		dim  int
	}{{"keys", &k, s.dimK}, {"values", &v, s.dimV}} {
		x := side.x
		if err := x.Validate(side.name); err != nil {
			return err
		}
		if x.DType != s.t {
			return &codec.Error{Err: codec.ErrDType, Tensor: side.name, Index: codec.NoIndex, Reason: fmt.Sprintf("%v, want %v", x.DType, s.t)}
		}
		if len(x.Shape) != 3 || x.Shape[0] != s.heads || x.Shape[2] != side.dim || x.Shape[1] != k.Shape[1] {
			return &codec.Error{Err: codec.ErrShape, Tensor: side.name, Index: codec.NoIndex,
				Reason: fmt.Sprintf("shape %v, want [%d, n, %d], n alike for keys and values", slices.Clone(x.Shape), s.heads, side.dim)}
		}
	}
	n := k.Shape[1]
	head := min(n, max(0, s.o.First-s.first.Width()))
	for _, part := range []struct {
		to          *Batch
		first, last int
	}{{s.first, 0, head}, {s.recent, head, n}} {
		if part.first == part.last {
			continue
		}
		s.rawK, s.rawV = gather(s.rawK, k, part.first, part.last), gather(s.rawV, v, part.first, part.last)
		if err := part.to.Append(s.rawK, s.rawV); err != nil {
			return err
		}
	}
	return s.age()
}

// gather copies tokens first to last − 1 of x, without gaps, to d's memory.
func gather(d Data, x codec.Tensor, first, last int) Data {
	heads, dim, size := x.Shape[0], x.Shape[2], x.DType.Size()
	d.Tokens = last - first
	if d.Planes == nil {
		d.Planes = make([][]byte, 1)
	}
	need := heads * d.Tokens * dim * size
	d.Planes[0] = slices.Grow(d.Planes[0][:0], need)[:need]
	to := d.Planes[0]
	for h := range heads {
		for t := first; t < last; t++ {
			at, step := x.RowOffset(h*x.Shape[1] + t)
			if step == 1 {
				copy(to[:dim*size], x.Data[at*size:])
			} else {
				for e := range dim {
					copy(to[e*size:][:size], x.Data[(at+e*step)*size:])
				}
			}
			to = to[dim*size:]
		}
	}
	return d
}

// age packs whole chunks of what is older than the newest Recent tokens.
func (s *Stream) age() error {
	n := (s.recent.Width() - s.o.Recent) / s.o.Chunk * s.o.Chunk
	p := s.kv.Params()
	waiting := p.CentreKeys && s.keys == nil || p.CentreValues && s.values == nil
	if n <= 0 || waiting && n < s.o.CentreTokens {
		return nil
	}
	if err := s.recent.Read(&s.rawK, &s.rawV, 0, n); err != nil {
		return err
	}
	k := codec.Tensor{DType: s.t, Shape: []int{s.heads, n, s.dimK}, Data: s.rawK.Planes[0]}
	v := codec.Tensor{DType: s.t, Shape: []int{s.heads, n, s.dimV}, Data: s.rawV.Planes[0]}
	var err error
	if p.CentreKeys {
		if s.keys, err = centre(s.keys, k); err != nil {
			return err
		}
		s.k.Centre = *s.keys
	}
	if p.CentreValues {
		if s.values, err = centre(s.values, v); err != nil {
			return err
		}
		s.v.Centre = *s.values
	}
	if err := s.kv.EncodeKeys(&s.k, k); err != nil {
		return err
	}
	if err := s.kv.EncodeValues(&s.v, v); err != nil {
		return err
	}
	if err := s.packed.Append(KeysData(s.k, p), ValuesData(s.v, p)); err != nil {
		return err
	}
	left := s.recent.Width() - n
	if err := s.recent.Read(&s.rawK, &s.rawV, n, left); err != nil {
		return err
	}
	if err := s.recent.Trim(n + left); err != nil {
		return err
	}
	return s.recent.Append(s.rawK, s.rawV)
}

func centre(c *codec.Centre, x codec.Tensor) (*codec.Centre, error) {
	if c != nil {
		return c, nil
	}
	made, err := codec.NewCentre(x)
	return &made, err
}

// Decode writes all tokens to tensors of shape [heads, Len(), head dimension] and the stream's type: raw rows bit for
// bit, packed ones as the codec decodes them.
func (s *Stream) Decode(dstK, dstV codec.Tensor) error {
	n := s.Len()
	for _, side := range []struct {
		name string
		x    codec.Tensor
		dim  int
	}{{"dst keys", dstK, s.dimK}, {"dst values", dstV, s.dimV}} {
		if err := side.x.ValidateOutput(side.name); err != nil {
			return err
		}
		if side.x.DType != s.t {
			return &codec.Error{Err: codec.ErrDType, Tensor: side.name, Index: codec.NoIndex, Reason: fmt.Sprintf("%v, want %v", side.x.DType, s.t)}
		}
		if !slices.Equal(side.x.Shape, []int{s.heads, n, side.dim}) {
			return &codec.Error{Err: codec.ErrShape, Tensor: side.name, Index: codec.NoIndex,
				Reason: fmt.Sprintf("shape %v, want [%d, %d, %d]", slices.Clone(side.x.Shape), s.heads, n, side.dim)}
		}
	}
	at := 0
	for _, b := range []*Batch{s.first, s.packed, s.recent} {
		m := b.Width()
		k, v := part3(dstK, at, m), part3(dstV, at, m)
		at += m
		if m == 0 {
			continue
		}
		if b != s.packed {
			if err := b.Read(&s.rawK, &s.rawV, 0, m); err != nil {
				return err
			}
			scatter(k, s.rawK.Planes[0])
			scatter(v, s.rawV.Planes[0])
			continue
		}
		if err := b.Read(&s.packK, &s.packV, 0, m); err != nil {
			return err
		}
		keys, values := codec.Keys{Shape: k.Shape, Codes: s.packK.Planes[0], Scales: s.packK.Planes[1]}, codec.Values{Shape: v.Shape, Codes: s.packV.Planes[0], Scales: s.packV.Planes[1]}
		if len(s.packK.Planes) > 2 {
			keys.Zeros = s.packK.Planes[2]
		}
		if s.keys != nil {
			keys.Centre = *s.keys
		}
		if s.values != nil {
			values.Centre = *s.values
		}
		if err := s.kv.Decode(k, v, keys, values); err != nil {
			return err
		}
	}
	return nil
}

// part3 returns tokens first to first + n − 1 of x, of shape [heads, tokens, d].
func part3(x codec.Tensor, first, n int) codec.Tensor {
	stride := x.Stride
	if stride == nil {
		stride = []int{x.Shape[1] * x.Shape[2], x.Shape[2], 1}
	}
	y := codec.Tensor{DType: x.DType, Shape: []int{x.Shape[0], n, x.Shape[2]}, Stride: stride}
	if n > 0 {
		y.Data = x.Data[first*stride[1]*x.DType.Size():]
	}
	return y
}

// scatter writes rows without gaps to x.
func scatter(x codec.Tensor, rows []byte) {
	dim, size := x.Dim(), x.DType.Size()
	for r := range x.Rows() {
		at, step := x.RowOffset(r)
		for e := range dim {
			copy(x.Data[(at+e*step)*size:][:size], rows[(r*dim+e)*size:])
		}
	}
}
