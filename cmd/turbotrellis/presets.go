package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
)

// preset is a pair of formats by what a user wants.
type preset struct {
	name         string
	keys, values codec.Format
	about        string
}

// presets, from the largest to the smallest row codes, and last the groups. Bits and losses are docs/quality.md's.
var presets = []preset{
	{"near-lossless", codec.R5, codec.R4, "4.53 to 4.63 bits per element, .0005 to .0011 nats lost"},
	{"balanced", codec.T4, codec.T4, "4.03 to 4.13 bits per element, .0010 to .0027 nats lost"},
	{"small", codec.T3, codec.T3, "3.03 to 3.13 bits per element, .0045 to .0106 nats lost"},
	{"compat", codec.Q8_0, codec.Q3_0, "6.25 bits per element, .0022 to .0039 nats lost; groups, as vllm-metal and mlx-bun store them, in files of version 1"},
}

const defaultPreset = "balanced"

// defaultRawFirst is how many first tokens stay raw beside row codes: without them centred keys lose several times as
// much.
const defaultRawFirst = 4

func presetNames() string {
	var names []string
	for _, p := range presets {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

func findPreset(name string) (preset, error) {
	for _, p := range presets {
		if p.name == name {
			return p, nil
		}
	}
	return preset{}, usagef("--preset %q: want one of %s", name, presetNames())
}

// presetsText describes the presets for a help text.
func presetsText() string {
	var b strings.Builder
	for _, p := range presets {
		fmt.Fprintf(&b, "  %-14s keys %-4v values %-4v  %s\n", p.name, p.keys, p.values, p.about)
	}
	return b.String()
}

// sides are the values of --centred.
var sides = map[string]struct{ keys, values bool }{"keys": {keys: true}, "values": {values: true}, "both": {true, true}, "none": {}}

// kvFlags are the flags that say how keys and values are packed, apart from those of files.
type kvFlags struct {
	preset       string
	keys, values codec.Format
	rawFirst     int
	rawLast      int
	centred      string
	params       codec.KVParams
}

// unset is what --raw-first is if it is not given: its default depends on others.
const unset = -1

// countFlag is a flag of a number of tokens that may be unset.
type countFlag struct{ n *int }

func (f countFlag) String() string {
	if f.n == nil || *f.n <= 0 {
		return ""
	}
	return strconv.Itoa(*f.n)
}

func (f countFlag) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return errors.New("want a number of tokens")
	}
	*f.n = int(n)
	return nil
}

func (f countFlag) Type() string { return "tokens" }

// resolve returns the parameters, with what was not said taken from the preset.
func (f *kvFlags) resolve() (codec.KVParams, error) {
	p := f.params
	chosen, err := findPreset(f.preset)
	if err != nil {
		return p, err
	}
	p.Keys, p.Values = f.keys, f.values
	if p.Keys == 0 {
		p.Keys = chosen.keys
	}
	if p.Values == 0 {
		p.Values = chosen.values
	}
	if !slices.Contains(codec.KeyFormats(), p.Keys) {
		return p, usagef("--key-type %v: want one of %s", p.Keys, list(codec.KeyFormats()))
	}
	if !slices.Contains(codec.ValueFormats(), p.Values) {
		return p, usagef("--value-type %v: want one of %s", p.Values, list(codec.ValueFormats()))
	}
	if p.Group != 32 && p.Group != 64 {
		return p, usagef("--group %d: want 32 or 64", p.Group)
	}
	if f.rawFirst == unset {
		f.rawFirst = 0
		if p.Keys.RowCode() || p.Values.RowCode() {
			f.rawFirst = defaultRawFirst
		}
	}
	if f.centred == "" {
		p.CentreKeys = p.Keys.RowCode()
		return p, nil
	}
	s, ok := sides[f.centred]
	switch {
	case !ok:
		return p, usagef("--centred %q: want keys, values, both or none", f.centred)
	case s.keys && !p.Keys.RowCode():
		return p, usagef("--centred %s: keys of type %v have no centre, row codes do", f.centred, p.Keys)
	case s.values && !p.Values.RowCode():
		return p, usagef("--centred %s: values of type %v have no centre, row codes do", f.centred, p.Values)
	}
	p.CentreKeys, p.CentreValues = s.keys, s.values
	return p, nil
}

// formatFlag is a flag of a format that is taken from the preset if it is not given.
type formatFlag struct{ *codec.Format }

func (f formatFlag) String() string {
	if f.Format == nil || *f.Format == 0 {
		return ""
	}
	return f.Format.String()
}

func (f formatFlag) Set(s string) error { return f.UnmarshalText([]byte(s)) }
func (f formatFlag) Type() string       { return "format" }
