//go:build metal && hostmetal

package sendpurego

// sendStruct is the entry for messages that return a structure of more than 16 bytes: arm64 needs
// no other.
const sendStruct = "objc_msgSend"
