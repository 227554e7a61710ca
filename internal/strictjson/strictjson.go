// Package strictjson reads JSON texts whose every byte counts: those that this
// module defines, with Unmarshal, and those of other programs that are changed
// in places, with ParseObject. Errors name the line and the field.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Unmarshal decodes text, one JSON value, into v, a pointer to what is made of
// structs whose fields have json tags with their names, maps, slices, pointers
// and scalars. Where encoding/json is lax, it is not: these are errors, at any
// depth:
//
//   - a member that no field is named for, or in another case
//   - a member that is missing or null, unless the field has omitempty in its
//     json tag or the tag strictjson:"optional"
//   - two members of one name in one object
//   - null in an array or a map, or by itself
//   - half of a surrogate pair, and bytes that are not UTF-8
//   - anything after the value
//
// Errors are *Error. On an error v may have been written to.
func Unmarshal(text []byte, v any) error {
	t := reflect.TypeOf(v)
	s := &scanner{text: text, strict: true, object: func(path []string, names map[string]bool) error {
		return checkNames(typeAt(t, path), names)
	}}
	if err := s.document(); err != nil {
		return err
	}
	err := json.Unmarshal(text, v)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		s.path = []string{e.Field}
		return s.fail(int(e.Offset), "%s where %s belongs", e.Value, kindName(e.Type))
	}
	if err != nil {
		return &Error{Reason: err.Error()} // of a value's own text form
	}
	return nil
}

// typeAt returns the type that the value at path is decoded into, or nil if
// there is none.
func typeAt(t reflect.Type, path []string) reflect.Type {
	for {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t == nil || len(path) == 0 {
			return t
		}
		name, isName := strings.CutPrefix(path[0], ".")
		path = path[1:]
		switch {
		case isName && t.Kind() == reflect.Struct:
			t = fieldOf(t, name)
		case isName && t.Kind() == reflect.Map, !isName && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
			t = t.Elem()
		default:
			return nil // the decoder says so
		}
	}
}

// checkNames checks the names of an object's members against t, what it is
// decoded into. A name is false if the value is null.
func checkNames(t reflect.Type, names map[string]bool) error {
	if t == nil || t.Kind() != reflect.Struct && t.Kind() != reflect.Map {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch {
		case t.Kind() == reflect.Map && !names[name]:
			return fmt.Errorf("null where the value of %q belongs", name)
		case t.Kind() == reflect.Struct && fieldOf(t, name) == nil:
			return fmt.Errorf("unknown field %q", name)
		}
	}
	if t.Kind() == reflect.Map {
		return nil
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !names[name] && options != "omitempty" && f.Tag.Get("strictjson") != "optional" {
			return fmt.Errorf("field %q is missing", name)
		}
	}
	return nil
}

// fieldOf returns the type of the struct's field of a name in JSON, or nil.
func fieldOf(t reflect.Type, name string) reflect.Type {
	for f := range t.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f.Type
		}
	}
	return nil
}

// kindName says in JSON's words what a type is.
func kindName(t reflect.Type) string {
	switch k := t.Kind(); {
	case k == reflect.Struct || k == reflect.Map:
		return "an object"
	case k == reflect.Slice || k == reflect.Array:
		return "an array"
	case k == reflect.String:
		return "a string"
	case k == reflect.Bool:
		return "true or false"
	case reflect.Int <= k && k <= reflect.Uint64:
		return "an integer of type " + t.String()
	}
	return "a " + t.String()
}

// unquote returns what a well-formed JSON string says.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		panic(err) // the scanner has checked it
	}
	return s
}
