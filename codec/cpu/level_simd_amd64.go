//go:build goexperiment.simd && !go1.27

package cpu

import "simd/archsimd"

// best returns the highest level that this machine runs.
func best() Level {
	switch {
	case archsimd.X86.AVX512():
		return AVX512
	case archsimd.X86.AVX2():
		return AVX2
	}
	return Scalar
}
