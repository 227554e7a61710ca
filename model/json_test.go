package model

import (
	"bytes"
	"strings"
	"testing"
)

// Editing keeps every byte that it need not change.
func TestEditJSON(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{`{}`, `{"q": 1}`},
		{`{ }`, `{"q": 1 }`},
		{` {"a":1} `, ` {"a":1,"q":1} `},
		{"{\n\t\"a\" : [1.0, {}]\n}\n", "{\n\t\"a\" : [1.0, {}],\n\t\"q\" : 1\n}\n"},
		{"{\r\n  \"q,\\\"}\": 1e0, \"b\":\"}\"\r\n}", "{\r\n  \"q,\\\"}\": 1e0, \"b\":\"}\",\r\n  \"q\": 1\r\n}"},
	} {
		o, err := parseObject([]byte(c.in))
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		got := o.set("q", []byte("1"))
		if string(got) != c.out {
			t.Errorf("%q became %q, want %q", c.in, got, c.out)
		}
		if o, err = parseObject(got); err != nil {
			t.Errorf("%q: %v", got, err)
			continue
		}
		if back := o.without(func(key string) bool { return key == "q" }); string(back) != c.in {
			t.Errorf("%q came back as %q", c.in, back)
		}
	}
	o, err := parseObject([]byte(`{"a": 1, "b": 2,  "c": 3, "d": 4}`))
	if err != nil {
		t.Fatal(err)
	}
	for drop, want := range map[string]string{
		"a": `{"b": 2,  "c": 3, "d": 4}`, "bc": `{"a": 1, "d": 4}`, "cd": `{"a": 1, "b": 2}`, "abcd": `{}`, "": `{"a": 1, "b": 2,  "c": 3, "d": 4}`,
	} {
		got := o.without(func(key string) bool { return strings.Contains(drop, key) })
		if string(got) != want {
			t.Errorf("without %s: %s, want %s", drop, got, want)
		}
	}
	if o, err = parseObject([]byte(`{"a": NaN, "q": null, "b": [-Infinity]}`)); err != nil {
		t.Fatal(err)
	}
	if got, want := o.set("q", []byte(`{"x": 1}`)), `{"a": NaN, "q": {"x": 1}, "b": [-Infinity]}`; o.find("q") != nil || string(got) != want {
		t.Errorf("null became %s, want %s", got, want)
	}
	for in, want := range map[string]string{
		`{}`: `{"x": 1,"y": 2}`, `{"a":0}`: `{"a":0,"x":1,"y":2}`, "{\n \"a\": 0\n}": "{\n \"a\": 0,\n \"x\": 1,\n \"y\": 2\n}",
	} {
		o, err := parseObject([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if got := o.appended(newEntry{"x", []byte("1")}, newEntry{"y", []byte("2")}); string(got) != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
		if got := o.without(func(string) bool { return false }); string(got) != in {
			t.Errorf("%q without nothing is %q", in, got)
		}
	}
	for text, want := range map[string]bool{` {"a":1,"a":2}`: true, `{`: false, `[1]`: false, `"{"`: false} {
		if isObject([]byte(text)) != want {
			t.Errorf("%q is an object: %v, want %v", text, !want, want)
		}
	}
	for _, bad := range []string{``, `[]`, `null`, `{`, `{"a"}`, `{"a":1,}`, `{"a":1}{}`, `{"a":1 "b":2}`, `{"a":1,"a":2}`} {
		if _, err := parseObject([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// FuzzEditJSON: what parses is edited to what parses, and back.
func FuzzEditJSON(f *testing.F) {
	for _, s := range []string{config, index, `{}`, `{"a":{"b":[1]},"c":""}`, `{ "quantization" : {} }`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := parseObject(text)
		if err != nil {
			return
		}
		if o.named("\x00new") != nil {
			return
		}
		got := o.set("\x00new", o.indented([]byte(`{"x":[1,2]}`)))
		p, err := parseObject(got)
		if err != nil || len(p.members) != len(o.members)+1 {
			t.Fatalf("%q became %q: %v", text, got, err)
		}
		back := p.without(func(key string) bool { return key == "\x00new" })
		if !bytes.Equal(back, text) {
			t.Fatalf("%q came back as %q", text, back)
		}
	})
}
