package mtl

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declarations holds a signature for each "receiver selector" of an Objective-C header, the
// receiver as in Message.Receiver.
type declarations map[string]string

var (
	comment   = regexp.MustCompile(`(?m)//.*$|(?s:/\*.*?\*/)`)
	typedef   = regexp.MustCompile(`^typedef (?:NS_(?:ENUM|OPTIONS)\((\w+), (\w+)\)|(\w+) (\w+))$`)
	container = regexp.MustCompile(`^@(?:interface|protocol) (\w+)(?: : (\w+))?(?: ?<(\w+)>)?`)
	method    = regexp.MustCompile(`^([-+]) ?\(`)
)

// parse reads the methods of a header, those of a container's protocols and superclass included.
func parse(header string) (declarations, error) {
	list := declarations{}
	integers := map[string]Type{}
	inherits := map[string][]string{}
	receiver := ""
	header = comment.ReplaceAllString(header, "")
	header = regexp.MustCompile(`(?m)^#.*$|^extern .*$`).ReplaceAllString(header, "")
	header = regexp.MustCompile(`(?s)\{.*?\}`).ReplaceAllString(header, ";")
	header = regexp.MustCompile(`(?m)^(@interface.*|@end|@protocol [^,;]*)$`).ReplaceAllString(header, "$1;")
	for _, text := range strings.Split(header, ";") {
		text = strings.TrimLeft(strings.Join(strings.Fields(text), " "), "} ")
		if m := typedef.FindStringSubmatch(text); m != nil {
			integers[m[2]+m[4]] = Type(m[1] + m[3])
		} else if m := container.FindStringSubmatch(text); m != nil && !strings.Contains(text, ",") {
			receiver = m[1]
			inherits[receiver] = append(inherits[receiver], m[2], m[3])
		} else if text == "@end" {
			receiver = ""
		} else if m := method.FindStringSubmatch(text); m != nil {
			if receiver == "" {
				return nil, fmt.Errorf("a method outside of a class: %s", text)
			}
			selector, signature, err := read(text[1:], integers)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", text, err)
			}
			class := strings.Trim(m[1], "-")
			list[class+receiver+" "+selector] = signature
		}
	}
	for name := range inherits {
		for parents, seen := slices.Clone(inherits[name]), map[string]bool{name: true}; len(parents) > 0; parents = parents[1:] {
			parent := parents[0]
			if seen[parent] {
				continue
			}
			seen[parent] = true
			parents = append(parents, inherits[parent]...)
			for key, signature := range maps.Clone(list) {
				if selector, ok := strings.CutPrefix(key, parent+" "); ok && list[name+" "+selector] == "" {
					list[name+" "+selector] = signature
				}
			}
		}
	}
	return list, nil
}

// read takes a declaration apart: (type)name:(type)argument name:(type)argument.
func read(text string, integers map[string]Type) (selector, signature string, err error) {
	var types []string
	for {
		text = strings.TrimSpace(text)
		typ, rest, ok := parenthesised(text)
		if !ok {
			return "", "", fmt.Errorf("no type at %q", text)
		}
		t, err := typeOf(typ, integers)
		if err != nil {
			return "", "", err
		}
		types = append(types, string(t))
		if len(types) > 1 { // the argument's name
			_, rest, _ = strings.Cut(strings.TrimSpace(rest), " ")
		}
		name, after, more := strings.Cut(rest, ":")
		selector += strings.TrimSpace(name)
		if !more {
			break
		}
		selector += ":"
		text = after
	}
	return selector, types[0] + " (" + strings.Join(types[1:], ", ") + ")", nil
}

func parenthesised(text string) (inside, rest string, ok bool) {
	depth := 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return text[min(1, i):i], text[i+1:], i > 0
		}
	}
	return "", "", false
}

// typeOf names a type as Message does, and what this package does not send by its text.
func typeOf(text string, integers map[string]Type) (Type, error) {
	switch t := Type(text); t {
	case TypeVoid, TypeSEL, TypeUint, TypeInt, TypeUint64, TypeBool, TypeDouble, TypeCString, TypeBytes, TypePointer, TypeSize, TypeError:
		return t, nil
	}
	switch text {
	case "oneway void":
		return TypeVoid, nil
	case "id", "instancetype", "ObjectType", "NSErrorDomain":
		return TypeID, nil
	}
	if t, ok := integers[text]; ok {
		return t, nil
	}
	switch {
	case strings.HasPrefix(text, "id<"), strings.HasPrefix(text, "NS") && strings.HasSuffix(text, " *"), strings.HasPrefix(text, "MTL") && strings.HasSuffix(text, " *"):
		return TypeID, nil
	case strings.HasPrefix(text, "void (^)("):
		return "block", nil
	}
	return "", fmt.Errorf("unknown type %q", text)
}

func header(t *testing.T, path ...string) declarations {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	list, err := parse(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Every message is one that Apple documents, with Apple's types.
func TestAppleHasMessages(t *testing.T) {
	apple := header(t, "testdata", "apple.h")
	for m := range NumMessages {
		x := m.Message()
		if want, ok := apple[m.String()]; !ok {
			t.Errorf("Apple documents no %v", m)
		} else if got := x.Signature(); got != want {
			t.Errorf("%v is %s, Apple documents %s", m, got, want)
		}
	}
}

// Everything that hostmetal presents is Apple's: what works on it has a chance to work on a Mac.
func TestAppleHasHostmetal(t *testing.T) {
	apple := header(t, "testdata", "apple.h")
	host := header(t, "..", "..", "..", "internal", "hostmetal", "objc", "Metal", "Metal.h")
	n := 0
	for key, got := range host {
		n++
		if want, ok := apple[key]; !ok {
			t.Errorf("hostmetal has %s, which Apple does not document", key)
		} else if got != want {
			t.Errorf("hostmetal's %s is %s, Apple documents %s", key, got, want)
		}
	}
	t.Logf("compared %d methods", n)
	if n < 80 {
		t.Errorf("only %d methods", n)
	}
	for m := range NumMessages { // and the other way round, for what is sent
		x := m.Message()
		if strings.HasPrefix(x.Receiver, "MTL") && host[m.String()] == "" {
			t.Errorf("hostmetal lacks %v", m)
		}
	}
}

func TestParse(t *testing.T) {
	list, err := parse(`
typedef NS_ENUM(NSInteger, MTLMathMode); // a comment
typedef NSUInteger MTLOptions;
@protocol MTLDevice, MTLBuffer;
@protocol A <NSObject>
- (void)a;
@end
@interface B : NSObject {
  int _x;
}
+ (instancetype)make:(MTLMathMode)mode
            withSize:(MTLSize)size block:(void (^)(void *p, NSUInteger n))f;
- (MTLOptions)options;
@end
@protocol C <A>
- (const void *)b:(NSError **)error;
@end
int f(void);`)
	if err != nil {
		t.Fatal(err)
	}
	want := declarations{
		"A a": "void ()", "C a": "void ()", "C b:": "const void * (NSError **)",
		"+B make:withSize:block:": "id (NSInteger, MTLSize, block)", "B options": "NSUInteger ()",
	}
	if !maps.Equal(list, want) {
		t.Errorf("got %v, want %v", list, want)
	}
	for _, bad := range []string{"- (void)a;", "@interface A\n- (int)a;\n@end", "@interface A\n- (void)a:(unsigned)b;\n@end"} {
		if list, err := parse(bad); err == nil {
			t.Errorf("%q: %v", bad, list)
		}
	}
}
