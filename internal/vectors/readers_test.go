package vectors

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// readers names, for each kind of file in Dir, the tests that read it. A file
// that nothing reads is a failure, so whoever adds one adds its test here.
var readers = []struct{ pattern, tests string }{
	{"kv/*.safetensors", "codec/ref.TestVectors codec/cpu.TestVectors codec/gpu.TestVectors affine.TestKeyVector"},
	{"kv/notes.json", "hadamard.TestSignsVector"},
	{"trellis/codes.safetensors", "trellis.TestVectorCodes"},
	{"trellis/encode.safetensors", "codec/ref.TestVectors codec/cpu.TestVectors codec/gpu.TestVectors trellis.TestVectorEncode"},
	{"trellis/pack.safetensors", "codec/ref.TestVectors codec/cpu.TestVectors codec/gpu.TestVectors trellis.TestVectorPack trellis.TestVectorInterleave"},
	{"trellis/rows.safetensors", "codec/ref.TestVectors codec/cpu.TestVectors codec/gpu.TestVectors trellis.TestVectorRows"},
	{"hadamard.safetensors", "hadamard.TestTransformVector hadamard.TestMatrixVector"},
	{"affine_mlx.safetensors", "affine.TestRowVector codec/ref.TestVectors"},
	{"product.safetensors", "codec/ref.TestVectors"},
	{"bitmask.safetensors", "codec/ref.TestVectors"},
	{"row_codes.safetensors", "codec/ref.TestVectors internal/tools/reader.TestTables"},
	{"kv_minilm.safetensors", "kvcache/snapshot.TestRealCache"},
	{"weights_minilm.safetensors", "trellis/ldlq.TestVectorProxyLoss"},
}

// notData are files of Dir that hold no data.
var notData = []string{"README.md", "LICENSE-APACHE", "text/*"}

func TestEveryFileHasAReader(t *testing.T) {
	root := Dir(t)
	matched := map[string]bool{}
	matches := func(pattern, name string) bool {
		ok, err := path.Match(pattern, name)
		if err != nil {
			t.Fatal(err)
		}
		matched[pattern] = matched[pattern] || ok
		return ok
	}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for _, pattern := range notData {
			if matches(pattern, name) {
				return nil
			}
		}
		for _, r := range readers {
			if matches(r.pattern, name) {
				return nil
			}
		}
		t.Errorf("%s: no test reads it", name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range readers {
		if !matched[r.pattern] {
			t.Errorf("no file matches %s in %s", r.pattern, root)
		}
		for test := range strings.FieldsSeq(r.tests) {
			dir, name, _ := strings.Cut(test, ".")
			if !declares(t, dir, "func "+name+"(") {
				t.Errorf("%s: package %s has no %s", r.pattern, dir, name)
			}
		}
	}
}

// declares reports whether a test file in dir, a path from the module's root,
// contains text.
func declares(t *testing.T, dir, text string) bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), text) {
			return true
		}
	}
	return false
}
