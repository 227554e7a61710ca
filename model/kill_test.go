package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
)

// scenarioEnv makes the test binary run a scenario, as JSON.
const scenarioEnv = "MODEL_TEST_SCENARIO"

// scenario is a run that is killed at each of its system calls that write.
type scenario struct {
	Name   string
	Op     string // encode, affine, decode or merge
	Src    string
	Out    string
	Force  bool
	Single bool // one file

	inject string // what strace does beside
	old    bool   // there is an output that the run replaces
	begun  bool   // there is an unfinished output
}

// writing lists the system calls that change files. Those that strace does not know on a machine are passed over.
const writing = "?openat,?mkdirat,?mkdir,?write,?pwrite64,?ftruncate,?fsync,?fdatasync,?unlinkat,?unlink,?rmdir," +
	"?renameat,?renameat2,?rename,?linkat,?link,?symlinkat,?fchmod,?fchmodat,?copy_file_range,?sendfile"

// TestMain runs a scenario on its first thread alone, which is the one that strace follows.
func init() {
	if os.Getenv(scenarioEnv) != "" {
		runtime.LockOSThread()
	}
}

func act(text string) error {
	var s scenario
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	return s.run(context.Background())
}

// run is what is killed, and what finishes afterwards.
func (s scenario) run(ctx context.Context) error {
	o := run()
	o.Force = s.Force
	if s.Op == "merge" {
		_, err := Merge(ctx, strings.Split(s.Src, "\n"), s.Out, o)
		return err
	}
	m, err := Open(s.Src)
	if err != nil {
		return err
	}
	defer m.Close()
	if s.Op == "decode" {
		_, err = m.Decode(ctx, s.Out, codec.F32, o)
		return err
	}
	var p *Plan
	if s.Op == "affine" {
		p, err = PlanAffine(m, AffineOptions{Format: affine.RowFormat{Bits: 4, Group: 32}})
	} else {
		p, err = PlanEncode(m, few())
	}
	if err == nil {
		_, err = p.Encode(ctx, s.Out, o)
	}
	return err
}

// few selects the layers, in a code that takes no time.
func few() EncodeOptions {
	o := opts()
	o.Params.L, o.Params.K = 4, 1
	return o
}

// TestKilledAtEveryCall kills runs at system calls that write, each of them in the long form, and some, among them
// the last ones of all, in the normal form. Whatever is left, no output was lost, none is a mixture, and the
// same command ends with the right bytes.
func TestKilledAtEveryCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.Command(strace, "-o", os.DevNull, "true").Run()
	}
	if err != nil {
		if os.Getenv("REQUIRE_STRACE") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("many processes")
	}
	long := os.Getenv("TURBOTRELLIS_LONG") != ""

	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	put(t, filepath.Join(src, configName), "{}")
	put(t, filepath.Join(src, "tokenizer.json"), "{}")
	put(t, filepath.Join(src, indexName), `{"weight_map": {"layers.0.weight": "a", "norm.weight": "a", "layers.1.weight": "b"}}`)
	writeFile(t, filepath.Join(src, "a"), nil, normal("layers.0.weight", "F32", 1, 32), normal("norm.weight", "F32", 7))
	writeFile(t, filepath.Join(src, "b"), nil, normal("layers.1.weight", "BF16", 2, 32))
	one := filepath.Join(dir, "one")
	writeFile(t, one, nil, normal("layers.0.weight", "F32", 1, 32))
	coded := filepath.Join(dir, "coded")
	encode(t, src, coded, few())
	var parts []string
	for i := range 2 {
		o := few()
		o.Part, o.Parts = i+1, 2
		parts = append(parts, filepath.Join(dir, fmt.Sprint("part", i)))
		encode(t, src, parts[i], o)
	}
	// The output that runs replace has other codes, and a file less.
	oldSrc := filepath.Join(dir, "oldsrc")
	if err := os.CopyFS(oldSrc, os.DirFS(src)); err != nil {
		t.Fatal(err)
	}
	o := few()
	o.Params.K = 2
	if err := os.Remove(filepath.Join(oldSrc, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	old, oldOne := filepath.Join(dir, "old"), filepath.Join(dir, "oldone")
	encode(t, oldSrc, old, o)
	encode(t, one, oldOne, o)

	const noExchange = "?renameat2:error=ENOSYS"
	kills := 0
	for n, s := range []scenario{
		{Name: "new", Op: "encode", Src: src},
		{Name: "replace", Op: "encode", Src: src, Force: true, old: true},
		{Name: "replace without exchange", Op: "encode", Src: src, Force: true, old: true, inject: noExchange},
		{Name: "resume and replace", Op: "encode", Src: src, Force: true, old: true, begun: true},
		{Name: "new file without renameat2", Op: "encode", Src: one, Single: true, inject: noExchange},
		{Name: "replace file", Op: "encode", Src: one, Single: true, Force: true, old: true},
		{Name: "decode", Op: "decode", Src: coded},
		{Name: "affine from trellis codes", Op: "affine", Src: coded},
		{Name: "merge and replace", Op: "merge", Src: strings.Join(parts, "\n"), Force: true, old: true},
	} {
		if !long && n > 4 && s.Op != "affine" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			work := t.TempDir()
			s.Out = filepath.Join(work, "out")
			oldPath := map[bool]string{false: old, true: oldOne}[s.Single]
			prepare := func() {
				t.Helper()
				entries, err := os.ReadDir(work)
				for _, e := range entries {
					err = errors.Join(err, os.RemoveAll(filepath.Join(work, e.Name())))
				}
				if err != nil {
					t.Fatal(err)
				}
				if s.begun {
					begin(t, src, s.Out, few(), 1)
				}
				if s.old && s.Single {
					put(t, s.Out, tree(t, oldPath)["."])
				} else if s.old {
					if err := os.CopyFS(s.Out, os.DirFS(oldPath)); err != nil {
						t.Fatal(err)
					}
				}
			}
			var before map[string]string
			if s.old {
				before = tree(t, oldPath)
			}
			prepare()
			log := filepath.Join(dir, "log")
			if err := s.trace(strace, log, ""); err != nil {
				t.Fatal(err)
			}
			after := tree(t, s.Out)
			if s.Op == "encode" && !s.Single {
				same(t, after, tree(t, coded))
			}
			calls := mutating(t, log, s)
			missed := 0
			for i, call := range calls {
				if !long && i < len(calls)-14 && i%8 != n {
					continue
				}
				prepare()
				if err := s.trace(strace, log, call); err == nil {
					if !maps.Equal(tree(t, s.Out), after) {
						t.Fatalf("%s: not killed, and another output", call)
					}
					missed++ // the Go runtime made a call less
					continue
				}
				kills++
				if err := s.check(before, after); err != nil {
					t.Fatalf("killed at %s, call %d of %d: %v", call, i+1, len(calls), err)
				}
				if i%2 == 1 {
					if err := s.stopped(before, after); err != nil {
						t.Fatalf("killed at %s, call %d of %d, and a run that was stopped at once: %v", call, i+1, len(calls), err)
					}
				}
				published := false
				if _, err := os.Lstat(s.Out); err == nil && !s.Force {
					published = true
				}
				if err := s.run(context.Background()); published != errors.Is(err, fs.ErrExist) || !published && err != nil {
					t.Fatalf("killed at %s, call %d of %d, and run again: %v", call, i+1, len(calls), err)
				}
				if !maps.Equal(tree(t, s.Out), after) {
					t.Fatalf("killed at %s, call %d of %d: the next run wrote something else", call, i+1, len(calls))
				}
				absent(t, s.Out+partialSuffix)
			}
			if missed > 3 {
				t.Errorf("%d runs were not killed", missed)
			}
			t.Logf("%d calls write, %d runs were not killed", len(calls), missed)
		})
	}
	if kills == 0 {
		t.Fatal("nothing was killed")
	}
	t.Logf("%d kills", kills)
}

// trace runs the scenario under strace, which writes its first thread's calls to log, or kills it at one.
func (s scenario) trace(strace, log, kill string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	args := []string{"-qq", "-o", log, "-e", "trace=" + writing}
	if s.inject != "" {
		args = append(args, "-e", "inject="+s.inject)
	}
	if kill != "" {
		args = append(args, "-e", "inject="+kill)
	}
	cmd := exec.Command(strace, append(args, self)...)
	cmd.Env = append(os.Environ(), scenarioEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	if err != nil && kill == "" {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// mutating returns what kills the scenario at each of the logged calls that write below the output's folder.
func mutating(t *testing.T, log string, s scenario) []string {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`^([a-z0-9_]+)\(`)
	var calls []string
	count, begun := map[string]int{}, false // strace counts each system call apart
	for line := range strings.Lines(string(text)) {
		m := call.FindStringSubmatch(line)
		if m == nil || s.inject != "" && m[1] == "renameat2" { // an injection for each call at most
			continue
		}
		count[m[1]]++
		begun = begun || strings.Contains(line, "out"+partialSuffix)
		if begun && (m[1] != "openat" || strings.Contains(line, "O_CREAT")) {
			calls = append(calls, fmt.Sprintf("%s:signal=KILL:when=%d", m[1], count[m[1]]))
		}
	}
	if len(calls) < 20 {
		t.Fatalf("%d calls that write:\n%s", len(calls), text)
	}
	return calls
}

// stopped runs the scenario until it has put right what the killed run left and no further. An old output is back
// in its place, and beside a new one nothing is left.
func (s scenario) stopped(before, after map[string]string) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.run(ctx); err == nil {
		return errors.New("it came to an end")
	}
	s.inject = "" // the old output need not be looked for elsewhere
	if err := s.check(before, after); err != nil {
		return err
	}
	if _, err := os.Lstat(s.Out + partialSuffix); err == nil && maps.Equal(contents(s.Out), after) {
		return errors.New("the output is new, and something of the killed run is left")
	}
	return nil
}

// contents returns the files of a directory, or one file, that may not be there.
func contents(path string) map[string]string {
	files := map[string]string{}
	filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		rel, _ := filepath.Rel(path, name)
		files[filepath.ToSlash(rel)] = string(b)
		return err
	})
	return files
}

// check returns an error if the old output is lost or an output is neither the old nor the new one.
func (s scenario) check(before, after map[string]string) error {
	if _, err := os.Lstat(s.Out); err == nil {
		if got := contents(s.Out); !maps.Equal(got, after) && (before == nil || !maps.Equal(got, before)) {
			return fmt.Errorf("the output is a mixture: %q", slices.Sorted(maps.Keys(got)))
		}
		return nil
	}
	if before != nil && !(s.inject != "" && maps.Equal(contents(filepath.Join(s.Out+partialSuffix, replacedName)), before)) {
		return errors.New("the old output is lost")
	}
	return nil
}
