// Package strictjson decodes JSON that this module defines. Where encoding/json
// is lax, it is not: unknown members, members in another case, members that
// stand twice in one object, and anything after the value are errors.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Unmarshal decodes text, one JSON value, into v, a pointer to what is made of
// structs whose fields have json tags with their names, maps, slices, pointers
// and scalars. On an error v may have been written to.
func Unmarshal(text []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return names(json.NewDecoder(bytes.NewReader(text)), reflect.TypeOf(v))
}

// names checks the names of members in the next value, which has been decoded
// into a t.
func names(dec *json.Decoder, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := dec.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			name := key.(string) // the decoder admits nothing else here
			if seen[name] {
				return fmt.Errorf("duplicate field %q", name)
			}
			seen[name] = true
			member, ok := memberType(t, name)
			if !ok {
				return fmt.Errorf("unknown field %q", name)
			}
			if err := names(dec, member); err != nil {
				return err
			}
		}
		_, err = dec.Token()
	case json.Delim('['):
		for dec.More() {
			if err := names(dec, t.Elem()); err != nil {
				return err
			}
		}
		_, err = dec.Token()
	}
	return err
}

// memberType returns the type of a member of a struct or map.
func memberType(t reflect.Type, name string) (reflect.Type, bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); tag == name {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}
