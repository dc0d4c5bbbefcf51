package fencepost

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
	// readsMax bounds the reads of the two clocks, which are repeated if this process was stopped
	// between them.
	readsMax = 8
)

var programStart = time.Now()

// now reads CLOCK_BOOTTIME, rounded down to a millisecond.
func now() moment { return clockMs(clockBoottime) }

func read() reading {
	at := now()
	for i := 1; i < readsMax; i++ {
		awake := clockMs(clockMonotonic)
		after := now()
		// Time that passed between the reads must not count as suspend.
		if after-at <= 1 {
			return reading{at: after, suspended: at - awake}
		}
		at = after
	}
	return reading{at: at, suspended: at - clockMs(clockMonotonic)}
}

// clockMs reads a clock of the kernel. The standard library has no call for CLOCK_BOOTTIME.
func clockMs(clock uintptr) moment {
	var t syscall.Timespec
	_, _, errno := syscall.RawSyscall(
		syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 {
		// A sandbox that forbids the call: Go's own clock, which stops in a suspend.
		return moment(time.Since(programStart) / time.Millisecond)
	}
	return moment(t.Nano() / int64(time.Millisecond))
}
