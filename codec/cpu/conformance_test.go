package cpu_test

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
)

// envRequire lists the levels that must run: a level of it that this build or machine lacks is a failure.
const envRequire = "REQUIRE_CPU_LEVELS"

// eachLevel runs f at every level that runs here.
func eachLevel(t *testing.T, f func(t *testing.T, l cpu.Level)) {
	for _, l := range cpu.Levels() {
		t.Run(l.String(), func(t *testing.T) { f(t, l) })
	}
}

func TestRequiredLevels(t *testing.T) {
	required := strings.FieldsFunc(os.Getenv(envRequire), func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range required {
		l, err := cpu.ParseLevel(name)
		if err != nil {
			t.Errorf("%s: %v", envRequire, err)
		} else if !slices.Contains(cpu.Levels(), l) {
			t.Errorf("%s: level %v did not run: this build on this machine has %v", envRequire, l, cpu.Levels())
		}
	}
}

// The suite passes at every level.
func TestConformance(t *testing.T) {
	eachLevel(t, func(t *testing.T, l cpu.Level) {
		conftest.Run(t, "cpu", func() (codec.Backend, error) {
			b := cpu.New(cpu.Options{Level: l, Workers: 2})
			if b.Level() != l {
				t.Errorf("level %v runs in place of %v", b.Level(), l)
			}
			return b, nil
		})
	})
}

func TestOpenReadsEnvironment(t *testing.T) {
	for _, l := range cpu.Levels() {
		t.Setenv(cpu.Env, l.String())
		b, err := cpu.Open()
		if err != nil {
			t.Fatal(err)
		}
		if b.Level() != l {
			t.Errorf("%s=%v runs %v", cpu.Env, l, b.Level())
		}
		if b.Workers() != runtime.GOMAXPROCS(0) {
			t.Errorf("%d workers", b.Workers())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Setenv(cpu.Env, "abacus")
	if b, err := cpu.Open(); b != nil || !errors.Is(err, codec.ErrParams) || !strings.Contains(err.Error(), cpu.Env) {
		t.Errorf("backend %v, error %v", b, err)
	}
}
