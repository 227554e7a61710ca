package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// Names by which Encode finds keys and values unless told otherwise: the last
// part of the name. The submatch is what differs between the two of a pair.
var (
	DefaultKeyNames   = regexp.MustCompile(`(?:^|\.)(keys?|k)$`)
	DefaultValueNames = regexp.MustCompile(`(?:^|\.)(values?|v)$`)
)

// Summary says what Encode or Decode did.
type Summary struct {
	Layers    int    // packed or restored
	Raw       int    // tensors copied as they were
	Keys      Size   // of the layers' keys
	Values    Size   // of the layers' values
	Saturated uint64 // restored elements beyond f16's range, stored as ±65504
}

// Total returns the size of keys and values together.
func (s Summary) Total() Size {
	t := s.Keys
	t.Add(s.Values)
	return t
}

func (s *Summary) add(l Layer, p codec.KVParams, e edges) {
	s.Layers++
	sizes := l.sizes(p, e)
	s.Keys.Add(sizes[0])
	s.Values.Add(sizes[1])
}

// EncodeOptions says what Encode packs and how.
type EncodeOptions struct {
	Backend codec.Backend  // required
	Params  codec.KVParams // the head dimensions are taken from the tensors

	// RawFirst and RawLast are the numbers of tokens at the beginning and at the
	// end of every layer that are copied bit for bit.
	RawFirst, RawLast int

	// Centres has the centre of every tensor that Params centres, by the tensor's
	// name: of as many dimensions as it, with 1 token, each dimension before that its
	// or 1. Nil means the usual centre of the coded tokens (codec.NewCentre).
	Centres map[string]codec.Centre

	// KeyNames and ValueNames match the names of tensors to pack; nil means
	// the defaults. The first submatch, or the whole match if there is none,
	// is cut from a name, and keys and values whose remaining names are equal
	// are a layer.
	KeyNames, ValueNames *regexp.Regexp

	Skip     LayerSet                // layers to keep as they are
	Progress func(done, total int64) // called with bytes of the source, first with none done, if not nil
}

// Encode reads the safetensors file in the first size bytes of src and writes
// a snapshot of it to dst. Tensors that are neither keys nor values, or are
// skipped, are copied byte for byte; so is the metadata. 8-bit floats (F8_E4M3,
// F8_E5M2) are widened to F16, exactly, and are F16 tensors from then on.
// Prompt caches of mlx-lm are known by their metadata: unless told otherwise,
// their N.0 are keys and their N.1 values. What names, types,
// shapes and parameters decide is checked before the first byte is written.
// The file is of version 2 if it has row codes or raw tokens, else of version 1.
//
// Memory use does not grow with the file: Calls + 1 pieces of the backend's Feed
// are in memory, each of Bytes of the source, or one row if that is longer, with
// its packed form. Where it computes centres, Encode reads the keys or values of a
// head twice more before it packs them. Once ctx is done, Encode returns its cause after the calls in progress.
//
// Errors are codec's, with the tensor's name and the element's index in it,
// ErrPair, ErrSource, ErrArgument, ErrNoTensor where nothing matches, ErrCentre, or
// those of reading and writing.
func Encode(ctx context.Context, dst io.WriterAt, src io.ReaderAt, size int64, o EncodeOptions) (Summary, error) {
	e, err := newEncoding(ctx, src, size, o)
	if err != nil {
		return Summary{}, err
	}
	var out []safetensors.Info
	var sum Summary
	partOf := map[string]string{} // the packed tensor that a name of the snapshot belongs to
	for i, l := range e.desc.Layers {
		p := e.codecs[i].Params()
		stored := l.stored(p, e.desc.edges())
		out = append(out, stored...)
		for _, h := range halves {
			part := h.part(&l)
			partOf[part.Name] = part.Name
			for _, in := range stored {
				if suffix, ok := strings.CutPrefix(in.Name, part.Name); ok && isSuffix(suffix) {
					partOf[in.Name] = part.Name
				}
			}
		}
		sum.add(l, p, e.desc.edges())
	}
	for _, in := range e.file.Tensors() {
		e.total += in.Size
		switch of := partOf[in.Name]; of {
		case in.Name:
		case "":
			e.desc.Raw = append(e.desc.Raw, in.Name)
			out = append(out, in)
		default:
			return Summary{}, fmt.Errorf("%w: tensor %q has the name that a part of %q takes", ErrSource, in.Name, of)
		}
	}
	meta, err := encodeDescription(e.file.Metadata(), e.desc)
	if err != nil {
		return Summary{}, err
	}
	if e.desc.version() != version1 {
		aligned(out)
	}
	w, err := safetensors.NewWriterAt(dst, meta, out)
	if err != nil {
		return Summary{}, err
	}
	e.report(0)
	for i := range e.desc.Layers {
		for _, h := range halves {
			if err := e.encoder(i, h).encode(w); err != nil {
				return Summary{}, err
			}
		}
	}
	for _, name := range e.desc.Raw {
		if err := w.Copy(ctx, e.file, name, e.report); err != nil {
			return Summary{}, err
		}
	}
	sum.Raw = len(e.desc.Raw)
	return sum, w.Close()
}

// encoding is what Encode knows before it packs.
type encoding struct {
	*transcoder
	file    *safetensors.File
	desc    description // without the raw tensors
	centres map[string]codec.Centre
}

// newEncoding opens the source and checks all that names, types, shapes and parameters decide.
func newEncoding(ctx context.Context, src io.ReaderAt, size int64, o EncodeOptions) (*encoding, error) {
	if o.Backend == nil {
		return nil, fmt.Errorf("%w: no backend", ErrArgument)
	}
	f, err := safetensors.NewFile(src, size)
	if err != nil {
		return nil, err
	}
	if f.Metadata()[formatKey] == formatName {
		return nil, fmt.Errorf("%w: it is a KV snapshot already", ErrSource)
	}
	for key := range f.Metadata() {
		if reserved(key) {
			return nil, fmt.Errorf("%w: the metadata key %q is reserved for snapshots", ErrSource, key)
		}
	}
	base := o.Params.WithDefaults()
	bare := base
	bare.HeadDim, bare.ValueHeadDim = 64, 64
	if err := bare.Validate(); err != nil {
		return nil, err // of no tensor
	}
	e := &encoding{transcoder: newTranscoder(ctx, o.Backend, o.Progress), file: f, centres: o.Centres, desc: description{
		Group: base.Group, ScaleType: base.ScaleType, Policy: base.Policy, Scale: base.Scale, SignSeed: signSeed,
		RawFirst: o.RawFirst, RawLast: o.RawLast, Layers: []Layer{}, Raw: []string{},
	}}
	if err := checkEdges(e.desc.edges()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArgument, err)
	}
	layers, err := pairs(f, o)
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		l.Keys.Bits, l.Keys.Signed, l.Values.Bits = base.Keys.Bits(), base.Keys.Signed(), base.Values.Bits()
		l.Keys.Code, l.Values.Code = rowCodeName(base.Keys), rowCodeName(base.Values)
		l.Keys.Centred, l.Values.Centred = base.CentreKeys, base.CentreValues
		if err := l.checkPair(); err != nil {
			return nil, err
		}
		p, err := l.params(base)
		if err == nil {
			err = e.add(p)
		}
		if err != nil {
			return nil, fmt.Errorf("tensors %q and %q: %w", l.Keys.Name, l.Values.Name, err)
		}
		if err := o.checkCentres(l, p); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCentre, err)
		}
		e.desc.Layers = append(e.desc.Layers, l)
	}
	return e, nil
}

// encoder returns the encoder of the keys or the values of layer i.
func (e *encoding) encoder(i int, h half) *encoder {
	part := *h.part(&e.desc.Layers[i])
	one := &encoder{transcoder: e.transcoder, file: e.file, half: h, kv: e.codecs[i], part: part, extent: part.extent(e.desc.edges())}
	if c, ok := e.centres[part.Name]; ok {
		one.centre = &c
	}
	return one
}

// pairs finds the layers to pack, in the order of their keys in the file.
func pairs(f *safetensors.File, o EncodeOptions) ([]Layer, error) {
	keyNames, valueNames := cmp.Or(o.KeyNames, DefaultKeyNames), cmp.Or(o.ValueNames, DefaultValueNames)
	if o.KeyNames == nil && o.ValueNames == nil && isPromptCache(f) {
		keyNames, valueNames = promptKeyNames, promptValueNames
	}
	var layers []*Layer
	byRest := map[string]*Layer{}
	seen := map[int]bool{}
	for _, in := range f.Tensors() {
		k, v := keyNames.FindStringSubmatchIndex(in.Name), valueNames.FindStringSubmatchIndex(in.Name)
		if k == nil && v == nil {
			continue
		}
		if k != nil && v != nil {
			return nil, fmt.Errorf("%w: tensor %q is matched as keys and as values", ErrPair, in.Name)
		}
		before, after := cut(in.Name, cmp.Or(submatch(k), submatch(v)))
		if n, ok := layerNumber(before, after); ok {
			seen[n] = true
			if o.Skip.Has(n) {
				continue
			}
		}
		if keyNames == promptKeyNames && !promptLayer(f, before) {
			continue
		}
		rest := before + "\x00" + after
		l := byRest[rest]
		if l == nil {
			l = new(Layer)
			byRest[rest] = l
			layers = append(layers, l)
		}
		part := &l.Keys
		if v != nil {
			part = &l.Values
		}
		if part.Name != "" {
			return nil, fmt.Errorf("%w: tensors %q and %q are both named for one layer", ErrPair, part.Name, in.Name)
		}
		*part = Part{Name: in.Name, DType: string(widened(in.DType)), Shape: slices.Clone(in.Shape)}
	}
	if err := o.Skip.allIn(seen); err != nil {
		return nil, err
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("%w: no name matches %v or %v%s", ErrNoTensor, keyNames, valueNames, skipped(seen))
	}
	result := make([]Layer, len(layers))
	for i, l := range layers {
		if l.Keys.Name == "" {
			return nil, fmt.Errorf("%w: values %q have no keys", ErrPair, l.Values.Name)
		}
		if l.Values.Name == "" {
			return nil, fmt.Errorf("%w: keys %q have no values", ErrPair, l.Keys.Name)
		}
		result[i] = *l
	}
	return result, nil
}

func skipped(seen map[int]bool) string {
	if len(seen) > 0 {
		return ", skipped layers aside"
	}
	return ""
}

// DecodeOptions says what Decode restores and how.
type DecodeOptions struct {
	Backend  codec.Backend           // required
	DType    codec.DType             // of restored tensors; 0 means that of the tensor that was packed
	Layers   LayerSet                // layers to restore; nil means every layer and every raw tensor
	Progress func(done, total int64) // called with bytes of the result, first with none done, if not nil
}

// Decode writes the tensors of the snapshot to dst, a safetensors file, under
// the names and shapes that they had. Memory and ctx are as in Encode; errors
// are ErrArgument, ErrNoTensor for a layer that does not exist, codec's, or
// those of reading and writing.
func (s *Snapshot) Decode(ctx context.Context, dst io.WriterAt, o DecodeOptions) (Summary, error) {
	switch {
	case o.Backend == nil:
		return Summary{}, fmt.Errorf("%w: no backend", ErrArgument)
	case s.file == nil:
		return Summary{}, fmt.Errorf("%w: the snapshot was not opened", ErrArgument)
	case o.DType != 0 && o.DType.Size() == 0:
		return Summary{}, fmt.Errorf("%w: element type %v", ErrArgument, o.DType)
	}
	t := newTranscoder(ctx, o.Backend, o.Progress)
	var out []safetensors.Info
	var layers []Layer
	var raw []string
	var sum Summary
	wanted, err := s.wanted(o.Layers)
	if err != nil {
		return Summary{}, err
	}
	for i, l := range s.desc.Layers {
		if !wanted[l.Keys.Name] {
			continue
		}
		p, err := s.Params(i)
		if err == nil {
			err = t.add(p)
		}
		if err != nil {
			return Summary{}, fmt.Errorf("tensors %q and %q: %w", l.Keys.Name, l.Values.Name, err)
		}
		sum.add(l, p, s.desc.edges())
		layers = append(layers, l)
		for _, h := range halves {
			part := h.part(&l)
			out = append(out, safetensors.Info{Name: part.Name, DType: part.restored(o.DType), Shape: part.Shape})
		}
	}
	for _, name := range s.desc.Raw {
		if wanted[name] {
			in, _ := s.file.Lookup(name)
			out, raw = append(out, in), append(raw, name)
		}
	}
	w, err := safetensors.NewWriterAt(dst, s.Metadata(), out)
	if err != nil {
		return Summary{}, err
	}
	for _, in := range w.Tensors() {
		t.total += in.Size
	}
	t.report(0)
	for i := range layers {
		for _, h := range halves {
			part := *h.part(&layers[i])
			d := &decoder{transcoder: t, file: s.file, half: h, kv: t.codecs[i], part: part, extent: part.extent(s.desc.edges())}
			if err := d.decode(w, o.DType); err != nil {
				return Summary{}, err
			}
		}
	}
	for _, name := range raw {
		if err := w.Copy(ctx, s.file, name, t.report); err != nil {
			return Summary{}, err
		}
	}
	sum.Raw, sum.Saturated = len(raw), t.saturated()
	return sum, w.Close()
}

// wanted returns the names of keys and of raw tensors that are in the layers,
// all of them if layers is nil.
func (s *Snapshot) wanted(layers LayerSet) (map[string]bool, error) {
	wanted := map[string]bool{}
	seen := map[int]bool{}
	note := func(name string, n int, ok bool) {
		if ok {
			seen[n] = true
		}
		wanted[name] = layers == nil || ok && layers.Has(n)
	}
	var place numberPlace
	for _, l := range s.desc.Layers {
		before, after := shared(l.Keys.Name, l.Values.Name)
		n, ok := layerNumber(before, after)
		place.learn(before)
		note(l.Keys.Name, n, ok)
	}
	for _, name := range s.desc.Raw {
		n, ok := place.number(name)
		note(name, n, ok)
	}
	return wanted, layers.allIn(seen)
}

// restored returns the dtype that a part is restored in.
func (p Part) restored(d codec.DType) safetensors.DType {
	if d == 0 {
		return safetensors.DType(p.DType)
	}
	return safetensors.DTypeOf(d)
}

// transcoder packs or restores tensors, a piece at a time.
type transcoder struct {
	ctx     context.Context
	backend codec.Backend
	codecs  []codec.KV // of each layer
	made    map[codec.KVParams]codec.KV

	feed  codec.Feed
	turns chan struct{} // holds one for each call of a codec in progress

	progress    func(done, total int64)
	done, total int64

	rawSaturated uint64 // of raw tokens
}

func newTranscoder(ctx context.Context, b codec.Backend, progress func(done, total int64)) *transcoder {
	t := &transcoder{ctx: ctx, backend: b, made: map[codec.KVParams]codec.KV{}, feed: b.Feed(), progress: progress}
	t.turns = make(chan struct{}, max(1, t.feed.Calls))
	return t
}

// slots is how many pieces are in memory at a time: one is read or written
// while the others are coded.
func (t *transcoder) slots() int { return cap(t.turns) + 1 }

// call calls a codec, with at most as many calls at once as the backend likes.
func (t *transcoder) call(code func() error) error {
	t.turns <- struct{}{}
	defer func() { <-t.turns }()
	return code()
}

// add gets the codec of the next layer.
func (t *transcoder) add(p codec.KVParams) error {
	kv, ok := t.made[p]
	if !ok {
		var err error
		if kv, err = t.backend.KV(p); err != nil {
			return err
		}
		t.made[p] = kv
	}
	t.codecs = append(t.codecs, kv)
	return nil
}

func (t *transcoder) saturated() uint64 {
	n := t.rawSaturated
	for _, kv := range t.made {
		n += kv.Saturated()
	}
	return n
}

// report notes n more bytes.
func (t *transcoder) report(n int64) {
	t.done += n
	if t.progress != nil {
		t.progress(t.done, t.total)
	}
}

func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
