package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/conformance"
)

func TestVerify(t *testing.T) {
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{"--backend", "ref", "--filter", "KV"}, 0},
		{[]string{"--backend", "ref", "--filter", "digest(of=keys,n=100)", "--json"}, 0},
		{[]string{"--backend", "ref", "--filter", "no-such-case"}, 1},
		{[]string{"--backend", "ref", "--filter", "EncodeKeys(d=1)"}, 1},
		{[]string{"--backend", "abacus"}, 2},
		{[]string{"--no-such-flag"}, 2},
		{[]string{"argument"}, 2},
	} {
		if got := run(append([]string{"verify"}, test.args...)); got != test.want {
			t.Errorf("verify %v: exit code %d, want %d", test.args, got, test.want)
		}
	}
}

// wrongKeys is the reference with one wrong byte in a row of keys.
type wrongKeys struct{ codec.Backend }

type wrongKV struct{ codec.KV }

func (b wrongKeys) KV(p codec.KVParams) (codec.KV, error) {
	if p.Group == 64 {
		return nil, &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex}
	}
	kv, err := b.Backend.KV(p)
	if err != nil {
		return nil, err
	}
	return wrongKV{kv}, nil
}

func (k wrongKV) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	err := k.KV.EncodeKeys(dst, x)
	if err == nil && len(dst.Codes) > 9 {
		dst.Codes[9] ^= 0x10
	}
	return err
}

// A mismatch is an error, and the report says how many, where, and which cases
// were declined.
func TestVerifyMismatch(t *testing.T) {
	var text, js bytes.Buffer
	o := conformance.Options{Filter: "EncodeKeys", Form: conformance.Short}
	if err := verify(t.Context(), &text, wrongKeys{ref.New()}, o, false); err == nil {
		t.Error("no error")
	}
	if !strings.Contains(text.String(), "stage index") || !strings.Contains(text.String(), "again: turbotrellis verify --filter 'EncodeKeys(") {
		t.Errorf("report without stage or re-run line:\n%.500s", text.String())
	}
	if err := verify(t.Context(), &js, wrongKeys{ref.New()}, o, true); err == nil {
		t.Error("no error")
	}
	var r struct {
		Backend       string
		Cases, Failed int
		Ops           []struct {
			Op                      string
			Cases, Failed, Declined int
		}
		Failures []struct{ Case, Stage, Got, Want string }
		Declined []string
	}
	if err := json.Unmarshal(js.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Backend != "ref" || r.Failed == 0 || r.Cases <= r.Failed || len(r.Ops) != 1 || r.Ops[0].Failed != r.Failed ||
		r.Ops[0].Declined != len(r.Declined) || len(r.Declined) == 0 || len(r.Failures) == 0 || r.Failures[0].Case == "" {
		t.Errorf("report %+v", r)
	}
	// What a report names can be run alone, and fails again.
	o = conformance.Options{Filter: r.Failures[0].Case}
	if err := verify(t.Context(), io.Discard, wrongKeys{ref.New()}, o, false); err == nil {
		t.Errorf("%s passes alone", r.Failures[0].Case)
	}
}
