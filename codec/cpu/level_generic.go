//go:build !goexperiment.simd || !amd64

package cpu

// best returns the highest level that this machine runs.
func best() Level { return Scalar }
