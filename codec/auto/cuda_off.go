//go:build !cuda

package auto

import "github.com/turbotrellis/turbotrellis/codec"

var cudaBackend = candidate{"cuda", func() (codec.Backend, error) {
	return nil, &codec.Error{Err: codec.ErrUnavailable, Index: codec.NoIndex, Reason: "this program was built without -tags cuda"}
}}
