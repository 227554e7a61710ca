//go:build race

package ref_test

// raceEnabled: the race detector makes sync.Pool drop items at random.
const raceEnabled = true
