package auto_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
)

// Every known name opens the backend of that name, or says why not.
func TestOpenName(t *testing.T) {
	names := auto.Names()
	if !slices.Contains(names, "ref") || !slices.Contains(names, "metal") {
		t.Errorf("names %v lack ref or metal", names)
	}
	for _, name := range names {
		b, err := auto.OpenName(name)
		if err != nil {
			if !errors.Is(err, codec.ErrUnavailable) || b != nil {
				t.Errorf("%s: backend %v, error %v", name, b, err)
			}
			continue
		}
		if b.Name() != name {
			t.Errorf("OpenName(%q) opened %q", name, b.Name())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := auto.OpenName("ref"); err != nil {
		t.Error(err)
	}
}

// OpenName does not read the environment.
func TestOpenNameIgnoresEnvironment(t *testing.T) {
	t.Setenv(auto.Env, "abacus")
	b, err := auto.OpenName("ref")
	if err != nil || b.Name() != "ref" {
		t.Fatal(b, err)
	}
}

func TestUnknownNameListsTheKnown(t *testing.T) {
	for _, name := range []string{"", "Ref", "ref ", "abacus"} {
		_, err := auto.OpenName(name)
		if !errors.Is(err, codec.ErrUnsupported) {
			t.Errorf("%q: %v", name, err)
			continue
		}
		for _, known := range auto.Names() {
			if !strings.Contains(err.Error(), known) {
				t.Errorf("%q: %q does not list %s", name, err, known)
			}
		}
	}
}

// Without the environment variable, Open opens the first that is available, and
// Explain gives a reason for each one before it.
func TestOpenPicksFastest(t *testing.T) {
	t.Setenv(auto.Env, "")
	b, err := auto.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	skipped := auto.Explain()
	for i, name := range auto.Names() {
		if name == b.Name() {
			if len(skipped) != i {
				t.Errorf("%d reasons for %d backends: %v", len(skipped), i, skipped)
			}
			break
		}
		if _, err := auto.OpenName(name); err == nil {
			t.Errorf("%s is available, but Open opened %s", name, b.Name())
		}
		if i >= len(skipped) || !strings.HasPrefix(skipped[i].Error(), name+": ") || !errors.Is(skipped[i], codec.ErrUnavailable) {
			t.Errorf("reasons %v: number %d is not that of %s", skipped, i, name)
		}
	}
}

// A backend that the environment asks for is opened, or is an error: never
// another in its place.
func TestOpenReadsEnvironment(t *testing.T) {
	t.Setenv(auto.Env, "ref")
	b, err := auto.Open()
	if err != nil || b.Name() != "ref" {
		t.Fatal(b, err)
	}
	b.Close()
	t.Setenv(auto.Env, "abacus")
	if b, err := auto.Open(); b != nil || !errors.Is(err, codec.ErrUnsupported) || !strings.Contains(err.Error(), auto.Env) {
		t.Errorf("backend %v, error %v", b, err)
	}
}
