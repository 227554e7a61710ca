package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/safetensors/safetensorstest"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/model"
)

// command runs the command in this process.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	if err := root.Execute(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out.String()
}

// TestVectorRealWeights codes real weights through files and compares the codes,
// scales and decoded weights with those of the encoder this one descends from,
// and of codec/ref.
func TestVectorRealWeights(t *testing.T) {
	const name = "encoder.layer.0.output.dense"
	f := vectors.Load(t, "trellis/rows.safetensors")
	whole := vectors.Load(t, "weights_minilm.safetensors")[name+".weight"].Data
	n := 0
	for _, k := range []int{2, 3} {
		base := fmt.Sprintf("real.k%d", k)
		weights := f[base+".w"] // the first rows of the matrix
		if len(weights.Data) == 0 || !bytes.HasPrefix(whole, weights.Data) {
			t.Fatalf("%s.w is not %s", base, name)
		}
		dir := t.TempDir()
		in, out, back := filepath.Join(dir, "in.st"), filepath.Join(dir, "out.st"), filepath.Join(dir, "back.st")
		writeTensor(t, in, safetensors.Info{Name: name + ".weight", DType: safetensors.F32, Shape: weights.Shape}, weights.Data)
		command(t, "trellis", "encode", in, out,
			"--k", fmt.Sprint(k), "--tensors", "output.dense", "--policy", "compat", "--axis", "1")
		command(t, "trellis", "decode", out, back, "--dtype", "f32")

		m, err := model.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		got, err := m.Matrix(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range f.U32(t, base+".codes") {
			if got.Codes[i] != want {
				t.Fatalf("k = %d: word %d is %#x, want %#x", k, i, got.Codes[i], want)
			}
			n++
		}
		for i, want := range f.U16(t, base+".scales") {
			if got.Scales[i] != want {
				t.Fatalf("k = %d: scale %d is %#x, want %#x", k, i, got.Scales[i], want)
			}
			n++
		}
		c, err := ref.New().Trellis(got.Params)
		if err != nil {
			t.Fatal(err)
		}
		decoded := codec.NewTensor(codec.F32, weights.Shape...)
		if err := c.Decode(decoded, got, 0); err != nil {
			t.Fatal(err)
		}
		file, err := safetensors.Open(back)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		restored, err := file.AppendTensor(nil, name+".weight")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(restored, decoded.Data) || !bytes.Equal(restored, f[base+".decoded"].Data) {
			t.Errorf("k = %d: decoded weights differ", k)
		}
		n += len(restored) / 4
	}
	t.Logf("%d values compared", n)
}

// writeTensor writes a file of one tensor.
func writeTensor(t *testing.T, path string, in safetensors.Info, data []byte) {
	t.Helper()
	file := safetensorstest.File(t, nil, safetensorstest.Tensor{Name: in.Name, DType: in.DType, Shape: in.Shape, Data: data})
	if err := os.WriteFile(path, file, 0o666); err != nil {
		t.Fatal(err)
	}
}

// distortion is what the seed's encoder and QTIP measured: bounds for 4096
// blocks, with those of table rows of L = 16 (QTIP, table 1, rounded up).
var distortion = map[string]float64{
	"k1 L12 1mad rms": 0.286, "k2 L12 1mad rms": 0.0750, "k3 L12 1mad rms": 0.0199, "k4 L12 1mad rms": 0.0056,
	"k1 L12 1mad refit": 0.280, "k2 L12 1mad refit": 0.0746, "k3 L12 1mad refit": 0.0193, "k4 L12 1mad refit": 0.0051,
	"k2 L16 1mad rms": 0.0700, "k2 L16 3inst rms": 0.0690,
}

// TestTable checks the table on a small sample: the measured error is at most
// the bound and four of its own standard errors, which are asserted to be small,
// and between Lloyd–Max and the least possible.
func TestTable(t *testing.T) {
	var rows []tableRow
	for _, c := range []struct {
		ks     string
		blocks int
	}{{"3,4,1", 32}, {"2", 16}} { // L = 16 costs 16 times as much
		if testing.Short() && c.ks == "2" {
			continue
		}
		var some []tableRow
		text := command(t, "trellis", "table", "--k", c.ks, "--blocks", fmt.Sprint(c.blocks), "--json")
		if err := json.Unmarshal([]byte(text), &some); err != nil {
			t.Fatal(err)
		}
		for _, r := range some {
			name := fmt.Sprintf("k%d L%d %s %s", r.K, r.L, r.Code, r.Scale)
			bound, ok := distortion[name]
			if !ok {
				t.Errorf("unexpected row %s", name)
			}
			stdErr := float64(r.StdErr)
			t.Logf("%s: %.5f ± %.5f, bound %.4f", name, r.MSE, stdErr, bound)
			if !(stdErr > 0 && stdErr < bound/20) {
				t.Errorf("%s: standard error %v of %v", name, stdErr, bound)
			}
			if !(r.MSE < bound+4*stdErr) {
				t.Errorf("%s: %v ± %v, want at most %v", name, r.MSE, stdErr, bound)
			}
			if r.MSE > r.Lloyd || r.MSE < r.Bound || r.Bound != math.Pow(4, -float64(r.K)) || r.Blocks != c.blocks {
				t.Errorf("%s: %+v", name, r)
			}
		}
		rows = append(rows, some...)
	}
	if len(rows) != len(distortion) && !testing.Short() {
		t.Errorf("%d rows, want %d", len(rows), len(distortion))
	}
	var out bytes.Buffer
	if err := printTable(&out, rows); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != len(rows)+1 {
		t.Errorf("printed (%v):\n%s", err, out.String())
	}
}

// The default table has the sizes that its claims are made for.
func TestTableCases(t *testing.T) {
	f := newTrellisTable().Flags().Lookup("blocks")
	if f.DefValue != "4096" {
		t.Errorf("default of %s blocks", f.DefValue)
	}
	n := 0
	for _, c := range tableCases([]int{4, 1, 1, 2, 3}, 4096) {
		want := 4096
		if c.p.L == 16 {
			want = 256
		}
		if c.blocks != want || c.p.T != 256 || c.p.FreeEnds || c.blocks%rowBlocks != 0 {
			t.Errorf("%+v", c)
		}
		n++
	}
	if n != len(distortion) {
		t.Errorf("%d rows, want %d", n, len(distortion))
	}
}

// TestExamples runs the commands of the Slurm and Kubernetes examples, two parts
// each, and joins what they write.
func TestExamples(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	model, whole := filepath.Join(dir, "model"), filepath.Join(dir, "whole")
	weights, err := os.ReadFile("../../testdata/weights_minilm.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(model, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"config.json": "{}", "model.safetensors": string(weights)} {
		if err := os.WriteFile(filepath.Join(model, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "trellis", "encode", model, whole, "--k", "1", "--tensors", "output.dense", "--scale", "refit")
	want, err := os.ReadFile(filepath.Join(whole, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	slurm, err := os.ReadFile("../../docs/cluster/slurm/encode.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	kubernetes, err := os.ReadFile("../../docs/cluster/kubernetes/encode.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, pod, ok := strings.Cut(string(kubernetes), "            - |\n")
	if !ok {
		t.Fatal("encode.yaml has no script")
	}
	pod, _, _ = strings.Cut(pod, "          resources:")
	for name, c := range map[string]struct {
		script string
		env    func(part int) []string
	}{
		"slurm": {string(slurm), func(part int) []string {
			return []string{fmt.Sprint("SLURM_ARRAY_TASK_ID=", part), "SLURM_ARRAY_TASK_COUNT=2"}
		}},
		"kubernetes": {pod, func(part int) []string {
			return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", part-1), "PARTS=2"}
		}},
	} {
		out := filepath.Join(dir, name)
		args := []string{"trellis", "merge"}
		for part := 1; part <= 2; part++ {
			for range 2 { // the second run finds the part finished
				cmd := exec.Command(shell, "-eu", "-c", c.script)
				cmd.Env = append(os.Environ(), append(c.env(part), "MODEL="+model, "OUT="+out, "BITS=1", "TENSORS=output.dense")...)
				if text, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s, part %d: %v\n%s", name, part, err, text)
				}
			}
			args = append(args, fmt.Sprint(out, ".part-", part))
		}
		command(t, append(args, out)...)
		if got, err := os.ReadFile(filepath.Join(out, "model.safetensors")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the parts do not make the whole (%v)", name, err)
		}
	}
}

// Names from files reach a terminal as text only.
func TestPrintable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.st")
	name := "\x1b[31m\r\u202e.weight"
	writeTensor(t, path, safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int{1, 32}}, make([]byte, 128))
	for _, args := range [][]string{
		{"inspect", path},
		{"trellis", "encode", path, filepath.Join(dir, "y.st"), "--k", "1", "--block", "32", "--tensors", ".", "--dry-run"},
		{"trellis", "encode", path, filepath.Join(dir, "y.st"), "--k", "1", "--block", "32", "--tensors", "."},
		{"inspect", filepath.Join(dir, "y.st")},
	} {
		out := command(t, args...)
		if strings.ContainsAny(out, "\x1b\r\u202e") || !strings.Contains(out, `"\x1b[31m\r\u202e`) {
			t.Errorf("%q: %q", args, out)
		}
	}
	for _, s := range []string{"", "layers.0.keys", "中文 <&>"} {
		if printable(s) != s {
			t.Errorf("%q is printed as %q", s, printable(s))
		}
	}
}
