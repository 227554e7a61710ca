// Package block keeps runs of cached tokens as self-describing frames, and frames in a directory: what a prefix
// cache, a tier of host memory or a transfer from prefill to decode asks of a codec. docs/format.md ("KV block")
// has the bytes. A frame that one backend wrote every other reads to the bit.
package block

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/strictjson"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

// Why a frame is refused, by class.
var (
	// ErrFormat reports bytes that are not a frame of a version that this package reads.
	ErrFormat = errors.New("not a KV block of a known version")
	// ErrDamaged reports a frame that is shorter than it says, or whose checksum is not that of its bytes.
	ErrDamaged = errors.New("damaged KV block")
	// ErrForeign reports a sound frame of another model, layout or place in a sequence than was asked for.
	ErrForeign = errors.New("KV block of something else")
	// ErrSpec reports a description of layers that no block can have.
	ErrSpec = errors.New("invalid KV block description")
)

const (
	magic   = "TTKBLOCK"
	version = 1
	align   = 64 // planes and the description start at multiples of it, padded with zeros and spaces

	headerLen = 192
	// Offsets of the header's fields.
	atVersion, atDescription, atPayload, atFirst, atTokens, atFingerprint, atKey, atParent, atSum = 8, 12, 16, 24, 32, 40, 72, 104, 136

	maxDescription = 16 << 20
	maxTokens      = 1 << 24
)

// Hash names a model or a place in a sequence: a SHA-256.
type Hash [32]byte

// ID says what a block holds.
type ID struct {
	Fingerprint Hash // of the model, and of whatever else the rows depend on
	Key         Hash // of the block's tokens and all before them; Chain makes it
	Parent      Hash // the key of the block before, zero for the first
	First       uint64
	Tokens      int
}

// Layer says how the rows of one layer are stored. Heads and head dimensions are the tensors'.
type Layer struct {
	Heads  int
	Params codec.KVParams
	// RawKeys and RawValues, if not 0, store rows of this type unpacked, bit for bit.
	RawKeys, RawValues codec.DType
	// KeyCentre and ValueCentre are the centres of centred sides, of shape [Heads, 1, head dimension], such as those
	// that a stream has. Nil means the usual one of each block's own tokens. Every block holds its centre; decoding and
	// Inspect do not look at these.
	KeyCentre, ValueCentre *codec.Centre
}

// centre returns what is said of the centre of the keys or of the values.
func (l *Layer) centre(side int) (centred bool, given *codec.Centre, dim int) {
	if side == 0 {
		return l.Params.CentreKeys && l.RawKeys == 0, l.KeyCentre, l.Params.HeadDim
	}
	return l.Params.CentreValues && l.RawValues == 0, l.ValueCentre, l.Params.ValueHeadDim
}

// side is the JSON of the keys or the values of one layer.
type side struct {
	Format    string           `json:"format"` // a codec.Format, or the type of raw rows
	Dim       int              `json:"dim"`
	Group     int              `json:"group,omitempty"`
	ScaleType *codec.DType     `json:"scale_type,omitempty"`
	Policy    *codec.Policy    `json:"policy,omitempty"`
	ScaleRule *codec.ScaleRule `json:"scale_rule,omitempty"`
	Centred   bool             `json:"centred,omitempty"`
}

// part is a plane of a frame: a row per head and token, or per head.
type part struct {
	rowLen  int
	perHead bool
}

// size returns the bytes of the plane for n tokens of so many heads.
func (p part) size(heads, n int) int {
	if p.perHead {
		n = 1
	}
	return heads * n * p.rowLen
}

// Planes of a centred side are its codes, its scales and then these.
const (
	meanPlane = 2
	gainPlane = 3
)

type layerJSON struct {
	Heads  int  `json:"heads"`
	Keys   side `json:"keys"`
	Values side `json:"values"`
}

type description struct {
	Layers []layerJSON `json:"layers"`
}

// Codec encodes and decodes blocks of one description of layers. It is safe for concurrent use.
type Codec struct {
	layers      []Layer
	kvs         []codec.KV // nil where both sides are raw
	parts       [][2][]part
	description []byte // padded
}

// New returns the codec of blocks of the given layers on backend b.
func New(b codec.Backend, layers []Layer) (*Codec, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: no backend", ErrSpec)
	}
	c := &Codec{layers: slices.Clone(layers)}
	made := map[codec.KVParams]codec.KV{}
	var d description
	for i := range c.layers {
		l := &c.layers[i]
		if l.Heads < 1 || l.Heads > math.MaxUint16 {
			return nil, fmt.Errorf("%w: layer %d: %d heads", ErrSpec, i, l.Heads)
		}
		var kv codec.KV
		l.Params = l.Params.WithDefaults()
		if l.RawKeys == 0 || l.RawValues == 0 {
			p := l.packed()
			kv = made[p]
			if kv == nil {
				var err error
				if kv, err = b.KV(p); err != nil {
					return nil, fmt.Errorf("layer %d: %w", i, err)
				}
				made[p] = kv
			}
		}
		formats, j, err := l.describe()
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		var parts [2][]part
		for s, f := range formats {
			for _, p := range f.Planes {
				parts[s] = append(parts[s], part{rowLen: p.RowLen})
			}
			if centred, given, dim := l.centre(s); centred {
				if err := l.checkCentre(given, dim); err != nil {
					return nil, fmt.Errorf("layer %d: %w", i, err)
				}
				parts[s] = append(parts[s], part{2 * dim, true}, part{2 * dim, true})
			}
		}
		c.kvs, c.parts = append(c.kvs, kv), append(c.parts, parts)
		d.Layers = append(d.Layers, j)
	}
	if d.Layers == nil {
		d.Layers = []layerJSON{}
	}
	var err error
	if c.description, err = json.Marshal(d); err != nil {
		return nil, err
	}
	for len(c.description)%align != 0 {
		c.description = append(c.description, ' ')
	}
	return c, nil
}

// packed returns the parameters of the sides that are packed, with some that are valid in place of a raw side's.
func (l *Layer) packed() codec.KVParams {
	p := l.Params
	if l.RawKeys != 0 {
		p.Keys, p.HeadDim, p.CentreKeys = codec.Q8_0, p.Group, false
	}
	if l.RawValues != 0 {
		p.Values, p.ValueHeadDim, p.CentreValues = codec.Q8_0, p.Group, false
	}
	return p
}

// checkCentre checks a centre that is given.
func (l *Layer) checkCentre(c *codec.Centre, dim int) error {
	if c == nil {
		return nil
	}
	for _, x := range []codec.Tensor{c.Mean, c.Gain} {
		if x.DType != codec.F16 || x.Stride != nil || !slices.Equal(x.Shape, []int{l.Heads, 1, dim}) {
			return fmt.Errorf("%w: a centre of %v %v, want f16 [%d, 1, %d]", ErrSpec, x.DType, slices.Clone(x.Shape), l.Heads, dim)
		}
		if err := x.Validate("centre"); err != nil {
			return err
		}
	}
	return nil
}

// describe returns the formats of keys and values and their JSON.
func (l *Layer) describe() (formats [2]kvcache.Format, j layerJSON, err error) {
	p := l.Params
	j.Heads = l.Heads
	packed := func(f codec.Format, dim int) side {
		return side{Format: f.String(), Dim: dim, Group: p.Group, ScaleType: &p.ScaleType, Policy: &p.Policy}
	}
	raw := func(t codec.DType, dim int) (side, error) {
		if t.Size() == 0 || dim < 1 || dim > codec.MaxHeadDim {
			return side{}, fmt.Errorf("%w: raw rows of %d %v", ErrSpec, dim, t)
		}
		return side{Format: t.String(), Dim: dim}, nil
	}
	if l.RawKeys != 0 {
		if j.Keys, err = raw(l.RawKeys, p.HeadDim); err != nil {
			return formats, j, err
		}
		formats[0] = kvcache.Raw(l.RawKeys, p.HeadDim)
	} else {
		j.Keys, formats[0] = packed(p.Keys, p.HeadDim), kvcache.PackedKeys(p)
		j.Keys.Centred = p.CentreKeys
	}
	if l.RawValues != 0 {
		if j.Values, err = raw(l.RawValues, p.ValueHeadDim); err != nil {
			return formats, j, err
		}
		formats[1] = kvcache.Raw(l.RawValues, p.ValueHeadDim)
	} else {
		j.Values, formats[1] = packed(p.Values, p.ValueHeadDim), kvcache.PackedValues(p)
		j.Values.ScaleRule, j.Values.Centred = &p.Scale, p.CentreValues
	}
	return formats, j, nil
}

func padded(n int) int { return (n + align - 1) / align * align }

// payload returns the bytes of all planes of n tokens, or −1 if an int cannot count them.
func (c *Codec) payload(n int) int {
	total := 0
	for i, l := range c.layers {
		for _, parts := range c.parts[i] {
			for _, p := range parts {
				if p.rowLen > 0 && l.Heads*max(n, 1) > (math.MaxInt/2-total-align)/p.rowLen {
					return -1
				}
				total += padded(p.size(l.Heads, n))
			}
		}
	}
	return total
}

// Size returns the bytes of a block of n tokens, exactly: it is an upper bound before and the true size after.
func (c *Codec) Size(n int) (int, error) {
	if n < 0 || n > maxTokens {
		return 0, fmt.Errorf("%w: %d tokens, want 0 to %d", ErrSpec, n, maxTokens)
	}
	payload := c.payload(n)
	if payload < 0 {
		return 0, fmt.Errorf("%w: %d tokens exceed the address space", ErrSpec, n)
	}
	return headerLen + len(c.description) + payload, nil
}

// planes are the parts of a frame's payload that belong to one side of a layer.
type planes [4][]byte

// split cuts the payload of n tokens and calls f for each layer.
func (c *Codec) split(payload []byte, n int, f func(i int, k, v planes) error) error {
	for i, l := range c.layers {
		var sides [2]planes
		for s, parts := range c.parts[i] {
			for j, p := range parts {
				size := p.size(l.Heads, n)
				sides[s][j] = payload[:size:size]
				payload = payload[padded(size):]
			}
		}
		if err := f(i, sides[0], sides[1]); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

// clearPadding zeroes what lies between the planes.
func (c *Codec) clearPadding(payload []byte, n int) {
	for i, l := range c.layers {
		for _, parts := range c.parts[i] {
			for _, p := range parts {
				size := p.size(l.Heads, n)
				clear(payload[size:padded(size)])
				payload = payload[padded(size):]
			}
		}
	}
}

// scratch keeps shapes from being allocated.
type scratch struct {
	keys   codec.Keys
	values codec.Values
	shapes [2][3]int // of centres
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// free lets go of everything but the shapes' memory.
func (w *scratch) free() {
	w.keys, w.values = codec.Keys{Shape: w.keys.Shape[:0]}, codec.Values{Shape: w.values.Shape[:0]}
	scratches.Put(w)
}

// Encode writes the block of id to dst, which has at least Size(id.Tokens) bytes, and returns how many it wrote.
// source returns the keys and values of a layer, of shape [heads, id.Tokens, head dimension]; raw rows are of their
// layer's type. Nothing is allocated where the backend allocates nothing and no centre is computed.
func (c *Codec) Encode(dst []byte, id ID, source func(layer int) (k, v codec.Tensor, err error)) (int, error) {
	size, err := c.Size(id.Tokens)
	if err != nil {
		return 0, err
	}
	if len(dst) < size {
		return 0, fmt.Errorf("%w: %d bytes for a block of %d", ErrSpec, len(dst), size)
	}
	dst = dst[:size]
	clear(dst[:headerLen])
	copy(dst, magic)
	le := binary.LittleEndian
	le.PutUint32(dst[atVersion:], version)
	le.PutUint32(dst[atDescription:], uint32(len(c.description)))
	le.PutUint64(dst[atPayload:], uint64(size-headerLen-len(c.description)))
	le.PutUint64(dst[atFirst:], id.First)
	le.PutUint32(dst[atTokens:], uint32(id.Tokens))
	copy(dst[atFingerprint:], id.Fingerprint[:])
	copy(dst[atKey:], id.Key[:])
	copy(dst[atParent:], id.Parent[:])
	copy(dst[headerLen:], c.description)
	payload := dst[headerLen+len(c.description):]
	w := scratches.Get().(*scratch)
	defer w.free()
	err = c.split(payload, id.Tokens, func(i int, k, v planes) error {
		kx, vx, err := source(i)
		if err != nil {
			return err
		}
		return c.encodeLayer(w, i, id.Tokens, k, v, kx, vx)
	})
	if err != nil {
		return 0, err
	}
	c.clearPadding(payload, id.Tokens)
	le.PutUint64(dst[atSum:], checksum(dst))
	return size, nil
}

func (c *Codec) encodeLayer(w *scratch, i, n int, k, v planes, kx, vx codec.Tensor) error {
	l := &c.layers[i]
	if err := l.check("keys", kx, n, l.Params.HeadDim); err != nil {
		return err
	}
	if err := l.check("values", vx, n, l.Params.ValueHeadDim); err != nil {
		return err
	}
	if l.RawKeys != 0 {
		if err := copyRows(k[0], kx, l.RawKeys, "keys"); err != nil {
			return err
		}
	} else {
		w.keys.Codes, w.keys.Scales, w.keys.Zeros = k[0][:0], k[1][:0], k[2][:0]
		if l.Params.CentreKeys {
			w.keys.Zeros = nil
			var err error
			if w.keys.Centre, err = w.encodeCentre(l, 0, k, kx); err != nil {
				return err
			}
		}
		if err := c.kvs[i].EncodeKeys(&w.keys, kx); err != nil {
			return err
		}
	}
	if l.RawValues != 0 {
		return copyRows(v[0], vx, l.RawValues, "values")
	}
	w.values.Codes, w.values.Scales = v[0][:0], v[1][:0]
	if l.Params.CentreValues {
		var err error
		if w.values.Centre, err = w.encodeCentre(l, 1, v, vx); err != nil {
			return err
		}
	}
	return c.kvs[i].EncodeValues(&w.values, vx)
}

// encodeCentre writes the centre of a side to its planes, the given one or that of the tokens x, and returns it.
func (w *scratch) encodeCentre(l *Layer, side int, to planes, x codec.Tensor) (codec.Centre, error) {
	_, c, _ := l.centre(side)
	if c == nil {
		made, err := codec.NewCentre(x)
		if err != nil {
			return made, err
		}
		c = &made
	}
	copy(to[meanPlane], c.Mean.Data)
	copy(to[gainPlane], c.Gain.Data)
	return w.centre(l, side, to), nil
}

// centre returns the centre in the planes of a side.
func (w *scratch) centre(l *Layer, side int, from planes) codec.Centre {
	_, _, dim := l.centre(side)
	w.shapes[side] = [3]int{l.Heads, 1, dim}
	return codec.Centre{
		Mean: codec.Tensor{DType: codec.F16, Shape: w.shapes[side][:], Data: from[meanPlane]},
		Gain: codec.Tensor{DType: codec.F16, Shape: w.shapes[side][:], Data: from[gainPlane]},
	}
}

// check checks the shape of a layer's tensor of n tokens.
func (l *Layer) check(name string, x codec.Tensor, n, dim int) error {
	if len(x.Shape) != 3 || x.Shape[0] != l.Heads || x.Shape[1] != n || x.Shape[2] != dim {
		return &codec.Error{Err: codec.ErrShape, Tensor: name, Index: codec.NoIndex,
			Reason: fmt.Sprintf("shape %v, want [%d, %d, %d]", slices.Clone(x.Shape), l.Heads, n, dim)}
	}
	return nil
}

// copyRows copies the elements of x, of type t, to dst without gaps.
func copyRows(dst []byte, x codec.Tensor, t codec.DType, name string) error {
	if err := x.Validate(name); err != nil {
		return err
	}
	if x.DType != t {
		return wrongType(name, x, t)
	}
	size := t.Size()
	width := x.Dim() * size
	for r := range x.Rows() {
		from, step := x.RowOffset(r)
		if step == 1 {
			copy(dst[r*width:][:width], x.Data[from*size:])
			continue
		}
		for e := range x.Dim() {
			copy(dst[r*width+e*size:][:size], x.Data[(from+e*step)*size:])
		}
	}
	return nil
}

func wrongType(name string, x codec.Tensor, want codec.DType) error {
	return &codec.Error{Err: codec.ErrDType, Tensor: name, Index: codec.NoIndex, Reason: fmt.Sprintf("%v, want the raw rows' %v", x.DType, want)}
}

// storeRows is the inverse of copyRows.
func storeRows(x codec.Tensor, src []byte, t codec.DType, name string) error {
	if err := x.ValidateOutput(name); err != nil {
		return err
	}
	if x.DType != t {
		return wrongType(name, x, t)
	}
	size := t.Size()
	width := x.Dim() * size
	for r := range x.Rows() {
		to, step := x.RowOffset(r)
		if step == 1 {
			copy(x.Data[to*size:], src[r*width:][:width])
			continue
		}
		for e := range x.Dim() {
			copy(x.Data[(to+e*step)*size:][:size], src[r*width+e*size:])
		}
	}
	return nil
}

// checksum returns the XXH64 of a frame but for the checksum itself.
func checksum(frame []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	d.Write(frame[:atSum])
	d.Write(frame[atSum+8:])
	return d.Sum64()
}

// parse checks everything about a frame that needs no description, and returns the lengths of its parts.
func parse(frame []byte) (id ID, description, payload []byte, err error) {
	d, err := checkLengths(frame, uint64(len(frame)))
	if err != nil {
		return id, nil, nil, err
	}
	le := binary.LittleEndian
	if sum := checksum(frame); sum != le.Uint64(frame[atSum:]) {
		return id, nil, nil, fmt.Errorf("%w: checksum %016x, its header says %016x", ErrDamaged, sum, le.Uint64(frame[atSum:]))
	}
	n := le.Uint32(frame[atTokens:])
	if n > maxTokens {
		return id, nil, nil, fmt.Errorf("%w: %d tokens", ErrDamaged, n)
	}
	for _, b := range frame[atSum+8 : headerLen] {
		if b != 0 {
			return id, nil, nil, fmt.Errorf("%w: a reserved byte of the header is set", ErrFormat)
		}
	}
	id = ID{First: le.Uint64(frame[atFirst:]), Tokens: int(n)}
	copy(id.Fingerprint[:], frame[atFingerprint:])
	copy(id.Key[:], frame[atKey:])
	copy(id.Parent[:], frame[atParent:])
	return id, frame[headerLen:][:d], frame[headerLen+d:], nil
}

// checkLengths checks that a frame of size bytes, of which the first headerLen or all are there, is of this version and
// as long as its header says. It returns the length of the description.
func checkLengths(frame []byte, size uint64) (description uint64, err error) {
	if len(frame) < len(magic) || string(frame[:len(magic)]) != magic {
		return 0, fmt.Errorf("%w: it does not begin with %s", ErrFormat, magic)
	}
	if len(frame) < headerLen {
		return 0, fmt.Errorf("%w: %d bytes, shorter than a header", ErrDamaged, size)
	}
	le := binary.LittleEndian
	if v := le.Uint32(frame[atVersion:]); v != version {
		return 0, fmt.Errorf("%w: version %d, want %d", ErrFormat, v, version)
	}
	d, p := uint64(le.Uint32(frame[atDescription:])), le.Uint64(frame[atPayload:])
	if d > maxDescription || d%align != 0 || p > math.MaxInt64-headerLen-d || headerLen+d+p != size {
		return 0, fmt.Errorf("%w: %d bytes, its header says %d + %d + %d", ErrDamaged, size, headerLen, d, p)
	}
	return d, nil
}

// Inspect returns what a frame holds and its layers, after checking its checksum.
func Inspect(frame []byte) (ID, []Layer, error) {
	id, text, _, err := parse(frame)
	if err != nil {
		return id, nil, err
	}
	var d description
	if err := strictjson.Unmarshal(text, &d); err != nil {
		return id, nil, fmt.Errorf("%w: description: %w", ErrFormat, err)
	}
	layers := make([]Layer, len(d.Layers))
	for i, j := range d.Layers {
		if layers[i], err = j.layer(); err != nil {
			return id, nil, fmt.Errorf("%w: layer %d: %w", ErrFormat, i, err)
		}
	}
	return id, layers, nil
}

// layer is the inverse of Layer.describe.
func (j layerJSON) layer() (Layer, error) {
	l := Layer{Heads: j.Heads, Params: codec.KVParams{HeadDim: j.Keys.Dim, ValueHeadDim: j.Values.Dim}}
	for _, s := range []struct {
		side
		raw     *codec.DType
		packed  *codec.Format
		centred *bool
	}{{j.Keys, &l.RawKeys, &l.Params.Keys, &l.Params.CentreKeys}, {j.Values, &l.RawValues, &l.Params.Values, &l.Params.CentreValues}} {
		if s.raw.UnmarshalText([]byte(s.Format)) == nil {
			if s.Centred {
				return l, errors.New("raw rows that are centred")
			}
			continue
		}
		if err := s.packed.UnmarshalText([]byte(s.Format)); err != nil {
			return l, err
		}
		*s.centred = s.Centred
		if s.ScaleType == nil || s.Policy == nil {
			return l, errors.New("a packed side without scale_type or policy")
		}
		l.Params.Group, l.Params.ScaleType, l.Params.Policy = s.Group, *s.ScaleType, *s.Policy
		if s.ScaleRule != nil {
			l.Params.Scale = *s.ScaleRule
		}
	}
	return l, nil
}

// Decode checks that frame is a sound block of c's layers and of the wanted id, and writes it to the tensors that
// dst returns for each layer: of shape [heads, tokens, head dimension], raw rows of their own type. A zero Key,
// Parent or Fingerprint is not compared; First is compared with the Key. Nothing is allocated where the backend
// allocates nothing.
func (c *Codec) Decode(frame []byte, want ID, dst func(layer int) (k, v codec.Tensor, err error)) (ID, error) {
	id, text, payload, err := parse(frame)
	if err != nil {
		return id, err
	}
	if err := want.matches(id); err != nil {
		return id, err
	}
	if string(text) != string(c.description) {
		return id, fmt.Errorf("%w: its layers are stored otherwise", ErrForeign)
	}
	if len(payload) != c.payload(id.Tokens) {
		return id, fmt.Errorf("%w: %d bytes of rows for %d tokens, want %d", ErrDamaged, len(payload), id.Tokens, c.payload(id.Tokens))
	}
	w := scratches.Get().(*scratch)
	defer w.free()
	return id, c.split(payload, id.Tokens, func(i int, k, v planes) error {
		kx, vx, err := dst(i)
		if err != nil {
			return err
		}
		return c.decodeLayer(w, i, id.Tokens, k, v, kx, vx)
	})
}

func (want ID) matches(id ID) error {
	var zero Hash
	switch {
	case want.Fingerprint != zero && want.Fingerprint != id.Fingerprint:
		return fmt.Errorf("%w: another model's", ErrForeign)
	case want.Key != zero && (want.Key != id.Key || want.First != id.First):
		return fmt.Errorf("%w: other tokens", ErrForeign)
	case want.Parent != zero && want.Parent != id.Parent:
		return fmt.Errorf("%w: behind other tokens", ErrForeign)
	case want.Tokens != 0 && want.Tokens != id.Tokens:
		return fmt.Errorf("%w: %d tokens, want %d", ErrForeign, id.Tokens, want.Tokens)
	}
	return nil
}

func (c *Codec) decodeLayer(w *scratch, i, n int, k, v planes, kx, vx codec.Tensor) error {
	l := &c.layers[i]
	if err := l.check("dst keys", kx, n, l.Params.HeadDim); err != nil {
		return err
	}
	if err := l.check("dst values", vx, n, l.Params.ValueHeadDim); err != nil {
		return err
	}
	w.keys = codec.Keys{Shape: append(w.keys.Shape[:0], kx.Shape...), Codes: k[0], Scales: k[1], Zeros: k[2]}
	w.values = codec.Values{Shape: append(w.values.Shape[:0], vx.Shape...), Codes: v[0], Scales: v[1]}
	if l.RawKeys == 0 && l.Params.CentreKeys {
		w.keys.Zeros, w.keys.Centre = nil, w.centre(l, 0, k)
	}
	if l.RawValues == 0 && l.Params.CentreValues {
		w.values.Centre = w.centre(l, 1, v)
	}
	switch {
	case l.RawKeys != 0 && l.RawValues != 0:
		if err := storeRows(kx, k[0], l.RawKeys, "dst keys"); err != nil {
			return err
		}
		return storeRows(vx, v[0], l.RawValues, "dst values")
	case l.RawKeys != 0:
		if err := storeRows(kx, k[0], l.RawKeys, "dst keys"); err != nil {
			return err
		}
		return c.kvs[i].DecodeValues(vx, w.values)
	case l.RawValues != 0:
		if err := c.kvs[i].DecodeKeys(kx, w.keys); err != nil {
			return err
		}
		return storeRows(vx, v[0], l.RawValues, "dst values")
	case kx.DType == vx.DType:
		return c.kvs[i].Decode(kx, vx, w.keys, w.values)
	}
	if err := c.kvs[i].DecodeKeys(kx, w.keys); err != nil {
		return err
	}
	return c.kvs[i].DecodeValues(vx, w.values)
}
