// Package typecheck has tests alone. With the tag typecheck they type-check the
// module for platforms that this machine may not be able to build for, and what
// a Mac builds with cgo. No compiler is involved: go/types reads the sources of
// every dependency and takes each C.name on trust.
package typecheck
