//go:build metal && arm64

package sendpurego

// sendStruct is the entry for messages that return a structure of more than 16 bytes: arm64 needs
// no other.
const sendStruct = "objc_msgSend"

// libraries lists what to load. A program without an app bundle gets no default device unless
// CoreGraphics is loaded.
func libraries() ([]string, error) {
	return []string{
		"/usr/lib/libobjc.A.dylib",
		"/System/Library/Frameworks/Foundation.framework/Foundation",
		"/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
		"/System/Library/Frameworks/Metal.framework/Metal",
	}, nil
}
