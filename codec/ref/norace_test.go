//go:build !race

package ref_test

const raceEnabled = false
