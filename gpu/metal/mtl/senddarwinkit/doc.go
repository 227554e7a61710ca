// Package darwinkit sends Metal's messages with cgo, through github.com/progrium/darwinkit.
//
// It exists with cgo and the build tag metal, without the tag purego, on darwin/arm64; and, with
// the tags hostmetal and darwinkit as well, on linux/amd64 and linux/arm64, where GNUstep and a
// library with Metal's API for the CPU (internal/hostmetal) take the place of Apple's
// frameworks. There the C compiler has to be internal/hostmetal/darwinkit/cc.
package senddarwinkit
