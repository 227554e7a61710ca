//go:build typecheck

package typecheck

import (
	"slices"
	"strings"
	"testing"
)

// platforms are those that CI does not build for, one of each kind of difference
// in files and sizes.
var platforms = []platform{
	{"darwin", "arm64", false, "metal"},
	{"linux", "386", false, ""},
	{"linux", "arm64", false, "cuda"},
	{"windows", "amd64", false, ""},
	{"freebsd", "amd64", false, ""},
	{"plan9", "amd64", false, ""},
	{"wasip1", "wasm", false, ""},
}

// Every package of the module and its tests have the right types on every
// platform.
func TestPlatforms(t *testing.T) {
	for _, of := range platforms {
		t.Run(of.String(), func(t *testing.T) {
			t.Parallel()
			p := newProgram(t, of)
			var paths []string
			for path := range p.listed {
				if strings.HasPrefix(path+"/", module) && !strings.HasSuffix(path, ".test") {
					paths = append(paths, path)
				}
			}
			slices.Sort(paths)
			if len(paths) < 40 {
				t.Fatalf("go list knows only %d packages", len(paths))
			}
			for _, path := range paths {
				for _, err := range p.check(path).errs {
					t.Error(err)
				}
			}
			t.Logf("checked %d packages and test packages", len(paths))
		})
	}
}
