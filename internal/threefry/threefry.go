// Package threefry is the counter-based generator Threefry-2x32 with 20 rounds
// (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011), in the arrangement of MLX's random bits. It is integer-only, so
// its words are the same on every machine.
package threefry

import "math/bits"

// Bits fills dst with the 32-bit words MLX's bits(key(seed), len(dst)) gives.
//
// Words i and i+h, h = ⌈len(dst)/2⌉, are the two halves of the block with
// counter (i, i+h), so the words depend on len(dst): a shorter request is not
// a prefix of a longer one. Of an odd length, the last word of the first half
// is the first word of the block with counter (i, 0).
func Bits(dst []uint32, seed uint64) {
	k0, k1 := uint32(seed>>32), uint32(seed)
	half := len(dst) / 2
	h := len(dst) - half
	for i := range half {
		dst[i], dst[i+h] = block(k0, k1, uint32(i), uint32(i+h))
	}
	if h > half {
		dst[half], _ = block(k0, k1, uint32(half), 0)
	}
}

// rotations are the rotation distances of even and odd groups of four rounds.
var rotations = [2][4]int{{13, 15, 26, 6}, {17, 29, 16, 24}}

// block encrypts the counter (c0, c1) under the key (k0, k1).
func block(k0, k1, c0, c1 uint32) (uint32, uint32) {
	ks := [3]uint32{k0, k1, k0 ^ k1 ^ 0x1BD11BDA}
	a, b := c0+ks[0], c1+ks[1]
	for i := range 5 {
		for _, r := range rotations[i%2] {
			a += b
			b = bits.RotateLeft32(b, r) ^ a
		}
		a += ks[(i+1)%3]
		b += ks[(i+2)%3] + uint32(i) + 1
	}
	return a, b
}
