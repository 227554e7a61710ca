// Command mslcheck reads the shaders as OpenCL C++, where device, constant, threadgroup and
// thread are real address spaces: a pointer without one, a cast between two, a double or a
// write through constant is an error here as it is on a Mac.
//
//	go run ./internal/tools/mslcheck
//
// needs clang++-19, or the compiler that CLANGXX names. It cannot see what Metal's own
// compiler alone knows: attribute spelling and which functions its library lacks.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/turbotrellis/turbotrellis/shaders"
)

//go:embed include/metal_stdlib
var stdlib []byte

func main() {
	clang, err := compiler()
	if err == nil {
		err = check(clang, shaders.Source(shaders.Variants()...), "-Wunused-function")
	}
	for _, family := range shaders.Families() {
		if err != nil {
			break
		}
		err = check(clang, shaders.Source(shaders.Family(family)...))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("mslcheck: %d kernels in %d families keep their address spaces\n", len(shaders.Variants()), len(shaders.Families()))
}

// compiler finds clang++ 19 or later.
func compiler() (string, error) {
	name := os.Getenv("CLANGXX")
	if name == "" {
		name = "clang++-19"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("mslcheck: %w", err)
	}
	return path, nil
}

// check compiles source, without output, against the declarations in include.
func check(clang, source string, flags ...string) error {
	dir, err := os.MkdirTemp("", "mslcheck")
	if err != nil {
		return fmt.Errorf("mslcheck: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "metal_stdlib"), stdlib, 0o644); err != nil {
		return fmt.Errorf("mslcheck: %w", err)
	}
	// Without -cl-ext=-all the generic address space is on, and a plain pointer takes any space.
	args := append([]string{"-x", "clcpp", "-cl-std=clc++2021", "-target", "spir64", "-fsyntax-only",
		"-Xclang", "-cl-ext=-all,+cl_khr_fp16", "-Wall", "-Wextra", "-Werror", "-Wdouble-promotion",
		"-Wno-unused-function", "-Wno-unused-parameter", "-Wno-unknown-pragmas", "-Wno-unknown-attributes", "-Wno-ignored-attributes",
		"-I", dir}, flags...)
	cmd := exec.Command(clang, append(args, "-")...)
	cmd.Stdin = strings.NewReader(source)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mslcheck: %w\n%s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
