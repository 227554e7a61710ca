//go:build typecheck

package typecheck

import (
	"go/ast"
	"go/types"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// newer are the messages younger than darwinkit v0.5.0, which knows macOS 14's Metal in part.
var newer = []string{
	"MTLDevice architecture", "MTLArchitecture name", // macOS 14
	"MTLCompileOptions setMathMode:", "MTLCompileOptions setMathFloatingPointFunctions:", // macOS 15
}

// darwinkit's methods were generated from Apple's documentation: package mtl has the same selectors
// with the same types.
func TestBindings(t *testing.T) {
	p := newProgram(t, mac)
	bound := map[string]string{}
	for _, path := range []string{darwinkit + "macos/metal", darwinkit + "macos/foundation"} {
		p.bindings(path, bound)
	}
	compared := 0
	for m := range mtl.NumMessages {
		x := m.Message()
		if strings.TrimPrefix(x.Receiver, "+") == "NSObject" {
			continue // objc.Object, written by hand
		}
		if slices.Contains(newer, m.String()) {
			if bound[m.String()] != "" {
				t.Errorf("darwinkit has %v by now", m)
			}
			continue
		}
		compared++
		want := []string{kindOf(x.Return)}
		for _, a := range x.Args {
			want = append(want, kindOf(a))
		}
		if got := bound[m.String()]; got != strings.Join(want, " ") {
			t.Errorf("%v is %v, darwinkit has %q", m, want, got)
		}
	}
	t.Logf("compared %d messages", compared)
	if compared < 40 {
		t.Errorf("compared only %d messages", compared)
	}
}

// kindOf is what darwinkit makes of a type.
func kindOf(t mtl.Type) string {
	switch t {
	case mtl.TypeVoid:
		return "void"
	case mtl.TypeID:
		return "object"
	case mtl.TypeUint:
		return "uint"
	case mtl.TypeInt:
		return "int"
	case mtl.TypeUint64:
		return "uint64"
	case mtl.TypeBool:
		return "bool"
	case mtl.TypeDouble:
		return "float64"
	case mtl.TypeSize:
		return "Size"
	}
	return "pointer"
}

// bindings adds to bound, for each method of the package that sends one message, the kinds of its
// result and its parameters by mtl's name of the message.
func (p *program) bindings(path string, bound map[string]string) {
	c := p.check(path)
	prefix := "MTL"
	if strings.HasSuffix(path, "foundation") {
		prefix = "NS"
	}
	for _, file := range c.files {
		for _, d := range file.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Recv == nil || d.Body == nil {
				continue
			}
			selectors := sent(d.Body)
			id, ok := d.Recv.List[0].Type.(*ast.Ident)
			if len(selectors) != 1 || !ok {
				continue
			}
			receiver, isClass := strings.CutSuffix(strings.TrimSuffix(strings.TrimPrefix(id.Name, "_"), "Object"), "Class")
			receiver = prefix + receiver
			if isClass {
				receiver = "+" + receiver
			}
			object, _, _ := types.LookupFieldOrMethod(c.pkg.Scope().Lookup(id.Name).Type(), true, c.pkg, d.Name.Name)
			signature := object.Type().(*types.Signature)
			kinds := []string{"void"}
			if signature.Results().Len() > 0 {
				kinds[0] = kind(signature.Results().At(0).Type())
			}
			for v := range signature.Params().Variables() {
				kinds = append(kinds, kind(v.Type()))
			}
			bound[receiver+" "+selectors[0]] = strings.Join(kinds, " ")
		}
	}
}

// sent lists the arguments of objc.Sel.
func sent(body *ast.BlockStmt) (list []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 1 {
			if id := callee(call.Fun); id != nil && id.Name == "Sel" {
				if text, ok := call.Args[0].(*ast.BasicLit); ok {
					if s, err := strconv.Unquote(text.Value); err == nil {
						list = append(list, s)
					}
				}
			}
		}
		return true
	})
	return list
}

func kind(t types.Type) string {
	if n, ok := t.(*types.Named); ok && n.Obj().Name() == "Size" {
		return "Size"
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		switch u.Kind() {
		case types.String:
			return "object"
		case types.UnsafePointer:
			return "pointer"
		}
		return u.Name()
	case *types.Pointer:
		return "pointer"
	}
	return "object"
}
