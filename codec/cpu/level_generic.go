//go:build !goexperiment.simd || !amd64 || go1.27

package cpu

// best returns the highest level that this machine runs.
func best() Level { return Scalar }
