package model

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/turbotrellis/turbotrellis/internal/strictjson"
)

// object is a JSON object with the places of its members, so that some can be
// changed while all other bytes stay: numbers keep their spelling, keys their
// order.
type object struct {
	text    []byte
	open    int // offset of '{'
	members []member
}

type member struct {
	key                       string
	start, colon, value, stop int // of the key, past the key, of the value, past the value
}

const blanks = " \t\r\n"

// parseObject takes a document apart that is one object. Duplicate keys are
// an error; NaN and infinities as Python writes them are not.
func parseObject(text []byte) (*object, error) {
	in, err := strictjson.ParseObject(text)
	if err != nil {
		return nil, err
	}
	o := &object{text: text, open: in.Open}
	for _, m := range in.Members {
		o.members = append(o.members, member{m.Key, m.Start, m.Colon, m.Value, m.Stop})
	}
	return o, nil
}

// isObject reports whether text is a JSON object, duplicate keys or not.
func isObject(text []byte) bool {
	return json.Valid(text) && bytes.HasPrefix(bytes.TrimLeft(text, blanks), []byte("{"))
}

// find returns the member of that name, or nil where there is none or it is
// null, which programs write for one that is absent.
func (o *object) find(key string) *member {
	m := o.named(key)
	if m == nil || string(o.raw(m)) == "null" {
		return nil
	}
	return m
}

func (o *object) named(key string) *member {
	for i := range o.members {
		if o.members[i].key == key {
			return &o.members[i]
		}
	}
	return nil
}

func (o *object) raw(m *member) []byte { return o.text[m.value:m.stop] }

// lead is the white space before the first key; separators repeat it.
func (o *object) lead() string {
	if len(o.members) == 0 {
		return ""
	}
	return string(o.text[o.open+1 : o.members[0].start])
}

// with renders a member that can follow another one.
func (o *object) with(key string, value []byte) []byte {
	colon := ": "
	if len(o.members) > 0 {
		colon = string(o.text[o.members[0].colon:o.members[0].value])
	}
	b := append([]byte(o.lead()), quote(key)...)
	return append(append(b, colon...), value...)
}

// indented lays value out as the object's members are: on one line where they
// are.
func (o *object) indented(value []byte) []byte {
	lead := o.lead()
	i := strings.LastIndexByte(lead, '\n')
	if i < 0 {
		return value
	}
	var b bytes.Buffer
	if err := json.Indent(&b, value, lead[i+1:], lead[i+1:]); err != nil {
		panic(err) // value is ours
	}
	return b.Bytes()
}

// set returns the document with a member of that value, in the place of one that it has and otherwise at its end;
// without it for nil.
func (o *object) set(key string, value []byte) []byte {
	m := o.named(key)
	switch {
	case value == nil:
		return o.without(func(k string) bool { return k == key })
	case m != nil:
		return splice(o.text, []edit{{m.value, m.stop, value}})
	}
	at, b := o.open+1, o.with(key, value)
	if n := len(o.members); n > 0 {
		at, b = o.members[n-1].stop, append([]byte{','}, b...)
	}
	return splice(o.text, []edit{{at, at, b}})
}

// appended returns the document with further members at its end, laid out as the others are.
func (o *object) appended(entries ...newEntry) []byte {
	at, b := o.open+1, []byte(nil)
	if n := len(o.members); n > 0 {
		at = o.members[n-1].stop
	}
	for i, e := range entries {
		if i > 0 || len(o.members) > 0 {
			b = append(b, ',')
		}
		b = append(b, o.with(e.key, o.indented(e.value))...)
	}
	return splice(o.text, []edit{{at, at, b}})
}

// without returns the document without the members that drop names.
func (o *object) without(drop func(key string) bool) []byte {
	b := append([]byte(nil), o.text[:o.open+1]...)
	end, first := o.open+1, true
	for i, m := range o.members {
		if drop(m.key) {
			continue
		}
		if first {
			b = append(b, o.lead()...)
		} else {
			b = append(b, o.text[o.members[i-1].stop:m.start]...)
		}
		b = append(b, o.text[m.start:m.stop]...)
		first = false
	}
	if len(o.members) > 0 {
		end = o.members[len(o.members)-1].stop
	}
	return append(b, o.text[end:]...)
}

// edit replaces the bytes from from to to.
type edit struct {
	from, to int
	text     []byte
}

// splice applies edits, which are in order and do not overlap.
func splice(text []byte, edits []edit) []byte {
	var b []byte
	at := 0
	for _, e := range edits {
		b = append(append(b, text[at:e.from]...), e.text...)
		at = e.to
	}
	return append(b, text[at:]...)
}

// quote returns s as a JSON string, with no more escapes than JSON asks for.
func quote(s string) []byte { return bytes.TrimSuffix(marshal(s), []byte("\n")) }

// marshal is json.Marshal of what cannot fail, with a line end and without
// escapes for HTML.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}
