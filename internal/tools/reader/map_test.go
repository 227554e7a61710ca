package reader

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// packages are the folders of the packages that the map of docs/numerics.md §0 names.
var packages = map[string]string{"f32": "internal/f32", "threefry": "internal/threefry", "ldlq": "trellis/ldlq", "ref": "codec/ref"}

// Every function, shader and stage that the map of docs/numerics.md §0 names is there.
func TestMap(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs/numerics.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "| § | Go | shaders | stage |\n|---|---|---|---|\n")
	if !ok {
		t.Fatal("docs/numerics.md has no map")
	}
	table, _, _ := strings.Cut(rest, "\n\n")

	sources, err := filepath.Glob(filepath.Join(root, "shaders/*.metal"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("no shaders: %v", err)
	}
	var shaders strings.Builder
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shaders.Write(text)
	}
	stages, err := os.ReadFile(filepath.Join(root, "conformance/failure.go"))
	if err != nil {
		t.Fatal(err)
	}

	names := regexp.MustCompile("`([^`]+)`")
	declared := map[string]map[string]bool{}
	seen := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) != 6 {
			t.Fatalf("row of %d cells: %q", len(cells)-2, row)
		}
		for column, cell := range cells[2:5] {
			for _, m := range names.FindAllStringSubmatch(cell, -1) {
				seen++
				switch name := m[1]; column {
				case 0:
					pkg, symbol, _ := strings.Cut(name, ".")
					if declared[pkg] == nil {
						dir := pkg
						if d, ok := packages[pkg]; ok {
							dir = d
						}
						declared[pkg] = functions(t, filepath.Join(root, dir))
					}
					if !declared[pkg][symbol] {
						t.Errorf("docs/numerics.md names %s, which is not there", name)
					}
				case 1:
					if !regexp.MustCompile(`(?m)^static inline \w+ ` + name + `\(`).MatchString(shaders.String()) {
						t.Errorf("docs/numerics.md names the shader function %s, which is not there", name)
					}
				case 2:
					if !strings.Contains(string(stages), `Stage = "`+name+`"`) {
						t.Errorf("docs/numerics.md names the stage %s, which is not there", name)
					}
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d names in the map", seen)
	}
}

// functions returns the exported functions and methods, as Type.Method, of the package in dir.
func functions(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no package in %s: %v", dir, err)
	}
	names := map[string]bool{}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				recv := fn.Recv.List[0].Type
				if p, ok := recv.(*ast.StarExpr); ok {
					recv = p.X
				}
				id, ok := recv.(*ast.Ident)
				if !ok {
					continue
				}
				name = id.Name + "." + name
			}
			names[name] = true
		}
	}
	return names
}
