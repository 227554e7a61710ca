//go:build metal && hostmetal

package mtl_test

import (
	"os"
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
	sender "github.com/turbotrellis/turbotrellis/gpu/metal/mtl/sendpurego"
)

// Every message finds a method on hostmetal and GNUstep whose type, as the runtime knows it, is the
// one in the table.
func TestEncodings(t *testing.T) {
	s, err := sender.Load()
	if err != nil && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), "metal") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var register func(string) uintptr
	var instanceMethod, classMethod func(class mtl.ID, selector uintptr) uintptr
	var typeEncoding func(method uintptr) string
	for f, name := range map[any]string{
		&register: "sel_registerName", &instanceMethod: "class_getInstanceMethod", &classMethod: "class_getClassMethod",
		&typeEncoding: "method_getTypeEncoding",
	} {
		purego.RegisterLibFunc(f, purego.RTLD_DEFAULT, name)
	}
	for m := range mtl.NumMessages {
		x := m.Message()
		name, find := x.Receiver, instanceMethod
		if class, ok := strings.CutPrefix(name, "+"); ok {
			name, find = class, classMethod
		}
		switch name {
		case "MTLCompileOptions", "MTLArchitecture":
		case "MTLCommandEncoder":
			name = "HostMTLComputeCommandEncoder"
		default:
			if strings.HasPrefix(name, "MTL") {
				name = "Host" + name // the class that has the protocol
			}
		}
		class := s.Class(name)
		if class == 0 {
			t.Errorf("no class %s", name)
			continue
		}
		method := find(class, register(x.Selector))
		if method == 0 {
			t.Errorf("%s has no method for %v", name, m)
			continue
		}
		want := encoding(x.Return) + "@:"
		for _, a := range x.Args {
			want += encoding(a)
		}
		if got := plain(typeEncoding(method)); got != want {
			t.Errorf("%v is %s, the runtime has %s", m, want, got)
		}
	}
}

// encoding is a type as Objective-C encodes it, without qualifiers.
func encoding(t mtl.Type) string {
	switch t {
	case mtl.TypeVoid:
		return "v"
	case mtl.TypeID:
		return "@"
	case mtl.TypeSEL:
		return ":"
	case mtl.TypeUint, mtl.TypeUint64:
		return "Q"
	case mtl.TypeInt:
		return "q"
	case mtl.TypeBool:
		return "B"
	case mtl.TypeDouble:
		return "d"
	case mtl.TypeCString:
		return "*"
	case mtl.TypeSize:
		return "{QQQ}"
	case mtl.TypeError:
		return "^@"
	}
	return "^v"
}

// plain removes offsets, qualifiers and names from an encoding. GNUstep's BOOL is an unsigned char,
// and long an l.
func plain(s string) string {
	var b strings.Builder
	for _, c := range s {
		if !strings.ContainsRune("0123456789rnNoORV?=", c) {
			b.WriteRune(c)
		}
	}
	return strings.NewReplacer("C", "B", "L", "Q", "l", "q").Replace(b.String())
}
