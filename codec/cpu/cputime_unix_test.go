//go:build unix

package cpu_test

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time that the process has used. Other processes on the machine disturb it less than
// they do a clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
