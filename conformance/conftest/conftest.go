// Package conftest runs the conformance suite of a backend under go test.
package conftest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/conformance"
)

// The environment variables that Run reads.
const (
	// EnvRequire lists the backends that must run: one that is not available
	// is then a failure instead of a skip.
	EnvRequire = "REQUIRE_BACKENDS"
	// EnvFilter is conformance.Options.Filter.
	EnvFilter = "CONFORMANCE_FILTER"
	// EnvForm is short, normal or long. Unset, it is short, or normal where
	// EnvLong is set.
	EnvForm = "CONFORMANCE_FORM"
	// EnvLong asks tests for their long form.
	EnvLong = "TURBOTRELLIS_LONG"
)

// Required returns the backends of EnvRequire.
func Required() []string {
	return strings.FieldsFunc(os.Getenv(EnvRequire), func(r rune) bool { return r == ',' || r == ' ' })
}

// Run runs the suite on the backend that open returns, named name. A backend
// that is not available (codec.ErrUnavailable) skips the test, unless it is
// required. No case that ran is a failure; cases that the backend declines are
// listed.
func Run(t *testing.T, name string, open func() (codec.Backend, error)) {
	t.Helper()
	b, err := open()
	if err != nil {
		if errors.Is(err, codec.ErrUnavailable) && !slices.Contains(Required(), name) {
			t.Skipf("%s: %v", name, err)
		}
		t.Fatalf("backend %s did not run: %v", name, err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Errorf("closing %s: %v", name, err)
		}
	}()
	if b.Name() != name {
		t.Errorf("backend is named %q, want %q", b.Name(), name)
	}
	r := conformance.Run(t.Context(), b, conformance.Options{Filter: os.Getenv(EnvFilter), Form: form(t)})
	for _, n := range r.Ops {
		t.Logf("%s: %d cases, %d failed, %d declined", n.Op, n.Cases, n.Failed, n.Declined)
	}
	t.Logf("%s: %s form, %d cases, reference %s", name, r.Form, r.Cases, r.Reference)
	for _, f := range r.Failures {
		t.Error(f)
	}
	const listed = 50
	for i, name := range r.Declined {
		if i == listed {
			t.Logf("and %d more declined", len(r.Declined)-listed)
			break
		}
		t.Logf("declined: %s", name)
	}
	if err := r.Err(); err != nil {
		t.Errorf("%d of %d cases failed", r.Failed, r.Cases)
		if r.Failed == 0 {
			t.Error(err)
		}
	}
}

func form(t *testing.T) conformance.Form {
	t.Helper()
	switch v := os.Getenv(EnvForm); v {
	case "":
		if os.Getenv(EnvLong) != "" {
			return conformance.Normal
		}
		return conformance.Short
	case "short":
		return conformance.Short
	case "normal":
		return conformance.Normal
	case "long":
		return conformance.Long
	default:
		t.Fatalf("%s=%q: want short, normal or long", EnvForm, v)
		return 0
	}
}
