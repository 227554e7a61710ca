package vectors

import (
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A KeyCase is the keys of one file of kv packed in one format. A tensor that
// the file does not have is the zero Tensor.
type KeyCase struct {
	Name                          string // kv_d64.k.q8_0.compat
	X                             Tensor // [rows, D]
	Type                          string // q8_0, as codec.Format reads it
	Policy                        string // finite or compat
	Group                         int
	Codes, Scales, Zeros, Decoded Tensor
}

// A ValueCase is the values of one file of kv packed in one width.
type ValueCase struct {
	Name                                         string // kv_d64.v.3.search
	X                                            Tensor // [rows, D]
	Bits, Group                                  int
	Search                                       bool // else the rms scale
	Codes, Scales, Rotated, Decoded, DecodedBF16 Tensor
}

// A MatrixCase is a weight matrix of trellis/rows under the compat policy.
type MatrixCase struct {
	Name    string // real.k3
	W       Tensor // [rows, columns]
	K, T    int    // T is 0 for the default
	Codes   []uint32
	Scales  []uint16
	Decoded Tensor
}

// A PathCase is the best paths of the blocks of trellis/encode.
type PathCase struct {
	Name     string // enc.L12.k2.T256.1mad.tail
	X        Tensor // [blocks, T]
	L, K, T  int
	Code     string
	FreeEnds bool
	States   []uint16
}

// A PackedCase is three packed blocks of trellis/pack, of L = 12.
type PackedCase struct {
	Name    string // pack.k3.T256
	K, T    int
	States  []uint16
	Words   []uint32
	Decoded Tensor // the 1mad values of States, each times 0.75
}

// cases calls f for each group of tensors in the files that match a pattern
// below Dir: those whose names differ only after the last dot. take returns the
// name in file of one of the group. Every tensor but the file's inputs must be
// taken, so that none goes unread.
func cases(tb testing.TB, pattern, inputs string, f func(name string, file File, take func(part string) string)) {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(Dir(tb), filepath.FromSlash(pattern)))
	if err != nil || len(names) == 0 {
		tb.Fatalf("vec: no file matches %s in %s", pattern, Dir(tb))
	}
	for _, name := range names {
		file := Load(tb, path.Join(path.Dir(pattern), filepath.Base(name)))
		stem := strings.TrimSuffix(filepath.Base(name), ".safetensors")
		taken := map[string]bool{}
		var bases []string
		for _, tensor := range file.Names() {
			base := strings.TrimSuffix(tensor, path.Ext(tensor))
			if tensor == inputs || base == inputs {
				taken[tensor] = true
			} else if !slices.Contains(bases, base) {
				bases = append(bases, base)
			}
		}
		for _, base := range bases {
			f(stem+"."+base, file, func(part string) string {
				taken[base+"."+part] = true
				return base + "." + part
			})
		}
		for _, tensor := range file.Names() {
			if !taken[tensor] {
				tb.Fatalf("vec: %s: no case reads %s", name, tensor)
			}
		}
	}
}

// fields splits the name of a kv case: file stem, k or v, format, and then the
// file's variant, if it has one, which is left out.
func fields(base string) (parts []string, group int) {
	parts = strings.Split(base, ".")
	group = 32
	if _, variant, ok := strings.Cut(strings.TrimPrefix(parts[0], "kv_"), "_"); ok {
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == variant })
		if variant == "g64" {
			group = 64
		}
	}
	return parts, group
}

// KV returns the cases of every file in kv.
func KV(tb testing.TB) (keys []KeyCase, values []ValueCase) {
	tb.Helper()
	cases(tb, "kv/*.safetensors", "x", func(name string, file File, take func(string) string) {
		parts, group := fields(name)
		x := file["x"]
		switch {
		case len(parts) == 4 && parts[1] == "k":
			keys = append(keys, KeyCase{
				Name: name, X: x, Type: parts[2], Policy: parts[3], Group: group,
				Codes: file[take("codes")], Scales: file[take("scales")], Zeros: file[take("zeros")], Decoded: file[take("decoded")],
			})
		case len(parts) >= 3 && parts[1] == "v":
			values = append(values, ValueCase{
				Name: name, X: x, Bits: number(tb, name, parts[2]), Group: group, Search: slices.Contains(parts, "search"),
				Codes: file[take("codes")], Scales: file[take("scales")], Rotated: file[take("rotated")], Decoded: file[take("decoded")], DecodedBF16: file[take("decoded_bf16")],
			})
		default:
			tb.Fatalf("vec: %s is neither keys nor values", name)
		}
	})
	if len(keys) == 0 || len(values) == 0 {
		tb.Fatalf("vec: %d key cases and %d value cases", len(keys), len(values))
	}
	return keys, values
}

// Matrices returns the cases of trellis/rows.
func Matrices(tb testing.TB) (all []MatrixCase) {
	tb.Helper()
	cases(tb, "trellis/rows.safetensors", "", func(name string, file File, take func(string) string) {
		all = append(all, MatrixCase{
			Name: name, W: file[take("w")], K: letter(tb, name, "k", -1), T: letter(tb, name, "T", 0),
			Codes: file.U32(tb, take("codes")), Scales: file.U16(tb, take("scales")), Decoded: file[take("decoded")],
		})
	})
	return all
}

// Paths returns the cases of trellis/encode.
func Paths(tb testing.TB) (all []PathCase) {
	tb.Helper()
	cases(tb, "trellis/encode.safetensors", "", func(name string, file File, take func(string) string) {
		parts := strings.Split(name, ".")
		all = append(all, PathCase{
			Name: name, X: file[take("x")], L: letter(tb, name, "L", -1), K: letter(tb, name, "k", -1), T: letter(tb, name, "T", -1),
			Code: parts[len(parts)-2], FreeEnds: parts[len(parts)-1] == "free", States: states(tb, file.I32(tb, take("states"))),
		})
	})
	return all
}

// Packed returns the cases of trellis/pack but for its interleaved matrix.
func Packed(tb testing.TB) (all []PackedCase) {
	tb.Helper()
	cases(tb, "trellis/pack.safetensors", "interleave", func(name string, file File, take func(string) string) {
		all = append(all, PackedCase{
			Name: name, K: letter(tb, name, "k", -1), T: letter(tb, name, "T", -1),
			States: states(tb, file.I32(tb, take("states"))), Words: file.U32(tb, take("words")), Decoded: file[take("decoded")],
		})
	})
	return all
}

func number(tb testing.TB, name, s string) int {
	tb.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		tb.Fatalf("vec: %s: %v", name, err)
	}
	return n
}

// letter reads the integer behind a letter in one of a name's dotted parts, such
// as 12 in "L12". Where no part has it, that is an error if otherwise is
// negative.
func letter(tb testing.TB, name, letter string, otherwise int) int {
	tb.Helper()
	for part := range strings.SplitSeq(name, ".") {
		if n, err := strconv.Atoi(strings.TrimPrefix(part, letter)); err == nil && strings.HasPrefix(part, letter) {
			return n
		}
	}
	if otherwise < 0 {
		tb.Fatalf("vec: no %s in %q", letter, name)
	}
	return otherwise
}

func states(tb testing.TB, x []int32) []uint16 {
	tb.Helper()
	out := make([]uint16, len(x))
	for i, v := range x {
		if v < 0 || v > math.MaxUint16 {
			tb.Fatalf("vec: state %d", v)
		}
		out[i] = uint16(v)
	}
	return out
}
