//go:build metal

package metal

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

// The tests of this tag run on whichever driver was compiled in. Without one, or
// without a device, they skip, unless the environment variable REQUIRE_BACKENDS
// names metal.

func open(t testing.TB, o Options) *Backend {
	t.Helper()
	b, err := Open(o)
	if errors.Is(err, codec.ErrUnavailable) && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), "metal") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil && !errors.Is(err, codec.ErrClosed) {
			t.Error(err)
		}
	})
	return b
}
