//go:build typecheck

package typecheck

import (
	"errors"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	driver    = module + "gpu/metal/mtl/senddarwinkit"
	darwinkit = "github.com/progrium/darwinkit/"
)

// mac is what a Mac builds with cgo.
var mac = platform{"darwin", "arm64", true, "metal"}

// fork returns a program that keeps what p knows of packages not ours, and reads one file of the
// driver changed.
func (p *program) fork(file, source string) *program {
	f := &program{p.platform, p.fset, p.listed, map[string]*types.Package{}, map[string]string{filepath.Join(p.listed[driver].Dir, file): source}}
	for path, pkg := range p.types {
		if !strings.HasPrefix(path, module) {
			f.types[path] = pkg
		}
	}
	return f
}

// users lists the driver and the packages of the module that import it, directly or not, with
// their tests.
func (p *program) users() []string {
	var list []string
	for path, l := range p.listed {
		if strings.HasPrefix(path, module) && !strings.HasSuffix(path, ".test") && (path == driver || slices.Contains(l.Deps, driver)) {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list
}

func TestTypes(t *testing.T) {
	p := newProgram(t, mac)
	users := p.users()
	for _, want := range []string{driver, module + "gpu/metal", module + "codec/metal", module + "cmd/turbotrellis"} {
		if !slices.Contains(users, want) {
			t.Errorf("%s is not among those to check", want)
		}
	}
	for _, path := range users {
		c := p.check(path)
		for _, err := range c.errs {
			t.Error(err)
		}
		p.types[path] = c.pkg
	}
	t.Logf("checked %d packages and test packages", len(users))
}

// seeds are mistakes in copies of darwinkit.go, each of which has to be found.
var seeds = []struct{ name, old, new string }{
	{"a name that darwinkit lacks", "objc.RegisterSelectorName(", "objc.RegisterSelector("},
	{"a type that darwinkit does not take", "objc.ObjectFrom(*(*unsafe.Pointer)(unsafe.Pointer(&id)))", "objc.ObjectFrom(uintptr(id))"},
	{"a handle that is none", "objc.Call[T](object(o),", "objc.Call[T](o,"},
	{"a structure with other fields", "metal.Size(a)", "metal.Origin(a)"},
	{"a method of the seam missing", "func (s *sender) Float64(", "func (s *sender) Double("},
	{"a method of the seam with another type", "VoidUint(o mtl.ID, m mtl.Msg, a uint)", "VoidUint(o mtl.ID, m mtl.Msg, a uint32)"},
	{"a package that darwinkit lacks", `"github.com/progrium/darwinkit/macos/metal"`, `metal "github.com/progrium/darwinkit/macos/metal3"`},
	{"an unused variable", "s := &sender{}", "s, unused := &sender{}, 0"},
}

func TestSeededTypes(t *testing.T) {
	p := newProgram(t, mac)
	source := driverSource(t, p)
	for _, s := range seeds {
		c := p.fork("darwinkit.go", replaced(t, source, s.old, s.new)).check(driver)
		if len(c.errs) == 0 {
			t.Errorf("%s was not found", s.name)
		}
	}
}

func driverSource(t *testing.T, p *program) string {
	t.Helper()
	if c := p.check(driver); len(c.errs) > 0 { // it also fills what the forks share
		t.Fatal(errors.Join(c.errs...))
	}
	b, err := os.ReadFile(filepath.Join(p.listed[driver].Dir, "darwinkit.go"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func replaced(t *testing.T, source, old, new string) string {
	t.Helper()
	if !strings.Contains(source, old) {
		t.Fatalf("darwinkit.go does not contain %q", old)
	}
	return strings.Replace(source, old, new, 1)
}
