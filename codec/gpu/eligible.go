package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// A need is what a kernel has to do. Fields that the operation has no kernels or conditions for are zero.
type need struct {
	op            string // the first of a route, or the only one that serves
	bits, keyBits int
	signed        bool
	dim           int // of a row
	size          int
	rows          int // of x, in a product

	// Of decoded weights and products.
	block      int // T of trellis codes
	col0, cols int // columns from col0 on
	x, w       codec.DType
	order      codec.Order
}

func (n need) met(v shaders.Variant) bool {
	return (v.Bits == 0 || v.Bits == n.bits) && v.Dims.Has(n.dim) && (v.Size == 0 || v.Size == n.size) &&
		(v.KeyBits == 0 || v.KeyBits == n.keyBits && v.Signed == n.signed) && (v.Tile == 0 || v.Tile == v.TileFor(n.rows))
}

// routes are the operations that kernels of different kinds serve, the special ones first.
var routes = [][]string{
	{"trellis_expand8", "trellis_expand"},
	{"matrix", "product"},
	{"matrix_affine", "product_affine"},
	{"rowcode_encode", "rowcode_rotate"},
}

// route returns the kinds of kernels for an operation.
func route(op string) []string {
	for _, r := range routes {
		if r[0] == op {
			return r
		}
	}
	return []string{op}
}

// A condition is what kernels need beside what a Variant says: of the call, of the device, or of the compiled kernel.
// text stands in the table and in the log.
type condition struct {
	text   string
	call   func(n need) bool
	device func(k *kernels) bool
	fits   func(k *kernels, n need, c kernel) error
}

var (
	eights = condition{text: "T a power of two from 8 on, first column and number of columns multiples of 8",
		call: func(n need) bool { return n.block&(n.block-1) == 0 && n.block%8 == 0 && n.col0%8 == 0 && n.cols%8 == 0 }}
	simd = condition{text: "SIMD-groups of 32 threads", fits: func(_ *kernels, _ need, c kernel) error { return wholeSIMD(c) }}
	row  = condition{text: "a row of f32 fits threadgroup memory", fits: func(k *kernels, n need, c kernel) error {
		_, err := shaders.RowLaunch(n.dim, 1, c.pipeline.MaxThreads(), k.room(c))
		return err
	}}
	matrix = []condition{
		{text: "order fast", call: func(n need) bool { return n.order == codec.Fast }},
		{text: "5 rows or more", call: func(n need) bool { return n.rows >= 5 }},
		{text: "columns a multiple of 32", call: func(n need) bool { return n.cols > 0 && n.cols%32 == 0 }},
		{text: "x and weights f16 or bf16", call: func(n need) bool { return narrow(n.x) && narrow(n.w) }},
		{text: "matrix units", device: func(k *kernels) bool { return k.info.MatrixUnits }},
		{text: fmt.Sprintf("threadgroups of %d threads and %d bytes", shaders.LaneThreads, shaders.MatrixMemory), fits: func(k *kernels, _ need, c kernel) error {
			if most := c.pipeline.MaxThreads(); most < shaders.LaneThreads {
				return fmt.Errorf("threadgroups of %d threads", most)
			}
			if room := k.room(c); room < shaders.MatrixMemory {
				return fmt.Errorf("%d bytes of threadgroup memory", room)
			}
			return nil
		}},
	}
	runs   = condition{text: "blocks multiples of 32", call: func(n need) bool { return n.block%32 == 0 }}
	search = condition{text: "threads and threadgroup memory for L (shaders.TrellisLaunch)"} // held by weights.viterbi
)

func narrow(t codec.DType) bool { return t == codec.F16 || t == codec.BF16 }

// conditions returns what kernels of a variant need.
func conditions(v shaders.Variant) []condition {
	var c []condition
	switch v.Op {
	case "trellis_expand8":
		c = append(c, eights)
	}
	switch v.Launch {
	case shaders.Lanes, shaders.Units:
		c = append(c, simd)
	case shaders.Rows:
		c = append(c, simd, row)
	case shaders.Matrices:
		c = append(append(c, matrix...), simd)
		if v.Op == "matrix" && v.Bits != 0 {
			c = append(c, runs)
		}
	case shaders.Blocks:
		c = append(c, simd, search)
	}
	return c
}

// room is the threadgroup memory left to a kernel.
func (k *kernels) room(c kernel) int {
	return k.info.MaxThreadgroupMemory - c.pipeline.StaticThreadgroupMemory()
}

// pick returns the first kernel of the need's route that no condition declines: the table of variants has special
// ones before general ones. What declined the others is in the kernel, and in the error where all are declined,
// which wraps errNoKernel.
func (k *kernels) pick(n need) (kernel, error) {
	var declined []string
	for _, op := range route(n.op) {
		for _, v := range variants() {
			if v.Op != op || !n.met(v) {
				continue
			}
			got, why, err := k.try(v, n)
			if err != nil {
				return kernel{}, err
			}
			if why == "" {
				got.declined = strings.Join(declined, "; ")
				return got, nil
			}
			declined = append(declined, v.Name+": "+why)
		}
	}
	return kernel{}, fmt.Errorf("%w: %s", errNoKernel, strings.Join(declined, "; "))
}

// try returns a kernel, or why it is declined. It is compiled only if the call and the device allow it.
func (k *kernels) try(v shaders.Variant, n need) (c kernel, declined string, err error) {
	list := conditions(v)
	for _, needs := range list {
		if needs.call != nil && !needs.call(n) || needs.device != nil && !needs.device(k) {
			return c, "not " + needs.text, nil
		}
	}
	if c, err = k.get(v); err != nil {
		return c, "", err
	}
	for _, needs := range list {
		if needs.fits != nil {
			if err := needs.fits(k, n, c); err != nil {
				return c, err.Error(), nil
			}
		}
	}
	return c, "", nil
}

// Eligibility is a line of the table by which kernels are picked: one kind of kernels.
type Eligibility struct {
	Kernel  string   `json:"kernel"`         // what their names begin with
	Names   []string `json:"names"`          // special ones first
	Serves  []string `json:"serves"`         // the values that there are kernels for, by parameter
	Needs   []string `json:"needs"`          // conditions; a kernel that declines one is passed over
	Instead string   `json:"else,omitempty"` // the kind that serves what these decline
}

// Kernels returns the table by which kernels are picked, in the order in which they are asked.
func Kernels() []Eligibility {
	var table []Eligibility
	seen := map[string]bool{}
	for _, v := range variants() {
		first := v.Op
		for _, r := range routes {
			if slices.Contains(r, v.Op) {
				first = r[0]
			}
		}
		if seen[first] {
			continue
		}
		seen[first] = true
		for i, op := range route(first) {
			next := ""
			if r := route(first); i+1 < len(r) {
				next = r[i+1]
			}
			table = append(table, lines(op, next)...)
		}
	}
	return table
}

// lines are the lines of one kind: kernels of different needs apart.
func lines(op, next string) []Eligibility {
	var list []Eligibility
	var groups [][]shaders.Variant
	for _, v := range variants() {
		if v.Op != op {
			continue
		}
		needs := []string{}
		for _, c := range conditions(v) {
			needs = append(needs, c.text)
		}
		i := slices.IndexFunc(list, func(e Eligibility) bool { return slices.Equal(e.Needs, needs) })
		if i < 0 {
			i = len(list)
			list, groups = append(list, Eligibility{Kernel: op, Needs: needs, Instead: next}), append(groups, nil)
		}
		list[i].Names, groups[i] = append(list[i].Names, v.Name), append(groups[i], v)
	}
	for i := range list {
		list[i].Serves = serves(groups[i])
		if i+1 < len(list) {
			list[i].Instead = op
		}
	}
	return list
}

// serves lists the values of the parameters that kernels have.
func serves(kernels []shaders.Variant) []string {
	result := []string{}
	for _, p := range []struct {
		name string
		of   func(v shaders.Variant) string
	}{
		{"keys", keyText},
		{"bits", func(v shaders.Variant) string { return number(v.Bits) }},
		{"dim", func(v shaders.Variant) string { return v.Dims.String() }},
		{"bytes", func(v shaders.Variant) string { return number(v.Size) }},
		{"rows", func(v shaders.Variant) string { return number(v.Tile) }},
	} {
		var values []string
		for _, v := range kernels {
			if text := p.of(v); !slices.Contains(values, text) {
				values = append(values, text)
			}
		}
		if !slices.Equal(values, []string{anyValue}) {
			result = append(result, p.name+" "+strings.Join(values, ", "))
		}
	}
	return result
}

const anyValue = "any"

func number(n int) string {
	if n == 0 {
		return anyValue
	}
	return fmt.Sprint(n)
}

func keyText(v shaders.Variant) string {
	switch {
	case v.KeyBits == 0:
		return anyValue
	case v.Signed:
		return fmt.Sprintf("int%d", v.KeyBits)
	}
	return fmt.Sprintf("uint%d", v.KeyBits)
}
