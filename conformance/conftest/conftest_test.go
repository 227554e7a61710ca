package conftest_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
)

// TestChild is what the other tests run in a process of its own.
func TestChild(t *testing.T) {
	switch os.Getenv("CONFTEST_CHILD") {
	case "ref":
		conftest.Run(t, "ref", func() (codec.Backend, error) { return ref.New(), nil })
	case "absent":
		conftest.Run(t, "absent", func() (codec.Backend, error) {
			return nil, &codec.Error{Err: codec.ErrUnavailable, Index: codec.NoIndex, Reason: "no such device"}
		})
	case "broken":
		conftest.Run(t, "broken", func() (codec.Backend, error) { return nil, errors.New("no") })
	case "misnamed":
		conftest.Run(t, "other", func() (codec.Backend, error) { return ref.New(), nil })
	default:
		t.Skip("a child of TestOutcomes")
	}
}

func TestOutcomes(t *testing.T) {
	if _, err := exec.LookPath(os.Args[0]); err != nil {
		t.Skip("programs cannot be started here: ", err)
	}
	for _, test := range []struct {
		child, require, filter, form, long string
		fails                              bool
		says                               string
	}{
		{"ref", "", "KV", "", "", false, "KV: 4"},
		{"ref", "ref,cpu", "KV", "normal", "", false, "normal form"},
		{"ref", "", "KV", "", "1", false, "normal form"},
		{"ref", "", "abacus", "", "", true, "no case ran"},
		{"ref", "", "KV", "huge", "", true, "want short, normal or long"},
		{"absent", "", "", "", "", false, "no such device"},
		{"absent", "ref, absent", "", "", "", true, "did not run"},
		{"broken", "", "", "", "", true, "did not run"},
		{"misnamed", "", "KV", "", "", true, `named "ref"`},
	} {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestChild$", "-test.v")
		cmd.Env = append(os.Environ(), "CONFTEST_CHILD="+test.child, "REQUIRE_BACKENDS="+test.require, "CONFORMANCE_FILTER="+test.filter, "CONFORMANCE_FORM="+test.form, "TURBOTRELLIS_LONG="+test.long)
		out, err := cmd.CombinedOutput()
		if (err != nil) != test.fails || !strings.Contains(string(out), test.says) {
			t.Errorf("%+v: error %v\n%s", test, err, out)
		}
	}
}
