// Package snapshot keeps packed KV caches: as snapshots, safetensors files that
// another machine restores to the bit (docs/format.md, "KV snapshot").
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
	"strconv"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/strictjson"
)

// Errors that Open and Encode wrap, beside codec's and those of reading and
// writing.
var (
	// ErrNotSnapshot reports a safetensors file that is no KV snapshot.
	ErrNotSnapshot = errors.New("not a KV snapshot")
	// ErrVersion reports a snapshot of a version that this package does not read.
	ErrVersion = errors.New("unknown snapshot version")
	// ErrSnapshot reports a snapshot whose description is malformed or does not
	// fit its tensors.
	ErrSnapshot = errors.New("malformed snapshot")
	// ErrNoTensor reports a name or layer that is not there.
	ErrNoTensor = errors.New("no such tensor")
	// ErrPair reports keys without values, values without keys, or two that do
	// not belong together.
	ErrPair = errors.New("keys and values do not pair")
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
	Name   string `json:"name"`  // of the tensor that was packed
	DType  string `json:"dtype"` // its safetensors dtype: F32, F16 or BF16
	Shape  []int  `json:"shape"` // its shape, [..., tokens, head dimension]
	Bits   int    `json:"bits"`  // a packed element
	Signed bool   `json:"signed,omitempty"`
}

// Layer describes the keys and values of one attention layer.
type Layer struct {
	Keys   Part `json:"keys"`
	Values Part `json:"values"`
}

// description is the JSON under kvKey.
type description struct {
	Group     int      `json:"group"`
	ScaleType string   `json:"scale_type"`
	Policy    string   `json:"policy"`
	Scale     string   `json:"scale"`
	SignSeed  int      `json:"sign_seed"`
	Layers    []Layer  `json:"layers"`
	Raw       []string `json:"raw"` // tensors kept as they were
}

// Snapshot is an opened KV snapshot. It reads tensors when they are asked for.
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
		return nil, fmt.Errorf("kvcache: %w: metadata %s is %q, want %q", ErrNotSnapshot, formatKey, meta[formatKey], formatName)
	}
	if meta[versionKey] != version {
		return nil, fmt.Errorf("kvcache: %w %q: this program reads %q", ErrVersion, meta[versionKey], version)
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
	return fmt.Errorf("kvcache: %w: "+format, append([]any{ErrSnapshot}, args...)...)
}

func (s *Snapshot) check() error {
	d := &s.desc
	if d.SignSeed != signSeed {
		return malformed("sign seed %d: this program knows %d", d.SignSeed, signSeed)
	}
	if d.Group == 0 {
		return malformed("the group is missing") // codec would take the default
	}
	var err error
	s.base.Group = d.Group
	if err = s.base.ScaleType.UnmarshalText([]byte(d.ScaleType)); err != nil {
		return malformed("scale type: %v", err)
	}
	if err = s.base.Policy.UnmarshalText([]byte(d.Policy)); err != nil {
		return malformed("%v", err)
	}
	if err = s.base.Scale.UnmarshalText([]byte(d.Scale)); err != nil {
		return malformed("%v", err)
	}
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
		for _, in := range slices.Concat(l.Keys.stored(p, true), l.Values.stored(p, false)) {
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
			if d < 0 || d > 0 && n > math.MaxInt/64/d { // 64 bits an element are more than any dtype has
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

// stored returns the tensors that hold a part, in file order.
func (p Part) stored(kv codec.KVParams, keys bool) []safetensors.Info {
	lead := p.Shape[:len(p.Shape)-1]
	shape := func(last int) []int { return append(slices.Clone(lead), last) }
	scales := safetensors.Info{Name: p.Name + ".scales", DType: safetensors.DTypeOf(kv.ScaleType), Shape: shape(p.dim() / kv.Group)}
	codes := safetensors.Info{Name: p.Name + ".codes", DType: safetensors.U8}
	if !keys {
		n, _ := kv.ValueRowLen()
		codes.Shape = shape(n)
		return []safetensors.Info{scales, codes}
	}
	n, _ := kv.KeyRowLen()
	codes.Shape = shape(n)
	if p.Signed {
		codes.DType = safetensors.I8
	}
	zeros := scales
	zeros.Name = p.Name + ".zeros"
	return []safetensors.Info{scales, zeros, codes}
}

// Layers returns the packed layers in file order.
func (s *Snapshot) Layers() []Layer { return slices.Clone(s.desc.Layers) }

// Raw returns the names of the tensors that were kept as they were.
func (s *Snapshot) Raw() []string { return slices.Clone(s.desc.Raw) }

// Common returns the parameters that all layers share: group, scale type,
// policy and scale rule.
func (s *Snapshot) Common() codec.KVParams { return s.base }

// Params returns the codec parameters of layer i of Layers.
func (s *Snapshot) Params(i int) codec.KVParams {
	p, err := s.desc.Layers[i].params(s.base)
	if err != nil {
		panic(err) // Open has checked it
	}
	return p
}

// Metadata returns the metadata of the file that was packed.
func (s *Snapshot) Metadata() map[string]string { return sourceMetadata(s.file.Metadata()) }

func sourceMetadata(m map[string]string) map[string]string {
	maps.DeleteFunc(m, func(k, _ string) bool { return k == formatKey || k == versionKey || k == kvKey })
	return m
}

// Sizes returns the bytes that layer i takes as packed and took before.
func (s *Snapshot) Sizes(i int) (packed, source int64) { return s.desc.Layers[i].sizes(s.Params(i)) }

func (l Layer) sizes(p codec.KVParams) (packed, source int64) {
	rows := int64(l.Keys.rows())
	codes, scales := p.KeyRowLen()
	packed = rows * int64(codes+2*scales)
	codes, scales = p.ValueRowLen()
	packed += rows * int64(codes+scales)
	for _, part := range []Part{l.Keys, l.Values} {
		d, _ := part.dtype() // an unknown dtype does not get past checkPair
		source += rows * int64(part.dim()) * int64(d.Size())
	}
	return packed, source
}

// Read returns the packed keys and values of layer i.
func (s *Snapshot) Read(i int) (codec.Keys, codec.Values, error) {
	l := s.desc.Layers[i]
	k := codec.Keys{Shape: slices.Clone(l.Keys.Shape)}
	v := codec.Values{Shape: slices.Clone(l.Values.Shape)}
	for _, in := range []struct {
		dst  *[]byte
		name string
	}{
		{&k.Codes, l.Keys.Name + ".codes"}, {&k.Scales, l.Keys.Name + ".scales"}, {&k.Zeros, l.Keys.Name + ".zeros"},
		{&v.Codes, l.Values.Name + ".codes"}, {&v.Scales, l.Values.Name + ".scales"},
	} {
		b, err := s.file.AppendTensor(nil, in.name)
		if err != nil {
			return codec.Keys{}, codec.Values{}, err
		}
		*in.dst = b
	}
	return k, v, nil
}

// layerNumber returns the last number among the dot-separated parts of a
// tensor's name.
func layerNumber(name string) (int, bool) {
	parts := strings.Split(name, ".")
	for _, p := range slices.Backward(parts) {
		if n, err := strconv.Atoi(p); err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}

// encodeDescription returns the metadata of a snapshot.
func encodeDescription(source map[string]string, d description) (map[string]string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, err
	}
	meta := sourceMetadata(maps.Clone(source))
	if meta == nil {
		meta = map[string]string{}
	}
	meta[formatKey], meta[versionKey], meta[kvKey] = formatName, version, strings.TrimSpace(b.String())
	return meta, nil
}
