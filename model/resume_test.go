package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Environment of the process that TestKilled starts and kills.
const (
	victimEnv = "MODEL_TEST_VICTIM" // source and output, separated by a line end
	dieAtEnv  = "MODEL_TEST_DIE_AT" // the progress report at which it kills itself
)

// TestMain lets the test binary be a process to kill.
func TestMain(m *testing.M) {
	src, out, ok := strings.Cut(os.Getenv(victimEnv), "\n")
	if text := os.Getenv(scenarioEnv); text != "" {
		if err := act(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if src, out, ok := strings.Cut(os.Getenv(memoryEnv), "\n"); ok {
		if err := encodeLarge(src, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if !ok {
		os.Exit(m.Run())
	}
	dieAt, err := strconv.Atoi(os.Getenv(dieAtEnv))
	if err == nil {
		err = victim(src, out, dieAt)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// victim encodes src, and kills its process at a progress report.
func victim(src, out string, dieAt int) error {
	m, err := Open(src)
	if err != nil {
		return err
	}
	defer m.Close()
	p, err := PlanEncode(m, opts())
	if err != nil {
		return err
	}
	o := run()
	o.Jobs = 2
	o.Progress = func(Progress) {
		if dieAt--; dieAt == 0 {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			if err != nil {
				panic(err)
			}
			select {}
		}
	}
	_, err = p.Encode(context.Background(), out, o)
	return err
}

// many writes a model of two shards with many small matrices.
func many(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "model")
	put(tb, filepath.Join(dir, "config.json"), config)
	put(tb, filepath.Join(dir, "tokenizer.json"), "{}")
	var index []string
	for s, dtype := range []string{"F32", "BF16"} {
		file := fmt.Sprintf("model-%d.safetensors", s)
		tensors := []tensor{normal(fmt.Sprintf("norm.%d.weight", s), "F32", 9)}
		for i := range 6 {
			tensors = append(tensors, normal(fmt.Sprintf("layers.%d.%d.weight", s, i), "F32", 2+i%2, 64))
		}
		for i := range tensors {
			index = append(index, fmt.Sprintf("%q: %q", tensors[i].name, file))
		}
		writeFile(tb, filepath.Join(dir, file), map[string]string{"dtype": dtype}, tensors...)
	}
	put(tb, filepath.Join(dir, "model.safetensors.index.json"), `{"weight_map": {`+strings.Join(index, ", ")+`}}`)
	return dir
}

// TestKilled kills an encoding again and again, at random progress reports and at random
// times, and goes on with what it left until it is finished.
func TestKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	src := many(t)
	dir := t.TempDir()
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	begun := time.Now()
	r := encode(t, src, whole, opts())
	took := time.Since(begun)
	want := tree(t, whole)

	rnd := rand.New(rand.NewPCG(5, 5))
	kills, finished, resumed := 0, 0, 0
	enough := 10 // and see TestKilledAtEveryCall
	if os.Getenv("TURBOTRELLIS_LONG") != "" {
		enough = 50
	}
	for kills < enough {
		cmd := exec.Command(self)
		dieAt := 0
		if kills%2 == 0 {
			dieAt = 1 + rnd.IntN(60)
		}
		cmd.Env = append(os.Environ(), victimEnv+"="+src+"\n"+out, dieAtEnv+"="+strconv.Itoa(dieAt))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if dieAt == 0 {
			timer := time.AfterFunc(time.Duration(rnd.Int64N(int64(took))), func() { cmd.Process.Kill() })
			defer timer.Stop()
		}
		err := cmd.Wait()
		if _, done := os.Stat(out); err != nil && done != nil {
			if stderr.Len() > 0 {
				t.Fatalf("after %d kills: %s", kills, stderr.String())
			}
			kills++
			continue
		}
		// Finished, or killed when nothing but the husk was left to remove.
		same(t, tree(t, out), want)
		finished++
		if err := errors.Join(os.RemoveAll(out), os.RemoveAll(out+partialSuffix)); err != nil {
			t.Fatal(err)
		}
	}
	// The last one goes on in this process and says what it found.
	last, err := plan(t, src, opts()).Encode(context.Background(), out, run())
	if err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, out), want)
	resumed = last.Resumed
	for i := range r.Tensors {
		if got, want := last.Tensors[i], r.Tensors[i]; got.Name != want.Name || got.Error != want.Error || got.Bytes != want.Bytes {
			t.Errorf("reported %+v, want %+v", got, want)
		}
	}
	absent(t, out+partialSuffix)
	t.Logf("%d kills, finished %d times, %d tensors found finished in the end", kills, finished+1, resumed)
}

// begin encodes until some tensors are finished, and stops.
func begin(tb testing.TB, src, out string, o EncodeOptions, tensors int) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ro := run()
	ro.Progress = func(p Progress) {
		if p.Finished != nil {
			if tensors--; tensors == 0 {
				cancel()
			}
		}
	}
	_, err := plan(tb, src, o).Encode(ctx, out, ro)
	if err == nil || !strings.Contains(err.Error(), "interrupted") || !strings.Contains(err.Error(), out+partialSuffix) {
		tb.Fatalf("interrupted: %v", err)
	}
	absent(tb, out)
}

func TestResume(t *testing.T) {
	src := many(t)
	whole := filepath.Join(t.TempDir(), "whole")
	encode(t, src, whole, opts())
	want := tree(t, whole)
	for _, c := range []struct {
		name    string
		spoil   func(t *testing.T, partial string)
		resumed int
	}{
		{"untouched", func(*testing.T, string) {}, 3},
		{"torn journal", func(t *testing.T, partial string) {
			path := filepath.Join(partial, journalName)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			put(t, path, string(text[:len(text)-20]))
		}, 2},
		{"line without end", func(t *testing.T, partial string) {
			path := filepath.Join(partial, journalName)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			put(t, path, string(text[:len(text)-1]))
		}, 2},
		{"torn header", func(t *testing.T, partial string) {
			put(t, filepath.Join(partial, journalName), `{"format":"turbo`)
			os.RemoveAll(filepath.Join(partial, modelName))
		}, 0},
		{"lost data", func(t *testing.T, partial string) {
			if err := os.Truncate(filepath.Join(partial, modelName, "model-0.safetensors"), 100); err != nil {
				t.Fatal(err)
			}
		}, 0},
		{"one changed byte", func(t *testing.T, partial string) {
			path := filepath.Join(partial, modelName, "model-0.safetensors")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			// After the header and norm.0.weight come the first codes.
			n := 8 + int(text[0]) + int(text[1])<<8 + 9*4
			text[n] ^= 1
			put(t, path, string(text))
		}, 2},
		{"no files", func(t *testing.T, partial string) { os.RemoveAll(filepath.Join(partial, modelName)) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			begin(t, src, out, opts(), 3)
			c.spoil(t, out+partialSuffix)
			r := encode(t, src, out, opts())
			if r.Resumed != c.resumed {
				t.Errorf("%d tensors were found finished, want %d", r.Resumed, c.resumed)
			}
			same(t, tree(t, out), want)
			absent(t, out+partialSuffix)
		})
	}
}

// A tensor that has changed since is coded again.
func TestResumeChangedSource(t *testing.T) {
	src := many(t)
	out := filepath.Join(t.TempDir(), "out")
	begin(t, src, out, opts(), 3)
	path := filepath.Join(src, "model-0.safetensors")
	m := open(t, src)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, info, _ := m.lookup("layers.0.1.weight")
	text[info.Offset] ^= 1
	put(t, path, string(text))
	if r := encode(t, src, out, opts()); r.Resumed != 2 {
		t.Errorf("%d tensors were found finished, want 2", r.Resumed)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	encode(t, src, whole, opts())
	same(t, tree(t, out), tree(t, whole))
}

// Other parameters are another run.
func TestResumeRefused(t *testing.T) {
	src := many(t)
	out := filepath.Join(t.TempDir(), "out")
	begin(t, src, out, opts(), 2)
	before := tree(t, out+partialSuffix)
	o := opts()
	o.Params.Scale = trellis.Refit
	_, err := plan(t, src, o).Encode(context.Background(), out, run())
	if !errors.Is(err, ErrPartial) || !strings.Contains(err.Error(), `"scale":"rms"`) || !strings.Contains(err.Error(), `"scale":"refit"`) {
		t.Errorf("other parameters: %v", err)
	}
	same(t, tree(t, out+partialSuffix), before)

	// A decoding that goes to the same place is another run too.
	coded := filepath.Join(t.TempDir(), "coded")
	encode(t, src, coded, opts())
	if _, err := open(t, coded).Decode(context.Background(), out, codec.F32, run()); !errors.Is(err, ErrPartial) {
		t.Errorf("decoding: %v", err)
	}
	same(t, tree(t, out+partialSuffix), before)

	// So is one of a model that has other files.
	tokenizer := filepath.Join(src, "tokenizer.json")
	if err := os.Rename(tokenizer, tokenizer+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, run()); !errors.Is(err, ErrPartial) {
		t.Errorf("other files: %v", err)
	}
	if err := os.Rename(tokenizer+".old", tokenizer); err != nil {
		t.Fatal(err)
	}

	// With force it begins again.
	force := run()
	force.Force = true
	r, err := plan(t, src, o).Encode(context.Background(), out, force)
	if err != nil || r.Resumed != 0 {
		t.Errorf("with force: %d resumed, %v", r.Resumed, err)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	encode(t, src, whole, o)
	same(t, tree(t, out), tree(t, whole))

	// A directory that only looks like an unfinished output is left alone.
	other := filepath.Join(t.TempDir(), "other")
	put(t, filepath.Join(other+partialSuffix, "thesis.txt"), "precious")
	if _, err := plan(t, src, o).Encode(context.Background(), other, force); !errors.Is(err, ErrPartial) {
		t.Errorf("someone's directory: %v", err)
	}
	put(t, filepath.Join(other+partialSuffix, journalName), "precious\n")
	if _, err := plan(t, src, o).Encode(context.Background(), other, force); !errors.Is(err, ErrPartial) {
		t.Errorf("someone's journal: %v", err)
	}
	if len(tree(t, other+partialSuffix)) != 2 {
		t.Error("it was changed")
	}
}

// Two runs at once do not mix.
func TestBusy(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no locks")
	}
	src := many(t)
	out := filepath.Join(t.TempDir(), "out")
	o := run()
	tried := false
	o.Progress = func(p Progress) {
		if p.Finished == nil || tried {
			return
		}
		tried = true
		_, err := plan(t, src, opts()).Encode(context.Background(), out, run())
		if !errors.Is(err, ErrPartial) || !strings.Contains(err.Error(), "another run") {
			t.Errorf("a second run: %v", err)
		}
	}
	if _, err := plan(t, src, opts()).Encode(context.Background(), out, o); err != nil || !tried {
		t.Errorf("the first run: %v", err)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	encode(t, src, whole, opts())
	same(t, tree(t, out), tree(t, whole))
}

// Decoding goes on as well.
func TestResumeDecode(t *testing.T) {
	src := many(t)
	dir := t.TempDir()
	coded, whole, out := filepath.Join(dir, "coded"), filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	encode(t, src, coded, opts())
	m := open(t, coded)
	if _, err := m.Decode(context.Background(), whole, codec.F16, run()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := run()
	n := 0
	o.Progress = func(p Progress) {
		if p.Finished != nil {
			if n++; n == 4 {
				cancel()
			}
		}
	}
	if _, err := m.Decode(ctx, out, codec.F16, o); err == nil {
		t.Fatal("not interrupted")
	}
	absent(t, out)
	if _, err := m.Decode(context.Background(), out, codec.BF16, run()); !errors.Is(err, ErrPartial) ||
		!strings.Contains(err.Error(), `"decode":"f16"`) || !strings.Contains(err.Error(), `"decode":"bf16"`) {
		t.Errorf("another type: %v", err)
	}
	o = run()
	var checked Progress
	o.Progress = func(p Progress) {
		if p.Stage == Checking {
			checked = p
		}
	}
	r, err := m.Decode(context.Background(), out, codec.F16, o)
	if checked.Total == 0 || checked.Done != checked.Total {
		t.Errorf("the last report of checking is %+v", checked)
	}
	if err != nil || r.Resumed != 4 {
		t.Errorf("%d resumed (%v)", r.Resumed, err)
	}
	same(t, tree(t, out), tree(t, whole))
	// What has nothing to restore says so, whatever the type.
	if _, err := open(t, src).Decode(context.Background(), out+"2", 0, run()); !errors.Is(err, ErrSelection) {
		t.Errorf("nothing to decode: %v", err)
	}
	if _, err := m.Decode(context.Background(), out+"2", 0, run()); !errors.Is(err, codec.ErrDType) {
		t.Errorf("no type: %v", err)
	}
}

// brief is a writer that fails after some bytes.
type brief struct {
	bytes.Buffer
	room int
}

func (b *brief) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.room {
		return 0, io.ErrShortWrite
	}
	return b.Buffer.Write(p)
}

func TestInPieces(t *testing.T) {
	data := make([]byte, 2*copyBytes+1)
	data[copyBytes], data[2*copyBytes] = 1, 2
	for room, want := range map[int]error{len(data): nil, len(data) - 1: io.ErrShortWrite, 0: io.ErrShortWrite} {
		w := &brief{room: room}
		if err := inPieces(w, data); err != want || err == nil && !bytes.Equal(w.Bytes(), data) {
			t.Errorf("room for %d: %d bytes, %v, want %v", room, w.Len(), err, want)
		}
	}
}
