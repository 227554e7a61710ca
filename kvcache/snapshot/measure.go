package snapshot

import (
	"context"
	"io"
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
)

// LayerLoss is what packing costs and loses in one layer.
type LayerLoss struct {
	Number       int // the layer's (LayerSet), −1 if its names have none
	Keys, Values PartLoss
}

// PartLoss is what packing costs and loses in the keys or the values of a layer.
type PartLoss struct {
	Name  string // of the tensor
	Size  Size
	Heads []Loss // by the dimension before the tokens; one if there is none
}

// Total returns the loss of all heads together.
func (p PartLoss) Total() Loss {
	var t Loss
	for _, h := range p.Heads {
		t.add(h)
	}
	return t
}

// Loss sums the errors of coded elements, restored to float32. Raw tokens have none and are not in it.
type Loss struct {
	Elements int64
	Noise    float64 // Σ (restored − x)²
	Spread   float64 // Σ (x − the mean of its channel over the coded tokens of the head)²
	Worst    float64 // the largest |restored − x|
}

func (l *Loss) add(o Loss) {
	l.Elements += o.Elements
	l.Noise += o.Noise
	l.Spread += o.Spread
	l.Worst = max(l.Worst, o.Worst)
}

// Relative returns √(Noise / Spread): the error against what varies from token to token. It is 0 where there is no error,
// and NaN where there is one but nothing varies.
func (l Loss) Relative() float64 {
	switch {
	case l.Noise == 0:
		return 0
	case l.Spread == 0:
		return math.NaN()
	}
	return math.Sqrt(l.Noise / l.Spread)
}

// RMS returns the root mean square of the error.
func (l Loss) RMS() float64 {
	if l.Elements == 0 {
		return 0
	}
	return math.Sqrt(l.Noise / float64(l.Elements))
}

// Measure packs and restores keys and values as Encode and Decode do, and returns for each layer, in the order of
// Encode, what that costs and loses. It writes nothing. Memory, ctx and errors are as in Encode; progress counts the
// keys and values alone.
func Measure(ctx context.Context, src io.ReaderAt, size int64, o EncodeOptions) ([]LayerLoss, error) {
	e, err := newEncoding(ctx, src, size, o)
	if err != nil {
		return nil, err
	}
	for _, l := range e.desc.Layers {
		for _, h := range halves {
			in, _ := e.file.Lookup(h.part(&l).Name)
			e.total += in.Size
		}
	}
	e.report(0)
	var losses []LayerLoss
	for i, l := range e.desc.Layers {
		loss := LayerLoss{Number: -1}
		if n, ok := layerNumber(shared(l.Keys.Name, l.Values.Name)); ok {
			loss.Number = n
		}
		sizes := l.sizes(e.codecs[i].Params(), e.desc.edges())
		for j, to := range []*PartLoss{&loss.Keys, &loss.Values} {
			one := e.encoder(i, halves[j])
			one.heads = true
			to.Name, to.Size = one.part.Name, sizes[j]
			if to.Heads, err = one.measure(); err != nil {
				return nil, err
			}
		}
		losses = append(losses, loss)
	}
	return losses, nil
}

// measured is what is found of a piece.
type measured struct {
	decoded []byte
	leads   []channelSums
}

// channelSums are the sums of coded rows of one lead.
type channelSums struct {
	Loss
	sum, squares []float64 // by channel
}

func (c *channelSums) add(o *channelSums) {
	c.Loss.add(o.Loss)
	for j, x := range o.sum {
		c.sum[j] += x
		c.squares[j] += o.squares[j]
	}
}

func newChannelSums(dim int) channelSums {
	return channelSums{sum: make([]float64, dim), squares: make([]float64, dim)}
}

// spread adds the spread about the means of n rows.
func (c *channelSums) spread() {
	if c.Elements == 0 {
		return
	}
	n := float64(c.Elements) / float64(len(c.sum))
	for j, x := range c.sum {
		c.Spread += max(0, c.squares[j]-x*x/n)
	}
}

// measure returns the losses of the heads.
func (e *encoder) measure() ([]Loss, error) {
	d, err := e.part.dtype()
	if err != nil {
		return nil, err
	}
	dim, heads := e.part.dim(), 1
	if n := len(e.part.Shape); n > 2 {
		heads = e.part.Shape[n-3]
	}
	losses := make([]Loss, heads)
	current := newChannelSums(dim) // of a lead that is longer than a piece
	err = e.pieces(func(s *source, p piece) error {
		for i := range s.measured.leads {
			current.add(&s.measured.leads[i])
			if p.first+p.n < p.tokens {
				continue
			}
			current.spread()
			losses[(p.lead+i)%heads].add(current.Loss)
			current.Loss = Loss{}
			clear(current.sum)
			clear(current.squares)
		}
		return nil
	}, func(s *source, p piece) error {
		m := &s.measured
		for len(m.leads) < p.leads {
			m.leads = append(m.leads, newChannelSums(dim))
		}
		m.leads = m.leads[:p.leads]
		span := p.codedSpan()
		m.decoded = sized(m.decoded, span.m*dim*codec.F32.Size())
		view := p.view(span, d, dim, s.data)
		out := codec.Tensor{DType: codec.F32, Shape: view.Shape, Data: m.decoded}
		if err := e.call(func() error { return e.half.decode(e.kv, out, &s.x) }); err != nil {
			return err
		}
		x, y := make([]float32, dim), make([]float32, dim)
		for i := range m.leads {
			c := &m.leads[i]
			c.Loss = Loss{Elements: int64(span.n) * int64(dim)}
			clear(c.sum)
			clear(c.squares)
			for r := range span.n {
				view.LoadRow(x, i*span.n+r)
				out.LoadRow(y, i*span.n+r)
				for j, v := range x {
					v, e := float64(v), float64(y[j])-float64(v)
					c.Noise += float64(e * e)
					c.Worst = max(c.Worst, math.Abs(e))
					c.sum[j] += v
					c.squares[j] += float64(v * v)
				}
			}
		}
		return nil
	})
	return losses, err
}
