package conformance

// The digests, by number of iterations, as vectors/oracle/digest.py printed them.
var (
	keysDigests = map[int]string{
		100:   "d3cab6303a1c30a0d7af7f03280de9851b1db4b1e6b9fcebff0e2fac5b2d6260",
		10000: "d43158ac66fe23dd8398dc1aa43e97708aef119ade213c8cb264f2066cbd23ec",
	}
	valuesDigests = map[int]string{
		100:   "8fcdfbe6ca953700bf9f3ee2a732541e2de091cb3602e102a0199fe1b34fa408",
		10000: "c4a5b32f019aa8ca88d64b04bee66626203dc5d47772b861161116a651cec151",
	}
)
