package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// commands are what the test binary can be.
var commands = map[string]func(){"turbotrellis": main}

// TestMain lets the test binary be a command in scripts and tests.
func TestMain(m *testing.M) { testscript.Main(m, commands) }

// TestScripts runs testdata/script. $DATA is the repository's testdata, $MODELS
// has models that were once handled wrongly, and $FAULTS other such files.
func TestScripts(t *testing.T) {
	data, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	models, err := filepath.Abs("../../model/testdata")
	if err != nil {
		t.Fatal(err)
	}
	faults, err := filepath.Abs("testdata/faults")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("DATA", data)
			e.Setenv("MODELS", models)
			e.Setenv("FAULTS", faults)
			e.Setenv("TURBOTRELLIS_BACKEND", os.Getenv("TURBOTRELLIS_BACKEND"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitCode},
	})
}

// exitCode runs a command and checks its exit code: exitcode N command args…
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N command args...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		e, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if want := args[0]; want != string(rune('0'+got)) {
		ts.Fatalf("exit code %d, want %s", got, want)
	}
}
