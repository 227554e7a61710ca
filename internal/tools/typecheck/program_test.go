//go:build typecheck

package typecheck

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
	"testing"
)

const module = "github.com/turbotrellis/turbotrellis/"

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

// A platform is one way to build the module.
type platform struct {
	goos, goarch string
	cgo          bool
	tags         string // separated by commas
}

func (p platform) String() string { return p.goos + "/" + p.goarch }

// list asks go list, which compiles nothing.
func list(p platform) (map[string]*listed, error) {
	c := exec.Command("go", "list", "-e", "-tags="+p.tags, "-deps", "-test", "-json=ImportPath,Dir,Name,ForTest,GoFiles,CgoFiles,ImportMap,Deps,Error",
		module+"...")
	cgo := "CGO_ENABLED=0"
	if p.cgo {
		cgo = "CGO_ENABLED=1"
	}
	c.Env = append(os.Environ(), "GOOS="+p.goos, "GOARCH="+p.goarch, cgo)
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
}

// A program is a set of packages with their types, some of which may be checked from a changed
// source.
type program struct {
	platform
	fset    *token.FileSet
	listed  map[string]*listed
	types   map[string]*types.Package
	changed map[string]string // a file's source, by path
}

func newProgram(t *testing.T, of platform) *program {
	t.Helper()
	l, err := list(of)
	if err != nil {
		t.Fatal(err)
	}
	return &program{of, token.NewFileSet(), l, map[string]*types.Package{}, nil}
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
		Sizes:            types.SizesFor("gc", p.goarch),
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
