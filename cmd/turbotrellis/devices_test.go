package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu/metal"
)

func TestDevices(t *testing.T) {
	run := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := newRoot()
		root.SetArgs(append([]string{"devices"}, args...))
		root.SetOut(&out)
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	var d devices
	if err := json.Unmarshal([]byte(run("--json")), &d); err != nil {
		t.Fatal(err)
	}
	text := run()
	t.Log(text)
	if d.Driver != metal.Name {
		t.Errorf("driver %q", d.Driver)
	}
	if len(d.Devices) == 0 {
		if strings.Contains(os.Getenv("REQUIRE_BACKENDS"), "metal") {
			t.Error("no device:", d.Reason)
		}
		if metal.Name == "" && d.Reason == "" || !strings.Contains(text, "\nno GPU: "+d.Reason) {
			t.Errorf("reason %q, text %q", d.Reason, text)
		}
	}
	for _, x := range d.Devices {
		if x.Name == "" || x.RegistryID == "0x0" || x.MaxBuffer == 0 || !x.Usable || x.Reason != "" {
			t.Errorf("%+v", x)
		}
		if !strings.Contains(text, x.Name) || !strings.Contains(text, "passed, subnormals") {
			t.Errorf("text lacks %+v", x)
		}
	}
}
