package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// TestDemo runs every setting and compares the digests that another
// implementation computed.
func TestDemo(t *testing.T) {
	rows, err := demo(t.Context(), ref.New())
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(demoDigests, &want); err != nil {
		t.Fatal(err)
	}
	if len(rows) == 0 || len(rows) != len(want) {
		t.Errorf("%d rows for %d digests", len(rows), len(want))
	}
	for _, r := range rows {
		if !r.Match {
			t.Errorf("%s, %s: packed bytes have digest %s", r.Sample, r.Setting, r.Digest)
		}
		if float64(r.SNR) < 6*(r.Bits-2.5) {
			t.Errorf("%s, %s: only %.1f dB at %.2f bits", r.Sample, r.Setting, r.SNR, r.Bits)
		}
	}
	var out bytes.Buffer
	if err := printDemo(&out, "ref", rows); err != nil || out.Len() == 0 {
		t.Errorf("printed %d bytes (%v)", out.Len(), err)
	}
}
