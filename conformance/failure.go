package conformance

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
)

// Stage is a step of an encoder or a decoder whose result an output shows
// (docs/numerics.md), or a way to break the contract around it. The first stage
// that differs need not be the one at fault: a wrong rotation shows in the scale.
// Failure.Detail has the reference's numbers at the stages between.
type Stage string

// The stages.
const (
	Scale      Stage = "scale"      // the scale of a group or row (§2, §4, §6)
	Zero       Stage = "zero"       // the zero point of a group (§2)
	Index      Stage = "index"      // indices, packed (§2, §4, §5)
	States     Stage = "states"     // the path of the Viterbi search, packed (§6)
	Dequantize Stage = "dequantize" // indices or states to numbers, rotated back or not, in the output type (§2–§4, §6)
	Unrotate   Stage = "unrotate"   // the inverse rotation alone (§3)
	Saturate   Stage = "saturate"   // the count of elements limited to ±65504 (§2)
	Product    Stage = "product"    // canonical factors, their products and sums, in the output type (§7)
	Mask       Stage = "mask"       // tokens that are not allowed (§9)
	Copy       Stage = "copy"       // the elements of a view
	Bounds     Stage = "bounds"     // an output of the wrong size, or bytes written outside it
	Input      Stage = "input"      // an input that was modified
	Error      Stage = "error"      // an error missing, unexpected, or of another class, operand or index
	Unstable   Stage = "unstable"   // the same call gives different bits
	Panic      Stage = "panic"
)

// Failure is one case on which a backend differs from the reference.
type Failure struct {
	Case      string `json:"case"`    // runs the case alone as Options.Filter
	Stage     Stage  `json:"stage"`   // the first that differs
	Operand   string `json:"operand"` // "codes", "scales", "zeros", "dst keys", …
	Index     int    `json:"index"`   // first differing element, row-major in Operand's tensor; -1 if none
	Group     int    `json:"group"`   // and its group; -1 if none
	Got       string `json:"got"`     // the word in hex, and what it means
	Want      string `json:"want"`
	ULP       uint64 `json:"ulp"`       // representable numbers, or indices, between them
	BadGroups int    `json:"badGroups"` // groups with a difference
	Groups    int    `json:"groups"`
	BadBits   int    `json:"badBits"` // bits that differ over all outputs
	Detail    string `json:"detail,omitempty"`
}

// Error returns the report of one failure, which ends with how to run it again.
func (f *Failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n    stage %s", f.Case, f.Stage)
	if f.Operand != "" {
		fmt.Fprintf(&b, ", %s", f.Operand)
	}
	if f.Index >= 0 {
		fmt.Fprintf(&b, "[%d]", f.Index)
	}
	if f.Group >= 0 {
		fmt.Fprintf(&b, " in group %d", f.Group)
	}
	if f.Got != "" || f.Want != "" {
		fmt.Fprintf(&b, ": got %s, want %s", f.Got, f.Want)
	}
	if f.ULP > 0 {
		fmt.Fprintf(&b, ", %d ulp", f.ULP)
	}
	if f.Groups > 0 {
		fmt.Fprintf(&b, "\n    %d of %d groups differ (%.1f %%), %d bits", f.BadGroups, f.Groups, 100*float64(f.BadGroups)/float64(f.Groups), f.BadBits)
	}
	if f.Detail != "" {
		fmt.Fprintf(&b, "\n    %s", strings.ReplaceAll(f.Detail, "\n", "\n    "))
	}
	fmt.Fprintf(&b, "\n    again: turbotrellis verify --filter '%s'", f.Case)
	return b.String()
}

// failure returns a Failure that concerns no element.
func failure(stage Stage, operand, format string, args ...any) *Failure {
	return &Failure{Stage: stage, Operand: operand, Index: -1, Group: -1, Detail: fmt.Sprintf(format, args...)}
}

// part is one output of an operation, cut into words.
type part struct {
	name    string
	stage   Stage       // the stage that a difference points to, as far as the output alone shows
	t       codec.DType // type of the words; 0 for integers
	perElem int         // elements of the tensor that one word stands for
	got     []byte
	want    []byte
	wide    int // bytes of an integer; 0 means 1
}

func (p *part) size() int {
	if p.t == 0 {
		return max(p.wide, 1)
	}
	return p.t.Size()
}

// same reports whether word i of both sides is equal, NaN equal to NaN.
func (p *part) same(i int) bool {
	n := p.size()
	got, want := p.got[i*n:(i+1)*n], p.want[i*n:(i+1)*n]
	if string(got) == string(want) {
		return true
	}
	if p.t == 0 {
		return false
	}
	g, w := p.t.Load(got), p.t.Load(want)
	return g != g && w != w
}

func (p *part) word(b []byte, i int) string {
	n := p.size()
	u := bitsOf(b[i*n : (i+1)*n])
	if p.t == 0 {
		return fmt.Sprintf("0x%0*x", 2*n, u)
	}
	return fmt.Sprintf("0x%0*x (%v)", 2*n, u, p.t.Load(b[i*n:]))
}

func (p *part) ulp(i int) uint64 {
	n := p.size()
	if p.t == 0 {
		return distance(int64(bitsOf(p.got[i*n:(i+1)*n])), int64(bitsOf(p.want[i*n:(i+1)*n])))
	}
	return distance(ordered(p.got[i*n:(i+1)*n]), ordered(p.want[i*n:(i+1)*n]))
}

func distance(a, b int64) uint64 { return uint64(max(a-b, b-a)) }

// bitsOf reads a little-endian word.
func bitsOf(b []byte) uint64 {
	var u uint64
	for i, v := range b {
		u |= uint64(v) << (8 * i)
	}
	return u
}

// ordered maps the bits of a float to an integer in the order of the floats.
func ordered(b []byte) int64 {
	u := bitsOf(b)
	sign := uint64(1) << (8*len(b) - 1)
	if u&sign != 0 {
		return -int64(u &^ sign)
	}
	return int64(u)
}

// compare returns the first difference between the outputs of a case, or nil.
// First is the lowest group, and in it the first of parts. groups is the number
// of groups of group elements.
func compare(parts []part, group, groups int) *Failure {
	f := &Failure{Index: -1, Group: -1, Groups: groups}
	bad := make([]bool, groups)
	first := math.MaxInt
	for k := range parts {
		p := &parts[k]
		if len(p.got) != len(p.want) {
			return failure(Bounds, p.name, "%d bytes, want %d", len(p.got), len(p.want))
		}
		if string(p.got) == string(p.want) {
			continue
		}
		for i := range len(p.want) / p.size() {
			if p.same(i) {
				continue
			}
			at := i * p.perElem
			g := at / group
			bad[g] = true
			n := p.size()
			f.BadBits += bits.OnesCount64(bitsOf(p.got[i*n:(i+1)*n]) ^ bitsOf(p.want[i*n:(i+1)*n]))
			if g < first {
				first = g
				f.Stage, f.Operand, f.Index, f.Group = p.stage, p.name, at, g
				f.Got, f.Want, f.ULP = p.word(p.got, i), p.word(p.want, i), p.ulp(i)
			}
		}
	}
	if f.Stage == "" {
		return nil
	}
	for _, b := range bad {
		if b {
			f.BadGroups++
		}
	}
	return f
}
