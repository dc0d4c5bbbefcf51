package fencepost

import (
	"context"
	"time"

	"fencepost/internal/timing"
)

// attemptsMax is the most attempts under way at a time; the next one drops the oldest.
const attemptsMax = 4

// underWay is one of several overlapping attempts.
type underWay struct {
	cancel context.CancelFunc
	failed *failure
}

// untilSuccess starts attempts until one succeeds, or fails in a way that isFinal for all of them,
// or ctx ends. The next attempt starts after patience if the previous one has no reply yet, and
// after a pause if it failed; a late reply of an earlier attempt still counts. The result is nil
// after a success, and otherwise the final failure; ctx.Err() distinguishes an end of ctx.
func untilSuccess(
	ctx context.Context,
	send func(context.Context) *failure,
	patience func() time.Duration,
	isFinal func(*failure) bool,
) *failure {
	ctx, cancelAll := context.WithCancel(ctx)
	defer cancelAll()
	results := make(chan *underWay)
	var open []*underWay
	start := func() {
		if len(open) == attemptsMax {
			open[0].cancel()
			open = open[1:]
		}
		own, cancel := context.WithCancel(ctx)
		attempt := &underWay{cancel: cancel}
		open = append(open, attempt)
		go func() {
			attempt.failed = send(own)
			select {
			case results <- attempt:
			case <-own.Done():
			}
		}()
	}
	for number := 1; ; number++ {
		start()
		for _, wait := range []time.Duration{patience(), timing.Pause(number, random())} {
			timer := time.NewTimer(wait)
			select {
			case attempt := <-results:
				timer.Stop()
				attempt.cancel()
				open = without(open, attempt)
				if attempt.failed == nil || isFinal(attempt.failed) {
					return attempt.failed
				}
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
		}
	}
}

func without(open []*underWay, ended *underWay) []*underWay {
	for i, attempt := range open {
		if attempt == ended {
			return append(open[:i], open[i+1:]...)
		}
	}
	return open
}
