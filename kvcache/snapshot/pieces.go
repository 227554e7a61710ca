package snapshot

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/parallel"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/pack"
)

// encoder packs the keys or the values of a layer.
type encoder struct {
	*transcoder
	file   *safetensors.File
	half   half
	kv     codec.KV
	part   Part
	extent extent
	centre *codec.Centre // given, or nil
	heads  bool          // pieces do not join heads
}

// source is a piece of a tensor as it is read from a file, and its coded rows.
type source struct {
	buf, wide []byte
	data      []byte // one of the two
	x         rows
	centre    codec.Centre // of the piece's leads
	measured  measured     // for Measure
}

// encode writes the stored tensors to w.
func (e *encoder) encode(w *safetensors.Writer) error {
	dst := map[string]*safetensors.TensorWriter{}
	planes := e.half.stored(e.kv.Params())
	for _, pl := range planes {
		dst[pl.suffix()] = nil
	}
	centred := e.half.centred(e.kv.Params())
	if centred {
		dst[meanSuffix], dst[gainSuffix] = nil, nil
	}
	if e.extent.first > 0 {
		dst[firstSuffix] = nil
	}
	if e.extent.last > 0 {
		dst[lastSuffix] = nil
	}
	for suffix := range dst {
		var err error
		if dst[suffix], err = w.Tensor(e.part.Name + suffix); err != nil {
			return err
		}
	}
	return e.pieces(func(s *source, p piece) error {
		for _, pl := range planes {
			if _, err := dst[pl.suffix()].Write(*e.half.data(&s.x, pl.name)); err != nil {
				return err
			}
		}
		if centred && p.first == 0 {
			if _, err := dst[meanSuffix].Write(s.centre.Mean.Data); err != nil {
				return err
			}
			if _, err := dst[gainSuffix].Write(s.centre.Gain.Data); err != nil {
				return err
			}
		}
		first, last := p.rawSpans()
		for suffix, span := range map[string]span{firstSuffix: first, lastSuffix: last} {
			err := p.each(span, e.rowBytes(), s.data, func(rows []byte) error {
				_, err := dst[suffix].Write(rows)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}, nil)
}

// rowBytes returns the bytes of a row, widened.
func (e *encoder) rowBytes() int {
	d, _ := e.part.dtype()
	return e.part.dim() * d.Size()
}

// pieces packs the tensor a piece at a time. It calls also, if not nil, with each packed piece, then emit with each in
// order.
func (e *encoder) pieces(emit, also func(s *source, p piece) error) error {
	d, err := e.part.dtype()
	if err != nil {
		return err
	}
	in, _ := e.file.Lookup(e.part.Name)
	dim := e.part.dim()
	read := dim * in.DType.Size() // bytes of a row
	centred := e.half.centred(e.kv.Params())
	x := e.extent.joined(centred || e.heads)
	count, at := x.pieces(max(1, e.feed.Bytes/read))
	type item struct {
		piece
		centre *codec.Centre // of the piece's only lead, or nil
	}
	var failed error
	items := func(yield func(item) bool) {
		var centre *codec.Centre
		for i := range count {
			it := item{piece: at(i)}
			if centred && e.centre == nil && it.n < it.tokens {
				if it.first == 0 {
					c, err := e.centreOf(it.lead, in.DType, read)
					if err != nil {
						failed = err
						return
					}
					centre = &c
				}
				it.centre = centre
			}
			if !yield(it) {
				return
			}
		}
	}
	slots := make([]source, e.slots())
	err = inOrder(e.ctx, slots, items, func(s *source, it item) error {
		if err := e.read(s, it.piece, in.DType, read); err != nil {
			return err
		}
		coded := it.codedSpan()
		view := it.view(coded, d, dim, s.data)
		if centred {
			var err error
			switch {
			case it.centre != nil:
				s.centre = *it.centre
			case e.centre != nil:
				s.centre = e.given(it.piece)
			default:
				s.centre, err = codec.NewCentre(view)
			}
			if err != nil {
				return it.placed(err, e.part, coded)
			}
			*e.half.centre(&s.x) = s.centre
		}
		err := e.call(func() error { return e.half.encode(e.kv, &s.x, view) })
		if err == nil && also != nil {
			err = also(s, it.piece)
		}
		return it.placed(err, e.part, coded)
	}, func(s *source, it item) error {
		if err := emit(s, it.piece); err != nil {
			return err
		}
		_, n := it.rows()
		e.report(int64(n) * int64(read))
		return nil
	})
	if err == nil {
		err = failed
	}
	return err
}

// read reads a piece of rows of so many bytes and widens it.
func (e *encoder) read(s *source, p piece, from safetensors.DType, rowBytes int) error {
	first, n := p.rows()
	s.buf = sized(s.buf, n*rowBytes)
	if err := e.file.ReadPart(s.buf, e.part.Name, int64(first)*int64(rowBytes)); err != nil {
		return err
	}
	s.data = s.buf
	if from != safetensors.DType(e.part.DType) {
		s.wide = sized(s.wide, n*e.rowBytes())
		widen(s.wide, s.buf, from)
		s.data = s.wide
	}
	return nil
}

// centreOf returns the usual centre of the coded tokens of a lead, which it reads in pieces.
func (e *encoder) centreOf(lead int, from safetensors.DType, rowBytes int) (codec.Centre, error) {
	d, err := e.part.dtype()
	if err != nil {
		return codec.Centre{}, err
	}
	dim := e.part.dim()
	one := e.extent
	one.leads = 1
	count, at := one.pieces(max(1, e.feed.Bytes/rowBytes))
	var s source
	row := make([]float32, dim)
	c, err := codec.CentreOf(dim, func(yield func([]float32, error) bool) {
		for i := range count {
			p := at(i)
			p.lead, p.extent.leads = lead, e.extent.leads
			if e.ctx.Err() != nil {
				yield(nil, context.Cause(e.ctx))
				return
			}
			if err := e.read(&s, p, from, rowBytes); err != nil {
				yield(nil, err)
				return
			}
			span := p.codedSpan()
			view := p.view(span, d, dim, s.data)
			for r := range span.n {
				view.LoadRow(row, r)
				if !yield(row, nil) {
					return
				}
			}
		}
	})
	whole := piece{lead, 1, 0, e.extent.tokens, e.extent}
	return c, whole.placed(err, e.part, whole.codedSpan())
}

// given returns the part of the given centre that is the piece's.
func (e *encoder) given(p piece) codec.Centre {
	n := len(e.part.Shape)
	dim := e.part.dim()
	shape := []int{p.leads, 1, dim}
	if p.leads == 1 {
		shape = shape[1:]
	}
	c := codec.Centre{Mean: codec.NewTensor(codec.F16, shape...), Gain: codec.NewTensor(codec.F16, shape...)}
	for l := range p.leads {
		from, stride := 0, 1
		for i, rest := n-3, p.lead+l; i >= 0; i-- {
			at := rest % e.part.Shape[i]
			rest /= e.part.Shape[i]
			if own := e.centre.Mean.Shape[i]; own > 1 {
				from += at * stride
				stride *= own
			}
		}
		copy(c.Mean.Data[2*l*dim:][:2*dim], e.centre.Mean.Data[2*from*dim:])
		copy(c.Gain.Data[2*l*dim:][:2*dim], e.centre.Gain.Data[2*from*dim:])
	}
	return c
}

// decoder restores the keys or the values of a layer.
type decoder struct {
	*transcoder
	file   *safetensors.File
	half   half
	kv     codec.KV
	part   Part
	extent extent
}

// decode writes the tensor to w, in type dt or, if that is 0, in its own.
func (d *decoder) decode(w *safetensors.Writer, dt codec.DType) error {
	dst, err := w.Tensor(d.part.Name)
	if err != nil {
		return err
	}
	own, err := d.part.dtype()
	if err != nil {
		return err
	}
	if dt == 0 {
		dt = own
	}
	planes := d.half.stored(d.kv.Params())
	centred := d.half.centred(d.kv.Params())
	dim, rowBytes := d.part.dim(), d.part.dim()*dt.Size()
	type slot struct {
		x         rows
		raw, out  []byte
		saturated uint64
	}
	x := d.extent.joined(centred)
	count, at := x.pieces(max(1, d.feed.Bytes/rowBytes))
	slots := make([]slot, d.slots())
	return inOrder(d.ctx, slots, pieces(count, at), func(s *slot, p piece) error {
		_, n := p.rows()
		s.out = sized(s.out, n*rowBytes)
		s.saturated = 0
		coded := p.codedSpan()
		for _, pl := range planes {
			b := d.half.data(&s.x, pl.name)
			*b = sized(*b, coded.m*pl.rowLen)
			if err := d.file.ReadPart(*b, d.part.Name+pl.suffix(), int64(coded.stored)*int64(pl.rowLen)); err != nil {
				return err
			}
		}
		view := p.view(coded, dt, dim, s.out)
		*d.half.shape(&s.x) = view.Shape
		if centred {
			if err := d.readCentre(d.half.centre(&s.x), p); err != nil {
				return err
			}
		}
		if err := d.call(func() error { return d.half.decode(d.kv, view, &s.x) }); err != nil {
			return d.damaged(err, p, coded)
		}
		first, last := p.rawSpans()
		for _, raw := range []struct {
			span
			suffix string
		}{{first, firstSuffix}, {last, lastSuffix}} {
			if raw.m == 0 {
				continue
			}
			s.raw = sized(s.raw, raw.m*dim*own.Size())
			if err := d.file.ReadPart(s.raw, d.part.Name+raw.suffix, int64(raw.stored)*int64(dim*own.Size())); err != nil {
				return err
			}
			from := s.raw
			err := p.each(raw.span, rowBytes, s.out, func(rows []byte) error {
				s.saturated += convert(rows, dt, from, own, d.kv.Params().Policy)
				from = from[raw.n*dim*own.Size():]
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}, func(s *slot, p piece) error {
		if _, err := dst.Write(s.out); err != nil {
			return err
		}
		d.rawSaturated += s.saturated
		d.report(int64(len(s.out)))
		return nil
	})
}

// readCentre reads the centre of a piece's leads.
func (d *decoder) readCentre(c *codec.Centre, p piece) error {
	dim := d.part.dim()
	shape := []int{p.leads, 1, dim}
	if p.leads == 1 {
		shape = shape[1:]
	}
	for suffix, t := range map[string]*codec.Tensor{meanSuffix: &c.Mean, gainSuffix: &c.Gain} {
		*t = codec.Tensor{DType: codec.F16, Shape: shape, Data: sized(t.Data, 2*p.leads*dim)}
		if err := d.file.ReadPart(t.Data, d.part.Name+suffix, int64(p.lead)*int64(2*dim)); err != nil {
			return err
		}
	}
	return nil
}

// damaged returns an error of a decoder: what it refuses of a part is the snapshot's fault.
func (d *decoder) damaged(err error, p piece, coded span) error {
	e, ok := errors.AsType[*codec.Error](err)
	if !ok || e.Err != codec.ErrParams {
		return p.placed(err, d.part, coded)
	}
	for _, from := range []struct {
		operand, suffix string
		base            int
	}{
		{"key scales", ".scales", coded.stored}, {"value scales", ".scales", coded.stored},
		{"key mean", meanSuffix, p.lead * d.part.dim()}, {"value mean", meanSuffix, p.lead * d.part.dim()},
		{"key gain", gainSuffix, p.lead * d.part.dim()}, {"value gain", gainSuffix, p.lead * d.part.dim()},
	} {
		if e.Tensor == from.operand {
			return malformed("%w", e.At(strconv.Quote(d.part.Name+from.suffix), from.base))
		}
	}
	return p.placed(err, d.part, coded)
}

// convert writes elements of one type as another, as the decoders' last step does, and returns how many saturated.
// Elements of the same type keep their bits.
func convert(dst []byte, to codec.DType, src []byte, from codec.DType, policy codec.Policy) (saturated uint64) {
	n := len(dst) / to.Size()
	if to == from {
		copy(dst, src[:len(dst)])
		return 0
	}
	for i := range n {
		v := from.Load(src[i*from.Size():])
		if to == codec.F16 && policy == codec.Finite && !math.IsInf(float64(v), 0) && math.IsInf(float64(pack.FromF16(pack.ToF16(v))), 0) {
			v = float32(math.Copysign(65504, float64(v)))
			saturated++
		}
		to.Store(dst[i*to.Size():], v)
	}
	return saturated
}

// pieces yields so many pieces.
func pieces(count int, at func(i int) piece) iter.Seq[piece] {
	return func(yield func(piece) bool) {
		for i := range count {
			if !yield(at(i)) {
				return
			}
		}
	}
}

// inOrder calls work on items, each with a slot of its own, then done for each in order. The error is that of the
// first item that fails, or the context's cause.
func inOrder[S, T any](ctx context.Context, slots []S, items iter.Seq[T], work, done func(s *S, item T) error) error {
	err := parallel.Ordered(ctx, slots, items,
		func(_ context.Context, s *S, item T) error { return work(s, item) },
		func(_ context.Context, s *S, item T) error { return done(s, item) })
	if err != nil && err == ctx.Err() {
		return context.Cause(ctx)
	}
	return err
}

// placed puts the tensor's own name into a codec's error, and the element's index in the whole tensor instead of
// that in the span's view.
func (p piece) placed(err error, part Part, s span) error {
	e, ok := errors.AsType[*codec.Error](err)
	if !ok {
		return err
	}
	at := *e
	at.Tensor = strconv.Quote(part.Name)
	if at.Index != codec.NoIndex && s.n > 0 {
		at.Index = p.element(s, at.Index, part.dim())
	}
	return &at
}

// isSuffix reports whether a stored tensor's name ends in this after the part's.
func isSuffix(s string) bool {
	return slices.Contains([]string{".codes", ".scales", ".zeros", meanSuffix, gainSuffix, firstSuffix, lastSuffix}, s)
}

// checkCentres checks the given centres of a layer.
func (o *EncodeOptions) checkCentres(l Layer, p codec.KVParams) error {
	if o.Centres == nil {
		return nil
	}
	for _, h := range halves {
		if !h.centred(p) {
			continue
		}
		part := h.part(&l)
		c, ok := o.Centres[part.Name]
		if !ok {
			return fmt.Errorf("%w: no centre is given for tensor %q", ErrNoTensor, part.Name)
		}
		for _, t := range []struct {
			name string
			codec.Tensor
			positive bool
		}{{part.Name + meanSuffix, c.Mean, false}, {part.Name + gainSuffix, c.Gain, true}} {
			if err := checkChannels(t.name, t.Tensor, t.positive, part.Shape); err != nil {
				return err
			}
		}
		if !slices.Equal(c.Mean.Shape, c.Gain.Shape) {
			return fmt.Errorf("%w: tensor %q has shape %v and its gain %v", codec.ErrShape, part.Name+meanSuffix, c.Mean.Shape, c.Gain.Shape)
		}
	}
	return nil
}

// checkChannels checks one tensor of the centre of a tensor of the given shape.
func checkChannels(name string, t codec.Tensor, positive bool, shape []int) error {
	if t.DType != codec.F16 {
		return fmt.Errorf("%w: tensor %q is %v, want f16", codec.ErrDType, name, t.DType)
	}
	last := len(shape) - 1
	fits := len(t.Shape) == len(shape) && t.Stride == nil && t.Shape[last] == shape[last] && t.Shape[last-1] == 1
	for i := 0; fits && i < last-1; i++ {
		fits = t.Shape[i] == shape[i] || t.Shape[i] == 1
	}
	if !fits {
		return fmt.Errorf("%w: tensor %q has shape %v, which is no centre of tokens of shape %v", codec.ErrShape, name, t.Shape, shape)
	}
	if err := t.Validate(strconv.Quote(name)); err != nil {
		return err
	}
	for i := range t.Len() {
		if v := codec.F16.Load(t.Data[2*i:]); math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) || positive && v <= 0 {
			return &codec.Error{Err: codec.ErrParams, Tensor: strconv.Quote(name), Index: i, Reason: fmt.Sprintf("%v: means are finite, gains finite and positive", v)}
		}
	}
	return nil
}
