package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/shape"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Affine describes a matrix of affine rows. Its tensors are Base.weight (uint32 words), Base.scales and Base.biases.
type Affine struct {
	Base   string
	Format affine.RowFormat
	Shape  []int       // of the weights, two dimensions or more
	DType  codec.DType // of the scales, the biases and the weights
}

// Weights returns the number of weights.
func (a Affine) Weights() int64 {
	if a.Shape == nil {
		return 0 // the zero value
	}
	return count(a.Shape)
}

// Bytes returns the size of the codes, scales and biases.
func (a Affine) Bytes() int64 {
	if a.Format.Group == 0 {
		return 0 // the zero value
	}
	groups := a.Weights() / int64(a.Format.Group)
	return groups * int64(a.Format.Group/8*a.Format.Bits+2*a.DType.Size())
}

// tensors describes the tensors of the matrix; their names are as they are stored.
func (a Affine) tensors() []safetensors.Info {
	lead, n := a.Shape[:len(a.Shape)-1], a.Shape[len(a.Shape)-1]
	dim := func(n int) []int { return append(slices.Clone(lead), n) }
	t := safetensors.DTypeOf(a.DType)
	return []safetensors.Info{
		{Name: a.Base + weightSuffix, DType: safetensors.U32, Shape: dim(n / 32 * a.Format.Bits)},
		{Name: a.Base + scalesSuffix, DType: t, Shape: dim(n / a.Format.Group)},
		{Name: a.Base + biasesSuffix, DType: t, Shape: dim(n / a.Format.Group)},
	}
}

func count(dims []int) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= int64(d)
	}
	return n
}

// affineEntry is what a model says about affine matrices: about all, or about one.
type affineEntry struct {
	Mode      string `json:"mode"`
	Bits      *int   `json:"bits"`
	GroupSize *int   `json:"group_size"`
}

// format returns the format, or false for another mode and for what is not an entry.
func (e affineEntry) format() (f affine.RowFormat, ok bool) {
	if e.Bits == nil || e.GroupSize == nil || e.Mode != "" && e.Mode != affineMode {
		return f, false
	}
	return affine.RowFormat{Bits: *e.Bits, Group: *e.GroupSize}, true
}

// global reports whether a member of a quantization object is about affine matrices in general.
func global(key string) bool { return key == "bits" || key == "group_size" || key == "mode" }

// readAffine finds the affine matrices of a model with the quantization object o: a member that is about one matrix
// precedes what the object says of all.
func (m *Model) readAffine(o *object) error {
	var all affineEntry
	general := map[string]any{"mode": &all.Mode, "bits": &all.Bits, "group_size": &all.GroupSize}
	single, valid := map[string][]byte{}, true
	for i := range o.members {
		e := &o.members[i]
		if field, ok := general[e.key]; !ok {
			single[e.key] = o.raw(e)
		} else if json.Unmarshal(o.raw(e), field) != nil {
			valid = false
		}
	}
	usual, uniform := all.format()
	uniform = uniform && valid
	for i, f := range m.files {
		for _, t := range f.Tensors() {
			base, ok := strings.CutSuffix(t.Name, weightSuffix)
			if !ok || !m.has(i, t.Name) || t.DType != safetensors.U32 || m.codes(i, t.Name) {
				continue
			}
			if _, _, ok := m.lookup(base + biasesSuffix); !ok {
				continue
			}
			format, ok := usual, uniform
			if raw, there := single[base]; there && string(raw) != "true" {
				var one affineEntry
				if ok = json.Unmarshal(raw, &one) == nil; ok {
					format, ok = one.format()
				}
			}
			if !ok || format.Validate() != nil {
				continue // another program's
			}
			a, err := m.readRows(base, format, t)
			if err != nil {
				return fmt.Errorf("%s %q: %w", quantizationKey, base, err)
			}
			m.isAffine[base] = len(m.affine)
			m.affine = append(m.affine, a)
			for _, p := range a.tensors() {
				m.owner[p.Name] = base
			}
		}
	}
	m.uniform = uniform && len(m.affine) > 0
	return nil
}

// readRows checks the tensors of an affine matrix.
func (m *Model) readRows(base string, f affine.RowFormat, codes safetensors.Info) (Affine, error) {
	_, scales, ok := m.lookup(base + scalesSuffix)
	if !ok {
		return Affine{}, fmt.Errorf("%w: there is no tensor %q", ErrEntry, base+scalesSuffix)
	}
	a := Affine{Base: base, Format: f}
	if a.DType, ok = scales.DType.Float(); !ok {
		return a, fmt.Errorf("%w: tensor %q is %s, want F32, F16 or BF16", ErrEntry, scales.Name, scales.DType)
	}
	last := len(scales.Shape) - 1
	if last < 1 || scales.Shape[last] > math.MaxInt32/f.Group {
		return a, fmt.Errorf("%w: tensor %q has the shape %v", ErrEntry, scales.Name, scales.Shape)
	}
	a.Shape = append(slices.Clone(scales.Shape[:last]), scales.Shape[last]*f.Group)
	if n, err := shape.Elements(a.Shape); err != nil || n > math.MaxInt/8 {
		return a, fmt.Errorf("%w: tensor %q has the shape %v", ErrEntry, scales.Name, scales.Shape)
	}
	for _, want := range a.tensors() {
		if _, t, _ := m.lookup(want.Name); t.DType != want.DType || !slices.Equal(t.Shape, want.Shape) {
			return a, fmt.Errorf("%w: with bits %d, group_size %d and %s %v, tensor %q is %s %v, want %s %v",
				ErrEntry, f.Bits, f.Group, scales.Name, scales.Shape, t.Name, t.DType, t.Shape, want.DType, want.Shape)
		}
	}
	return a, nil
}

// stored is a matrix as a model holds it, with the type that its weights are wanted in.
type stored struct {
	name  string // <base>.weight
	dtype codec.DType
	shape []int // of the weights
	parts []storedPart

	// What it is coded as; neither for plain weights, of type own.
	trellis *Coded
	affine  *Affine
	own     codec.DType
}

type storedPart struct {
	name string
	size int64
	file *safetensors.File
}

// find returns the matrix called <base>.weight, coded or not, in a type: for 0 in its own, or BF16 where trellis codes
// have none. ok is false where there is none, or none of floats.
func (m *Model) find(base string, dtype codec.DType) (t stored, ok bool) {
	_, info, ok := m.lookup(base + weightSuffix)
	if !ok {
		return t, false
	}
	t = stored{name: base + weightSuffix, shape: info.Shape}
	names := []string{t.name}
	if i, ok := m.isBase[base]; ok {
		c := m.coded[i]
		t.trellis, t.own, t.shape = &c, codec.BF16, []int{c.Geometry.Out, c.Geometry.In}
		if dtype != 0 {
			t.own = dtype
		}
		names = append(names, base+scalesSuffix)
	} else if i, ok := m.isAffine[base]; ok {
		a := m.affine[i]
		t.affine, t.own, t.shape = &a, a.DType, a.Shape
		names = append(names, base+scalesSuffix, base+biasesSuffix)
	} else if t.own, ok = info.DType.Float(); !ok {
		return t, false
	}
	if t.dtype = dtype; dtype == 0 {
		t.dtype = t.own
	}
	for _, name := range names {
		if file, info, ok := m.lookup(name); ok {
			t.parts = append(t.parts, storedPart{name, info.Size, m.files[file].File})
		}
	}
	return t, true
}

// plain reports whether the bytes are the weights.
func (t *stored) plain() bool { return t.trellis == nil && t.affine == nil && t.dtype == t.own }

func (t *stored) cols() int { return t.shape[len(t.shape)-1] }

// rows is the number of rows, of all leading dimensions.
func (t *stored) rows() int { return int(count(t.shape[:len(t.shape)-1])) }

func (t *stored) bytes() int64 { return count(t.shape) * int64(t.dtype.Size()) }

// size is the number of bytes as stored.
func (t *stored) size() (n int64) {
	for _, p := range t.parts {
		n += p.size
	}
	return n
}

// fits refuses what memory cannot hold.
func (t *stored) fits() error {
	for _, p := range t.parts {
		if p.size > math.MaxInt {
			return fmt.Errorf("%w: tensor %q: %d bytes do not fit into memory", ErrTensor, p.name, p.size)
		}
	}
	if t.bytes() > math.MaxInt {
		return fmt.Errorf("%w: %d bytes do not fit into memory", ErrTensor, t.bytes())
	}
	return nil
}

// read reads a matrix as it is stored, and sizes s.data for its weights: plain ones are there then.
func (e *encoder) read(ctx context.Context, t *stored, s *scratch) ([][]byte, error) {
	// Room for the largest tensor from the start leaves no smaller one behind.
	s.data = sized(s.data, int(e.largest))[:t.bytes()]
	parts := make([][]byte, len(t.parts))
	for i, p := range t.parts {
		if parts[i] = s.data; !t.plain() {
			s.parts[i] = sized(s.parts[i], int(p.size))
			parts[i] = s.parts[i]
		}
		if err := readTensor(ctx, parts[i], p.file, p.name); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// decode writes the weights to s.data from what read returned.
func (e *encoder) decode(ctx context.Context, t *stored, parts [][]byte, s *scratch, done func(int64)) error {
	if t.plain() {
		return nil
	}
	rows, err := e.rowsOf(t, parts)
	if err != nil {
		return err
	}
	cols, size := t.cols(), t.dtype.Size()
	return e.feed.rows(ctx, s.slots, t.rows(), cols*size, 1, func(_ context.Context, k *slot, r span) error {
		x := codec.Tensor{DType: t.dtype, Shape: []int{r.rows, cols}, Data: s.data[r.first*cols*size:][:r.rows*cols*size]}
		if err := rows(k, x, r.first); err != nil {
			return fmt.Errorf("matrix %q: %w", t.name, err)
		}
		done(int64(r.rows) * int64(cols))
		return nil
	})
}

// rowsOf returns what decodes rows of a matrix that is not plain.
func (e *encoder) rowsOf(t *stored, parts [][]byte) (func(k *slot, dst codec.Tensor, first int) error, error) {
	cols, own := t.cols(), t.own.Size()
	if t.trellis != nil {
		c, err := e.codec(t.trellis.Params)
		if err != nil {
			return nil, err
		}
		m := t.trellis.matrix([2][]byte{parts[0], parts[1]})
		return func(_ *slot, dst codec.Tensor, first int) error { return c.Decode(dst, m, first) }, nil
	}
	plain := func(_ *slot, first, n int) ([]byte, error) { return parts[0][first*cols*own:][:n*cols*own], nil }
	if t.affine != nil {
		c, err := e.rows(t.affine.Format)
		if err != nil {
			return nil, err
		}
		codes, scales := cols/8*t.affine.Format.Bits, cols/t.affine.Format.Group*own
		plain = func(k *slot, first, n int) ([]byte, error) {
			k.recon = sized(k.recon, n*cols*own)
			return k.recon, c.Dequantize(codec.Tensor{DType: t.own, Shape: []int{n, cols}, Data: k.recon}, codec.AffineRows{
				Shape: []int{n, cols}, DType: t.own, Codes: parts[0][first*codes:][:n*codes],
				Scales: parts[1][first*scales:][:n*scales], Biases: parts[2][first*scales:][:n*scales],
			})
		}
	}
	return func(k *slot, dst codec.Tensor, first int) error {
		from, err := plain(k, first, dst.Shape[0])
		if err != nil {
			return err
		}
		convert(dst, from, t.own)
		return nil
	}, nil
}

// convert rounds elements once, as IEEE 754 says.
func convert(dst codec.Tensor, from []byte, t codec.DType) {
	if t == dst.DType {
		copy(dst.Data, from)
		return
	}
	for i := range len(from) / t.Size() {
		dst.DType.Store(dst.Data[i*dst.DType.Size():], t.Load(from[i*t.Size():]))
	}
}

// matrix returns the matrix with the given bytes of codes and scales.
func (c Coded) matrix(data [2][]byte) *trellis.Matrix {
	t := &trellis.Matrix{
		Params:   c.Params,
		Geometry: c.Geometry,
		Codes:    make([]uint32, len(data[0])/4),
		Scales:   make([]uint16, len(data[1])/2),
	}
	for i := range t.Codes {
		t.Codes[i] = binary.LittleEndian.Uint32(data[0][4*i:])
	}
	for i := range t.Scales {
		t.Scales[i] = binary.LittleEndian.Uint16(data[1][2*i:])
	}
	return t
}
