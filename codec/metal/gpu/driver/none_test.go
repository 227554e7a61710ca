//go:build !metal

package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec/metal/gpu"
	"github.com/turbotrellis/turbotrellis/codec/metal/gpu/driver"
)

func TestNone(t *testing.T) {
	_, err := driver.Open(gpu.Options{})
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), "without a Metal driver") {
		t.Error(err)
	}
	if _, err := driver.List(); !errors.Is(err, gpu.ErrUnavailable) {
		t.Error(err)
	}
	if driver.Name != "" {
		t.Error(driver.Name)
	}
}
