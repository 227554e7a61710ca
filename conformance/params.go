package conformance

import (
	"fmt"
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
)

// paramsCase asks for a codec that does not exist.
type paramsCase struct{ params codec.KVParams }

func (c *paramsCase) run(e *env) *Failure {
	_, want := e.ref.KV(c.params)
	got, err := e.backend.KV(c.params)
	if f := sameError(err, want); f != nil {
		return f
	}
	if err != nil && got != nil {
		return failure(Error, "parameters", "a codec and an error, %v", err)
	}
	return nil
}

// badParams are parameters of no codec, and a few that are at the edge.
func badParams() []codec.KVParams {
	good := codec.KVParams{HeadDim: 64, Keys: codec.Uint8, Values: codec.Q3_0}
	var all []codec.KVParams
	with := func(set func(*codec.KVParams)) {
		p := good
		set(&p)
		all = append(all, p)
	}
	with(func(*codec.KVParams) {})
	with(func(p *codec.KVParams) { *p = codec.KVParams{} })
	for _, d := range []int{-64, 0, 1, 16, 31, 33, 48, 80, 100, math.MaxInt, math.MaxInt &^ 63, math.MinInt} {
		with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = d, 64 })
		with(func(p *codec.KVParams) { p.ValueHeadDim = d })
	}
	for _, d := range []int{288, 352, 8192, 16384} {
		with(func(p *codec.KVParams) { p.ValueHeadDim = d })
	}
	for _, f := range []codec.Format{0, 77, 255} {
		with(func(p *codec.KVParams) { p.Keys = f })
		with(func(p *codec.KVParams) { p.Values = f })
	}
	with(func(p *codec.KVParams) { p.Values = codec.Uint8 })
	with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim = codec.MaxHeadDim+32, 64 })
	for _, g := range []int{-32, 1, 16, 48, 96, 128} {
		with(func(p *codec.KVParams) { p.Group = g })
	}
	with(func(p *codec.KVParams) { p.HeadDim, p.ValueHeadDim, p.Group = 96, 64, 64 })
	with(func(p *codec.KVParams) { p.ScaleType = 4 })
	with(func(p *codec.KVParams) { p.Policy = 2 })
	with(func(p *codec.KVParams) { p.Scale = 2 })
	return all
}

// paramsCases ask for codecs that do not exist. Operands that do not fit never reach a backend: codec/driver tests
// them.
func paramsCases() []Case {
	var cases []Case
	for _, p := range badParams() {
		c := &paramsCase{p}
		cases = append(cases, Case{Op: "KV", short: true, run: c.run,
			Name: fmt.Sprintf("KV(d=%d,keys=%v,vd=%d,values=%v,group=%d,scale=%d,policy=%d,rule=%d)",
				p.HeadDim, p.Keys, p.ValueHeadDim, p.Values, p.Group, p.ScaleType, p.Policy, p.Scale)})
	}
	return cases
}
