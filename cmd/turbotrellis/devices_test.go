package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/gpu/cuda"
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
	for i, name := range []string{"metal", "cuda"} {
		x := d.Drivers[i]
		if x.Backend != name || x.Driver != map[string]string{"metal": metal.Name, "cuda": cuda.Name}[name] {
			t.Errorf("driver %+v", x)
		}
		has := slices.ContainsFunc(d.Devices, func(d deviceInfo) bool { return d.Backend == name })
		if !has && strings.Contains(os.Getenv("REQUIRE_BACKENDS"), name) {
			t.Errorf("no device for %s: %s", name, x.Reason)
		}
		if has != (x.Reason == "") || len(d.Devices) == 0 && !strings.Contains(text, "\nno GPU for "+name+": "+x.Reason) {
			t.Errorf("reason %q, text %q", x.Reason, text)
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
