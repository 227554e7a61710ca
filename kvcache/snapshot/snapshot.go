// Package snapshot reads and writes KV snapshots: safetensors files of packed
// keys and values that another machine restores to the same bits
// (docs/format.md, "KV snapshot").
package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/strictjson"
)

// Errors that this package's functions wrap, in addition to codec's and those of
// reading and writing.
var (
	// ErrNotSnapshot reports a safetensors file that is not a KV snapshot.
	ErrNotSnapshot = errors.New("not a KV snapshot")
	// ErrVersion reports a snapshot of a version that this package does not read.
	ErrVersion = errors.New("unknown snapshot version")
	// ErrSnapshot reports a snapshot whose description is malformed or does not
	// fit its tensors.
	ErrSnapshot = errors.New("malformed snapshot")
	// ErrSource reports a file that cannot become a snapshot: it is one already,
	// or a name in it is taken.
	ErrSource = errors.New("cannot be packed")
	// ErrNoTensor reports a name or layer that does not exist.
	ErrNoTensor = errors.New("no such tensor")
	// ErrPair reports keys without values, values without keys, or two that do
	// not belong together.
	ErrPair = errors.New("keys and values do not pair")
	// ErrCentre reports a centre that is given and cannot be that of its tensor.
	ErrCentre = errors.New("centre does not fit")
	// ErrArgument reports an argument that no file is to blame for: a missing
	// backend, or an index out of range.
	ErrArgument = errors.New("invalid argument")
)

// Metadata keys of a snapshot. All others are the source's own and are kept.
const (
	formatKey  = "turbotrellis.format"
	versionKey = "turbotrellis.version"
	kvKey      = "turbotrellis.kv"

	formatName = "kv-snapshot"
	version1   = "1"
	version2   = "2" // with row codes, centres or raw tokens

	// signSeed is the key of the generator that makes the rotation's signs.
	signSeed = 42
)

// Part describes one packed tensor of a layer.
type Part struct {
	Name    string `json:"name"`              // of the tensor that was packed
	DType   string `json:"dtype"`             // its safetensors dtype: F32, F16 or BF16
	Shape   []int  `json:"shape"`             // its shape, [..., tokens, head dimension]
	Bits    int    `json:"bits"`              // bits per packed element
	Signed  bool   `json:"signed,omitempty"`  // keys of 8 bits only
	Code    string `json:"code,omitempty"`    // levels or trellis: a row code; none for groups
	Centred bool   `json:"centred,omitempty"` // the row code is
}

// Layer describes the keys and values of one attention layer.
type Layer struct {
	Keys   Part `json:"keys"`
	Values Part `json:"values"`
}

// description is the JSON under kvKey.
type description struct {
	Group     int             `json:"group"`
	ScaleType codec.DType     `json:"scale_type"`
	Policy    codec.Policy    `json:"policy"`
	Scale     codec.ScaleRule `json:"scale"`
	SignSeed  int             `json:"sign_seed"`
	RawFirst  int             `json:"raw_first,omitempty"`
	RawLast   int             `json:"raw_last,omitempty"`
	Layers    []Layer         `json:"layers" strictjson:"optional"`
	Raw       []string        `json:"raw" strictjson:"optional"` // tensors kept as they were
}

// description1 is what version 1 has of it.
type description1 struct {
	Group     int             `json:"group"`
	ScaleType codec.DType     `json:"scale_type"`
	Policy    codec.Policy    `json:"policy"`
	Scale     codec.ScaleRule `json:"scale"`
	SignSeed  int             `json:"sign_seed"`
	Layers    []struct {
		Keys   part1 `json:"keys"`
		Values part1 `json:"values"`
	} `json:"layers" strictjson:"optional"`
	Raw []string `json:"raw" strictjson:"optional"`
}

type part1 struct {
	Name   string `json:"name"`
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"`
	Bits   int    `json:"bits"`
	Signed bool   `json:"signed,omitempty"`
}

func (p part1) part() Part {
	return Part{Name: p.Name, DType: p.DType, Shape: p.Shape, Bits: p.Bits, Signed: p.Signed}
}

// parse reads the description of a version.
func (d *description) parse(version, text string) error {
	switch version {
	case version1:
		var d1 description1
		if err := strictjson.Unmarshal([]byte(text), &d1); err != nil {
			return malformed("metadata %s: %v", kvKey, err)
		}
		*d = description{Group: d1.Group, ScaleType: d1.ScaleType, Policy: d1.Policy, Scale: d1.Scale, SignSeed: d1.SignSeed, Raw: d1.Raw}
		for _, l := range d1.Layers {
			d.Layers = append(d.Layers, Layer{l.Keys.part(), l.Values.part()})
		}
		return nil
	case version2:
		if err := strictjson.Unmarshal([]byte(text), d); err != nil {
			return malformed("metadata %s: %v", kvKey, err)
		}
		return nil
	}
	return fmt.Errorf("%w %q: this program reads %q and %q", ErrVersion, version, version1, version2)
}

// version returns the version that a file of this description needs.
func (d *description) version() string {
	if !d.edges().none() {
		return version2
	}
	for _, l := range d.Layers {
		if l.Keys.Code != "" || l.Values.Code != "" {
			return version2
		}
	}
	return version1
}

func (d *description) edges() edges { return edges{d.RawFirst, d.RawLast} }

// Snapshot is an opened KV snapshot. It reads tensors when they are asked for.
// Its methods are safe for concurrent use. The zero Snapshot has no layers, and
// only Open makes one that can be decoded.
type Snapshot struct {
	file *safetensors.File
	desc description
	base codec.KVParams // what all layers share

	version int
}

// Open reads the description of the snapshot in the first size bytes of r and
// checks it against the file's tensors: every part present, with the dtype and
// shape that its description gives, and nothing left over.
func Open(r io.ReaderAt, size int64) (*Snapshot, error) {
	f, err := safetensors.NewFile(r, size)
	if err != nil {
		return nil, err
	}
	meta := f.Metadata()
	if meta[formatKey] != formatName {
		return nil, fmt.Errorf("%w: metadata %s is %q, want %q", ErrNotSnapshot, formatKey, meta[formatKey], formatName)
	}
	s := &Snapshot{file: f, version: 1}
	if meta[versionKey] == version2 {
		s.version = 2
	}
	if err := s.desc.parse(meta[versionKey], meta[kvKey]); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrSnapshot}, args...)...)
}

func (s *Snapshot) check() error {
	d := &s.desc
	if d.SignSeed != signSeed {
		return malformed("sign seed %d: this program knows %d", d.SignSeed, signSeed)
	}
	if d.Group == 0 {
		return malformed("group 0: want 32 or 64") // codec would take the default
	}
	if err := checkEdges(d.edges()); err != nil {
		return malformed("%v", err)
	}
	s.base = codec.KVParams{Group: d.Group, ScaleType: d.ScaleType, Policy: d.Policy, Scale: d.Scale}
	want := map[string]safetensors.Info{}
	add := func(in safetensors.Info) error {
		if _, ok := want[in.Name]; ok {
			return malformed("tensor %q belongs to two parts", in.Name)
		}
		want[in.Name] = in
		return nil
	}
	restored := map[string]bool{}
	for i, l := range d.Layers {
		p, err := l.params(s.base)
		if err != nil {
			return malformed("layer %d (%q): %v", i, l.Keys.Name, err)
		}
		if err := l.checkPair(); err != nil {
			return malformed("layer %d: %v", i, err)
		}
		for _, in := range l.stored(p, d.edges()) {
			if err := add(in); err != nil {
				return err
			}
		}
		for _, name := range []string{l.Keys.Name, l.Values.Name} {
			if restored[name] {
				return malformed("tensor %q is described twice", name)
			}
			restored[name] = true
		}
	}
	for _, name := range d.Raw {
		in, ok := s.file.Lookup(name)
		if !ok {
			return malformed("tensor %q is missing", name)
		}
		if restored[name] {
			return malformed("tensor %q is described twice", name)
		}
		restored[name] = true
		if err := add(in); err != nil {
			return err
		}
	}
	for _, got := range s.file.Tensors() {
		in, ok := want[got.Name]
		if !ok {
			return malformed("tensor %q belongs to no layer", got.Name)
		}
		if got.DType != in.DType || !slices.Equal(got.Shape, in.Shape) {
			return malformed("tensor %q is %s %v, want %s %v", got.Name, got.DType, got.Shape, in.DType, in.Shape)
		}
		delete(want, got.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		return malformed("tensor %q is missing", name)
	}
	return nil
}

// params returns the codec parameters of a layer.
func (l Layer) params(base codec.KVParams) (codec.KVParams, error) {
	p := base
	p.HeadDim, p.ValueHeadDim = l.Keys.dim(), l.Values.dim()
	var errK, errV error
	p.Keys, errK = l.Keys.format(func() (codec.Format, error) { return codec.KeyFormat(l.Keys.Bits, l.Keys.Signed) })
	p.Values, errV = l.Values.format(func() (codec.Format, error) { return codec.ValueFormat(l.Values.Bits) })
	if err := errors.Join(errK, errV); err != nil {
		return p, err
	}
	if l.Values.Signed {
		return p, fmt.Errorf("tensor %q: values are not signed", l.Values.Name)
	}
	if p.ValueHeadDim == 0 {
		return p, fmt.Errorf("tensor %q has no head dimension", l.Values.Name)
	}
	p.CentreKeys, p.CentreValues = l.Keys.Centred, l.Values.Centred
	return p.WithDefaults(), p.Validate()
}

// Names of row codes.
const (
	levels  = "levels"
	trellis = "trellis"
)

// format returns the format of a part: a row code, or what groups says.
func (p Part) format(groups func() (codec.Format, error)) (codec.Format, error) {
	if p.Code == "" {
		return groups()
	}
	if p.Signed {
		return 0, fmt.Errorf("tensor %q: a row code is not signed", p.Name)
	}
	for _, f := range codec.ValueFormats() {
		if f.RowCode() && f.Bits() == p.Bits && rowCodeName(f) == p.Code {
			return f, nil
		}
	}
	return 0, fmt.Errorf("tensor %q: code %q of %d bits: want %s of 2 to 5 or %s of 2 to 4", p.Name, p.Code, p.Bits, levels, trellis)
}

// rowCodeName returns the code of a format, "" if it is of groups.
func rowCodeName(f codec.Format) string {
	switch {
	case f.Trellis():
		return trellis
	case f.RowCode():
		return levels
	}
	return ""
}

// checkEdges checks numbers of raw tokens.
func checkEdges(e edges) error {
	if e.first < 0 || e.last < 0 || max(e.first, e.last) > math.MaxInt32 {
		return fmt.Errorf("%d first and %d last tokens raw: want 0 to %d", e.first, e.last, math.MaxInt32)
	}
	return nil
}

// checkPair reports whether two parts can be one layer.
func (l Layer) checkPair() error {
	k, v := l.Keys, l.Values
	for _, p := range []Part{k, v} {
		if len(p.Shape) < 2 {
			return fmt.Errorf("%w: tensor %q has shape %v, want [..., tokens, head dimension]", codec.ErrShape, p.Name, p.Shape)
		}
		n := 1
		for _, d := range p.Shape {
			if d < 0 || d > 0 && n > math.MaxInt/64/d { // no element type has more than 64 bits
				return fmt.Errorf("%w: tensor %q has shape %v", codec.ErrShape, p.Name, p.Shape)
			}
			n *= max(d, 1)
		}
	}
	if !slices.Equal(k.Shape[:len(k.Shape)-1], v.Shape[:len(v.Shape)-1]) {
		return fmt.Errorf("%w: tensor %q has shape %v and tensor %q %v", ErrPair, k.Name, k.Shape, v.Name, v.Shape)
	}
	if k.DType != v.DType {
		return fmt.Errorf("%w: tensor %q is %s and tensor %q %s", ErrPair, k.Name, k.DType, v.Name, v.DType)
	}
	if _, err := k.dtype(); err != nil {
		return fmt.Errorf("tensor %q: %w", k.Name, err)
	}
	return nil
}

func (p Part) dim() int {
	if len(p.Shape) == 0 {
		return 0
	}
	return p.Shape[len(p.Shape)-1]
}

// dtype returns the element type of the tensor that was packed.
func (p Part) dtype() (codec.DType, error) { return floatType(safetensors.DType(p.DType)) }

func floatType(in safetensors.DType) (codec.DType, error) {
	d, ok := in.Float()
	if !ok {
		return 0, fmt.Errorf("%w: %s, want F32, F16 or BF16", codec.ErrDType, in)
	}
	return d, nil
}

// Layers returns the packed layers in file order.
func (s *Snapshot) Layers() []Layer {
	layers := slices.Clone(s.desc.Layers)
	for i := range layers {
		for _, h := range halves {
			part := h.part(&layers[i])
			part.Shape = slices.Clone(part.Shape)
		}
	}
	return layers
}

// Raw returns the names of the tensors that were kept as they were.
func (s *Snapshot) Raw() []string { return slices.Clone(s.desc.Raw) }

// Common returns the parameters that all layers share: group, scale type,
// policy and scale rule.
func (s *Snapshot) Common() codec.KVParams { return s.base }

// RawTokens returns how many tokens at the beginning and at the end of every
// layer are raw, where it has so many.
func (s *Snapshot) RawTokens() (first, last int) { return s.desc.RawFirst, s.desc.RawLast }

// Version returns the version of the file's format, 1 or 2, or 0 of the zero
// Snapshot.
func (s *Snapshot) Version() int { return s.version }

// layer returns layer i and its parameters, or an ErrArgument.
func (s *Snapshot) layer(i int) (Layer, codec.KVParams, error) {
	if i < 0 || i >= len(s.desc.Layers) {
		return Layer{}, codec.KVParams{}, fmt.Errorf("%w: layer %d of %d", ErrArgument, i, len(s.desc.Layers))
	}
	l := s.desc.Layers[i]
	p, err := l.params(s.base)
	return l, p, err
}

// Params returns the codec parameters of layer i of Layers. It returns
// ErrArgument if i is out of range.
func (s *Snapshot) Params(i int) (codec.KVParams, error) {
	_, p, err := s.layer(i)
	return p, err
}

// Metadata returns the metadata of the file that was packed.
func (s *Snapshot) Metadata() map[string]string {
	if s.file == nil {
		return nil
	}
	m := s.file.Metadata()
	maps.DeleteFunc(m, func(k, _ string) bool { return reserved(k) })
	return m
}

// reserved reports whether a key of a file's metadata is a snapshot's own.
func reserved(key string) bool { return key == formatKey || key == versionKey || key == kvKey }

// Sizes returns what the keys and the values of layer i take. It returns
// ErrArgument if i is out of range.
func (s *Snapshot) Sizes(i int) (keys, values Size, err error) {
	l, p, err := s.layer(i)
	if err != nil {
		return Size{}, Size{}, err
	}
	sizes := l.sizes(p, s.desc.edges())
	return sizes[0], sizes[1], nil
}

// Read returns the packed keys and values of layer i, with their centres: of the
// coded tokens alone, whose number is that of the shape. Errors are ErrArgument if
// i is out of range, or those of reading.
func (s *Snapshot) Read(i int) (codec.Keys, codec.Values, error) {
	l, p, err := s.layer(i)
	if err != nil {
		return codec.Keys{}, codec.Values{}, err
	}
	var x rows
	for _, h := range halves {
		part := h.part(&l)
		shape := slices.Clone(part.Shape)
		shape[len(shape)-2] = part.extent(s.desc.edges()).coded()
		*h.shape(&x) = shape
		for _, pl := range h.stored(p) {
			if *h.data(&x, pl.name), err = s.file.AppendTensor(nil, part.Name+pl.suffix()); err != nil {
				return codec.Keys{}, codec.Values{}, err
			}
		}
		if h.centred(p) {
			c := h.centre(&x)
			for suffix, t := range map[string]*codec.Tensor{meanSuffix: &c.Mean, gainSuffix: &c.Gain} {
				if *t, err = s.tensor(part.Name + suffix); err != nil {
					return codec.Keys{}, codec.Values{}, err
				}
			}
		}
	}
	return x.keys, x.values, nil
}

// RawRows are the raw tokens at both ends of the keys or the values of a layer, of
// shape [..., tokens, head dimension] and the type of the tensor that was packed.
// They may hold any bits.
type RawRows struct{ First, Last codec.Tensor }

// ReadRaw returns the raw tokens of layer i, the zero Tensor where the snapshot
// keeps none. Errors are those of Read.
func (s *Snapshot) ReadRaw(i int) (keys, values RawRows, err error) {
	l, _, err := s.layer(i)
	if err != nil {
		return RawRows{}, RawRows{}, err
	}
	for _, from := range []struct {
		n      int
		suffix string
		part   Part
		to     *codec.Tensor
	}{
		{s.desc.RawFirst, firstSuffix, l.Keys, &keys.First}, {s.desc.RawLast, lastSuffix, l.Keys, &keys.Last},
		{s.desc.RawFirst, firstSuffix, l.Values, &values.First}, {s.desc.RawLast, lastSuffix, l.Values, &values.Last},
	} {
		if from.n == 0 {
			continue
		}
		if *from.to, err = s.tensor(from.part.Name + from.suffix); err != nil {
			return RawRows{}, RawRows{}, err
		}
	}
	return keys, values, nil
}

// tensor reads a stored tensor of floating point.
func (s *Snapshot) tensor(name string) (codec.Tensor, error) {
	in, _ := s.file.Lookup(name)
	d, err := floatType(in.DType)
	if err != nil {
		return codec.Tensor{}, err
	}
	data, err := s.file.AppendTensor(nil, name)
	return codec.Tensor{DType: d, Shape: slices.Clone(in.Shape), Data: data}, err
}

// encodeDescription returns the metadata of a snapshot.
func encodeDescription(source map[string]string, d description) (map[string]string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, err
	}
	meta := maps.Clone(source)
	if meta == nil {
		meta = map[string]string{}
	}
	meta[formatKey], meta[versionKey], meta[kvKey] = formatName, d.version(), strings.TrimSpace(b.String())
	return meta, nil
}
