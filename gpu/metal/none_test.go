//go:build !metal

package metal_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

func TestNone(t *testing.T) {
	_, err := metal.Open(gpu.Options{})
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), "without a Metal driver") {
		t.Error(err)
	}
	if _, err := metal.List(); !errors.Is(err, gpu.ErrUnavailable) {
		t.Error(err)
	}
	if metal.Name != "" {
		t.Error(metal.Name)
	}
}
