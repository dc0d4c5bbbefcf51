package fencepost

import (
	"context"
	"time"
)

// turnTimes are the times of a wait that is longer than one request may wait.
type turnTimes struct {
	// maxWaitMs is the longest wait of one request.
	maxWaitMs int64
	// nextAfter is the age of a request at which the next one is sent. It must arrive before the
	// first one times out, because the server then removes the queue entry.
	nextAfter time.Duration
	// overlap is the time for the next request to arrive, after which the first one is dropped.
	overlap time.Duration
	// pause comes before the next request is sent again, after one that failed.
	pause time.Duration
}

var protocolTurns = turnTimes{300_000, 280 * time.Second, 10 * time.Second, 3 * time.Second}

// turn is one request of several that wait at the same queue entry.
type turn[T any] struct {
	cancel context.CancelFunc
	done   chan struct{}
	reply  *T
	failed *failure
}

func startTurn[T any](
	ctx context.Context, waitMs int64, send func(context.Context, int64) (*T, *failure),
) *turn[T] {
	own, cancel := context.WithCancel(ctx)
	t := &turn[T]{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.reply, t.failed = send(own, waitMs)
	}()
	return t
}

// inTurns sends requests with one lease id in turns until one has its result; send gets its wait.
//
// The server lets a request with the lease id of a waiting one wait at the same queue entry, and
// replies to both. A next request that fails ends nothing: the one before it still has the entry.
func inTurns[T any](
	ctx context.Context,
	times turnTimes,
	waitMs func() int64,
	send func(context.Context, int64) (*T, *failure),
) (*T, *failure) {
	ctx, cancelAll := context.WithCancel(ctx)
	defer cancelAll()
	start := func() *turn[T] {
		wait := waitMs()
		if wait > times.maxWaitMs {
			wait = times.maxWaitMs
		}
		return startTurn(ctx, wait, send)
	}
	current := start()
	for waitMs() > times.maxWaitMs {
		if current.endsWithin(times.nextAfter) {
			return current.reply, current.failed
		}
		var next *turn[T]
		for next == nil {
			candidate := start()
			timer := time.NewTimer(times.overlap)
			select {
			case <-current.done:
				timer.Stop()
				return current.reply, current.failed
			case <-candidate.done:
				timer.Stop()
				if candidate.failed == nil {
					return candidate.reply, nil
				}
				if current.endsWithin(times.pause) {
					return current.reply, current.failed
				}
			case <-timer.C:
				next = candidate
			}
		}
		current.cancel()
		current = next
	}
	<-current.done
	return current.reply, current.failed
}

// endsWithin waits until the request has its result, or the time has passed.
func (t *turn[T]) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.done:
		return true
	case <-timer.C:
		return false
	}
}
