package model

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// Decode writes the model with every coded matrix restored to <base>.weight in
// the given type, which is rounded to once. The entries go; all else stays.
func (m *Model) Decode(ctx context.Context, out string, dtype codec.DType, run RunOptions) (Result, error) {
	if run.Backend == nil {
		return Result{}, fmt.Errorf("%w: no backend", codec.ErrUnavailable)
	}
	b, err := m.buildDecode(out, dtype, run)
	if err != nil {
		return Result{}, err
	}
	return b.run(ctx)
}

func (m *Model) buildDecode(out string, dtype codec.DType, run RunOptions) (*build, error) {
	if len(m.coded) == 0 {
		return nil, fmt.Errorf("%w: %s has no trellis-coded weights", ErrSelection, m.path)
	}
	if dtype.Size() == 0 {
		return nil, fmt.Errorf("%w: %v", codec.ErrDType, dtype)
	}
	b, err := m.start(out, run, m.twice())
	if err != nil {
		return nil, err
	}
	b.verb = Decoding
	e := newEncoder(run)
	for i, f := range m.files {
		o := outFile{name: f.name, meta: f.Metadata(), copies: map[string]*safetensors.File{}}
		for _, t := range f.Tensors() {
			if !m.codes(i, t.Name) {
				o.infos = append(o.infos, t)
				o.copies[t.Name] = f.File
				continue
			}
			if base, suffix := cutSuffix(t.Name); suffix == weightSuffix {
				c := m.coded[m.isBase[base]]
				o.infos = append(o.infos, safetensors.Info{Name: t.Name, DType: safetensors.DTypeOf(dtype), Shape: []int{c.Geometry.Out, c.Geometry.In}})
				j, err := e.decodeJob(m, i, c, dtype)
				if err != nil {
					return nil, fmt.Errorf("matrix %q: %w", c.Base, err)
				}
				b.jobs = append(b.jobs, j)
			}
		}
		wideFirst(o.infos)
		b.files = append(b.files, o)
	}
	if err := m.dropEntries(b); err != nil {
		return nil, err
	}
	b.options = strings.TrimSpace(string(marshal(struct {
		Decode string `json:"decode"`
		Plan   string `json:"plan"`
	}{dtype.String(), b.layout()})))
	return b, nil
}

func cutSuffix(name string) (base, suffix string) {
	for _, s := range []string{weightSuffix, scalesSuffix} {
		if base, ok := strings.CutSuffix(name, s); ok {
			return base, s
		}
	}
	return name, ""
}

// dropEntries removes what names the coded matrices.
func (m *Model) dropEntries(b *build) error {
	q, err := m.quantization()
	if err != nil {
		return err
	}
	o, err := parseObject(q)
	if err != nil {
		return err
	}
	isCoded := func(key string) bool { _, ok := m.isBase[key]; return ok }
	all := len(o.members) == len(m.coded)
	rest := o.without(isCoded)
	if !m.dir {
		meta := maps.Clone(b.files[0].meta)
		delete(meta, quantizationKey)
		if !all {
			meta[quantizationKey] = string(rest)
		}
		b.files[0].meta = meta
		return nil
	}
	config, err := parseObject(m.config)
	if err != nil {
		return err
	}
	if all {
		b.texts[configName] = config.without(func(key string) bool { return key == quantizationKey })
	} else {
		at := config.find(quantizationKey)
		b.texts[configName] = splice(config.text, []edit{{at.value, at.stop, rest}})
	}
	if m.index == nil {
		return nil
	}
	var bases []string
	for _, c := range m.coded {
		bases = append(bases, c.Base)
	}
	b.texts[indexName], err = editIndex(m.index, bases, b.files, false)
	return err
}

func (e *encoder) decodeJob(m *Model, file int, c Coded, dtype codec.DType) (job, error) {
	g, size := c.Geometry, dtype.Size()
	k, err := e.codec(c.Params)
	if err != nil {
		return job{}, err
	}
	return job{
		name: c.Base + weightSuffix, file: file, weights: c.Weights(),
		outs: []string{c.Base + weightSuffix},
		check: func(ctx context.Context, done func(int64)) (string, error) {
			data, err := m.read(ctx, c)
			if err != nil {
				return "", err
			}
			done(c.Weights())
			return digest(ctx, data[0], data[1])
		},
		make: func(ctx context.Context, dst []io.Writer, sum string, done func(int64)) (TensorResult, error) {
			data, err := m.read(ctx, c)
			if err != nil {
				return TensorResult{}, err
			}
			switch now, err := digest(ctx, data[0], data[1]); {
			case err != nil:
				return TensorResult{}, err
			case now != sum:
				return TensorResult{}, fmt.Errorf("%w: matrix %q", ErrChanged, c.Base)
			}
			t := c.matrix(data)
			s := <-e.scratch
			defer func() { e.scratch <- s }()
			s.data = sized(s.data, g.Out*g.In*size)
			err = e.feed.rows(ctx, s.slots, g.Out, g.In*size, 1, func(_ context.Context, _ *slot, r span) error {
				x := codec.Tensor{DType: dtype, Shape: []int{r.rows, g.In}, Data: s.data[r.first*g.In*size:][:r.rows*g.In*size]}
				if err := k.Decode(x, t, r.first); err != nil {
					return fmt.Errorf("matrix %q: %w", c.Base, err)
				}
				done(int64(r.rows) * int64(g.In))
				return nil
			})
			if err != nil {
				return TensorResult{}, err
			}
			r := TensorResult{
				Name: c.Base + weightSuffix, Shape: []int{g.Out, g.In}, Bits: c.Params.K, Axis: g.Axis,
				SourceBytes: c.Bytes(), Bytes: int64(len(s.data)),
			}
			_, err = dst[0].Write(s.data)
			return r, err
		},
	}, nil
}
