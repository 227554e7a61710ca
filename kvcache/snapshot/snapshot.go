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
	version    = "1"

	// signSeed is the key of the generator that makes the rotation's signs.
	signSeed = 42
)

// Part describes one packed tensor of a layer.
type Part struct {
	Name   string `json:"name"`             // of the tensor that was packed
	DType  string `json:"dtype"`            // its safetensors dtype: F32, F16 or BF16
	Shape  []int  `json:"shape"`            // its shape, [..., tokens, head dimension]
	Bits   int    `json:"bits"`             // bits per packed element
	Signed bool   `json:"signed,omitempty"` // keys of 8 bits only
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
	Layers    []Layer         `json:"layers" strictjson:"optional"`
	Raw       []string        `json:"raw" strictjson:"optional"` // tensors kept as they were
}

// Snapshot is an opened KV snapshot. It reads tensors when they are asked for.
// Its methods are safe for concurrent use. The zero Snapshot has no layers, and
// only Open makes one that can be decoded.
type Snapshot struct {
	file *safetensors.File
	desc description
	base codec.KVParams // what all layers share
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
	if meta[versionKey] != version {
		return nil, fmt.Errorf("%w %q: this program reads %q", ErrVersion, meta[versionKey], version)
	}
	s := &Snapshot{file: f}
	if err := strictjson.Unmarshal([]byte(meta[kvKey]), &s.desc); err != nil {
		return nil, malformed("metadata %s: %v", kvKey, err)
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
		for _, in := range l.stored(p) {
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
	p.Keys, errK = codec.KeyFormat(l.Keys.Bits, l.Keys.Signed)
	p.Values, errV = codec.ValueFormat(l.Values.Bits)
	if err := errors.Join(errK, errV); err != nil {
		return p, err
	}
	if l.Values.Signed {
		return p, fmt.Errorf("tensor %q: values are not signed", l.Values.Name)
	}
	if p.ValueHeadDim == 0 {
		return p, fmt.Errorf("tensor %q has no head dimension", l.Values.Name)
	}
	return p.WithDefaults(), p.Validate()
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

func (p Part) rows() int {
	n := 1
	for _, d := range p.Shape[:len(p.Shape)-1] {
		n *= d
	}
	return n
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

// stored returns the tensors that hold a layer, in file order.
func (l Layer) stored(p codec.KVParams) []safetensors.Info {
	var infos []safetensors.Info
	for _, h := range halves {
		part := h.part(&l)
		lead := part.Shape[:len(part.Shape)-1]
		for _, pl := range h.stored(p) {
			infos = append(infos, safetensors.Info{Name: part.Name + pl.suffix(), DType: pl.dtype, Shape: append(slices.Clone(lead), pl.rowLen/pl.dtype.Size())})
		}
	}
	return infos
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

// Sizes returns the bytes of layer i as it is packed and as it was before. It
// returns ErrArgument if i is out of range.
func (s *Snapshot) Sizes(i int) (packed, source int64, err error) {
	l, p, err := s.layer(i)
	if err != nil {
		return 0, 0, err
	}
	packed, source = l.sizes(p)
	return packed, source, nil
}

func (l Layer) sizes(p codec.KVParams) (packed, source int64) {
	for _, h := range halves {
		part := h.part(&l)
		d, _ := part.dtype() // an unknown dtype does not get past checkPair
		source += int64(part.rows()) * int64(part.dim()) * int64(d.Size())
		for _, pl := range h.stored(p) {
			packed += int64(part.rows()) * int64(pl.rowLen)
		}
	}
	return packed, source
}

// Read returns the packed keys and values of layer i. Errors are ErrArgument if
// i is out of range, or those of reading.
func (s *Snapshot) Read(i int) (codec.Keys, codec.Values, error) {
	l, p, err := s.layer(i)
	if err != nil {
		return codec.Keys{}, codec.Values{}, err
	}
	var x rows
	for _, h := range halves {
		part := h.part(&l)
		*h.shape(&x) = slices.Clone(part.Shape)
		for _, pl := range h.stored(p) {
			if *h.data(&x, pl.name), err = s.file.AppendTensor(nil, part.Name+pl.suffix()); err != nil {
				return codec.Keys{}, codec.Values{}, err
			}
		}
	}
	return x.keys, x.values, nil
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
	meta[formatKey], meta[versionKey], meta[kvKey] = formatName, version, strings.TrimSpace(b.String())
	return meta, nil
}
