package model

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Bad data is refused before anything is written.
func TestRefused(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	one := func(x ...tensor) func(string) {
		return func(path string) { writeFile(t, path, nil, x...) }
	}
	noConfig := func(dir string) {
		put(t, filepath.Join(dir, "model.safetensors"), "x")
	}
	model := func(config string, x ...tensor) func(string) {
		return func(dir string) {
			put(t, filepath.Join(dir, "config.json"), config)
			writeFile(t, filepath.Join(dir, "model.safetensors"), nil, x...)
		}
	}
	q := normal("q.weight", "F32", 4, 64)
	change := func(f func(*EncodeOptions)) func(*EncodeOptions) { return f }
	for _, c := range []struct {
		name string
		make func(path string)
		opts func(*EncodeOptions)
		err  error
		text string
	}{
		{"columns", one(normal("q.weight", "F32", 4, 48)), nil, ErrTensor, `"q.weight": cannot be coded: neither side of [4, 48] is a multiple of the block, 32`},
		{"axis", one(normal("q.weight", "F32", 4, 48)), change(func(o *EncodeOptions) { o.Axis = 1 }), trellis.ErrShape, `"q.weight"`},
		{"T·k", one(q), change(func(o *EncodeOptions) { o.Params.T = 8 }), trellis.ErrParams, "want a multiple of 16"},
		{"k ≥ L", one(q), change(func(o *EncodeOptions) { o.Params.L, o.Params.K = 4, 4 }), trellis.ErrParams, "L = 4 with K = 4"},
		{"code", one(q), change(func(o *EncodeOptions) { o.Params.Code = 9 }), codec.ErrParams, "Code(9)"},
		{"NaN", one(normal("q.weight", "F32", 4, 64).set(130, nan).set(200, inf)), nil, codec.ErrNonFinite, `"q.weight": element 130: NaN`},
		{"Inf, f16, axis 0", one(normal("q.weight", "F16", 64, 3).set(7, inf)), nil, codec.ErrNonFinite, `"q.weight": element 7: +Inf`},
		{"-Inf, bf16", one(normal("q.weight", "BF16", 4, 64).set(255, -inf)), nil, codec.ErrNonFinite, `element 255: -Inf`},
		{"overflow", one(normal("q.weight", "F32", 4, 64).set(2*64+5, 1e9)), nil, codec.ErrScaleOverflow, `"q.weight": element 128: row 2 along axis 1`},
		{"overflow, axis 0", one(normal("q.weight", "F32", 64, 3).set(7, 1e30)), nil, codec.ErrScaleOverflow, `"q.weight": element 1: row 1 along axis 0`},
		{"nothing", one(normal("k.weight", "F32", 4, 64)), nil, ErrSelection, "matches q"},
		{"no matrix", one(normal("q.weight", "F32", 64)), nil, ErrSelection, "matches q"},
		{"dtype", one(normal("q.weight", "F64", 4, 64)), nil, ErrTensor, "F64"},
		{"coded", one(normal("q.weight", "U32", 4, 4), normal("q.scales", "F16", 4)), nil, ErrTensor, "U32"},
		{"scales", one(q, normal("q.scales", "F16", 4)), nil, ErrQuantized, `"q.scales"`},
		{"metadata", func(path string) { writeFile(t, path, map[string]string{"quantization": "x"}, q) }, nil, ErrQuantized, "metadata"},
		{"metadata of another kind", func(path string) { writeFile(t, path, map[string]string{"quantization_config": "x"}, q) }, nil, ErrQuantized, "quantization_config"},
		{"entry twice", func(path string) { writeFile(t, path, map[string]string{"quantization": `{"m":{},"m":{}}`}, q) }, nil, ErrEntry, "duplicate"},
		{"quantization", model(`{"quantization": {"bits": 4, "group_size": 64}}`, q), nil, ErrQuantized, `"quantization"`},
		{"quantization_config", model(`{"quantization_config": {"quant_method": "gptq"}}`, q), nil, ErrQuantized, `"quantization_config"`},
		{"config", model(`{"a": 1,}`, q), nil, ErrModel, "config.json"},
		{"config twice", model(`{"a": 1, "a": 2}`, q), nil, ErrModel, "duplicate"},
		{"no config", noConfig, nil, ErrModel, "config.json"},
		{"empty", func(dir string) { put(t, filepath.Join(dir, "config.json"), "{}") }, nil, ErrModel, "neither model.safetensors nor"},
		{"not there", func(string) {}, nil, fs.ErrNotExist, ""},
		{"no tensors file", func(path string) { put(t, path, "hello, this is text") }, nil, safetensors.ErrNotSafetensors, ""},
		{"missing shards", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			os.Remove(filepath.Join(dir, "a.safetensors"))
		}, nil, ErrModel, "1 of 2 shards are missing: a.safetensors"},
		{"missing tensor", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			writeFile(t, filepath.Join(dir, "a.safetensors"), nil, shardA()[0])
		}, nil, ErrModel, `tensor "layers.0.q.weight" is missing from a.safetensors`},
		{"shard elsewhere", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			put(t, filepath.Join(dir, "model.safetensors.index.json"), `{"weight_map": {"q": "../q.safetensors"}}`)
		}, nil, ErrModel, "outside"},
		{"index", func(dir string) {
			os.CopyFS(dir, os.DirFS(toy(t)))
			put(t, filepath.Join(dir, "model.safetensors.index.json"), `{}`)
		}, nil, ErrModel, "no weight_map"},
		{"bits by part", one(q), change(func(o *EncodeOptions) { o.Part, o.Parts = 3, 2 }), ErrSelection, "part 3 of 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			c.make(in)
			o := opts()
			o.Tensors = regexp.MustCompile("q")
			if c.opts != nil {
				c.opts(&o)
			}
			m, err := Open(in)
			if err == nil {
				defer m.Close()
				var p *Plan
				if p, err = PlanEncode(m, o); err == nil {
					_, err = p.Encode(context.Background(), out, run())
				}
			}
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.err, c.text)
			}
			absent(t, out, out+partialSuffix)
		})
	}
}
