//go:build cuda

package auto

import (
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cuda"
)

var cudaBackend = candidate{"cuda", func() (codec.Backend, error) {
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil, err
	}
	return b, nil
}}
