package fencepost

import (
	"time"

	"fencepost/internal/timing"
)

// window is the time that one reply of the lock server granted to a lease.
type window = timing.Window

func milliseconds(count int64) time.Duration { return time.Duration(count) * time.Millisecond }

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}
