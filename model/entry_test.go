package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/safetensors/safetensorstest"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Interleaved codes, which other programs write, are read.
func TestInterleaved(t *testing.T) {
	x := normal("m.weight", "F32", 3, 128)
	p := opts().Params
	codes, scales, want := oracle(t, x, p, 1, codec.F32)
	words := make([]uint32, len(codes)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(codes[4*i:])
	}
	inter := make([]uint32, len(words))
	if err := trellis.Interleave(inter, words, 3, 128, p); err != nil {
		t.Fatal(err)
	}
	for i, w := range inter {
		binary.LittleEndian.PutUint32(codes[4*i:], w)
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	writeFile(t, in, map[string]string{"quantization": `{"m":{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":8,"code":"1mad","axis":1}}}`},
		tensor{"m.weight", "U32", []int{2, 3, 4}, codes}, tensor{"m.scales", "F16", []int{3}, scales})
	if _, err := open(t, in).Decode(context.Background(), out, codec.F32, run()); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, out).files[0].AppendTensor(nil, "m.weight")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("decodes to something else (%v)", err)
	}
}

// An entry that disagrees with its tensors, or that this program does not know,
// is refused and never guessed at.
func TestEntryRefused(t *testing.T) {
	const good = `{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":12,"code":"1mad","axis":1}}`
	codes, scales := normal("m.weight", "U32", 3, 4), normal("m.scales", "F16", 3)
	for _, c := range []struct {
		name, entry string
		tensors     []tensor
		err         error
		text        string
	}{
		{"good", good, []tensor{codes, scales}, nil, ""},
		{"code", strings.Replace(good, "1mad", "2mad", 1), []tensor{codes, scales}, codec.ErrParams, `"2mad"`},
		{"binary16 code", strings.Replace(good, "1mad", "3inst-f16", 1), []tensor{codes, scales}, codec.ErrParams, "reserved"},
		{"k ≥ L", strings.Replace(good, `"L":12`, `"L":2`, 1), []tensor{codes, scales}, trellis.ErrParams, "L = 2"},
		{"T·k", strings.Replace(good, `"group_size":32`, `"group_size":8`, 1), []tensor{codes, scales}, trellis.ErrParams, "T = 8"},
		{"columns", strings.Replace(good, `"bits":2`, `"bits":3`, 1), []tensor{codes, scales}, trellis.ErrShape, "[3 4]"},
		{"axis", strings.Replace(good, `"axis":1`, `"axis":2`, 1), []tensor{codes, scales}, trellis.ErrShape, "axis 2"},
		{"no axis", strings.Replace(good, `,"axis":1`, ``, 1), []tensor{codes, scales}, ErrEntry, "axis"},
		{"no bits", strings.Replace(good, `"bits":2,`, ``, 1), []tensor{codes, scales}, ErrEntry, "bits"},
		{"unknown field", strings.Replace(good, `"axis":1`, `"axis":1,"V":2`, 1), []tensor{codes, scales}, ErrEntry, `"V"`},
		{"another case", strings.Replace(good, `"bits"`, `"Bits"`, 1), []tensor{codes, scales}, ErrEntry, `"Bits"`},
		{"field twice", strings.Replace(good, `"L":12`, `"L":12,"L":12`, 1), []tensor{codes, scales}, ErrEntry, "duplicate"},
		{"fraction", strings.Replace(good, `"bits":2`, `"bits":2.5`, 1), []tensor{codes, scales}, ErrEntry, "2.5"},
		{"no codes", good, []tensor{scales}, ErrEntry, `no tensor "m.weight"`},
		{"no scales", good, []tensor{codes}, ErrEntry, `no tensor "m.scales"`},
		{"codes dtype", good, []tensor{normal("m.weight", "F32", 3, 4), scales}, ErrEntry, "F32, want U32"},
		{"scales dtype", good, []tensor{codes, normal("m.scales", "BF16", 3)}, ErrEntry, "want F16 [3]"},
		{"scales shape", good, []tensor{codes, normal("m.scales", "F16", 4)}, ErrEntry, "F16 [4], want F16 [3]"},
		{"one dimension", good, []tensor{normal("m.weight", "U32", 12), scales}, ErrEntry, "[12]"},
		{"other", `{"mode":"affine","bits":4}`, []tensor{codes, scales}, ErrSelection, "no trellis-coded weights"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			put(t, filepath.Join(in, "config.json"), `{"quantization": {"group_size": 64, "m": `+c.entry+`}}`)
			writeFile(t, filepath.Join(in, "model.safetensors"), nil, c.tensors...)
			m, err := Open(in)
			if err == nil {
				defer m.Close()
				_, err = m.Decode(context.Background(), out, codec.F32, run())
			}
			if c.err == nil {
				if got := tree(t, out)["config.json"]; err != nil || got != `{"quantization": {"group_size": 64}}` {
					t.Errorf("config.json %s, error %v", got, err)
				}
				return
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.err, c.text)
			}
			absent(t, out, out+partialSuffix)
		})
	}
}

// FuzzEntry: an entry never makes Open panic, and one that is accepted fits.
func FuzzEntry(f *testing.F) {
	f.Add(`{"m":{"mode":"trellis","bits":2,"group_size":32,"trellis":{"L":12,"code":"1mad","axis":1}}}`, 3, 4)
	f.Add(`{"m":{"mode":"trellis","bits":8,"group_size":4,"trellis":{"L":16,"code":"rand","axis":0}}}`, 1, 1)
	f.Fuzz(func(t *testing.T, q string, rows, words int) {
		if rows < 0 || words < 0 || rows > 64 || words > 64 {
			return
		}
		var b safetensorstest.Memory
		w, err := safetensors.NewWriterAt(&b, map[string]string{"quantization": q}, []safetensors.Info{
			{Name: "m.weight", DType: "U32", Shape: []int{rows, words}}, {Name: "m.scales", DType: "F16", Shape: []int{rows}}})
		if err != nil {
			return // not UTF-8
		}
		for name, n := range map[string]int{"m.weight": 4 * rows * words, "m.scales": 2 * rows} {
			tw, err := w.Tensor(name)
			if err != nil {
				return
			}
			tw.Write(make([]byte, n))
		}
		m, err := OpenFile(bytes.NewReader(b.Data), int64(len(b.Data)))
		if err != nil {
			return
		}
		for _, c := range m.Coded() {
			if _, err := m.Matrix(c.Base); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			if c.Weights()*int64(c.Params.K) != int64(32*rows*words) {
				t.Fatalf("%s: %d weights in %d words", q, c.Weights(), rows*words)
			}
		}
	})
}
