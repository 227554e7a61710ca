package ref_test

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
)

func TestConformance(t *testing.T) {
	conftest.Run(t, "ref", func() (codec.Backend, error) { return ref.New(), nil })
}
