// Package purego sends Metal's messages without cgo, through github.com/ebitengine/purego.
//
// It exists with the build tag metal on darwin/arm64, and with the tags metal and hostmetal on
// linux/amd64 and linux/arm64, where a library with Metal's API for the CPU (internal/hostmetal)
// takes the place of Apple's frameworks. Two things differ between the platforms: the path of the
// library, and the entry that x86-64 has for messages that return a structure.
//
// On Linux the library is the file that the environment variable TURBOTRELLIS_HOSTMETAL names;
// without it, build/hostmetal/libhostmetal.so, looked for in the working directory and its parents,
// then in the executable's folder and its parents.
package sendpurego
