package gpu_test

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/metal"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
	"github.com/turbotrellis/turbotrellis/internal/vectors/vectortest"
)

func openMetal() (codec.Backend, error) { return metal.Open(metal.Options{}) }

func TestConformance(t *testing.T) { conftest.Run(t, "metal", openMetal) }

func TestVectors(t *testing.T) { vectortest.Run(t, "metal", openMetal) }
