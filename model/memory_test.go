package model

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// memoryEnv makes the test binary run encodeLarge: source and output, separated
// by a line end.
const memoryEnv = "MODEL_TEST_MEMORY"

// hasty is a backend that codes nothing, so that large tensors take no time. It
// holds what the reference holds of its input.
type hasty struct{ codec.Backend }

type hastyTrellis struct {
	codec.Trellis
	p    trellis.Params
	wide *sync.Pool // of *[]float32
}

func (hasty) Trellis(p trellis.Params) (codec.Trellis, error) {
	return hastyTrellis{p: p, wide: &sync.Pool{New: func() any { return new([]float32) }}}, nil
}

func (hasty) Feed() codec.Feed { return codec.Feed{Bytes: 1 << 20, Calls: 2} }

func (h hastyTrellis) Encode(_ context.Context, dst *trellis.Matrix, recon, x codec.Tensor, g trellis.Geometry) error {
	kept := h.wide.Get().(*[]float32)
	defer h.wide.Put(kept)
	*kept = slices.Grow((*kept)[:0], 2*x.Len())[:2*x.Len()]
	wide := *kept
	for r := range x.Rows() {
		x.LoadRow(wide[r*x.Dim():][:x.Dim()], r)
		recon.StoreRow(r, wide[r*x.Dim():][:x.Dim()])
	}
	n := g.CodesLen(h.p)
	*dst = trellis.Matrix{Params: h.p, Geometry: g, Codes: slices.Grow(dst.Codes[:0], n)[:n], Scales: slices.Grow(dst.Scales[:0], g.Rows())[:g.Rows()]}
	return nil
}

func encodeLarge(src, out string) error {
	m, err := Open(src)
	if err != nil {
		return err
	}
	defer m.Close()
	p, err := PlanEncode(m, EncodeOptions{Tensors: regexp.MustCompile("large"), Params: trellis.DefaultParams(2), Axis: AutoAxis})
	if err != nil {
		return err
	}
	if _, err := p.Encode(context.Background(), out, RunOptions{Backend: hasty{}}); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(line, &kib); err != nil {
		return err
	}
	fmt.Println(kib << 10)
	return nil
}

// TestMemory: an encoding never takes more than 64 MiB, its largest tensor and
// that tensor's output.
func TestMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	if testing.Short() {
		t.Skip("large files")
	}
	const rows, cols = 4096, 4096
	dir := t.TempDir()
	src, out := filepath.Join(dir, "in.st"), filepath.Join(dir, "out.st")
	infos := []safetensors.Info{{Name: "copied", DType: "F32", Shape: []int{rows, cols}}}
	for i := range 3 {
		infos = append(infos, safetensors.Info{Name: fmt.Sprintf("large.%d.weight", i), DType: "F32", Shape: []int{rows + 256*i, cols - 256*i}})
	}
	// Zeros, as a sparse file.
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	w, err := safetensors.NewWriterAt(f, nil, infos)
	if err != nil {
		t.Fatal(err)
	}
	last := w.Tensors()[len(infos)-1]
	if err := f.Truncate(last.Offset + last.Size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), memoryEnv+"="+src+"\n"+out)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var peak int64
	if _, err := fmt.Sscan(string(text), &peak); err != nil {
		t.Fatal(err)
	}
	const tensor, output = 4 * rows * cols, rows*cols/4 + 2*rows
	t.Logf("%d MiB, of which the tensor has %d and its output %d", peak>>20, tensor>>20, output>>20)
	if peak > 64<<20+tensor+output {
		t.Errorf("%d MiB at most, want %d", peak>>20, (64<<20+tensor+output)>>20)
	}
}
