// Package darwincheck has tests alone: they type-check, as darwin/arm64 with cgo and -tags metal,
// the packages that use darwinkit, on any machine. There is no C compiler involved: go/types takes
// every C.name on trust, and checks the rest against the real module.
package darwincheck
