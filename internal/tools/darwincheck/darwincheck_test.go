package darwincheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	module    = "github.com/turbotrellis/turbotrellis/"
	driver    = module + "gpu/metal/mtl/senddarwinkit"
	darwinkit = "github.com/progrium/darwinkit/"
)

// listed is a package as go list describes it. Packages under test appear as variants, "path
// [test]", with their test files.
type listed struct {
	ImportPath string
	Dir        string
	Name       string
	ForTest    string
	GoFiles    []string
	CgoFiles   []string
	ImportMap  map[string]string
	Deps       []string
	Error      *struct{ Err string }
}

// list asks go list, which compiles nothing.
var list = sync.OnceValues(func() (map[string]*listed, error) {
	c := exec.Command("go", "list", "-e", "-tags=metal", "-deps", "-test", "-json=ImportPath,Dir,Name,ForTest,GoFiles,CgoFiles,ImportMap,Deps,Error",
		module+"...")
	c.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=1")
	var text bytes.Buffer
	c.Stderr = &text
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, text.Bytes())
	}
	packages := map[string]*listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		if err := d.Decode(p); err == io.EOF {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages[p.ImportPath] = p
	}
})

// A program is a set of packages with their types, some of which may be checked from a changed
// source.
type program struct {
	fset    *token.FileSet
	listed  map[string]*listed
	types   map[string]*types.Package
	changed map[string]string // a file's source, by path
}

func newProgram(t *testing.T) *program {
	t.Helper()
	l, err := list()
	if err != nil {
		t.Fatal(err)
	}
	return &program{token.NewFileSet(), l, map[string]*types.Package{}, nil}
}

// fork returns a program that keeps what p knows of packages not ours, and reads one file of the
// driver changed.
func (p *program) fork(file, source string) *program {
	f := &program{p.fset, p.listed, map[string]*types.Package{}, map[string]string{filepath.Join(p.listed[driver].Dir, file): source}}
	for path, pkg := range p.types {
		if !strings.HasPrefix(path, module) {
			f.types[path] = pkg
		}
	}
	return f
}

type checked struct {
	pkg   *types.Package
	files []*ast.File
	info  *types.Info
	errs  []error
}

// check type-checks a package with the bodies of its functions.
func (p *program) check(path string) checked { return p.load(path, true) }

func (p *program) load(path string, bodies bool) checked {
	l := p.listed[path]
	if l == nil {
		return checked{errs: []error{fmt.Errorf("go list does not know %s", path)}}
	}
	c := checked{info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Instances: map[*ast.Ident]types.Instance{}}}
	if l.Error != nil {
		c.errs = append(c.errs, errors.New(l.Error.Err))
	}
	for _, name := range slices.Concat(l.GoFiles, l.CgoFiles) {
		name = filepath.Join(l.Dir, name)
		var source any
		if s, ok := p.changed[name]; ok {
			source = s
		}
		f, err := parser.ParseFile(p.fset, name, source, parser.SkipObjectResolution)
		if err != nil {
			c.errs = append(c.errs, err)
			continue
		}
		c.files = append(c.files, f)
	}
	config := types.Config{
		Importer:         &importer{p, l},
		FakeImportC:      true,
		IgnoreFuncBodies: !bodies,
		Sizes:            types.SizesFor("gc", "arm64"),
		Error:            func(err error) { c.errs = append(c.errs, err) },
	}
	name, _, _ := strings.Cut(path, " ")
	c.pkg, _ = config.Check(name, p.fset, c.files, c.info)
	return c
}

// importer resolves what one package imports.
type importer struct {
	p    *program
	from *listed
}

func (i *importer) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if mapped, ok := i.from.ImportMap[path]; ok {
		path = mapped
	}
	if pkg, ok := i.p.types[path]; ok {
		return pkg, nil
	}
	c := i.p.load(path, false)
	if c.pkg == nil {
		return nil, errors.Join(c.errs...)
	}
	i.p.types[path] = c.pkg
	return c.pkg, nil
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
	p := newProgram(t)
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
	p := newProgram(t)
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
