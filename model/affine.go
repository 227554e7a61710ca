package model

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// AffineOptions says which matrices become affine rows, in MLX's format, and how.
type AffineOptions struct {
	// Tensors selects by name, nil everything. Of the tensors that match, the
	// matrices called <base>.weight whose rows are whole groups are quantised.
	Tensors *regexp.Regexp
	Format  affine.RowFormat // Bits are for tensors that the next field does not cover
	Bits    BitsMap
	// DType is the type in which matrices are quantised, and that of the scales
	// and biases: weights of another type are rounded to it first. 0 is each
	// matrix's own; trellis codes have none, and become BF16.
	DType codec.DType

	// Part of Parts, as in EncodeOptions.
	Part, Parts int
}

// PlanAffine decides which tensors of m will be quantised and how. Errors are
// those of PlanEncode.
func PlanAffine(m *Model, o AffineOptions) (*Plan, error) {
	if m == nil || len(m.files) == 0 {
		return nil, fmt.Errorf("%w: it is not open", ErrModel)
	}
	if o.DType != 0 && o.DType.Size() == 0 {
		return nil, fmt.Errorf("%w: %v", codec.ErrDType, o.DType)
	}
	if err := o.Format.Validate(); err != nil {
		return nil, err
	}
	var err error
	if o.Bits, err = o.Bits.compiled(); err != nil {
		return nil, err
	}
	if err := m.unquantized(len(m.affine) > 0, len(m.coded) > 0); err != nil {
		return nil, err
	}
	p := &Plan{model: m, affine: &o, opts: EncodeOptions{Tensors: o.Tensors, Bits: o.Bits, Part: o.Part, Parts: o.Parts}}
	if o.Tensors == nil {
		p.opts.Tensors = regexp.MustCompile(regexp.QuoteMeta(weightSuffix) + "$")
	}
	if err := p.make(p.planRows); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Plan) planRows(from stored, base string, file int) (Planned, error) {
	if err := p.model.free(base, file, scalesSuffix, biasesSuffix); err != nil {
		return Planned{}, err
	}
	a := Affine{Base: base, Format: p.affine.Format, Shape: from.shape, DType: from.dtype}
	a.Format.Bits = p.affine.Bits.bits(base, a.Format.Bits)
	if err := a.Format.Validate(); err != nil {
		return Planned{}, err
	}
	if from.cols() == 0 || from.rows() == 0 || from.cols()%a.Format.Group != 0 {
		return Planned{}, errPassed
	}
	return Planned{
		Name: from.name, File: p.model.files[file].name, DType: string(safetensors.DTypeOf(a.DType)), Shape: from.shape,
		Bits: a.Format.Bits, GroupSize: a.Format.Group, Axis: 1, SourceBytes: from.size(), Bytes: a.Bytes(),
		PerWeight: 8 * float64(a.Bytes()) / float64(a.Weights()),
		from:      from, rows: a,
	}, nil
}

// entries are what the new model says of all affine matrices.
func (o *AffineOptions) entries() []newEntry {
	return []newEntry{
		{"group_size", strconv.AppendInt(nil, int64(o.Format.Group), 10)},
		{"bits", strconv.AppendInt(nil, int64(o.Format.Bits), 10)},
		{"mode", quote(affineMode)},
	}
}

// entry is what the new model says of a matrix, nil for one that is as all.
func (o *AffineOptions) entry(f affine.RowFormat) []byte {
	if f == o.Format {
		return nil
	}
	return []byte(line(struct {
		GroupSize int    `json:"group_size"`
		Bits      int    `json:"bits"`
		Mode      string `json:"mode"`
	}{f.Group, f.Bits, affineMode}))
}

// options is Plan.options for affine rows.
func (o *AffineOptions) options(b *build) string {
	return line(struct {
		Affine int    `json:"affine_bits"`
		Group  int    `json:"group_size"`
		DType  string `json:"dtype"`
		Plan   string `json:"plan"`
	}{o.Format.Bits, o.Format.Group, dtypeText(o.DType), b.layout()})
}

func (e *encoder) affineJob(t Planned) (job, error) {
	c, err := e.rows(t.rows.Format)
	if err != nil {
		return job{}, err
	}
	load, err := e.open(t)
	if err != nil {
		return job{}, err
	}
	base := strings.TrimSuffix(t.Name, weightSuffix)
	return source[[]byte]{
		load:  load,
		check: func(ctx context.Context, s *scratch, _ []byte) error { return t.rows.check(ctx, s.data) },
		make: func(ctx context.Context, dst []io.Writer, s *scratch, _ []byte, done func(int64)) (r TensorResult, err error) {
			r = TensorResult{Name: t.Name, Shape: t.Shape, Bits: t.Bits, GroupSize: t.GroupSize, Axis: t.Axis, SourceBytes: t.SourceBytes, Bytes: t.Bytes}
			if r.Error, err = e.quantize(ctx, t.rows, c, s, done); err != nil {
				return TensorResult{}, err
			}
			for i, data := range [][]byte{s.rows.Codes, s.rows.Scales, s.rows.Biases} {
				if err := inPieces(dst[i], data); err != nil {
					return TensorResult{}, err
				}
			}
			return r, nil
		},
	}.fill(e, job{name: t.Name, weights: t.Weights(), outs: []string{t.Name, base + scalesSuffix, base + biasesSuffix}}), nil
}

// check refuses weights that are not finite and groups whose range overflows, with the index of the weight in the
// matrix.
func (a Affine) check(ctx context.Context, data []byte) error {
	largest, err := finite(ctx, a.Base+weightSuffix, data, a.DType)
	if err != nil || largest < 0x1p126 {
		return err
	}
	size, group := a.DType.Size(), make([]float32, a.Format.Group)
	for first := 0; first < len(data)/size; first += len(group) {
		if first%copyBytes == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		for i := range group {
			group[i] = a.DType.Load(data[(first+i)*size:])
		}
		if lo, hi := affine.MinMax(group); !f32.IsFinite(hi - lo) {
			return &codec.Error{Err: codec.ErrScaleOverflow, Tensor: strconv.Quote(a.Base + weightSuffix), Index: first,
				Reason: fmt.Sprintf("the range of its group, %v to %v", lo, hi)}
		}
	}
	return nil
}

// quantize quantises the weights in s.data into s.rows and returns the squared
// error over the sum of squares.
func (e *encoder) quantize(ctx context.Context, a Affine, c codec.Affine, s *scratch, done func(int64)) (float64, error) {
	rows, cols, size := a.Shape[0], a.Shape[1], a.DType.Size()
	codes, scales := cols/8*a.Format.Bits, cols/a.Format.Group*size // bytes of a row
	s.rows = codec.AffineRows{
		Codes: sized(s.rows.Codes, rows*codes), Scales: sized(s.rows.Scales, rows*scales), Biases: sized(s.rows.Biases, rows*scales),
	}
	s.reset(rows)
	err := e.feed.rows(ctx, s.slots, rows, cols*size, 1, func(_ context.Context, k *slot, r span) error {
		x := codec.Tensor{DType: a.DType, Shape: []int{r.rows, cols}, Data: s.data[r.first*cols*size:][:r.rows*cols*size]}
		if err := c.Quantize(&k.rows, x); err != nil {
			return fmt.Errorf("tensor %q, from row %d: %w", a.Base+weightSuffix, r.first, err)
		}
		k.recon = sized(k.recon, len(x.Data))
		recon := codec.Tensor{DType: a.DType, Shape: x.Shape, Data: k.recon}
		if err := c.Dequantize(recon, k.rows); err != nil {
			return fmt.Errorf("tensor %q, from row %d: %w", a.Base+weightSuffix, r.first, err)
		}
		copy(s.rows.Codes[r.first*codes:], k.rows.Codes)
		copy(s.rows.Scales[r.first*scales:], k.rows.Scales)
		copy(s.rows.Biases[r.first*scales:], k.rows.Biases)
		s.measure(k, x, recon, r.first, 1)
		done(int64(r.rows) * int64(cols))
		return nil
	})
	return ratio(s.errs, s.energy), err
}
