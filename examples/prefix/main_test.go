package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain runs the program itself where a test asks for it.
func TestMain(m *testing.M) {
	if os.Getenv("PREFIX_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Processes with prompts that begin alike compute what is new, and anew what is damaged.
func TestPrefix(t *testing.T) {
	dir := t.TempDir()
	for _, run := range []struct{ prompt, want string }{
		{"You are helpful.What is a cache?", "computed \"You are helpful.\"\ncomputed \"What is a cache?\"\n"},
		{"You are helpful.Name ten rivers.", "restored \"You are helpful.\"\ncomputed \"Name ten rivers.\"\n"},
		{"You are helpful.What is a cache?", "restored \"You are helpful.\"\nrestored \"What is a cache?\"\n"},
		{"damage", ""},
		{"Name ten rivers.", "computed \"Name ten rivers.\"\n"},
		{"You are helpful.", "computed \"You are helpful.\"\n"},
		{"You are helpful.", "restored \"You are helpful.\"\n"},
	} {
		if run.prompt == "damage" {
			files, err := filepath.Glob(filepath.Join(dir, "*", "*.ttkb"))
			if err != nil || len(files) != 3 {
				t.Fatal(files, err)
			}
			for _, f := range files {
				if err := os.Truncate(f, 300); err != nil {
					t.Fatal(err)
				}
			}
			continue
		}
		cmd := exec.Command(os.Args[0], dir, run.prompt)
		cmd.Env = append(os.Environ(), "PREFIX_MAIN=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != run.want {
			t.Errorf("%q:\n%swant:\n%s", run.prompt, out, run.want)
		}
	}
}
