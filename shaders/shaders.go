// Package shaders holds the Metal kernels, the table of their variants and the layout of
// their arguments. docs/numerics.md says what each computes; args.go what each is told;
// the Variant table how each is launched.
//
// Everything is Metal Shading Language 3.0 with fast math off. The sources are one
// compilation unit: layout.metal and common.metal first, one file per kernel family, then
// instances.metal, which names every kernel. layout.metal and instances.metal are generated
// (go generate) from args.go and variants.go; a test demands that they are current.
//
// A device may flush f32 subnormals. No kernel lets one decide a bit, with two exceptions that
// docs/numerics.md leaves undefined: decoding scales that no encoder writes, and hadamard_*
// without HadamardArgs.Canonical on inputs below 2^-64.
package shaders

//go:generate go run ./gen

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
)

//go:embed *.metal
var files embed.FS

// Families lists the kernel families, one source file each, in the order of Source.
func Families() []string {
	return []string{"canary", "pack", "hadamard", "keys", "values", "decode", "trellis", "copy"}
}

// Source returns every kernel as one source string. #line directives name the real files.
func Source() string {
	var b strings.Builder
	for _, name := range prologue() {
		appendFile(&b, name, text(name))
	}
	for _, family := range Families() {
		appendFile(&b, family+".metal", text(family+".metal"))
	}
	appendFile(&b, "instances.metal", text("instances.metal"))
	return b.String()
}

// FamilySource returns the kernels of one family alone, for a backend that compiles a
// family when it first needs it.
func FamilySource(family string) (string, error) {
	var b strings.Builder
	for _, name := range prologue() {
		appendFile(&b, name, text(name))
	}
	for _, f := range Families() {
		if f == family {
			appendFile(&b, family+".metal", text(family+".metal"))
			appendFile(&b, "instances.metal", instances(family))
			return b.String(), nil
		}
	}
	return "", fmt.Errorf("shaders: no kernel family %q", family)
}

// Digest returns the SHA-256 of Source in hexadecimal.
func Digest() string {
	sum := sha256.Sum256([]byte(Source()))
	return hex.EncodeToString(sum[:])
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
