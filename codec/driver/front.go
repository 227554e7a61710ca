package driver

import (
	"context"
	"slices"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// New returns the codec.Backend that b, which is not nil, implements. It is safe for concurrent use. Close waits for the calls in
// progress; it and every later call, of the codecs too, then returns codec.ErrClosed.
func New(b Backend) codec.Backend { return &backend{b: b} }

type backend struct {
	b      Backend
	mu     sync.RWMutex // held for reading by every call
	closed bool
}

func (f *backend) Name() string     { return f.b.Name() }
func (f *backend) Feed() codec.Feed { return f.b.Feed() }

// enter begins a call; unless it fails, leave ends it.
func (f *backend) enter() error {
	if r, ok := f.b.(Renewer); ok && r.Lost() {
		f.renew(r)
	}
	f.mu.RLock()
	if f.closed {
		f.mu.RUnlock()
		return &codec.Error{Err: codec.ErrClosed, Index: codec.NoIndex, Reason: f.b.Name()}
	}
	return nil
}

// renew has a lost device brought back when the calls in progress, which fail, have ended.
func (f *backend) renew(r Renewer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed && r.Lost() {
		r.Renew()
	}
}

func (f *backend) leave() { f.mu.RUnlock() }

func (f *backend) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &codec.Error{Err: codec.ErrClosed, Index: codec.NoIndex, Reason: f.b.Name()}
	}
	f.closed = true
	return f.b.Close()
}

func (f *backend) KV(p codec.KVParams) (codec.KV, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return f.newKV(p.WithDefaults())
}

func (f *backend) Trellis(p trellis.Params) (codec.Trellis, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := p.Validate(); err != nil {
		return nil, trellisError("", err)
	}
	d, err := f.b.Trellis(p)
	if err != nil {
		return nil, err
	}
	return &weights{backend: f, d: d, p: p}, nil
}

// weights is the front of a Trellis.
type weights struct {
	*backend
	d Trellis
	p trellis.Params
}

func (c *weights) Params() trellis.Params { return c.p }

func (c *weights) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkSamples(c.p, states, x); err != nil || len(states) == 0 {
		return err
	}
	found, err := c.d.EncodeBlocks(ctx, states, x)
	switch n, o := found.NonFinite, found.Overflow; {
	case err != nil:
		return err
	case n != None && (o == None || n < o):
		return nonFinite("samples", x, n)
	case o != None:
		return scaleOverflow("samples", o, "%v is beyond ±2^60", element(x, o))
	}
	return nil
}

func (c *weights) Encode(ctx context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) (err error) {
	*dst = trellis.Matrix{Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkWeights(c.p, recon, x, g); err != nil {
		return err
	}
	rows, words := g.Rows(), g.CodesLen(c.p)
	*dst = trellis.Matrix{Params: c.p, Geometry: g, Codes: slices.Grow(dst.Codes, words)[:words], Scales: slices.Grow(dst.Scales, rows)[:rows]}
	if words == 0 { // no rows, or rows of no weights
		for i := range dst.Scales {
			dst.Scales[i] = c.p.ZeroScale()
		}
		return nil
	}
	found, err := c.d.Encode(ctx, dst, recon, x)
	if err == nil {
		err = c.encoded(g, x, found)
	}
	if err != nil {
		*dst = trellis.Matrix{Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
	}
	return err
}

// encoded returns the error of the first coded row that has one, and within it a weight that is not finite
// before the scale.
func (c *weights) encoded(g trellis.Geometry, x codec.Tensor, found Found) error {
	row := func(i int) int { // the coded row of weight i
		if g.Axis == 0 {
			return i % g.In
		}
		return i / g.In
	}
	switch n, o := found.NonFinite, found.Overflow; {
	case n != None && (o == None || row(n) <= row(o)):
		return nonFinite("weights", x, n)
	case o != None:
		return scaleOverflow("weights", o, "the scale of the row that starts here exceeds f16")
	}
	return nil
}

func (c *weights) Decode(dst codec.Tensor, m *trellis.Matrix, first int) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkMatrix(c.p, m); err != nil {
		return err
	}
	if err := checkRows(dst, m, first); err != nil || dst.Len() == 0 {
		return err
	}
	return c.d.Decode(dst, m, first)
}

// sized returns b with length n, in the same memory if it is large enough.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
