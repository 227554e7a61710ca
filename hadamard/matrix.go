package hadamard

// matrix is a square matrix of ±1 whose order is the number of its rows. Bit
// c of row j is set where element (j, c) is −1. The matrix of order 1 is empty.
type matrix []uint32

// The matrices of N. J. A. Sloane's library of Hadamard matrices that MLX
// uses. Row j, column c multiplies input c of output j.
var (
	h12 = matrix{
		0x002, 0xaab, 0x3c8, 0x96e, 0xf20, 0x5ba, 0xc8c, 0x6e6, 0x23c, 0xb96, 0x8f0, 0xe5a,
	}
	h20 = matrix{
		0x933de, 0x2e3bd, 0x5477b, 0xa0ef7, 0x499ef, 0x637c1, 0xc6ba2, 0x8d764, 0x1aee8, 0x359f0,
		0x0fa53, 0x174a7, 0x26d4e, 0x45e9c, 0x83d39, 0xf7a6d, 0xef4fa, 0xdedd5, 0xbdf8b, 0x7bf36,
	}
	h28 = matrix{
		0xcd69e7e, 0x9ad7c7d, 0x37ab8fb, 0x6d571f7, 0xd8ae3ef, 0xb3587df, 0x66b4f3f,
		0xb467f43, 0x6acbe87, 0xd593d8e, 0xab27b9c, 0x564f7b8, 0xac9aff0, 0x5b31fe1,
		0x87fb325, 0x0ff66ca, 0x1decd95, 0x39ddb2a, 0x71bf654, 0xe17eca9, 0xc2fd9d2,
		0xfcf1299, 0xfbe2532, 0xf7c4ae4, 0xef8d549, 0xdf1ea13, 0xbe3d4a6, 0x7e7a94c,
	}
)

// maxOrder is the largest order of a matrix.
const maxOrder = 28

// matrixOf returns the matrix of order m in {1, 12, 20, 28}.
func matrixOf(m int) matrix {
	switch m {
	case 12:
		return h12
	case 20:
		return h20
	case 28:
		return h28
	}
	return nil
}

func (h matrix) transpose() matrix {
	t := make(matrix, len(h))
	for j, row := range h {
		for c := range h {
			t[c] |= row >> c & 1 << j
		}
	}
	return t
}

// combine replaces element i of the runs of n elements in x by h times the
// vector of them, for every i. Each output is summed in column order from +0.
func (h matrix) combine(x []float32, n int) {
	if len(h) == 0 {
		return
	}
	var in [maxOrder]float32
	for i := range n {
		for c := range h {
			in[c] = x[c*n+i]
		}
		for j, row := range h {
			var sum float32
			for c := range h {
				if row>>c&1 == 0 {
					sum += in[c]
				} else {
					sum -= in[c]
				}
			}
			x[j*n+i] = sum
		}
	}
}
