// Package shaders holds the Metal kernels, the table of their variants and the layout of
// their arguments. docs/numerics.md says what each computes; args.go what each is told;
// the Variant table how each is launched.
//
// Everything is Metal Shading Language 3.0 with fast math off. A compilation unit is
// layout.metal and common.metal, then the file of a kernel family, then one entry point for
// each variant of the family, printed from variants.go. layout.metal is generated (go
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
	return []string{"canary", "hadamard", "keys", "values", "decode", "trellis", "copy", "product", "affine", "mask", "rowcode"}
}

// Source returns every kernel as one source string, for tools that look at all of them. #line
// directives name the files.
func Source() string {
	var b strings.Builder
	b.WriteString(metalHeader)
	for _, name := range prologue() {
		appendFile(&b, name, text(name))
	}
	for _, family := range Families() {
		appendFile(&b, family+".metal", text(family+".metal"))
	}
	appendFile(&b, "instances.metal", instances(""))
	return b.String()
}

// FamilySource returns the kernels of one family alone, for a backend that compiles a
// family when it first needs it.
func FamilySource(family string) (string, error) {
	var b strings.Builder
	b.WriteString(metalHeader)
	if err := appendFamily(&b, family, func(s string) string { return s }); err != nil {
		return "", err
	}
	appendFile(&b, "instances.metal", instances(family))
	return b.String(), nil
}

const metalHeader = "#include <metal_stdlib>\n"

// appendFamily appends the files of a family, the shared ones first, each through respell.
func appendFamily(b *strings.Builder, family string, respell func(string) string) error {
	if !slices.Contains(Families(), family) {
		return fmt.Errorf("shaders: no kernel family %q", family)
	}
	for _, name := range append(prologue(), family+".metal") {
		appendFile(b, name, respell(text(name)))
	}
	return nil
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
