//go:build metal

package auto

import (
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/metal"
)

var metalBackend = candidate{"metal", func() (codec.Backend, error) {
	b, err := metal.Open(metal.Options{})
	if err != nil {
		return nil, err
	}
	return b, nil
}}
