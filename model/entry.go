// Package model reads and writes models with trellis-coded and affine weights
// (docs/format.md): a directory with config.json and model.safetensors, whole
// or in shards, or one safetensors file.
//
// A trellis-coded matrix <base> is two tensors, <base>.weight (uint32 codes) and
// <base>.scales (f16), and an entry that names its parameters: in config.json
// under "quantization", or in the metadata of a file that stands alone.
// Affine matrices are three tensors in MLX's format. Everything else is copied
// byte for byte.
//
// Output is built in OUT.partial and renamed to OUT when complete. There a
// journal lists the finished tensors with digests of their sources and of what
// was written, so that the next run resumes after a run that was killed and
// ends with the same bytes. docs/promises.md says what holds meanwhile.
package model

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/turbotrellis/turbotrellis/internal/strictjson"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Errors that this package's functions wrap, beside those of packages codec,
// trellis and safetensors and of the system.
var (
	// ErrQuantized reports a model that is already quantised.
	ErrQuantized = errors.New("already quantised")
	// ErrEntry reports an entry that is malformed or that disagrees with its
	// tensors.
	ErrEntry = errors.New("malformed entry")
	// ErrModel reports a directory or file that is not a model, lacks a part of
	// one, or has a part twice.
	ErrModel = errors.New("not a model")
	// ErrTwice, an ErrModel, reports *.safetensors beside the model that hold tensors of the model's names.
	ErrTwice = fmt.Errorf("%w of one meaning", ErrModel)
	// ErrTensor reports a tensor that cannot be coded as asked.
	ErrTensor = errors.New("cannot be coded")
	// ErrSelection reports names or patterns that select nothing.
	ErrSelection = errors.New("nothing selected")
	// ErrPartial reports an unfinished output of a run that does not match.
	ErrPartial = errors.New("unfinished output of another run")
	// ErrOutput reports a path that cannot be an output.
	ErrOutput = errors.New("cannot be the output")
	// ErrChanged reports a source that was written to while it was read.
	ErrChanged = errors.New("the source has changed")
	// ErrParts reports parts that do not make a whole.
	ErrParts = errors.New("parts do not fit together")
)

const (
	quantizationKey = "quantization"
	mode            = "trellis"
	weightSuffix    = ".weight"
	scalesSuffix    = ".scales"
	biasesSuffix    = ".biases"
	affineMode      = "affine"
	configKey       = "quantization_config"
)

// entry is what a model says about one coded matrix. All fields are required.
type entry struct {
	Mode      string       `json:"mode"`
	Bits      *int         `json:"bits"`
	GroupSize *int         `json:"group_size"`
	Trellis   *entryDetail `json:"trellis"`
}

type entryDetail struct {
	L    *int   `json:"L"`
	Code string `json:"code"`
	Axis *int   `json:"axis"`
}

func entryOf(p trellis.Params, axis int) entry {
	return entry{mode, &p.K, &p.T, &entryDetail{&p.L, p.Code.String(), &axis}}
}

// isTrellis reports whether a member of a quantization object is an entry of
// this package; others belong to other formats.
func isTrellis(raw []byte) bool {
	var e struct {
		Mode string `json:"mode"`
	}
	return json.Unmarshal(raw, &e) == nil && e.Mode == mode
}

// parseEntry reads an entry. It refuses what it does not know.
func parseEntry(raw []byte) (p trellis.Params, axis int, err error) {
	var e entry
	if err := strictjson.Unmarshal(raw, &e); err != nil {
		return p, 0, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	switch {
	case e.Mode != mode:
		return p, 0, fmt.Errorf("%w: mode %q, want %q", ErrEntry, e.Mode, mode)
	case e.Bits == nil || e.GroupSize == nil || e.Trellis == nil || e.Trellis.L == nil || e.Trellis.Axis == nil:
		return p, 0, fmt.Errorf("%w: want bits, group_size and trellis with L, code and axis", ErrEntry)
	}
	p = trellis.Params{L: *e.Trellis.L, K: *e.Bits, T: *e.GroupSize}
	if err = p.Code.UnmarshalText([]byte(e.Trellis.Code)); err != nil {
		return p, 0, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	if err := p.Validate(); err != nil {
		return p, 0, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	return p, *e.Trellis.Axis, nil
}
