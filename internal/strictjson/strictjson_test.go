package strictjson

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

type inner struct {
	L    *int   `json:"L"`
	Code string `json:"code,omitempty"`
}

type outer struct {
	Bits  int               `json:"bits"`
	Inner *inner            `json:"inner,omitempty"`
	List  []inner           `json:"list" strictjson:"optional"`
	Map   map[string]string `json:"map,omitempty"`
}

func TestUnmarshal(t *testing.T) {
	var got outer
	text := ` {"bits": 2, "inner": {"L": 12}, "list": [{"L": 3, "code": "\ud83d\ude00"}], "map": {"bits": "a", "Bits": "b"}} `
	if err := Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	l, l0 := 12, 3
	want := outer{2, &inner{L: &l}, []inner{{L: &l0, Code: "😀"}}, map[string]string{"bits": "a", "Bits": "b"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A field that is null is absent.
func TestNull(t *testing.T) {
	var got outer
	if err := Unmarshal([]byte(`{"bits":1,"inner":null,"list":null,"map":null}`), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outer{Bits: 1}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "line 1, column 1: the text ends where a value belongs"},
		{`{"bits":2`, "line 1, column 10: the text ends where a comma or a brace belongs"},
		{`{"bits":2}{}`, "line 1, column 11: more than one JSON value"},
		{`{"bits":2} x`, "line 1, column 12: more than one JSON value"},
		{`{"bits":2.5}`, "line 1, column 12: bits: number 2.5 where an integer of type int belongs"},
		{`{"bits":"2"}`, "line 1, column 12: bits: string where an integer of type int belongs"},
		{`[]`, "array where an object belongs"},
		{`{"bits":2,"more":1}`, `unknown field "more"`},
		{`{"BITS":2}`, `unknown field "BITS"`},
		{`{}`, `line 1, column 2: field "bits" is missing`},
		{`{"bits":2,"inner":{"l":2}}`, `inner: unknown field "l"`},
		{"{\"bits\":2,\n \"list\":[{\"L\":1},{\"Code\":\"x\"}]}", `line 2, column 29: list[1]: unknown field "Code"`},
		{`{"bits":2,"list":[{"code":"x"}]}`, `list[0]: field "L" is missing`},
		{`{"bits":2,"bits":2}`, `line 1, column 11: duplicate field "bits"`},
		{`{"bits":1,"inner":{"L":1,"\u004c":2}}`, `inner: duplicate field "L"`},
		{`{"bits":1,"map":{"a":"1","a":"1"}}`, `map: duplicate field "a"`},
		{`null`, "null where a value belongs"},
		{`{"bits":null}`, `field "bits" is missing`},
		{`{"bits":1,"more":null}`, `unknown field "more"`},
		{`{"bits":1,"bits":null}`, `duplicate field "bits"`},
		{`{"bits":1,"list":[null]}`, "list[0]: null where a value belongs"},
		{`{"bits":1,"map":{"a":null}}`, `map: null where the value of "a" belongs`},
		{`{"bits":1,"list":nulls}`, "'s' where a comma or a brace belongs"},
		{`{"bits":NaN}`, "bits: NaN is not JSON"},
		{`{"bits":-Infinity}`, "bits: -Infinity is not a number"},
		{`{"bits":1,"map":{"\ud800":"a"}}`, "map: half a surrogate pair"},
		{`{"bits":1,"map":{"a":"\ud800\\ufffd"}}`, "map.a: half a surrogate pair"},
		{"{\"bits\":1,\"map\":{\"a\":\"\xff\"}}", "map.a: byte 0xff is not UTF-8"},
		{"\ufeff{\"bits\":1}", "byte order mark of UTF-8"},
		{"\xff\xfe{\x00}\x00", "byte order mark of UTF-16"},
	} {
		var e *Error
		if err := Unmarshal([]byte(c.text), new(outer)); !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.text, err, c.want)
		}
	}
}

// The texts and what is in them are as Python 3's json.dump writes them.
func TestParseObject(t *testing.T) {
	text := "\n{\n  \"a\": NaN,\n  \"time_step_limit\": [0.0, Infinity, -Infinity],\n  \"b\" :{\"x\": 1, \"x\": 1e-05, \"y\": \"\\ud800\"},\n  \"\\u00e9\": null\n}\n"
	o, err := ParseObject([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	type span struct{ Key, Lead, Colon, Value string }
	var got []span
	at := o.Open + 1
	for _, m := range o.Members {
		got = append(got, span{m.Key, text[at:m.Start], text[m.Colon:m.Value], text[m.Value:m.Stop]})
		at = m.Stop
	}
	want := []span{
		{"a", "\n  ", ": ", "NaN"},
		{"time_step_limit", ",\n  ", ": ", "[0.0, Infinity, -Infinity]"},
		{"b", ",\n  ", " :", `{"x": 1, "x": 1e-05, "y": "\ud800"}`},
		{"é", ",\n  ", ": ", "null"},
	}
	if diff := cmp.Diff(want, got); diff != "" || o.Open != 1 || text[at:] != "\n}\n" {
		t.Errorf("open %d, rest %q; -want +got:\n%s", o.Open, text[at:], diff)
	}
	for _, c := range []struct{ text, want string }{
		{"", "line 1, column 1: not a JSON object"},
		{"[]", "not a JSON object"},
		{"NaN", "not a JSON object"},
		{"\ufeff{}", "byte order mark of UTF-8"},
		{`{"a":1,}`, "line 1, column 8: '}' where a member's name belongs"},
		{`{"a":1 "b":1}`, "line 1, column 8: '\"' where a comma or a brace belongs"},
		{"{\"a\":{\n\"b\": [1,\n 02]}}", "line 3, column 2: a.b[1]: 02 is not a number"},
		{`{"a":1,"a":1}`, `duplicate field "a"`},
		{`{"a":1,"\u0061":1}`, `duplicate field "a"`},
		{`{"\udc00":1}`, "half a surrogate pair"},
		{`{"a":nan}`, "line 1, column 6: a: 'n' where a value belongs"},
		{`{"a":+1}`, "'+' where a value belongs"},
		{`{"a":Inf}`, "'I' where a value belongs"},
		{`{"a":1}x`, "more than one JSON value"},
		{`{"a":` + strings.Repeat("[", 1<<20), "nested more than 10000 deep"},
	} {
		var e *Error
		if _, err := ParseObject([]byte(c.text)); !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.50s: error %v, want %s", c.text, err, c.want)
		}
	}
}

func TestHalfSurrogate(t *testing.T) {
	for text, want := range map[string]bool{
		`"\ud83d\ude00"`:       false,
		`"\ufffd"`:             false,
		`"\\ud800"`:            false, // a backslash and letters
		`"\\\ud800"`:           true,
		`"\ud800"`:             true,
		`"\udc00"`:             true,
		`"\ud800\\ufffd"`:      true,
		`"\ud800\ud83d\ude00"`: true,
		`"\ud83d\ude00\ude00"`: true,
		`"\ud800x\udc00"`:      true,
		`"\ufffd\uDC00"`:       true,
		`"\ud800`:              true,
		`"\`:                   false,
	} {
		if HalfSurrogate([]byte(text)) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(`{"bits":2,"inner":{"L":12},"list":[{}],"map":{"a":"b"}}`)
	f.Add(`null`)
	f.Add(`[1e5,-0.1E+07,"\u12aB\n",true,{}]`)
	f.Fuzz(func(t *testing.T, text string) {
		s := &scanner{text: []byte(text)}
		if err, valid := s.document(), json.Valid([]byte(text)) && utf8.ValidString(text); (err == nil) != valid {
			t.Fatalf("encoding/json says %v, got %v", valid, err)
		}
		_, _ = ParseObject([]byte(text))
		var got, want outer
		if Unmarshal([]byte(text), &got) != nil {
			return
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-encoding/json +got:\n%s", diff)
		}
	})
}
