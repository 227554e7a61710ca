//go:build !(metal && hostmetal)

package metal_test

// liveObjects counts Metal's objects where the framework can tell: hostmetal can.
func liveObjects() int { return 0 }
