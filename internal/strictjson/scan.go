package strictjson

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Error says what is wrong with a JSON text and where.
type Error struct {
	Line, Column int    // of the first wrong byte, from 1; columns count bytes; 0 where no byte is
	Field        string // the member it is in, such as layers[0].keys.bits, or empty
	Reason       string
}

// Error returns "line 3, column 9: field: reason".
func (e *Error) Error() string {
	s := ""
	if e.Line > 0 {
		s = fmt.Sprintf("line %d, column %d: ", e.Line, e.Column)
	}
	if e.Field != "" {
		s += e.Field + ": "
	}
	return s + e.Reason
}

// Object is a JSON object with the places of its members, so that some can be
// changed while all other bytes stay: numbers keep their spelling, members
// their order.
type Object struct {
	Text    []byte
	Open    int // offset of '{'
	Members []Member
}

// Member is one member of an Object. Its places are offsets in the text: of the
// key's quote, past the key, of the value, and past the value.
type Member struct {
	Key                       string
	Start, Colon, Value, Stop int
}

// ParseObject takes a text apart that is one JSON object. As Python's json
// module does, it takes NaN, Infinity and -Infinity for values. Two members of
// one name are an error, though not within the members' values. Errors are
// *Error.
func ParseObject(text []byte) (*Object, error) {
	o := &Object{Text: text}
	s := &scanner{text: text, python: true, top: o}
	if err := s.document(); err != nil {
		return nil, err
	}
	return o, nil
}

// HalfSurrogate reports whether a JSON string, or any text made of JSON
// strings, escapes one half of a surrogate pair without the other: no Unicode
// text has that, and encoding/json replaces it.
func HalfSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++ // an escaped backslash begins no other escape
		r := escaped(text[min(i, len(text)):])
		if !utf16.IsSurrogate(r) {
			continue
		}
		i += 5 // to the next escape
		if i >= len(text) || text[i] != '\\' || utf16.DecodeRune(r, escaped(text[i+1:])) == utf8.RuneError {
			return true
		}
		i += 5
	}
	return false
}

// escaped returns the code unit of an escape, "uXXXX", or -1.
func escaped(text []byte) rune {
	if len(text) < 5 || text[0] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(text[1:5]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// maxDepth is how deep arrays and objects may be nested, as in encoding/json.
const maxDepth = 10000

// scanner checks a JSON text.
type scanner struct {
	text   []byte
	at     int
	depth  int
	path   []string // of the value at hand: ".name" and "[index]"
	python bool     // NaN and infinities are values
	strict bool     // no half surrogate or name that stands twice at any depth, no null but as a member
	top    *Object  // receives the outermost object's members, if not nil

	// object is called in every object with its members' names, true unless
	// the value is null. It may be nil.
	object func(path []string, names map[string]bool) error
}

func (s *scanner) fail(at int, format string, args ...any) error {
	before := s.text[:min(at, len(s.text))]
	return &Error{
		Line:   1 + bytes.Count(before, []byte("\n")),
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Field:  strings.TrimPrefix(strings.Join(s.path, ""), "."),
		Reason: fmt.Sprintf(format, args...),
	}
}

// document scans the whole text.
func (s *scanner) document() error {
	for _, mark := range []struct{ bytes, name string }{{"\ufeff", "UTF-8"}, {"\xff\xfe", "UTF-16"}, {"\xfe\xff", "UTF-16"}} {
		if bytes.HasPrefix(s.text, []byte(mark.bytes)) {
			return s.fail(0, "the text begins with the byte order mark of %s: save it as UTF-8 without one", mark.name)
		}
	}
	s.blanks()
	if s.top != nil && s.peek() != '{' {
		return s.fail(s.at, "not a JSON object")
	}
	if err := s.value(); err != nil {
		return err
	}
	s.blanks()
	if s.at != len(s.text) {
		return s.fail(s.at, "more than one JSON value")
	}
	return nil
}

func (s *scanner) blanks() {
	for s.at < len(s.text) && strings.IndexByte(" \t\r\n", s.text[s.at]) >= 0 {
		s.at++
	}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// unexpected says what is not what belongs here.
func (s *scanner) unexpected(want string) error {
	if s.at >= len(s.text) {
		return s.fail(s.at, "the text ends where %s belongs", want)
	}
	r, _ := utf8.DecodeRune(s.text[s.at:])
	return s.fail(s.at, "%q where %s belongs", r, want)
}

// value scans the value at hand, after blanks.
func (s *scanner) value() error {
	switch c := s.peek(); {
	case c == '{':
		return s.nested(s.members)
	case c == '[':
		return s.nested(s.elements)
	case c == '"':
		_, err := s.string(s.strict)
		return err
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null", "NaN", "Infinity"} {
		if !bytes.HasPrefix(s.text[s.at:], []byte(word)) {
			continue
		}
		switch {
		case word == "null" && s.strict:
			return s.fail(s.at, "null where a value belongs")
		case word[0] < 'a' && !s.python:
			return s.fail(s.at, "%s is not JSON", word)
		}
		s.at += len(word)
		return nil
	}
	return s.unexpected("a value")
}

func (s *scanner) nested(scan func() error) error {
	if s.depth++; s.depth > maxDepth {
		return s.fail(s.at, "nested more than %d deep", maxDepth)
	}
	defer func() { s.depth-- }()
	s.at++
	return scan()
}

// members scans an object from past its brace.
func (s *scanner) members() error {
	top := s.top
	s.top = nil // this is it
	if top != nil {
		top.Open = s.at - 1
	}
	seen := map[string]bool{}
	for s.blanks(); s.peek() != '}'; s.blanks() {
		if len(seen) > 0 {
			if s.peek() != ',' {
				return s.unexpected("a comma or a brace")
			}
			s.at++
			s.blanks()
		}
		if s.peek() != '"' {
			return s.unexpected("a member's name")
		}
		m := Member{Start: s.at}
		var err error
		if m.Key, err = s.string(s.strict || top != nil); err != nil {
			return err
		}
		if _, twice := seen[m.Key]; twice && (s.strict || top != nil) {
			return s.fail(m.Start, "duplicate field %q", m.Key)
		}
		m.Colon = s.at
		s.blanks()
		if s.peek() != ':' {
			return s.unexpected("a colon")
		}
		s.at++
		s.blanks()
		m.Value = s.at
		s.path = append(s.path, "."+m.Key)
		null := bytes.HasPrefix(s.text[s.at:], []byte("null"))
		seen[m.Key] = !null
		if null {
			s.at += len("null")
		} else if err := s.value(); err != nil {
			return err
		}
		s.path = s.path[:len(s.path)-1]
		m.Stop = s.at
		if top != nil {
			top.Members = append(top.Members, m)
		}
	}
	if s.object != nil {
		if err := s.object(s.path, seen); err != nil {
			return s.fail(s.at, "%v", err)
		}
	}
	s.at++
	return nil
}

// elements scans an array from past its bracket.
func (s *scanner) elements() error {
	s.blanks()
	for i := 0; s.peek() != ']'; i++ {
		if i > 0 {
			if s.peek() != ',' {
				return s.unexpected("a comma or a bracket")
			}
			s.at++
			s.blanks()
		}
		s.path = append(s.path, "["+strconv.Itoa(i)+"]")
		if err := s.value(); err != nil {
			return err
		}
		s.path = s.path[:len(s.path)-1]
		s.blanks()
	}
	s.at++
	return nil
}

// string scans a string and returns what it says. Where strict is set, half a
// surrogate pair is an error.
func (s *scanner) string(strict bool) (string, error) {
	start := s.at
	for s.at++; s.peek() != '"'; {
		c := s.peek()
		switch {
		case s.at >= len(s.text):
			return "", s.fail(s.at, "the text ends within a string")
		case c < ' ':
			return "", s.fail(s.at, "control character %#02x within a string", c)
		case c == '\\':
			s.at++
			switch {
			case s.at < len(s.text) && strings.IndexByte(`"\/bfnrt`, s.text[s.at]) >= 0:
				s.at++
			case escaped(s.text[s.at:]) >= 0:
				s.at += 5
			default:
				return "", s.fail(s.at-1, "unknown escape within a string")
			}
		case c < utf8.RuneSelf:
			s.at++
		default:
			r, n := utf8.DecodeRune(s.text[s.at:])
			if r == utf8.RuneError && n == 1 {
				return "", s.fail(s.at, "byte %#02x is not UTF-8", c)
			}
			s.at += n
		}
	}
	s.at++
	raw := s.text[start:s.at]
	if strict && HalfSurrogate(raw) {
		return "", s.fail(start, "half a surrogate pair in string %s", raw)
	}
	return unquote(raw), nil
}

// number scans a number.
func (s *scanner) number() error {
	start := s.at
	if s.peek() == '-' {
		s.at++
		if word := "Infinity"; s.python && bytes.HasPrefix(s.text[s.at:], []byte(word)) {
			s.at += len(word)
			return nil
		}
	}
	digits := func() bool {
		from := s.at
		for '0' <= s.peek() && s.peek() <= '9' {
			s.at++
		}
		return s.at > from
	}
	whole := s.at
	ok := digits() && (s.text[whole] != '0' || s.at == whole+1)
	if ok && s.peek() == '.' {
		s.at++
		ok = digits()
	}
	if ok && (s.peek() == 'e' || s.peek() == 'E') {
		if s.at++; s.peek() == '+' || s.peek() == '-' {
			s.at++
		}
		ok = digits()
	}
	if !ok {
		word := s.text[start:min(start+32, len(s.text))]
		if i := bytes.IndexAny(word, ",]} \t\r\n"); i >= 0 {
			word = word[:i]
		}
		return s.fail(start, "%s is not a number", word)
	}
	return nil
}
