package codec_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/turbotrellis/turbotrellis/"

type listed struct {
	ImportPath, Dir         string
	Standard                bool
	Imports, IgnoredGoFiles []string
}

// list runs go list -json, with -deps if deps, on a package of this module.
func list(t *testing.T, pkg string, deps bool) []listed {
	t.Helper()
	args := []string{"list", "-json=ImportPath,Dir,Standard,Imports,IgnoredGoFiles"}
	if deps {
		args = append(args, "-deps")
	}
	out, err := exec.Command("go", append(args, module+pkg)...).Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no go command")
	}
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			t.Fatalf("go list %s: %s", pkg, e.Stderr)
		}
		t.Fatal(err)
	}
	var ps []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	if len(ps) == 0 {
		t.Fatalf("go list %s: nothing listed", pkg)
	}
	return ps
}

// Who imports codec, codec/ref or codec/auto gets the standard library and
// packages of this module, no dependency.
func TestDependencies(t *testing.T) {
	for _, pkg := range []string{"codec", "codec/ref", "codec/cpu", "codec/auto"} {
		for _, p := range list(t, pkg, true) {
			if !p.Standard && !strings.HasPrefix(p.ImportPath, module) {
				t.Errorf("%s depends on %s", pkg, p.ImportPath)
			}
		}
	}
}

// go mod vendor looks past build tags: who vendors these packages gets the
// standard library only, whatever the tags of their files.
func TestVendored(t *testing.T) {
	for _, pkg := range []string{"codec", "codec/driver", "codec/ref", "codec/cpu"} {
		for _, p := range list(t, pkg, true) {
			for _, name := range p.IgnoredGoFiles {
				if p.Standard || strings.HasSuffix(name, "_test.go") {
					continue
				}
				f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ImportsOnly)
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range f.Imports {
					if path, _ := strconv.Unquote(i.Path.Value); strings.Contains(path, ".") && !strings.HasPrefix(path, module) {
						t.Errorf("%s: %s imports %s", p.ImportPath, name, path)
					}
				}
			}
		}
	}
}

// The contract brings in no implementation of it; the reference has the front
// end before it and calls nothing that dispatches.
func TestReachesNoBackend(t *testing.T) {
	for _, p := range list(t, "codec", true) {
		if strings.HasPrefix(p.ImportPath, module+"codec/") {
			t.Errorf("codec depends on %s", p.ImportPath)
		}
	}
	for _, p := range list(t, "codec/driver", true) {
		if rest, ok := strings.CutPrefix(p.ImportPath, module+"codec/"); ok && rest != "driver" {
			t.Errorf("codec/driver depends on %s", p.ImportPath)
		}
	}
	for _, p := range list(t, "codec/ref", true) {
		if rest, ok := strings.CutPrefix(p.ImportPath, module+"codec/"); ok && rest != "ref" && rest != "driver" {
			t.Errorf("codec/ref depends on %s", p.ImportPath)
		}
	}
}

// Leaf packages import the standard library, but nothing that varies from run to
// run, pack and internal packages.
func TestLeavesImportOnlyPack(t *testing.T) {
	for _, pkg := range []string{"pack", "hadamard", "lloydmax", "affine", "trellis"} {
		p := list(t, pkg, false)[0]
		for _, imported := range p.Imports {
			ours, ok := strings.CutPrefix(imported, module)
			switch {
			case !ok && (strings.Contains(imported, ".") || strings.HasPrefix(imported, "math/rand") || imported == "time" || imported == "sync"):
				t.Errorf("%s imports %s", pkg, imported)
			case ok && ours != "pack" && !strings.HasPrefix(ours, "internal/"):
				t.Errorf("%s imports %s", pkg, ours)
			}
		}
	}
}

// The reference and what it stands on is straight Go that any platform reads:
// no unsafe.
func TestReferenceIsSafe(t *testing.T) {
	for _, p := range list(t, "codec/ref", true) {
		if !p.Standard && slices.Contains(p.Imports, "unsafe") {
			t.Errorf("%s imports unsafe", p.ImportPath)
		}
	}
}

// The planner knows no device: each opens on top of it.
func TestPlannerReachesNoDevice(t *testing.T) {
	for _, p := range list(t, "codec/gpu", true) {
		if strings.HasPrefix(p.ImportPath, module+"gpu/") || !p.Standard && !strings.HasPrefix(p.ImportPath, module) {
			t.Errorf("codec/gpu depends on %s", p.ImportPath)
		}
	}
}
