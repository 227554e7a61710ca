// Package shaders holds the Metal kernels, the table of their variants and the layout of
// their arguments. docs/numerics.md says what each computes; args.go what each is told;
// the Variant table how each is launched.
//
// Everything is Metal Shading Language 3.0 with fast math off. A compilation unit is
// layout.metal and common.metal, then the file of a kernel family, then the entry points of
// one or more of its variants, printed from variants.go. layout.metal is generated (go
// generate) from args.go; a test demands that it is current.
//
// A device may flush f32 subnormals. No kernel lets one decide a bit, except in decoding
// scales that no encoder writes, which docs/numerics.md leaves undefined.
package shaders

//go:generate go run ./gen

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.metal
var files embed.FS

// Families lists the kernel families, one source file each, in the order of Source.
func Families() []string {
	return []string{"canary", "hadamard", "keys", "values", "decode", "trellis", "copy", "product", "matrix", "affine", "mask", "rowcode"}
}

// Family returns the kernels of one family, none if there is no such family.
func Family(name string) []Variant {
	var all []Variant
	for _, v := range variants() {
		if v.Family == name {
			all = append(all, v)
		}
	}
	return all
}

// Source returns kernels of Variants in Metal as one compilation unit: the shared files, the files of their
// families, and an entry point for each. #line directives name the files. A backend compiles a kernel alone, when it
// is first needed; tools look at families or at all.
func Source(kernels ...Variant) string {
	var b strings.Builder
	b.WriteString("#include <metal_stdlib>\n")
	appendFamilies(&b, kernels, text)
	appendFile(&b, "instances.metal", "")
	for _, v := range kernels {
		b.WriteByte('\n')
		b.WriteString(v.source())
	}
	return b.String()
}

// appendFamilies appends the files that the kernels need, the shared ones first, as load has them.
func appendFamilies(b *strings.Builder, kernels []Variant, load func(name string) string) {
	for _, name := range prologue() {
		appendFile(b, name, load(name))
	}
	for _, family := range Families() {
		if slices.ContainsFunc(kernels, func(v Variant) bool { return v.Family == family }) {
			appendFile(b, family+".metal", load(family+".metal"))
		}
	}
}

func prologue() []string { return []string{"layout.metal", "common.metal"} }

func text(name string) string {
	b, err := files.ReadFile(name)
	if err != nil {
		panic("shaders: " + err.Error()) // embedded at build time
	}
	return string(b)
}

func appendFile(b *strings.Builder, name, source string) {
	fmt.Fprintf(b, "#line 1 %q\n%s", name, source)
}
