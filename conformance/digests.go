package conformance

// The digests, by number of iterations, as vectors/oracle/digest.py printed them.
var (
	keysDigests = map[int]string{
		100:     "d3cab6303a1c30a0d7af7f03280de9851b1db4b1e6b9fcebff0e2fac5b2d6260",
		10000:   "d43158ac66fe23dd8398dc1aa43e97708aef119ade213c8cb264f2066cbd23ec",
		1000000: "8e97a68e7cef083508d79e078e08d8636383ec98fa71a64e1e52e7faf518a872",
	}
	valuesDigests = map[int]string{
		100:     "8fcdfbe6ca953700bf9f3ee2a732541e2de091cb3602e102a0199fe1b34fa408",
		10000:   "c4a5b32f019aa8ca88d64b04bee66626203dc5d47772b861161116a651cec151",
		1000000: "cc86d5e83185c57b87dad537bab936d52b16d348b228263fe282f4ab3e7d0f5c",
	}
	weightsDigests = map[int]string{
		100:     "32bf267efaf5f009ae1041b848d707d5b0e5175d2044107b57a39186be9f6da6",
		10000:   "644f34e44f2a28ceb0b412ea33d57af431be9e2a489e0f9c202f19073b5ec58c",
		1000000: "4fd3fb2c42d53ed8a6c9249b79da747fe69f864baeb1fcacba2e30a22ff9de1d",
	}
)
