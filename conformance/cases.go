package conformance

import (
	"fmt"
	"strings"
	"sync"

	"github.com/turbotrellis/turbotrellis/codec"
)

// keyFormats and valueFormats are the formats, keyDims and valueDims the head dimensions
// that are tried.
var (
	keyFormats   = []codec.Format{codec.Q8_0, codec.Uint8, codec.Q5_0, codec.Q4_0, codec.Q3_0, codec.Q2_0}
	valueFormats = []codec.Format{codec.Q2_0, codec.Q3_0, codec.Q4_0, codec.Q5_0, codec.Q8_0}
	keyDims      = []int{32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 512, 576, 1024}
	valueDims    = []int{32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 1024}
	dtypes       = []codec.DType{codec.F32, codec.F16, codec.BF16}
	scaleTypes   = []codec.DType{codec.F16, codec.F32, codec.BF16}
	policies     = []codec.Policy{codec.Finite, codec.Compat}
	rules        = []codec.ScaleRule{codec.RMS, codec.Search}
	groups       = []int{32, 64}
)

// turn returns the elements of a list one after the other, so that parameters
// that are not crossed are all met.
type turn struct{ i int }

func (t *turn) dtype() codec.DType     { return dtypes[t.step()%len(dtypes)] }
func (t *turn) scaleType() codec.DType { return scaleTypes[t.step()%len(scaleTypes)] }
func (t *turn) policy() codec.Policy   { return policies[t.step()/2%2] }
func (t *turn) rule() codec.ScaleRule  { return rules[t.step()/3%2] }
func (t *turn) layout(from []layout) layout {
	return from[t.step()%len(from)]
}

// step returns numbers that fall on every remainder, whatever the loops around
// it.
func (t *turn) step() int {
	t.i++
	return int(mix(uint64(t.i)) >> 40)
}

// allCases returns every case of every form, in order.
var allCases = func() func() []Case {
	var once sync.Once
	var cases []Case
	return func() []Case {
		once.Do(func() {
			cases = append(cases, paramsCases()...)
			cases = append(cases, encodeCases()...)
			cases = append(cases, decodeCases()...)
			cases = append(cases, unrotateCases()...)
			cases = append(cases, saturationCases()...)
			cases = append(cases, trellisCases()...)
			cases = append(cases, productCases()...)
			cases = append(cases, affineCases()...)
			cases = append(cases, maskCases()...)
			cases = append(cases, rowCases()...)
			cases = append(cases, digestCases()...)
			cases = unique(cases)
			meetAll(cases)
		})
		return append([]Case(nil), cases...)
	}
}()

// unique drops cases whose name was there before.
func unique(cases []Case) []Case {
	seen := make(map[string]bool, len(cases))
	kept := cases[:0]
	for _, c := range cases {
		if !seen[c.Name] {
			seen[c.Name] = true
			kept = append(kept, c)
		}
	}
	return kept
}

// params returns the parameters in a case's name, as op param=value.
func (c *Case) params() []string {
	list := strings.Split(c.Name[len(c.Op)+1:len(c.Name)-1], ",")
	for i := range list {
		list[i] = c.Op + " " + list[i]
	}
	return list
}

// meetAll adds to the short form what it takes to meet every value of every
// parameter of an operation.
func meetAll(cases []Case) {
	met := map[string]bool{}
	for i := range cases {
		if c := &cases[i]; c.short {
			for _, v := range c.params() {
				met[v] = true
			}
		}
	}
	for i := range cases {
		c := &cases[i]
		for _, v := range c.params() {
			if !met[v] && c.form == Normal && c.Op != "Digest" {
				met[v] = true
				c.short = true
			}
		}
	}
}

// sparse reports whether a case is one of about 1 in n, chosen by its name.
func sparse(name string, n uint64) bool { return seeded(name).next()%n == 0 }

// paramsText returns the parameters of an operation on keys, values or both.
func paramsText(p codec.KVParams, keys, values bool) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	if keys {
		add("d=%d,bits=%d", p.HeadDim, p.Keys.Bits())
		if p.Keys.Signed() {
			add("signed=true")
		}
	}
	if values {
		add("vd=%d,vbits=%d", p.ValueHeadDim, p.Values.Bits())
	}
	add("group=%d,scale=%v,policy=%v", p.Group, p.ScaleType, p.Policy)
	if values {
		add("rule=%v", p.Scale)
	}
	return strings.Join(s, ",")
}

// keyParams and valueParams return parameters for the case of one of the two;
// the other's are small and plain.
func keyParams(d int, f codec.Format, group int, scale codec.DType, policy codec.Policy) codec.KVParams {
	return codec.KVParams{HeadDim: d, ValueHeadDim: 64, Keys: f, Values: codec.Q3_0, Group: group, ScaleType: scale, Policy: policy}
}

func valueParams(d int, f codec.Format, group int, scale codec.DType, policy codec.Policy, rule codec.ScaleRule) codec.KVParams {
	return codec.KVParams{HeadDim: 64, ValueHeadDim: d, Keys: codec.Q8_0, Values: f, Group: group, ScaleType: scale, Policy: policy, Scale: rule}
}

func (c *encodeCase) make() Case {
	op := "EncodeKeys"
	if c.values {
		op = "EncodeValues"
	}
	c.name = fmt.Sprintf("%s(%s,dtype=%v,layout=%s,data=%s)", op, paramsText(c.params, !c.values, c.values), c.dtype, c.layout.name, c.data.name)
	return Case{Op: op, Name: c.name, run: c.run}
}

func (c *encodeCase) input() *input {
	return &input{params: c.params, values: c.values, dtype: c.dtype, d: dim(c.params, c.values), rows: c.layout.rows()}
}

func encodeCases() []Case {
	var cases []Case
	add := func(short uint64, c encodeCase) {
		if c.data.only != nil && !c.data.only(c.input()) {
			return
		}
		k := c.make()
		k.short = sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	plain := layouts[0]
	for _, f := range keyFormats {
		for _, group := range groups {
			for _, d := range keyDims {
				if d%group != 0 {
					continue
				}
				for _, scale := range scaleTypes {
					for _, policy := range policies {
						for _, dt := range dtypes {
							add(20, encodeCase{params: keyParams(d, f, group, scale, policy), dtype: dt, layout: plain, data: normalData})
						}
					}
				}
				for _, l := range layouts {
					add(10, encodeCase{params: keyParams(d, f, group, t.scaleType(), t.policy()), dtype: t.dtype(), layout: l, data: normalData})
				}
			}
			for _, k := range kinds {
				for _, scale := range scaleTypes {
					for _, policy := range policies {
						for _, dt := range dtypes {
							d := []int{64, 128, 192}[t.step()%3]
							add(10, encodeCase{params: keyParams(d, f, group, scale, policy), dtype: dt, layout: plain, data: k})
						}
					}
				}
			}
		}
	}
	for _, f := range valueFormats {
		for _, group := range groups {
			for _, d := range valueDims {
				if d%group != 0 {
					continue
				}
				for _, scale := range scaleTypes {
					for _, rule := range rules {
						for _, dt := range dtypes {
							add(20, encodeCase{values: true, params: valueParams(d, f, group, scale, t.policy(), rule), dtype: dt, layout: plain, data: normalData})
						}
					}
				}
				for _, l := range layouts {
					add(10, encodeCase{values: true, params: valueParams(d, f, group, t.scaleType(), t.policy(), t.rule()), dtype: t.dtype(), layout: l, data: normalData})
				}
			}
			for _, k := range kinds {
				for _, scale := range scaleTypes {
					for _, policy := range policies {
						for _, rule := range rules {
							d := []int{64, 128, 96, 160, 224, 256}[t.step()%6]
							if d%group != 0 {
								d = 128
							}
							dt := t.dtype()
							if k.only != nil {
								dt = codec.F32
							}
							short := uint64(10)
							if k.name == "search-ties" {
								short = 1
							}
							add(short, encodeCase{values: true, params: valueParams(d, f, group, scale, policy, rule), dtype: dt, layout: plain, data: k})
						}
					}
				}
			}
		}
	}
	return cases
}

var jointOps = []string{"Decode", "DecodeRotated"}

// outputLayouts are the layouts in which no two elements share memory.
var outputLayouts = func() []layout {
	var out []layout
	for _, l := range layouts {
		if !l.repeat {
			out = append(out, l)
		}
	}
	return out
}()

func (c *decodeCase) make() Case {
	has := decoders[c.op]
	c.name = fmt.Sprintf("%s(%s,dtype=%v,layout=%s,data=%s)", c.op, paramsText(c.params, has.keys, has.values), c.dtype, c.layout.name, c.data.name)
	return Case{Op: c.op, Name: c.name, run: c.run}
}

// decodable are the kinds of data that encode under any parameters and decode to
// something of interest.
func decodable(p codec.KVParams, values bool) []data {
	kept := []data{anyCodes}
	for _, k := range kinds {
		switch k.name {
		case "overflow", "overflow-and-nan", "max", "max-constant", "max-once", "scale-edge", "zero-edge", "nan", "inf", "negative-inf", "nan-last", "nan-first":
			if (k.name == "max-constant" || k.name == "zero-edge") && p.Policy == codec.Compat && !values {
				break // infinite zero points
			}
			continue
		}
		in := &input{params: p, values: values, dtype: codec.F32}
		if k.only == nil || k.only(in) {
			kept = append(kept, k)
		}
	}
	return kept
}

func decodeCases() []Case {
	var cases []Case
	add := func(short uint64, c decodeCase) {
		k := c.make()
		k.short = sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	plain := layouts[0]
	for _, f := range keyFormats {
		for _, group := range groups {
			for _, d := range keyDims {
				if d%group != 0 {
					continue
				}
				for _, scale := range scaleTypes {
					for _, dt := range dtypes {
						add(10, decodeCase{op: "DecodeKeys", params: keyParams(d, f, group, scale, codec.Finite), dtype: dt, layout: plain, data: anyCodes})
					}
				}
				for _, l := range outputLayouts {
					add(10, decodeCase{op: "DecodeKeys", params: keyParams(d, f, group, t.scaleType(), codec.Finite), dtype: t.dtype(), layout: l, data: anyCodes})
				}
			}
			for _, scale := range scaleTypes {
				for _, policy := range policies {
					p := keyParams([]int{64, 128, 192}[t.step()%3], f, group, scale, policy)
					for _, k := range decodable(p, false) {
						add(10, decodeCase{op: "DecodeKeys", params: p, dtype: t.dtype(), layout: plain, data: k})
					}
				}
			}
		}
	}
	for _, op := range []string{"DecodeValues", "DecodeValuesRotated"} {
		for _, f := range valueFormats {
			for _, group := range groups {
				for _, d := range valueDims {
					if d%group != 0 {
						continue
					}
					for _, scale := range scaleTypes {
						for _, dt := range dtypes {
							add(10, decodeCase{op: op, params: valueParams(d, f, group, scale, codec.Finite, codec.RMS), dtype: dt, layout: plain, data: anyCodes})
						}
					}
					for _, l := range outputLayouts {
						add(10, decodeCase{op: op, params: valueParams(d, f, group, t.scaleType(), codec.Finite, codec.RMS), dtype: t.dtype(), layout: l, data: anyCodes})
					}
				}
				for _, scale := range scaleTypes {
					for _, policy := range policies {
						d := []int{64, 128, 192, 256}[t.step()%4]
						p := valueParams(d, f, group, scale, policy, codec.RMS)
						for _, k := range decodable(p, true) {
							add(10, decodeCase{op: op, params: p, dtype: t.dtype(), layout: plain, data: k})
						}
					}
				}
			}
		}
	}
	// Keys and values together, their dimensions equal and not.
	dims := [][2]int{{64, 64}, {128, 128}, {256, 256}, {192, 128}, {96, 160}, {64, 256}, {288, 224}, {512, 512}}
	for _, op := range jointOps {
		for _, f := range keyFormats {
			for _, vf := range valueFormats {
				for _, d := range dims {
					group := groups[t.step()%2]
					if d[0]%group != 0 || d[1]%group != 0 {
						group = 32
					}
					p := codec.KVParams{HeadDim: d[0], ValueHeadDim: d[1], Keys: f, Values: vf, Group: group, ScaleType: t.scaleType()}
					for _, dt := range dtypes {
						add(20, decodeCase{op: op, params: p, dtype: dt, layout: t.layout(outputLayouts), data: anyCodes})
						p.Policy = t.policy()
						add(20, decodeCase{op: op, params: p, dtype: dt, layout: plain, data: normalData})
					}
				}
			}
		}
	}
	return cases
}

// saturationCases decode to more than f16 holds, under both policies.
func saturationCases() []Case {
	var cases []Case
	t := &turn{}
	add := func(op string, p codec.KVParams) {
		for _, policy := range policies {
			for _, dt := range dtypes {
				p.Policy = policy
				c := (&decodeCase{op: op, params: p, dtype: dt, layout: t.layout(outputLayouts), data: f16Edge}).make()
				c.short = dt == codec.F16 && sparse(c.Name, 4)
				cases = append(cases, c)
			}
		}
	}
	for _, scale := range scaleTypes {
		for _, group := range groups {
			for i, f := range keyFormats {
				add("DecodeKeys", keyParams(128, f, group, scale, codec.Finite))
				for _, op := range jointOps {
					p := valueParams(128, valueFormats[i%len(valueFormats)], group, scale, codec.Finite, codec.RMS)
					p.HeadDim, p.Keys = 192, f
					add(op, p)
				}
			}
			for _, f := range valueFormats {
				for _, op := range []string{"DecodeValues", "DecodeValuesRotated"} {
					add(op, valueParams([]int{64, 192, 512}[t.step()%3], f, group, scale, codec.Finite, codec.RMS))
				}
			}
		}
	}
	return cases
}

func (c *unrotateCase) make() Case {
	p := c.params
	c.name = fmt.Sprintf("Unrotate(vd=%d,dtype=%v,layout=%s,data=%s,in-place=%t)", p.ValueHeadDim, c.dtype, c.layout.name, c.data.name, c.inPlace)
	return Case{Op: "Unrotate", Name: c.name, run: c.run}
}

func unrotateCases() []Case {
	var cases []Case
	for _, d := range valueDims {
		for _, dt := range dtypes {
			add := func(short uint64, l layout, k data, inPlace bool) {
				p := codec.KVParams{HeadDim: 64, ValueHeadDim: d, Keys: codec.Q8_0, Values: codec.Q3_0}.WithDefaults()
				c := &unrotateCase{params: p, dtype: dt, layout: l, data: k, inPlace: inPlace}
				k2 := c.make()
				k2.short = sparse(k2.Name, short)
				cases = append(cases, k2)
			}
			for _, l := range outputLayouts {
				add(5, l, normalData, false)
				add(5, l, normalData, true)
			}
			// Not threshold data: below 2^-64 nothing is said of what is not encoded.
			for _, name := range []string{"spread", "integers", "quarters", "zeros", "zeros-and-ones", "alternating", "constant", "outliers", "impulse", "nan", "inf", "max-constant"} {
				add(10, layouts[0], kindNamed(name), false)
			}
		}
	}
	return cases
}
