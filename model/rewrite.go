package model

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// change gives a matrix another form.
type change struct {
	to  []safetensors.Info // what stands in its place, <base>.weight first
	job job                // without the file
}

// newEntry is a member of a quantization object to write.
type newEntry struct {
	key   string
	value []byte // JSON on one line
}

// rewrite begins the description of a copy of the model in which the matrices
// <base> of changes have another form and quantization has further entries.
func (m *Model) rewrite(out string, run RunOptions, twice []string, changes map[string]change, entries []newEntry) (*build, error) {
	b, err := m.start(out, run, twice)
	if err != nil {
		return nil, err
	}
	gone, scales := map[string]bool{}, map[string][]string{} // names in the index
	for i, f := range m.files {
		o := outFile{name: f.name, meta: f.Metadata(), copies: map[string]*safetensors.File{}}
		for _, t := range f.Tensors() {
			base, ok := m.baseOf(t.Name)
			c, changed := changes[base]
			switch {
			case !ok || !changed || !m.has(i, t.Name):
				o.infos = append(o.infos, t)
				o.copies[t.Name] = f.File
			case t.Name != base+weightSuffix:
				gone[t.Name] = true
			default:
				o.infos = append(o.infos, c.to...)
				c.job.file = i
				b.jobs = append(b.jobs, c.job)
				for _, t := range c.to[1:] {
					scales[base] = append(scales[base], t.Name)
				}
			}
		}
		wideFirst(o.infos)
		b.files = append(b.files, o)
	}
	if err := m.requantize(b, changes, entries); err != nil {
		return nil, err
	}
	if m.index != nil {
		if b.texts[indexName], err = editIndex(m.index, gone, scales, b.files); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// baseOf returns the matrix <base> that a tensor belongs to, if it may be one's.
func (m *Model) baseOf(name string) (base string, ok bool) {
	if base, ok = m.owner[name]; ok {
		return base, true
	}
	return strings.CutSuffix(name, weightSuffix)
}

// requantize writes what the new model says of its coded matrices: what it said
// of those that do not change, and entries. quantization_config is a copy, as
// MLX's programs write it, of a quantization that is about affine matrices.
func (m *Model) requantize(b *build, changes map[string]change, entries []newEntry) error {
	text, err := m.quantization()
	if err != nil {
		return err
	}
	fresh := slices.ContainsFunc(entries, func(e newEntry) bool { return global(e.key) })
	uniform := fresh // the new one is about affine matrices in general
	isCopy := false
	var config *object
	if m.dir {
		if config, err = parseObject(m.config); err != nil {
			return err
		}
		isCopy = copied(config)
	}
	var old *object
	if text != nil {
		// The text under a file's metadata may be anything.
		if old, err = parseObject(text); err != nil && (m.dir || isObject(text)) {
			return err
		}
	}
	text = nil
	if old != nil {
		left := len(m.affine) // affine matrices that stay
		for base := range changes {
			if _, ok := m.isAffine[base]; ok {
				left--
			}
		}
		uniform = uniform || m.uniform && left > 0
		empty := true
		rest := old.without(func(key string) bool {
			_, drop := changes[key]
			if m.uniform && left == 0 {
				value := string(old.raw(old.named(key)))
				drop = drop || global(key) || value == "true" || value == "false"
			}
			empty = empty && drop
			return drop
		})
		if !empty {
			text = rest
		}
	}
	switch {
	case len(entries) == 0:
	case text == nil:
		text = []byte{'{'}
		for i, e := range entries {
			if i > 0 {
				text = append(text, ',')
			}
			text = append(append(append(text, quote(e.key)...), ':'), e.value...)
		}
		text = append(text, '}')
		if m.dir {
			text = config.indented(text)
		}
	default:
		rest, err := parseObject(text)
		if err != nil {
			return err
		}
		text = rest.appended(entries...)
	}
	if !m.dir {
		meta := maps.Clone(b.files[0].meta)
		if meta == nil {
			meta = map[string]string{}
		}
		if delete(meta, quantizationKey); text != nil {
			meta[quantizationKey] = string(text)
		}
		b.files[0].meta = meta
		return nil
	}
	result := config.set(quantizationKey, text)
	if fresh || isCopy {
		if config, err = parseObject(result); err != nil {
			return err
		}
		if !uniform {
			text = nil
		}
		result = config.set(configKey, text)
	}
	b.texts[configName] = result
	return nil
}

// copied reports whether a config's quantization_config is a copy of its
// quantization.
func copied(config *object) bool {
	q, c := config.find(quantizationKey), config.find(configKey)
	if q == nil || c == nil {
		return false
	}
	var a, b bytes.Buffer
	return json.Compact(&a, config.raw(q)) == nil && json.Compact(&b, config.raw(c)) == nil && bytes.Equal(a.Bytes(), b.Bytes())
}
