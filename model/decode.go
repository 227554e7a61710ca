package model

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// Decode writes the model with every trellis-coded matrix restored to
// <base>.weight in the given type, which is rounded to once. Their entries go;
// all else stays.
func (m *Model) Decode(ctx context.Context, out string, dtype codec.DType, run RunOptions) (Result, error) {
	if run.Backend == nil {
		return Result{}, fmt.Errorf("%w: no backend", codec.ErrUnavailable)
	}
	var bases []string
	for _, c := range m.coded {
		bases = append(bases, c.Base)
	}
	if len(bases) > 0 && dtype == 0 {
		return Result{}, fmt.Errorf("%w: %v", codec.ErrDType, dtype)
	}
	return m.restore(ctx, out, dtype, run, bases, "trellis-coded weights")
}

// DecodeAffine writes the model with every matrix of affine rows restored to
// <base>.weight in its own type, or, where dtype is not 0, rounded once more to
// that. What quantization says of them goes; all else stays.
func (m *Model) DecodeAffine(ctx context.Context, out string, dtype codec.DType, run RunOptions) (Result, error) {
	if run.Backend == nil {
		return Result{}, fmt.Errorf("%w: no backend", codec.ErrUnavailable)
	}
	var bases []string
	for _, a := range m.affine {
		bases = append(bases, a.Base)
	}
	return m.restore(ctx, out, dtype, run, bases, "affine weights")
}

func (m *Model) restore(ctx context.Context, out string, dtype codec.DType, run RunOptions, bases []string, what string) (Result, error) {
	if len(bases) == 0 {
		return Result{}, fmt.Errorf("%w: %s has no %s", ErrSelection, m.path, what)
	}
	if dtype != 0 && dtype.Size() == 0 {
		return Result{}, fmt.Errorf("%w: %v", codec.ErrDType, dtype)
	}
	e := newEncoder(run)
	changes := map[string]change{}
	for _, base := range bases {
		t, _ := m.find(base, dtype)
		j, err := e.decodeJob(t)
		if err != nil {
			return Result{}, fmt.Errorf("matrix %q: %w", base, err)
		}
		changes[base] = change{[]safetensors.Info{{Name: t.name, DType: safetensors.DTypeOf(t.dtype), Shape: t.shape}}, j}
	}
	b, err := m.rewrite(out, run, m.twice(), changes, nil)
	if err != nil {
		return Result{}, err
	}
	b.verb = Decoding
	b.options = line(struct {
		Decode string `json:"decode"`
		Plan   string `json:"plan"`
	}{dtypeText(dtype), b.layout()})
	return b.run(ctx)
}

func dtypeText(t codec.DType) string {
	if t == 0 {
		return "as stored"
	}
	return t.String()
}

func (e *encoder) decodeJob(t stored) (job, error) {
	if err := t.fits(); err != nil {
		return job{}, err
	}
	if err := e.codecs(&t); err != nil {
		return job{}, err
	}
	e.largest = max(e.largest, t.bytes())
	weights := count(t.shape)
	r := TensorResult{Name: t.name, Shape: t.shape, Axis: 1, SourceBytes: t.size(), Bytes: t.bytes()}
	if t.trellis != nil {
		r.Bits, r.Axis = t.trellis.Params.K, t.trellis.Geometry.Axis
	} else {
		r.Bits, r.GroupSize = t.affine.Format.Bits, t.affine.Format.Group
	}
	return source[[][]byte]{
		load: func(ctx context.Context, s *scratch) ([][]byte, string, error) {
			parts, err := e.read(ctx, &t, s)
			if err != nil {
				return nil, "", err
			}
			sum, err := digest(ctx, parts...)
			return parts, sum, err
		},
		check: func(context.Context, *scratch, [][]byte) error { return nil },
		make: func(ctx context.Context, dst []io.Writer, s *scratch, parts [][]byte, done func(int64)) (TensorResult, error) {
			if err := e.decode(ctx, &t, parts, s, done); err != nil {
				return TensorResult{}, err
			}
			return r, inPieces(dst[0], s.data)
		},
	}.fill(e, job{name: t.name, weights: weights, outs: []string{t.name}}), nil
}

func inPieces(w io.Writer, data []byte) error {
	for piece := range slices.Chunk(data, copyBytes) {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
