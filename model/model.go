package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
)

const (
	configName = "config.json"
	indexName  = "model.safetensors.index.json"
	singleName = "model.safetensors"
)

// Model is an opened model, coded or not. It holds headers and no tensors; its
// methods may be called concurrently.
type Model struct {
	path     string // "" for OpenFile
	dir      bool
	files    []shard   // sorted by name
	config   []byte    // of a directory
	index    []byte    // of a directory in shards
	others   []further // further files of a directory, sorted by name
	origins  []origin  // what was read
	where    map[string]int
	coded    []Coded
	isBase   map[string]int // of coded
	affine   []Affine
	isAffine map[string]int    // of affine
	uniform  bool              // quantization has bits and group_size of all affine matrices
	owner    map[string]string // the base of the coded matrix that a tensor belongs to
}

// further is a file that holds none of the model's tensors.
type further struct {
	name string // slash-separated, from the directory
	origin
}

type shard struct {
	name string // slash-separated, from the directory, clean
	*safetensors.File
}

// Coded describes one coded matrix.
type Coded struct {
	Base     string // its tensors are Base.weight and Base.scales
	Params   trellis.Params
	Geometry trellis.Geometry
}

// Bytes returns the size of the codes and scales.
func (c Coded) Bytes() int64 {
	if c.Params.T == 0 {
		return 0 // the zero value
	}
	return 4*int64(c.Geometry.CodesLen(c.Params)) + 2*int64(c.Geometry.Rows())
}

// Weights returns the number of weights.
func (c Coded) Weights() int64 { return int64(c.Geometry.Out) * int64(c.Geometry.In) }

// Open opens a model directory or one safetensors file and checks every entry
// against its tensors. Errors wrap ErrModel, ErrEntry, those of package
// safetensors or of the system.
func Open(path string) (*Model, error) {
	m := newModel(path)
	if err := m.open(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func newModel(path string) *Model {
	return &Model{path: path, where: map[string]int{}, isBase: map[string]int{}, isAffine: map[string]int{}, owner: map[string]string{}}
}

// OpenFile is Open for one safetensors file in the first size bytes of r.
func OpenFile(r io.ReaderAt, size int64) (*Model, error) {
	m := newModel("")
	f, err := safetensors.NewFile(r, size)
	if err == nil {
		m.files = []shard{{singleName, f}}
		if err = m.place(nil); err == nil {
			err = m.readEntries()
		}
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Model) open() error {
	st, err := os.Stat(m.path)
	if err != nil {
		return err
	}
	m.dir = st.IsDir()
	names := []string{filepath.Base(m.path)}
	var weightMap map[string]string
	if m.dir {
		if names, weightMap, err = m.list(); err != nil {
			return err
		}
	}
	for _, name := range names {
		path := m.path
		if m.dir {
			path = filepath.Join(m.path, filepath.FromSlash(name))
		}
		o, err := originOf(path)
		if err != nil {
			return err
		}
		f, err := safetensors.Open(path)
		if err != nil {
			return err
		}
		m.files, m.origins = append(m.files, shard{name, f}), append(m.origins, o)
	}
	if err := m.place(weightMap); err != nil {
		return err
	}
	return m.readEntries()
}

// list finds the files of a directory and returns the names of those with
// tensors, and for a model in shards the shard of each tensor.
func (m *Model) list() (names []string, weightMap map[string]string, err error) {
	if m.config, err = m.readFile(configName); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	m.index, err = m.readFile(indexName)
	switch {
	case err == nil:
		if weightMap, err = parseWeightMap(m.index); err != nil {
			return nil, nil, fmt.Errorf("%w: %s: %w", ErrModel, indexName, err)
		}
		names = slices.Compact(slices.Sorted(maps.Values(weightMap)))
		if err := distinct(append([]string{configName, indexName}, names...)); err != nil {
			return nil, nil, err
		}
		var missing []string
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(m.path, filepath.FromSlash(name))); errors.Is(err, fs.ErrNotExist) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return nil, nil, fmt.Errorf("%w: %d of %d shards are missing: %s", ErrModel, len(missing), len(names), strings.Join(missing, ", "))
		}
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Join(m.path, singleName)); err != nil {
			return nil, nil, fmt.Errorf("%w: %s has neither %s nor %s", ErrModel, m.path, singleName, indexName)
		}
		names = []string{singleName}
	default:
		return nil, nil, err
	}
	m.others, err = otherFiles(m.path, append([]string{configName, indexName}, names...))
	return names, weightMap, err
}

// readFile reads a file of the directory.
func (m *Model) readFile(name string) ([]byte, error) {
	text, o, err := readFile(filepath.Join(m.path, name))
	if err == nil {
		m.origins = append(m.origins, o)
	}
	return text, err
}

// otherFiles lists the regular files below dir, links to files among them, except for skip and for what Git and
// download caches keep there.
func otherFiles(dir string, skip []string) ([]further, error) {
	dir, err := filepath.EvalSymlinks(dir) // a walk does not follow the first one
	if err != nil {
		return nil, err
	}
	var result []further
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != dir && left(d) && d.IsDir():
			return filepath.SkipDir
		case d.IsDir() || left(d):
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if rel = filepath.ToSlash(rel); slices.Contains(skip, rel) {
			return nil
		}
		o, err := originOf(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrModel, err)
		}
		result = append(result, further{rel, o})
		return nil
	})
	return result, err
}

// twice lists the further files that hold tensors of the model's names, such as a stale single file beside
// shards, with such a tensor and the file that the model has it in.
func (m *Model) twice() []string {
	var result []string
	for _, o := range m.others {
		if !strings.EqualFold(filepath.Ext(o.name), ".safetensors") {
			continue
		}
		f, err := safetensors.Open(o.path)
		if err != nil {
			continue // no model's; copied like any other file
		}
		for _, t := range f.Tensors() {
			if i, ok := m.where[t.Name]; ok {
				result = append(result, fmt.Sprintf("%s holds a tensor %q too, which the model has in %s", o.name, t.Name, m.files[i].name))
				break
			}
		}
		f.Close()
	}
	return result
}

func parseWeightMap(index []byte) (map[string]string, error) {
	o, err := parseObject(index)
	if err != nil {
		return nil, err
	}
	m := o.find("weight_map")
	if m == nil {
		return nil, errors.New("no weight_map")
	}
	names, err := parseObject(o.raw(m))
	if err != nil {
		return nil, fmt.Errorf("weight_map: %w", err)
	}
	if len(names.members) == 0 {
		return nil, errors.New("weight_map is empty")
	}
	result := map[string]string{}
	for i := range names.members {
		n := &names.members[i]
		var file string
		if err := json.Unmarshal(names.raw(n), &file); err != nil {
			return nil, fmt.Errorf("weight_map: %q: %w", n.key, err)
		}
		if result[n.key], err = cleanName(file); err != nil {
			return nil, fmt.Errorf("weight_map: %q: %w", n.key, err)
		}
	}
	return result, nil
}

// place notes which file holds each tensor. A tensor in a shard that the index
// does not send there is carried along and never looked at.
func (m *Model) place(weightMap map[string]string) error {
	for i, f := range m.files {
		for _, t := range f.Tensors() {
			if weightMap == nil || weightMap[t.Name] == f.name {
				m.where[t.Name] = i
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		if _, ok := m.where[name]; !ok {
			return fmt.Errorf("%w: tensor %q is missing from %s", ErrModel, name, weightMap[name])
		}
	}
	return nil
}

// has reports whether a tensor of a file is the model's: the index, where there is one, lists it there.
func (m *Model) has(file int, name string) bool {
	i, ok := m.where[name]
	return ok && i == file
}

// lookup finds a tensor.
func (m *Model) lookup(name string) (file int, info safetensors.Info, ok bool) {
	file, ok = m.where[name]
	if ok {
		info, ok = m.files[file].Lookup(name)
	}
	return file, info, ok
}

// quantization returns the object that holds the entries, nil where there is
// none.
func (m *Model) quantization() ([]byte, error) {
	if !m.dir {
		if q, ok := m.Metadata()[quantizationKey]; ok {
			return []byte(q), nil
		}
		return nil, nil
	}
	o, err := parseObject(m.config)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, configName, err)
	}
	if q := o.find(quantizationKey); q != nil {
		return o.raw(q), nil
	}
	return nil, nil
}

func (m *Model) readEntries() error {
	q, err := m.quantization()
	if q == nil || err != nil {
		return err
	}
	o, err := parseObject(q)
	if err != nil && !m.dir && !isObject(q) {
		return nil // some other program's word for something else
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrEntry, quantizationKey, err)
	}
	for i := range o.members {
		e := &o.members[i]
		if !isTrellis(o.raw(e)) {
			continue
		}
		c, err := m.readEntry(e.key, o.raw(e))
		if err != nil {
			return fmt.Errorf("%s %q: %w", quantizationKey, e.key, err)
		}
		m.isBase[c.Base] = len(m.coded)
		m.coded = append(m.coded, c)
		m.owner[c.Base+weightSuffix], m.owner[c.Base+scalesSuffix] = c.Base, c.Base
	}
	return m.readAffine(o)
}

// readEntry checks an entry against the tensors it describes.
func (m *Model) readEntry(base string, raw []byte) (Coded, error) {
	p, axis, err := parseEntry(raw)
	if err != nil {
		return Coded{}, err
	}
	_, codes, ok := m.lookup(base + weightSuffix)
	if !ok {
		return Coded{}, fmt.Errorf("%w: there is no tensor %q", ErrEntry, base+weightSuffix)
	}
	_, scales, ok := m.lookup(base + scalesSuffix)
	if !ok {
		return Coded{}, fmt.Errorf("%w: there is no tensor %q", ErrEntry, base+scalesSuffix)
	}
	if codes.DType != safetensors.U32 {
		return Coded{}, fmt.Errorf("%w: tensor %q is %s, want U32", ErrEntry, codes.Name, codes.DType)
	}
	g, err := trellis.GeometryOf(codes.Shape, axis, p)
	if err != nil {
		return Coded{}, fmt.Errorf("%w: tensor %q with bits %d, group_size %d: %w", ErrEntry, codes.Name, p.K, p.T, err)
	}
	if scales.DType != safetensors.F16 || !slices.Equal(scales.Shape, []int{g.Rows()}) {
		return Coded{}, fmt.Errorf("%w: tensor %q is %s %v, want F16 [%d]", ErrEntry, scales.Name, scales.DType, scales.Shape, g.Rows())
	}
	return Coded{base, p, g}, nil
}

// Coded returns the trellis-coded matrices in the order of their entries.
func (m *Model) Coded() []Coded { return slices.Clone(m.coded) }

// Affine returns the matrices of affine rows, file by file in the order of their data.
func (m *Model) Affine() []Affine { return slices.Clone(m.affine) }

// Tensor describes a tensor as it is stored.
type Tensor struct {
	Name  string
	DType string // as safetensors spells it
	Shape []int
	Bytes int64
	File  string // that holds it
}

// Plain returns the tensors that belong to no coded matrix, file by file in the
// order of their data.
func (m *Model) Plain() []Tensor {
	var result []Tensor
	for i, f := range m.files {
		for _, t := range f.Tensors() {
			if !m.codes(i, t.Name) {
				result = append(result, Tensor{t.Name, string(t.DType), t.Shape, t.Size, f.name})
			}
		}
	}
	return result
}

// codes reports whether a tensor of a file is that of a trellis-coded or affine matrix.
func (m *Model) codes(file int, name string) bool {
	_, ok := m.owner[name]
	return ok && m.has(file, name)
}

// Files returns the names of the files that hold tensors.
func (m *Model) Files() []string {
	var names []string
	for _, f := range m.files {
		names = append(names, f.name)
	}
	return names
}

// IsDir reports whether the model is a directory.
func (m *Model) IsDir() bool { return m.dir }

// Metadata returns the metadata of a model that is one file.
func (m *Model) Metadata() map[string]string {
	if m.dir || len(m.files) == 0 {
		return nil
	}
	return m.files[0].Metadata()
}

// Matrix reads one trellis-coded matrix. It wraps ErrSelection where there is none of
// that name.
func (m *Model) Matrix(base string) (*trellis.Matrix, error) {
	i, ok := m.isBase[base]
	if !ok {
		return nil, fmt.Errorf("%w: there is no coded matrix %q", ErrSelection, base)
	}
	t, _ := m.find(base, 0)
	var data [2][]byte
	for n, p := range t.parts {
		if p.size > math.MaxInt {
			return nil, fmt.Errorf("%w: tensor %q: %d bytes do not fit into memory", ErrTensor, p.name, p.size)
		}
		data[n] = make([]byte, p.size)
		if err := readTensor(context.Background(), data[n], p.file, p.name); err != nil {
			return nil, err
		}
	}
	return m.coded[i].matrix(data), nil
}

// Close closes the model's files.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
