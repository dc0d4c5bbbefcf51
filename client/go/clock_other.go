//go:build !linux

package fencepost

import "time"

var programStart = time.Now()

// now is the time on Go's monotonic clock. Whether it runs while the machine is suspended depends
// on the system; if it does not, only fencing protects the data after a suspend.
func now() moment { return moment(time.Since(programStart) / time.Millisecond) }

func read() reading { return reading{at: now()} }
