package model

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// BitsMap gives tensors their bits per weight. Names take precedence over
// patterns; of the patterns the first that matches counts.
type BitsMap []BitsRule

// BitsRule is one line of a BitsMap.
type BitsRule struct {
	Pattern string // a tensor's name, with or without .weight, or a regular expression
	Bits    int
	re      *regexp.Regexp
}

// ParseBitsMap reads a JSON object of bits by name or pattern, such as
// {"mlp": 2, "model.layers.0.self_attn.q_proj": 4}. Its order counts.
func ParseBitsMap(text []byte) (BitsMap, error) {
	o, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("bits by name: %w", err)
	}
	var m BitsMap
	for i := range o.members {
		r := BitsRule{Pattern: o.members[i].key}
		if err := json.Unmarshal(o.raw(&o.members[i]), &r.Bits); err != nil || r.Bits < 1 || r.Bits > 8 {
			return nil, fmt.Errorf("bits by name: %q: %s, want 1 to 8", r.Pattern, o.raw(&o.members[i]))
		}
		m = append(m, r)
	}
	return m.compiled()
}

// compiled returns the map with its expressions compiled.
func (m BitsMap) compiled() (BitsMap, error) {
	m = slices.Clone(m)
	for i := range m {
		var err error
		if m[i].re, err = regexp.Compile(m[i].Pattern); err != nil {
			return nil, fmt.Errorf("%w: bits by name: %q: %w", ErrSelection, m[i].Pattern, err)
		}
	}
	return m, nil
}

// rule returns the index of the rule for a matrix, or -1.
func (m BitsMap) rule(base string) int {
	found := -1
	for i, r := range m {
		if r.Pattern == base || r.Pattern == base+weightSuffix {
			return i
		}
		if found < 0 && r.re.MatchString(base+weightSuffix) {
			found = i
		}
	}
	return found
}

// bits returns the bits for a matrix, or those given where no rule has any.
func (m BitsMap) bits(base string, otherwise int) int {
	if i := m.rule(base); i >= 0 {
		return m[i].Bits
	}
	return otherwise
}

// unused returns an error that names the first rule that no tensor follows.
func (m BitsMap) unused(tensors []Planned) error {
	used := make([]bool, len(m))
	for _, t := range tensors {
		if i := m.rule(strings.TrimSuffix(t.Name, weightSuffix)); i >= 0 {
			used[i] = true
		}
	}
	for i, ok := range used {
		if !ok {
			return fmt.Errorf("%w: bits by name: %q is for no selected tensor", ErrSelection, m[i].Pattern)
		}
	}
	return nil
}
