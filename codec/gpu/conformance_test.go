package gpu_test

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/metal"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
)

func TestConformance(t *testing.T) {
	conftest.Run(t, "metal", func() (codec.Backend, error) { return metal.Open(metal.Options{}) })
}
