package fencepost

import (
	"context"
	"time"

	"fencepost/internal/timing"
)

// moment is a point in time on the holder's clock, in milliseconds. On Linux the clock is
// CLOCK_BOOTTIME, which runs while the machine is suspended; elsewhere it is Go's monotonic clock,
// which may not.
type moment = timing.Moment

// reading is a moment, with the total time for which the machine had been suspended until then.
type reading struct {
	at        moment
	suspended moment
}

// slice is the longest single sleep: Go's timers stop in a suspend, so a task in the background
// notices a deadline that passed in it at most this much late. Checks read the clock themselves.
const slice = time.Second

// sleepUntil waits until the holder's clock has reached deadline; false if stopped comes first.
func sleepUntil(stopped <-chan struct{}, deadline moment) bool {
	for {
		select {
		case <-stopped:
			return false
		default:
		}
		left := deadline.Since(now())
		if left == 0 {
			return true
		}
		if left > slice {
			left = slice
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-stopped:
			timer.Stop()
			return false
		}
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
