package typecheck

import (
	"go/build"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every way to build brings in exactly one sender, and these the right one.
func TestSenderChosen(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "gpu", "metal")
	chosen := func(goos, goarch string, cgo bool, tags string) string {
		c := build.Default
		c.GOOS, c.GOARCH, c.CgoEnabled, c.BuildTags = goos, goarch, cgo, strings.Fields(tags)
		p, err := c.ImportDir(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		files := slices.DeleteFunc(p.GoFiles, func(f string) bool { return !strings.HasPrefix(f, "send_") })
		if len(files) != 1 {
			t.Errorf("%s/%s, cgo %t, tags %q: files %v", goos, goarch, cgo, tags, files)
			return ""
		}
		return strings.TrimSuffix(strings.TrimPrefix(files[0], "send_"), ".go")
	}
	const cgo = true
	for _, test := range []struct {
		goos, goarch string
		cgo          bool
		tags, want   string
	}{
		{"darwin", "arm64", cgo, "metal", "darwinkit"},
		{"darwin", "arm64", !cgo, "metal", "purego"},
		{"darwin", "arm64", cgo, "metal purego", "purego"},
		{"darwin", "arm64", cgo, "", "none"},
		{"darwin", "amd64", cgo, "metal", "none"},
		{"linux", "amd64", cgo, "metal", "none"},
		{"linux", "amd64", cgo, "metal hostmetal", "purego"}, // no C compiler of a special kind needed
		{"linux", "amd64", !cgo, "metal hostmetal", "purego"},
		{"linux", "amd64", cgo, "metal hostmetal darwinkit", "darwinkit"},
		{"linux", "arm64", cgo, "metal hostmetal darwinkit", "darwinkit"},
		{"linux", "arm64", !cgo, "metal hostmetal darwinkit", "purego"},
		{"linux", "s390x", cgo, "metal hostmetal darwinkit", "none"},
		{"windows", "amd64", !cgo, "metal", "none"},
	} {
		if got := chosen(test.goos, test.goarch, test.cgo, test.tags); got != test.want {
			t.Errorf("%s/%s, cgo %t, tags %q: %s, want %s", test.goos, test.goarch, test.cgo, test.tags, got, test.want)
		}
	}
	for set := range 1 << 4 {
		var tags []string
		for i, tag := range []string{"metal", "hostmetal", "darwinkit", "purego"} {
			if set>>i&1 != 0 {
				tags = append(tags, tag)
			}
		}
		for _, platform := range []string{"darwin arm64", "darwin amd64", "linux amd64", "linux arm64", "linux 386", "windows arm64"} {
			goos, goarch, _ := strings.Cut(platform, " ")
			chosen(goos, goarch, cgo, strings.Join(tags, " "))
			chosen(goos, goarch, !cgo, strings.Join(tags, " "))
		}
	}
}
