// Mutate makes small mistakes in files drawn at random and runs their package's
// tests, which must fail:
//
//	go run ./internal/tools/mutate [-seed N] [-mutants N] [FILE…]
//
// The mistakes are those of gremlins (github.com/go-gremlins/gremlins), in a copy
// of the files that git knows. A mistake that no test finds is listed, and is a
// failure unless accepted.txt has it with a reason.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const gremlins = "github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0"

var packages = []string{"affine", "codec/ref", "internal/safetensors", "kvcache", "kvcache/snapshot", "model", "pack", "trellis"}

// accepted has a line for each mistake that changes nothing that could be
// tested: file, kind and source line, then the reason, each after " | ".
//
//go:embed accepted.txt
var accepted string

// A mutant is one mistake in gremlins' report.
type mutant struct {
	Line, Column int
	Type, Status string
}

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().Unix()/86400), "what draws the files; a new one each day")
	budget := flag.Int("mutants", 150, "draw files until they have had this many mistakes")
	flag.Parse()
	survived, err := run(flag.Args(), *seed, *budget)
	if err == nil && survived > 0 {
		err = fmt.Errorf("%d mistakes not found", survived)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(files []string, seed uint64, budget int) (survived int, err error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	all, err := copyTree(dir)
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		for _, f := range all {
			if slices.Contains(packages, path.Dir(f)) && strings.HasSuffix(f, ".go") && !strings.HasSuffix(f, "_test.go") {
				files = append(files, f)
			}
		}
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		fmt.Printf("mutate: seed %d, %d files to draw from\n", seed, len(files))
	} else {
		budget = 1 << 30
	}
	total := 0
	for _, file := range files {
		if total >= budget {
			break
		}
		mutants, err := unleash(dir, file, all)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		source, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return 0, err
		}
		lines := strings.Split(string(source), "\n")
		for _, m := range mutants {
			if m.Status != "LIVED" {
				continue
			}
			at := fmt.Sprintf("%s | %s | %s", file, m.Type, strings.TrimSpace(lines[m.Line-1]))
			if strings.Contains("\n"+accepted, "\n"+at+" | ") {
				continue
			}
			fmt.Printf("NOT FOUND %s:%d:%d: %s\n", file, m.Line, m.Column, at)
			survived++
		}
		total += len(mutants)
		fmt.Printf("mutate: %s: %d mistakes\n", file, len(mutants))
	}
	if total == 0 {
		return 0, fmt.Errorf("no mistake was made")
	}
	return survived, nil
}

// unleash runs gremlins on one file below dir.
func unleash(dir, file string, all []string) ([]mutant, error) {
	report := filepath.Join(dir, "gremlins.json")
	args := []string{"run", gremlins, "unleash", "--output", report, "--invert-logical", "--invert-loopctrl",
		"--invert-assignments", "--invert-bitwise", "--invert-bwassign", "--remove-self-assignments"}
	for _, f := range all {
		// gremlins descends into folders.
		if below, ok := strings.CutPrefix(f, path.Dir(file)+"/"); ok && f != file && strings.HasSuffix(f, ".go") {
			args = append(args, "--exclude-files", "^"+regexp.QuoteMeta(below)+"$")
		}
	}
	cmd := exec.Command("go", append(args, "./"+path.Dir(file))...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-short")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	defer os.Remove(report)
	var r struct {
		Files []struct {
			Name      string   `json:"file_name"`
			Mutations []mutant `json:"mutations"`
		} `json:"files"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	var list []mutant
	for _, f := range r.Files {
		if f.Name != path.Base(file) {
			return nil, fmt.Errorf("a mistake in %s", f.Name)
		}
		list = append(list, f.Mutations...)
	}
	return list, nil
}

// copyTree copies the files that git knows to dir and returns their names.
func copyTree(dir string) ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{0}), []byte{0}) {
		text, err := os.ReadFile(string(name))
		if os.IsNotExist(err) {
			continue // deleted, not yet in a commit
		}
		if err != nil {
			return nil, err
		}
		to := filepath.Join(dir, string(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return nil, err
		}
		names = append(names, string(name))
	}
	return names, nil
}
