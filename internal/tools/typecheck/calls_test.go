//go:build typecheck

package typecheck

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// Package gpu/darwinkit says why a message needs three arguments and a result of eight bytes.
const minArguments = 3

// violations lists what the driver does with darwinkit that it must not.
func violations(t *testing.T, p *program) (list []string, calls int) {
	t.Helper()
	c := p.check(driver)
	for _, err := range c.errs {
		t.Fatal(err)
	}
	report := func(n ast.Node, format string, args ...any) {
		list = append(list, fmt.Sprintf("%s: %s", p.fset.Position(n.Pos()), fmt.Sprintf(format, args...)))
	}
	for _, file := range c.files {
		called := map[*ast.Ident]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			id := callee(call.Fun)
			if id == nil || !isCall(c.info.Uses[id]) {
				return true
			}
			called[id] = true
			calls++
			switch {
			case call.Ellipsis != token.NoPos:
				report(call, "arguments that cannot be counted")
			case len(call.Args)-2 < minArguments:
				report(call, "a message with %d arguments", len(call.Args)-2)
			}
			return true
		})
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			f, ok := c.info.Uses[id].(*types.Func)
			switch {
			case !ok || f.Pkg() == nil:
			case isCall(f):
				if !called[id] {
					report(id, "objc.Call is not called where it is named")
				}
			case strings.HasPrefix(f.Pkg().Path(), darwinkit):
				if through := p.sends(f.Origin().FullName(), f.Pkg().Path()); through != "" {
					report(id, "%s sends a message of its own, through %s", f.FullName(), through)
				}
			}
			// A result that is smaller than a register, in objc.Call or what it is wrapped in.
			if x, ok := c.info.Instances[id]; ok && x.TypeArgs.Len() > 0 {
				result := x.TypeArgs.At(0)
				if _, open := result.(*types.TypeParam); !open {
					if size := types.SizesFor("gc", "arm64").Sizeof(result); size > 0 && size < 8 {
						report(id, "a result of %d bytes", size)
					}
				}
			}
			return true
		})
	}
	return list, calls
}

// callee is the name of what is called, without a type argument and a qualifier.
func callee(e ast.Expr) *ast.Ident {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return e
	case *ast.SelectorExpr:
		return e.Sel
	case *ast.IndexExpr:
		return callee(e.X)
	}
	return nil
}

func isCall(o types.Object) bool {
	f, ok := o.(*types.Func)
	return ok && f.Pkg() != nil && f.Pkg().Path() == darwinkit+"objc" && f.Name() == "Call"
}

// sends looks in the function's body, and in what it calls of its package, for objc.Call, or for
// something that cannot be followed. It says what it found.
func (p *program) sends(name, path string) string {
	c := p.check(path)
	bodies := map[string]*ast.FuncDecl{}
	for _, f := range c.files {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				bodies[fullName(path, d)] = d
			}
		}
	}
	seen := map[string]bool{}
	var follow func(string) string
	follow = func(name string) (through string) {
		if seen[name] {
			return ""
		}
		seen[name] = true
		d := bodies[name]
		if d == nil || d.Body == nil {
			return name
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && through == "" {
				if f, ok := c.info.Uses[id].(*types.Func); ok && f.Pkg() != nil && strings.HasPrefix(f.Pkg().Path(), darwinkit) {
					if isCall(f) {
						through = name
					} else {
						through = follow(f.Origin().FullName())
					}
				}
			}
			return through == ""
		})
		return through
	}
	return follow(name)
}

// fullName is types.Func's FullName for a declaration with a plain receiver.
func fullName(path string, d *ast.FuncDecl) string {
	if d.Recv == nil {
		return path + "." + d.Name.Name
	}
	star, receiver := "", d.Recv.List[0].Type
	if s, ok := receiver.(*ast.StarExpr); ok {
		star, receiver = "*", s.X
	}
	if id, ok := receiver.(*ast.Ident); ok {
		return "(" + star + path + "." + id.Name + ")." + d.Name.Name
	}
	return ""
}

// No message leaves through darwinkit with fewer than three arguments.
func TestCalls(t *testing.T) {
	list, calls := violations(t, newProgram(t, mac))
	for _, v := range list {
		t.Error(v)
	}
	if calls != 1 {
		t.Errorf("objc.Call is called in %d places, want one", calls)
	}
}

func TestSeededCalls(t *testing.T) {
	p := newProgram(t, mac)
	source := driverSource(t, p)
	for _, s := range []struct{ name, old, new, want string }{
		{"two arguments", "s.sels[m], a, b, c)", "s.sels[m], a, b)", "a message with 2 arguments"},
		{"none", "return objc.Call[T](object(o), s.sels[m], a, b, c)", "if a == none { return objc.Call[T](object(o), s.sels[m]) }; return objc.Call[T](object(o), s.sels[m], a, b, c)", "a message with 0 arguments"},
		{"a slice", "s.sels[m], a, b, c)", "s.sels[m], []any{a, b, c}...)", "cannot be counted"},
		{"in parentheses", "objc.Call[T](object(o), s.sels[m], a, b, c)", "(objc.Call[T])(object(o), s.sels[m], a)", "a message with 1 arguments"},
		{"by another name", "return objc.Call[T](object(o), s.sels[m], a, b, c)", "f := objc.Call[T]; return f(object(o), s.sels[m])", "not called where it is named"},
		{"a method of darwinkit's", "return s, nil", "_ = metal.DeviceObject{Object: object(1)}.Name(); return s, nil", "sends a message of its own"},
		{"a class method of darwinkit's", "return s, nil", "_ = metal.NewCompileOptions(); return s, nil", "sends a message of its own"},
		{"a small result", "return uint8(send[uint](s, o, m, none, none, none)) != 0", "return send[bool](s, o, m, none, none, none)", "a result of 1 bytes"},
		{"another small result", "return send[int](s, o, m, none, none, none)", "return int(send[int32](s, o, m, none, none, none))", "a result of 4 bytes"},
	} {
		list, _ := violations(t, p.fork("darwinkit.go", replaced(t, source, s.old, s.new)))
		if text := strings.Join(list, "\n"); !strings.Contains(text, s.want) {
			t.Errorf("%s: found %q, want %q", s.name, text, s.want)
		}
	}
}
