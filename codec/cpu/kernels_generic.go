//go:build !goexperiment.simd || !amd64 || go1.27

package cpu

import "github.com/turbotrellis/turbotrellis/trellis"

func keyKernelsFor(*keyCoder, Level) keyKernels { return keyKernels{} }

func valueKernelsFor(*valueCoder, Level) valueKernels { return valueKernels{} }

func trellisKernelsFor(*weights, Level) trellisKernels { return trellisKernels{} }

func stepsSIMD(trellis.Params, Level) steps { return nil }

func rowSearchFor(*weights, Level) *rowSearch { return nil }

func productKernelsFor(Level) *productKernels { return nil }
