//go:build !metal

package auto

import "github.com/turbotrellis/turbotrellis/codec"

var metalBackend = candidate{"metal", func() (codec.Backend, error) {
	return nil, &codec.Error{Err: codec.ErrUnavailable, Index: codec.NoIndex, Reason: "this program was built without -tags metal"}
}}
