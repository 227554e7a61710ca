//go:build goexperiment.simd

package cpu

func keyKernelsFor(*keyCoder, Level) keyKernels { return keyKernels{} }

func valueKernelsFor(*valueCoder, Level) valueKernels { return valueKernels{} }
