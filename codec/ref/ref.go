// Package ref is the definition of every codec: straight-line scalar Go that
// follows docs/numerics.md sentence by sentence and runs anywhere. Where
// another backend's bits differ from these, the other backend is wrong.
//
// It trades speed for being read. codec/auto picks the fastest backend that
// gives the same bits.
package ref

import (
	"runtime"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// New returns the reference backend, named ref.
func New() codec.Backend { return driver.New(Backend{}) }

// Backend is what New puts the front end before.
type Backend struct{}

var _ driver.Backend = Backend{}

// Name returns "ref".
func (Backend) Name() string { return "ref" }

// Feed asks for pieces of 2 MiB, one for each processor.
func (Backend) Feed() codec.Feed {
	return codec.Feed{Bytes: 2 << 20, Calls: runtime.GOMAXPROCS(0)}
}

// KV returns the KV cache codec with parameters p, as NewKV does.
func (Backend) KV(p codec.KVParams) (driver.KV, error) {
	kv, err := NewKV(p)
	if err != nil {
		return nil, err // not kv: a nil *KV in an interface is not nil
	}
	return kv, nil
}

// Trellis returns the weight codec with parameters p.
func (Backend) Trellis(p trellis.Params) (driver.Trellis, error) {
	return &weights{params: p}, nil
}

// Close does nothing: the reference holds nothing.
func (Backend) Close() error { return nil }
