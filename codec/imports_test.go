package codec_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/turbotrellis/turbotrellis/"

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

// list runs go list -json, with -deps if deps, on a package of this module.
func list(t *testing.T, pkg string, deps bool) []listed {
	t.Helper()
	args := []string{"list", "-json=ImportPath,Standard,Imports"}
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

// The contract brings in no implementation of it; the reference has the front
// end before it and calls nothing that dispatches.
func TestReachesNoBackend(t *testing.T) {
	for _, p := range list(t, "codec", true) {
		if strings.HasPrefix(p.ImportPath, module+"codec/") {
			t.Errorf("codec depends on %s", p.ImportPath)
		}
	}
	for _, p := range list(t, "codec/ref", true) {
		if rest, ok := strings.CutPrefix(p.ImportPath, module+"codec/"); ok && rest != "ref" && rest != "driver" {
			t.Errorf("codec/ref depends on %s", p.ImportPath)
		}
	}
}

// Leaf packages import the standard library, pack and internal packages.
func TestLeavesImportOnlyPack(t *testing.T) {
	for _, pkg := range []string{"pack", "hadamard", "lloydmax", "affine", "trellis"} {
		p := list(t, pkg, false)[0]
		for _, imported := range p.Imports {
			ours, ok := strings.CutPrefix(imported, module)
			switch {
			case !ok && strings.Contains(imported, "."):
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
