package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/strictjson"
)

// A part of an encoding is a directory that holds the files of the whole with
// some of their tensors, and partName, which describes the whole. The coded
// tensors are spread over all parts; what is copied is in the first.
const (
	partName   = "turbotrellis-part.json"
	partFormat = "turbotrellis part 1"
)

type manifest struct {
	Format string         `json:"format"`
	Part   int            `json:"part"` // from 1
	Parts  int            `json:"parts"`
	Run    string         `json:"run"` // digest of the options and of the files to write
	Dir    bool           `json:"dir"` // the whole is a directory
	Files  []manifestFile `json:"files"`
}

type manifestFile struct {
	Name     string            `json:"name"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Tensors  []manifestTensor  `json:"tensors"`
}

type manifestTensor struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Part  int    `json:"part"`
}

// assign spreads tensors over parts, numbered from 1: the largest first, each
// to the part with the fewest weights so far, ties by name and by number.
func assign(tensors []Planned, parts int) map[string]int {
	order := slices.Clone(tensors)
	slices.SortFunc(order, func(a, b Planned) int {
		return cmp.Or(cmp.Compare(b.Weights(), a.Weights()), cmp.Compare(a.Name, b.Name))
	})
	load := make([]int64, parts)
	owner := map[string]int{}
	for _, t := range order {
		least := 0
		for i, n := range load {
			if n < load[least] {
				least = i
			}
		}
		load[least] += t.Weights()
		owner[t.Name] = least + 1
	}
	return owner
}

// keepPart turns the description of a whole model into that of one part.
func (b *build) keepPart(part, parts int, owner map[string]int) {
	of := manifest{Format: partFormat, Part: part, Parts: parts, Run: sha([]byte(b.options)), Dir: b.dir}
	belongs := map[string]int{}
	var jobs []job
	for _, j := range b.jobs {
		for _, out := range j.outs {
			belongs[out] = owner[j.name]
		}
		if owner[j.name] == part {
			jobs = append(jobs, j)
		}
	}
	b.jobs = jobs
	for i := range b.files {
		f := &b.files[i]
		mf := manifestFile{Name: f.name, Metadata: f.meta, Tensors: []manifestTensor{}}
		var infos []safetensors.Info
		copies := map[string]*safetensors.File{}
		for _, t := range f.infos {
			p := 1
			if f.copies[t.Name] == nil {
				p = belongs[t.Name]
			}
			mf.Tensors = append(mf.Tensors, manifestTensor{t.Name, string(t.DType), t.Shape, p})
			if p != part {
				continue
			}
			infos = append(infos, t)
			if src := f.copies[t.Name]; src != nil {
				copies[t.Name] = src
			}
		}
		f.infos, f.copies = infos, copies
		of.Files = append(of.Files, mf)
	}
	if part > 1 {
		clear(b.texts)
		clear(b.links)
	}
	b.texts[partName] = marshal(of)
	b.dir = true
	b.options += fmt.Sprintf(" part %d/%d", part, parts)
}

// Merge joins the parts of an encoding, in any order, to the bytes that one run
// would have written. Errors wrap ErrParts or are those of reading and writing.
func Merge(ctx context.Context, parts []string, out string, run RunOptions) (Result, error) {
	b, err := mergeBuild(parts, out, run)
	if err != nil {
		return Result{}, err
	}
	defer b.closeSources()
	return b.run(ctx)
}

func mergeBuild(parts []string, out string, run RunOptions) (_ *build, err error) {
	b := &build{
		given: out, out: filepath.Clean(out), force: run.Force, report: run.Progress,
		texts: map[string][]byte{}, links: map[string]origin{}, apart: parts,
	}
	defer func() {
		if err != nil {
			b.closeSources()
		}
	}()
	of, dirs, err := readParts(parts)
	if err != nil {
		return nil, err
	}
	b.dir = of.Dir
	if !b.dir && len(of.Files) != 1 {
		return nil, fmt.Errorf("%w: %d files for one", ErrParts, len(of.Files))
	}
	b.options = "merge " + of.Run
	for _, f := range of.Files {
		if name, err := cleanName(f.Name); err != nil || name != f.Name {
			return nil, fmt.Errorf("%w: a file called %q", ErrParts, f.Name)
		}
		o := outFile{name: f.Name, meta: f.Metadata, copies: map[string]*safetensors.File{}}
		sources := make([]*safetensors.File, len(dirs))
		for i, dir := range dirs {
			origin, err := originOf(filepath.Join(dir, filepath.FromSlash(f.Name)))
			if err != nil {
				return nil, err
			}
			if sources[i], err = safetensors.Open(origin.path); err != nil {
				return nil, err
			}
			b.sources, b.origins = append(b.sources, sources[i]), append(b.origins, origin)
		}
		for _, t := range f.Tensors {
			if t.Part < 1 || t.Part > len(dirs) {
				return nil, fmt.Errorf("%w: tensor %q is in part %d of %d", ErrParts, t.Name, t.Part, len(dirs))
			}
			src := sources[t.Part-1]
			info, ok := src.Lookup(t.Name)
			if !ok || string(info.DType) != t.DType || !slices.Equal(info.Shape, t.Shape) {
				return nil, fmt.Errorf("%w: %s has no tensor %q of type %s and shape %v", ErrParts, dirs[t.Part-1], t.Name, t.DType, t.Shape)
			}
			o.infos = append(o.infos, info)
			o.copies[t.Name] = src
		}
		b.files = append(b.files, o)
	}
	skip := []string{partName}
	for _, f := range b.files {
		skip = append(skip, f.name)
	}
	others, err := otherFiles(dirs[0], skip)
	if err != nil {
		return nil, err
	}
	for _, f := range others {
		b.links[f.name] = f.origin
	}
	return b, nil
}

// readParts reads the manifests of all parts of one run, and returns that of
// the first and the directories in order.
func readParts(parts []string) (manifest, []string, error) {
	var first manifest
	var dirs []string
	for i, dir := range parts {
		m, err := readManifest(dir)
		if err != nil {
			return first, nil, err
		}
		if i == 0 {
			first = m
			dirs = make([]string, m.Parts)
		}
		if m.Run != first.Run || m.Parts != first.Parts {
			return first, nil, fmt.Errorf("%w: %s and %s are parts of different runs: another model, other options or another number of parts", ErrParts, parts[0], dir)
		}
		if have := dirs[m.Part-1]; have != "" {
			return first, nil, fmt.Errorf("%w: %s and %s are both part %d", ErrParts, have, dir, m.Part)
		}
		dirs[m.Part-1] = dir
	}
	var missing []int
	for i, dir := range dirs {
		if dir == "" {
			missing = append(missing, i+1)
		}
	}
	if len(missing) > 0 {
		return first, nil, fmt.Errorf("%w: of %d parts %v are missing", ErrParts, first.Parts, missing)
	}
	return first, dirs, nil
}

func readManifest(dir string) (manifest, error) {
	var m manifest
	text, _, err := readFile(filepath.Join(dir, partName))
	if errors.Is(err, fs.ErrNotExist) {
		if _, e := os.Stat(dir + partialSuffix); e == nil {
			return m, fmt.Errorf("%w: %s is not finished", ErrParts, dir)
		}
		return m, fmt.Errorf("%w: %s is not a part: it has no %s", ErrParts, dir, partName)
	}
	if err != nil {
		return m, err
	}
	if err := strictjson.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrParts, filepath.Join(dir, partName), err)
	}
	if m.Format != partFormat || m.Parts < 1 || m.Parts > maxParts || m.Part < 1 || m.Part > m.Parts {
		return m, fmt.Errorf("%w: %s: format %q, part %d of %d", ErrParts, filepath.Join(dir, partName), m.Format, m.Part, m.Parts)
	}
	return m, nil
}

// maxParts bounds what a manifest can make the reader allocate.
const maxParts = 1 << 16

func (b *build) closeSources() {
	for _, f := range b.sources {
		f.Close()
	}
}
