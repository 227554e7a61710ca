package conformance

import (
	"hash/fnv"
	"math"
)

// stream is a sequence of 64-bit words: word j is mix(seed + (j+1)·golden), the
// SplitMix64 generator of Steele, Lea and Flood (OOPSLA 2014). Any word can be
// had without the others, and integers are all it takes, so every language and
// machine has the same sequence.
type stream struct{ state uint64 }

const golden = 0x9e3779b97f4a7c15

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *stream) next() uint64 {
	s.state += golden
	return mix(s.state)
}

// intn returns a number in [0, n).
func (s *stream) intn(n int) int { return int(s.next() >> 33 % uint64(n)) }

// normal returns a number near the normal distribution of variance 4/3: the sum
// of the word's four 16-bit parts, centred, in steps of 2^-15. It is exact.
func (s *stream) normal() float32 { return normal(s.next()) }

func normal(w uint64) float32 { return float32(centred(w)) * 0x1p-15 }

// centred returns the sum of the four 16-bit parts of w less its mean: an
// integer in [-131070, 131070].
func centred(w uint64) int32 {
	return int32(w&0xffff+w>>16&0xffff+w>>32&0xffff+w>>48) - 131070
}

// seeded returns the stream of a name.
func seeded(name string) *stream {
	h := fnv.New64a()
	h.Write([]byte(name))
	return &stream{h.Sum64()}
}

// up and down return the neighbour of a finite non-zero x, away from zero and
// towards it.
func up(x float32) float32   { return math.Float32frombits(math.Float32bits(x) + 1) }
func down(x float32) float32 { return math.Float32frombits(math.Float32bits(x) - 1) }
