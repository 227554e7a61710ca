//go:build metal && hostmetal && (amd64 || arm64)

package sendpurego

import (
	"errors"
	"os"
	"path/filepath"
)

const (
	pathVariable = "TURBOTRELLIS_HOSTMETAL"
	defaultPath  = "build/hostmetal/libhostmetal.so"
)

// libraries finds the one library that is everything here.
func libraries() ([]string, error) {
	if path := os.Getenv(pathVariable); path != "" {
		return []string{path}, nil
	}
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for {
			path := filepath.Join(dir, defaultPath)
			if _, err := os.Stat(path); err == nil {
				return []string{path}, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return nil, errors.New("no " + defaultPath + " above the working directory or the executable, and " +
		pathVariable + " is not set")
}
