//go:build metal && hostmetal

package sendpurego

// sendStruct is the entry for messages that return a structure of more than 16 bytes: here the
// address for it comes before the receiver.
const sendStruct = "objc_msgSend_stret"
