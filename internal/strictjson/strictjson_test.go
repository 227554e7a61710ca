package strictjson

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type inner struct {
	L    *int   `json:"L"`
	Code string `json:"code,omitempty"`
}

type outer struct {
	Bits  int               `json:"bits"`
	Inner *inner            `json:"inner"`
	List  []inner           `json:"list"`
	Map   map[string]string `json:"map"`
}

func TestUnmarshal(t *testing.T) {
	var got outer
	text := ` {"bits": 2, "inner": {"L": 12}, "list": [{"code": "x"}, {}], "map": {"bits": "a", "Bits": "b"}} `
	if err := Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	l := 12
	want := outer{2, &inner{L: &l}, []inner{{Code: "x"}, {}}, map[string]string{"bits": "a", "Bits": "b"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := Unmarshal([]byte(`{"bits":1,"inner":null,"list":null}`), new(outer)); err != nil {
		t.Error(err)
	}
}

func TestRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "unexpected EOF"},
		{`{"bits":2`, "unexpected EOF"},
		{`{"bits":2}{}`, "more than one"},
		{`{"bits":2} x`, "more than one"},
		{`{"bits":2.5}`, "2.5"},
		{`{"bits":"2"}`, "string"},
		{`[]`, "array"},
		{`{"more":1}`, `unknown field "more"`},
		{`{"BITS":2}`, `unknown field "BITS"`},
		{`{"inner":{"l":2}}`, `unknown field "l"`},
		{`{"list":[{},{"Code":"x"}]}`, `unknown field "Code"`},
		{`{"bits":2,"bits":2}`, `duplicate field "bits"`},
		{`{"inner":{"L":1,"\u004c":2}}`, `duplicate field "L"`},
		{`{"map":{"a":"1","a":"1"}}`, `duplicate field "a"`},
	} {
		if err := Unmarshal([]byte(c.text), new(outer)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.text, err, c.want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(`{"bits":2,"inner":{"L":12},"list":[{}],"map":{"a":"b"}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
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
