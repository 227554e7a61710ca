//go:build metal && hostmetal && (amd64 || arm64)

package sendpurego

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLibraries(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(deep)
	t.Setenv(pathVariable, "")
	path := filepath.Join(root, filepath.FromSlash(defaultPath))
	if got, err := libraries(); err == nil {
		t.Error("found", got)
	} else if !strings.Contains(err.Error(), pathVariable) {
		t.Error(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := libraries(); err != nil || len(got) != 1 || got[0] != path {
		t.Error(got, err)
	}
	t.Setenv(pathVariable, "elsewhere.so")
	if got, err := libraries(); err != nil || len(got) != 1 || got[0] != "elsewhere.so" {
		t.Error(got, err)
	}
}

func TestLoadFails(t *testing.T) {
	t.Setenv(pathVariable, filepath.Join(t.TempDir(), "missing.so"))
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "missing.so") {
		t.Error(err)
	}
	t.Setenv(pathVariable, "libc.so.6") // a library without Objective-C
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "objc_getClass") {
		t.Error(err)
	}
}
