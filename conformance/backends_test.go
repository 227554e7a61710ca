package conformance_test

import (
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
)

// TestBackends runs the suite on every backend that was built in and runs here.
// One that REQUIRE_BACKENDS names and that does not run is a failure.
func TestBackends(t *testing.T) {
	names := auto.Names()
	for _, name := range conftest.Required() {
		if !slices.Contains(names, name) {
			t.Errorf("backend %s is required and not known; known are %v", name, names)
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			conftest.Run(t, name, func() (codec.Backend, error) { return auto.OpenName(name) })
		})
	}
}
