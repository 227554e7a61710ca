package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// LayerSet is a set of layer numbers.
//
// A layer's number is a dot-separated part of what the names of its keys and
// values share: the last number before the part in which they differ, else the
// last one after it. So layers.3.keys and layers.3.values are layer 3, and 3.0
// and 3.1, as mlx-lm names keys and values, too. Raw tensors have their number
// in the same place as the layers of the snapshot, or if those differ in that,
// it is the last number of the name.
type LayerSet map[int]bool

// maxLayer bounds the numbers of a LayerSet.
const maxLayer = 1 << 16

// ParseLayers reads a list of numbers and ranges such as "0,2,5-7". The set of
// "" is nil.
func ParseLayers(list string) (LayerSet, error) {
	if list == "" {
		return nil, nil
	}
	set := LayerSet{}
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.Atoi(lo)
		b, errB := strconv.Atoi(hi)
		if err := errors.Join(errA, errB); err != nil || a < 0 || b < a || b > maxLayer {
			return nil, fmt.Errorf("layer list %q: %q is not a number or range within 0-%d", list, part, maxLayer)
		}
		for n := a; n <= b; n++ {
			set[n] = true
		}
	}
	return set, nil
}

// Has reports whether layer n is in the set.
func (s LayerSet) Has(n int) bool { return s[n] }

// allIn returns an error that names the first layer of the set not in seen.
func (s LayerSet) allIn(seen map[int]bool) error {
	for _, n := range slices.Sorted(maps.Keys(s)) {
		if !seen[n] {
			return fmt.Errorf("%w: there is no layer %d", ErrNoTensor, n)
		}
	}
	return nil
}

// submatch returns the place of the first submatch of a match, or of the match
// if that submatch is not part of it.
func submatch(m []int) *[2]int {
	switch {
	case m == nil:
		return nil
	case len(m) >= 4 && m[2] >= 0:
		return &[2]int{m[2], m[3]}
	}
	return &[2]int{m[0], m[1]}
}

// cut returns what is before and after a place in a name.
func cut(name string, at *[2]int) (before, after string) { return name[:at[0]], name[at[1]:] }

// shared returns what two names have in common, in whole dot-separated parts:
// the first ones and, of the others, the last ones.
func shared(a, b string) (before, after string) {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	i, shorter := 0, min(len(as), len(bs))
	for i < shorter && as[i] == bs[i] {
		i++
	}
	j := 0
	for j < shorter-i && as[len(as)-1-j] == bs[len(bs)-1-j] {
		j++
	}
	return strings.Join(as[:i], "."), strings.Join(as[len(as)-j:], ".")
}

// layerNumber returns the last number among the dot-separated parts of before,
// or else of after.
func layerNumber(before, after string) (int, bool) {
	for _, s := range []string{before, after} {
		if i, n := lastNumber(s); i >= 0 {
			return n, true
		}
	}
	return 0, false
}

// lastNumber returns the last dot-separated part of a name that is a number,
// and which part it is, or -1.
func lastNumber(name string) (part, n int) {
	parts := strings.Split(name, ".")
	for i, p := range slices.Backward(parts) {
		if n, ok := number(p); ok {
			return i, n
		}
	}
	return -1, 0
}

// number reads a decimal number without a sign.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, strconv.IntSize-1)
	return int(n), err == nil
}

// numberPlace is which dot-separated part of a name is the layer's number.
type numberPlace struct {
	part  int
	known bool // a layer was learned from
	mixed bool // layers differ
}

// learn notes where the names of a layer, which begin with before, have it.
func (p *numberPlace) learn(before string) {
	part, _ := lastNumber(before)
	if p.known && part != p.part {
		p.mixed = true
	}
	p.part, p.known = part, true
	p.mixed = p.mixed || part < 0
}

// number returns the layer number of another name.
func (p *numberPlace) number(name string) (int, bool) {
	if !p.known || p.mixed {
		return layerNumber(name, "")
	}
	parts := strings.Split(name, ".")
	if p.part >= len(parts) {
		return 0, false
	}
	return number(parts[p.part])
}
