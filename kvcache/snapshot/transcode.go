package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

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
	Layers      int   // packed or restored
	Raw         int   // tensors copied as they were
	SourceBytes int64 // of the layers' keys and values as they were before packing
	PackedBytes int64 // of the same, packed
}

func (s *Summary) add(l Layer, p codec.KVParams) {
	s.Layers++
	packed, source := l.sizes(p)
	s.PackedBytes += packed
	s.SourceBytes += source
}

// EncodeOptions says what Encode packs and how.
type EncodeOptions struct {
	Backend codec.Backend  // required
	Params  codec.KVParams // the head dimensions are taken from the tensors

	// KeyNames and ValueNames match the names of tensors to pack; nil means
	// the defaults. The first submatch, or the whole match if there is none,
	// is cut from a name, and keys and values whose remaining names are equal
	// are a layer.
	KeyNames, ValueNames *regexp.Regexp

	Skip     LayerSet                // layers to keep as they are
	Progress func(done, total int64) // called with bytes of the source, first with none done, if not nil
}

// Encode reads the safetensors file in the first size bytes of src and writes
// a snapshot of it to dst. Tensors that are no keys or values, or are skipped,
// are copied byte for byte; so is the metadata. Memory use does not grow with
// the file.
//
// Errors are codec's, with the tensor's name and the element's index in it,
// ErrPair, ErrNoTensor where nothing matches, or those of reading and writing.
func Encode(dst io.WriterAt, src io.ReaderAt, size int64, o EncodeOptions) (Summary, error) {
	f, err := safetensors.NewFile(src, size)
	if err != nil {
		return Summary{}, err
	}
	if f.Metadata()[formatKey] == formatName {
		return Summary{}, errors.New("kvcache: the source is already a KV snapshot")
	}
	base := o.Params.WithDefaults()
	d := description{
		Group: base.Group, ScaleType: base.ScaleType.String(), Policy: base.Policy.String(), Scale: base.Scale.String(),
		SignSeed: signSeed, Layers: []Layer{}, Raw: []string{},
	}
	var out []safetensors.Info
	var codecs []codec.KV
	var sum Summary
	layers, err := pairs(f, o)
	if err != nil {
		return Summary{}, err
	}
	packed := map[string]bool{}
	for _, l := range layers {
		l.Keys.Bits, l.Keys.Signed, l.Values.Bits = base.Keys.Bits(), base.Keys.Signed(), base.Values.Bits()
		if err := l.checkPair(); err != nil {
			return Summary{}, fmt.Errorf("kvcache: %w", err)
		}
		p, err := l.params(base)
		if err != nil {
			return Summary{}, fmt.Errorf("kvcache: tensors %q and %q: %w", l.Keys.Name, l.Values.Name, err)
		}
		kv, err := o.Backend.KV(p)
		if err != nil {
			return Summary{}, fmt.Errorf("kvcache: tensors %q and %q: %w", l.Keys.Name, l.Values.Name, err)
		}
		codecs = append(codecs, kv)
		d.Layers = append(d.Layers, l)
		out = append(out, l.Keys.stored(p, true)...)
		out = append(out, l.Values.stored(p, false)...)
		sum.add(l, p)
		packed[l.Keys.Name], packed[l.Values.Name] = true, true
	}
	var total int64
	for _, in := range f.Tensors() {
		total += in.Size
		if !packed[in.Name] {
			d.Raw = append(d.Raw, in.Name)
			out = append(out, in)
		}
	}
	meta, err := encodeDescription(f.Metadata(), d)
	if err != nil {
		return Summary{}, err
	}
	w, err := safetensors.NewWriterAt(dst, meta, out)
	if err != nil {
		return Summary{}, err
	}
	p := &progress{report: o.Progress, total: total}
	p.add(0)
	for i, l := range d.Layers {
		if err := encodePart(w, f, codecs[i], l.Keys, true, p); err != nil {
			return Summary{}, err
		}
		if err := encodePart(w, f, codecs[i], l.Values, false, p); err != nil {
			return Summary{}, err
		}
	}
	for _, name := range d.Raw {
		if err := copyTensor(w, f, name, p); err != nil {
			return Summary{}, err
		}
	}
	sum.Raw = len(d.Raw)
	return sum, w.Close()
}

// pairs finds the layers to pack, in the order of their keys in the file.
func pairs(f *safetensors.File, o EncodeOptions) ([]Layer, error) {
	keyNames, valueNames := cmp.Or(o.KeyNames, DefaultKeyNames), cmp.Or(o.ValueNames, DefaultValueNames)
	var layers []*Layer
	byRest := map[string]*Layer{}
	seen := map[int]bool{}
	for _, in := range f.Tensors() {
		k, v := keyNames.FindStringSubmatchIndex(in.Name), valueNames.FindStringSubmatchIndex(in.Name)
		if k == nil && v == nil {
			continue
		}
		if k != nil && v != nil {
			return nil, fmt.Errorf("kvcache: %w: tensor %q is matched as keys and as values", ErrPair, in.Name)
		}
		if n, ok := layerNumber(in.Name); ok {
			seen[n] = true
			if o.Skip.Has(n) {
				continue
			}
		}
		rest := cut(in.Name, k)
		if v != nil {
			rest = cut(in.Name, v)
		}
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
			return nil, fmt.Errorf("kvcache: %w: tensors %q and %q are both named for one layer", ErrPair, part.Name, in.Name)
		}
		*part = Part{Name: in.Name, DType: string(in.DType), Shape: in.Shape}
	}
	if err := o.Skip.allIn(seen); err != nil {
		return nil, err
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("kvcache: %w: no name matches %v or %v%s", ErrNoTensor, keyNames, valueNames, skipped(seen))
	}
	result := make([]Layer, len(layers))
	for i, l := range layers {
		if l.Keys.Name == "" {
			return nil, fmt.Errorf("kvcache: %w: values %q have no keys", ErrPair, l.Values.Name)
		}
		if l.Values.Name == "" {
			return nil, fmt.Errorf("kvcache: %w: keys %q have no values", ErrPair, l.Keys.Name)
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

// cut removes the first submatch, or the match, from a name.
func cut(name string, m []int) string {
	if m == nil {
		return ""
	}
	if len(m) >= 4 && m[2] >= 0 {
		m = m[2:]
	}
	return name[:m[0]] + "\x00" + name[m[1]:]
}

// DecodeOptions says what Decode restores and how.
type DecodeOptions struct {
	Backend  codec.Backend           // required
	DType    codec.DType             // of restored tensors; 0 means that of the tensor that was packed
	Layers   LayerSet                // layers to restore; nil means every layer and every raw tensor
	Progress func(done, total int64) // called with bytes of the result, first with none done, if not nil
}

// Decode writes the tensors of the snapshot to dst, a safetensors file, under
// the names and shapes that they had. Memory use does not grow with the file.
func (s *Snapshot) Decode(dst io.WriterAt, o DecodeOptions) (Summary, error) {
	var out []safetensors.Info
	var layers []int
	var codecs []codec.KV
	var raw []string
	seen := map[int]bool{}
	var sum Summary
	wanted := func(name string) bool {
		n, ok := layerNumber(name)
		if ok {
			seen[n] = true
		}
		return o.Layers == nil || ok && o.Layers.Has(n)
	}
	for i, l := range s.desc.Layers {
		if !wanted(l.Keys.Name) {
			continue
		}
		kv, err := o.Backend.KV(s.Params(i))
		if err != nil {
			return Summary{}, fmt.Errorf("kvcache: tensors %q and %q: %w", l.Keys.Name, l.Values.Name, err)
		}
		sum.add(l, s.Params(i))
		codecs, layers = append(codecs, kv), append(layers, i)
		for _, p := range []Part{l.Keys, l.Values} {
			out = append(out, safetensors.Info{Name: p.Name, DType: p.restored(o.DType), Shape: p.Shape})
		}
	}
	for _, name := range s.desc.Raw {
		if wanted(name) {
			in, _ := s.file.Lookup(name)
			out, raw = append(out, in), append(raw, name)
		}
	}
	if err := o.Layers.allIn(seen); err != nil {
		return Summary{}, err
	}
	w, err := safetensors.NewWriterAt(dst, s.Metadata(), out)
	if err != nil {
		return Summary{}, err
	}
	p := &progress{report: o.Progress}
	for _, in := range w.Tensors() {
		p.total += in.Size
	}
	p.add(0)
	for j, i := range layers {
		l := s.desc.Layers[i]
		if err := s.decodePart(w, codecs[j], l.Keys, true, o.DType, p); err != nil {
			return Summary{}, err
		}
		if err := s.decodePart(w, codecs[j], l.Values, false, o.DType, p); err != nil {
			return Summary{}, err
		}
	}
	for _, name := range raw {
		if err := copyTensor(w, s.file, name, p); err != nil {
			return Summary{}, err
		}
	}
	sum.Raw = len(raw)
	return sum, w.Close()
}

// restored returns the dtype that a part is restored in.
func (p Part) restored(d codec.DType) safetensors.DType {
	if d == 0 {
		return safetensors.DType(p.DType)
	}
	return safetensors.DTypeOf(d)
}

// chunkBytes is about what one goroutine holds of a tensor at a time.
const chunkBytes = 2 << 20

// progress counts bytes.
type progress struct {
	report      func(done, total int64)
	done, total int64
}

func (p *progress) add(n int64) {
	p.done += n
	if p.report != nil {
		p.report(p.done, p.total)
	}
}

// inChunks calls work on runs of about chunkBytes of rows, several at a time,
// each with a slot of its own, then done for each run in order. The error is
// that of the first run that fails.
func inChunks(rows, rowBytes int, work func(slot, first, n int) error, done func(slot, n int) error) error {
	per := max(1, chunkBytes/rowBytes)
	slots := runtime.GOMAXPROCS(0)
	errs := make([]error, slots)
	for first := 0; first < rows; {
		var wg sync.WaitGroup
		var sizes []int
		for slot := 0; slot < slots && first < rows; slot++ {
			from, n := first, min(per, rows-first)
			wg.Go(func() { errs[slot] = work(slot, from, n) })
			sizes = append(sizes, n)
			first += n
		}
		wg.Wait()
		for slot, n := range sizes {
			if errs[slot] != nil {
				return errs[slot]
			}
			if err := done(slot, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// encodePart packs one tensor of f into its tensors of w.
func encodePart(w *safetensors.Writer, f *safetensors.File, kv codec.KV, part Part, keys bool, p *progress) error {
	d, err := part.dtype()
	if err != nil {
		return err
	}
	src, err := f.Reader(part.Name)
	if err != nil {
		return err
	}
	suffixes := []string{".scales", ".zeros", ".codes"}
	if !keys {
		suffixes = []string{".scales", ".codes"}
	}
	dst, err := tensorWriters(w, part.Name, suffixes)
	if err != nil {
		return err
	}
	dim, rowBytes := part.dim(), part.dim()*d.Size()
	type slot struct {
		in     []byte
		keys   codec.Keys
		values codec.Values
	}
	slots := make([]slot, runtime.GOMAXPROCS(0))
	return inChunks(part.rows(), rowBytes, func(i, first, n int) error {
		s := &slots[i]
		s.in = sized(s.in, n*rowBytes)
		if err := readAt(src, s.in, int64(first)*int64(rowBytes), part.Name); err != nil {
			return err
		}
		x := codec.Tensor{DType: d, Shape: []int{n, dim}, Data: s.in}
		var err error
		if keys {
			err = kv.EncodeKeys(&s.keys, x)
		} else {
			err = kv.EncodeValues(&s.values, x)
		}
		return placed(err, part.Name, first*dim)
	}, func(i, n int) error {
		s := &slots[i]
		parts := [][]byte{s.keys.Scales, s.keys.Zeros, s.keys.Codes}
		if !keys {
			parts = [][]byte{s.values.Scales, s.values.Codes}
		}
		for j, b := range parts {
			if _, err := dst[j].Write(b); err != nil {
				return err
			}
		}
		p.add(int64(n) * int64(rowBytes))
		return nil
	})
}

// decodePart restores one tensor of the snapshot into w.
func (s *Snapshot) decodePart(w *safetensors.Writer, kv codec.KV, part Part, keys bool, dt codec.DType, p *progress) error {
	dst, err := w.Tensor(part.Name)
	if err != nil {
		return err
	}
	d, err := floatType(part.restored(dt))
	if err != nil {
		return err
	}
	params := kv.Params()
	codesLen, scalesLen := params.KeyRowLen()
	suffixes, lens := []string{".codes", ".scales", ".zeros"}, []int{codesLen, scalesLen, scalesLen}
	if !keys {
		codesLen, scalesLen = params.ValueRowLen()
		suffixes, lens = []string{".codes", ".scales"}, []int{codesLen, scalesLen}
	}
	var src []*io.SectionReader
	for _, suffix := range suffixes {
		r, err := s.file.Reader(part.Name + suffix)
		if err != nil {
			return err
		}
		src = append(src, r)
	}
	dim, rowBytes := part.dim(), part.dim()*d.Size()
	type slot struct {
		in  [3][]byte
		out []byte
	}
	slots := make([]slot, runtime.GOMAXPROCS(0))
	return inChunks(part.rows(), rowBytes, func(i, first, n int) error {
		s := &slots[i]
		for j, r := range src {
			s.in[j] = sized(s.in[j], n*lens[j])
			if err := readAt(r, s.in[j], int64(first)*int64(lens[j]), part.Name+suffixes[j]); err != nil {
				return err
			}
		}
		s.out = sized(s.out, n*rowBytes)
		shape := []int{n, dim}
		x := codec.Tensor{DType: d, Shape: shape, Data: s.out}
		var err error
		if keys {
			err = kv.DecodeKeys(x, codec.Keys{Shape: shape, Codes: s.in[0], Scales: s.in[1], Zeros: s.in[2]})
		} else {
			err = kv.DecodeValues(x, codec.Values{Shape: shape, Codes: s.in[0], Scales: s.in[1]})
		}
		return placed(err, part.Name, first*dim)
	}, func(i, n int) error {
		if _, err := dst.Write(slots[i].out); err != nil {
			return err
		}
		p.add(int64(len(slots[i].out)))
		return nil
	})
}

// placed puts the tensor's own name into a codec's error, and the element's
// index in the whole tensor.
func placed(err error, name string, base int) error {
	var e *codec.Error
	if !errors.As(err, &e) {
		return err
	}
	at := *e
	at.Tensor = strconv.Quote(name)
	if at.Index != codec.NoIndex {
		at.Index += base
	}
	return &at
}

func tensorWriters(w *safetensors.Writer, name string, suffixes []string) ([]io.Writer, error) {
	var result []io.Writer
	for _, suffix := range suffixes {
		t, err := w.Tensor(name + suffix)
		if err != nil {
			return nil, err
		}
		result = append(result, t)
	}
	return result, nil
}

func copyTensor(w *safetensors.Writer, f *safetensors.File, name string, p *progress) error {
	r, err := f.Reader(name)
	if err != nil {
		return err
	}
	t, err := w.Tensor(name)
	if err != nil {
		return err
	}
	for {
		n, err := io.CopyN(t, r, chunkBytes)
		p.add(n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readAt fills b from offset off of a tensor.
func readAt(r io.ReaderAt, b []byte, off int64, name string) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return &safetensors.Error{Tensor: name, Err: err}
}

func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// LayerSet is a set of layer numbers. The layer of a tensor is the last number
// among the dot-separated parts of its name.
type LayerSet map[int]bool

// maxLayer bounds the numbers of a LayerSet.
const maxLayer = 1 << 16

// ParseLayers reads a list of numbers and ranges such as "0,2,5-7". The set of
// "" is nil.
func ParseLayers(list string) (LayerSet, error) {
	if list == "" {
		return nil, nil
	}
	set := LayerSet{}
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.Atoi(lo)
		b, errB := strconv.Atoi(hi)
		if err := errors.Join(errA, errB); err != nil || a < 0 || b < a || b > maxLayer {
			return nil, fmt.Errorf("kvcache: layer list %q: %q is no number or range within 0-%d", list, part, maxLayer)
		}
		for n := a; n <= b; n++ {
			set[n] = true
		}
	}
	return set, nil
}

// Has reports whether layer n is in the set.
func (s LayerSet) Has(n int) bool { return s[n] }

// allIn returns an error that names the first layer of the set not in seen.
func (s LayerSet) allIn(seen map[int]bool) error {
	for _, n := range slices.Sorted(maps.Keys(s)) {
		if !seen[n] {
			return fmt.Errorf("kvcache: %w: there is no layer %d", ErrNoTensor, n)
		}
	}
	return nil
}
