// Package ref is the definition of every codec: straight-line scalar Go that
// follows docs/numerics.md sentence by sentence and runs anywhere. Where
// another backend's bits differ from these, the other backend is wrong.
//
// It trades speed for being read. codec/auto picks the fastest backend that
// gives the same bits.
package ref

import (
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Backend is the reference backend. The zero Backend is ready for use.
type Backend struct{}

// New returns the reference backend.
func New() *Backend { return new(Backend) }

var _ codec.Backend = (*Backend)(nil)

// Name returns "ref".
func (*Backend) Name() string { return "ref" }

// KV returns the KV cache codec with parameters p as a *KV, or ErrParams.
func (*Backend) KV(p codec.KVParams) (codec.KV, error) {
	kv, err := NewKV(p)
	if err != nil {
		return nil, err // not kv: a nil *KV in an interface is not nil
	}
	return kv, nil
}

// Trellis returns the weight codec with parameters p as a *Trellis, or
// ErrParams.
func (*Backend) Trellis(p trellis.Params) (codec.Trellis, error) {
	t, err := NewTrellis(p)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Close does nothing: the reference holds nothing.
func (*Backend) Close() error { return nil }
