package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each accepted mistake names a line that is there, and a reason.
func TestAccepted(t *testing.T) {
	for entry := range strings.Lines(accepted) {
		fields := strings.Split(strings.TrimSpace(entry), " | ")
		if len(fields) != 4 || slices.Contains(fields, "") {
			t.Errorf("want file | kind | source line | reason: %s", entry)
			continue
		}
		source, err := os.ReadFile(filepath.Join("..", "..", "..", fields[0]))
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.ContainsFunc(strings.Split(string(source), "\n"), func(s string) bool { return strings.TrimSpace(s) == fields[2] }) {
			t.Errorf("%s has no line %s", fields[0], fields[2])
		}
	}
}
