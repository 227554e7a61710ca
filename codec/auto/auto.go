// Package auto opens a backend: the fastest that this program was built with
// and that runs on this machine, or one by name. All backends give the same
// bits, so the choice is one of speed alone.
//
// # Which are built in
//
//	metal  with -tags metal; runs on a Mac with Apple silicon
//	cuda   with -tags cuda; runs on Linux with an NVIDIA GPU
//	cpu    always
//	ref    always: the definition, where another is in doubt
//
// A backend is one candidate in the list of this file. One that a build tag
// guards has its candidate in two files: name.go under the tag, the only file
// that imports it, and name_off.go under the negation, which reports
// codec.ErrUnavailable and the tag that was missing. So an importer gets the
// dependencies of the tags it asked for and no others, and a name is known
// whether or not its backend was built in.
package auto

import (
	"fmt"
	"os"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// Env is the environment variable that names the backend for Open.
const Env = "TURBOTRELLIS_BACKEND"

// candidate is a backend that may or may not run here. open wraps
// codec.ErrUnavailable where it does not.
type candidate struct {
	name string
	open func() (codec.Backend, error)
}

// candidates holds every backend, fastest first. The last always opens.
var candidates = [...]candidate{
	metalBackend,
	cudaBackend,
	{"cpu", openCPU},
	{"ref", func() (codec.Backend, error) { return ref.New(), nil }},
}

func openCPU() (codec.Backend, error) {
	b, err := cpu.Open()
	if err != nil {
		return nil, err // not b: a nil *cpu.Backend in an interface is not nil
	}
	return b, nil
}

// Names returns the names that OpenName knows, fastest first. A backend may be
// known and not available.
func Names() []string {
	var names []string
	for _, c := range candidates {
		names = append(names, c.name)
	}
	return names
}

// OpenName opens the backend of that name. An unknown name is
// codec.ErrUnsupported and lists the known; a backend that was not built in or
// cannot run here is codec.ErrUnavailable and says why. It does not read the
// environment.
func OpenName(name string) (codec.Backend, error) {
	for _, c := range candidates {
		if c.name == name {
			return c.open()
		}
	}
	return nil, &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex,
		Reason: fmt.Sprintf("unknown backend %q: want one of %s", name, strings.Join(Names(), ", "))}
}

// Open opens the backend that the environment variable Env names, or the
// fastest that is available where it is unset or empty. Its error is that of
// OpenName, with Env named: a backend that was asked for is never replaced by
// another.
func Open() (codec.Backend, error) {
	if name := os.Getenv(Env); name != "" {
		b, err := OpenName(name)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", Env, name, err)
		}
		return b, nil
	}
	b, _, err := fastest()
	return b, err
}

// Explain says why Open passes over each backend that is faster than the one
// that it opens where Env is unset: one error per backend, which starts with its
// name. It opens backends to find out, and closes them.
func Explain() []error {
	b, skipped, err := fastest()
	if err == nil {
		b.Close()
	}
	return skipped
}

// fastest opens the first candidate that opens, and returns why those before it
// did not.
func fastest() (b codec.Backend, skipped []error, err error) {
	for _, c := range candidates {
		if b, err = c.open(); err == nil {
			return b, skipped, nil
		}
		skipped = append(skipped, fmt.Errorf("%s: %w", c.name, err))
	}
	return nil, skipped, err
}
