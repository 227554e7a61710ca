//go:build unix

package safetensors

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe is refused, not waited for.
func TestOpenPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	_, err := Open(path)
	if !errors.Is(err, ErrNotSafetensors) || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v", err)
	}
}
