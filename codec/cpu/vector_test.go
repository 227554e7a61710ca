package cpu_test

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/internal/vectors/vectortest"
)

func TestVectors(t *testing.T) {
	eachLevel(t, func(t *testing.T, l cpu.Level) {
		vectortest.Run(t, "cpu", func() (codec.Backend, error) { return cpu.New(cpu.Options{Level: l}), nil })
	})
}
