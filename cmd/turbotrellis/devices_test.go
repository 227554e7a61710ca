package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	planner "github.com/turbotrellis/turbotrellis/codec/gpu"
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

// The table of kernels needs no GPU, and says what the planner asks of the most special ones.
func TestKernels(t *testing.T) {
	run := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := newRoot()
		root.SetArgs(append([]string{"devices", "--kernels"}, args...))
		root.SetOut(&out)
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, want := range []string{
		`(?m)^KERNELS +NUMBER +FOR +NEED +ELSE$`,
		`(?m)^matrix +6 +bits 2, 3, 4; rows 16, 64 +order fast; 5 rows or more; .*matrix units.* blocks multiples of 32 +matrix$`,
		`(?m)^matrix +2 +rows 16, 64 +order fast; 5 rows or more; .*matrix units.* product$`,
		`(?m)^product +\d+ +bits 2, 3, 4, any; rows .* SIMD-groups of 32 threads +-$`,
		`(?m)^trellis_expand8 .*columns multiples of 8 +trellis_expand$`,
		`(?m)^hadamard +1 +- +SIMD-groups of 32 threads; a row of f32 fits threadgroup memory +-$`,
	} {
		if text := run(); !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	var table kernelTable
	if err := json.Unmarshal([]byte(run("--json")), &table); err != nil || !slices.ContainsFunc(table, func(e planner.Eligibility) bool { return slices.Contains(e.Names, "matrix_affine_m64") }) {
		t.Errorf("%v in %+v", err, table)
	}
}
