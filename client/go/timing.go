package fencepost

import "time"

const ttlMaxMs = 86_400_000

// window is the time that one reply of the lock server granted to a lease. It counts from before
// the request was sent. The server counts from when it handled the request, which is later, so the
// window ends before the server's lease does.
type window struct {
	sentAt moment
	ttlMs  int64
}

// newWindow is the window of a reply with ttlMs left; more than the protocol's maximum is cut.
func newWindow(sentAt moment, ttlMs int64) window {
	if ttlMs > ttlMaxMs {
		ttlMs = ttlMaxMs
	}
	return window{sentAt: sentAt, ttlMs: ttlMs}
}

// deadline is the moment until which the lease is trusted: 0.8 of its time to live. The rest allows
// for clocks that run at different rates.
func (w window) deadline() moment { return w.sentAt + moment(w.trustedMs()) }

func (w window) trustedMs() int64 { return w.ttlMs/5*4 + w.ttlMs%5*4/5 }

// renewAt is the moment of the renewal: a third of the time to live.
func (w window) renewAt() moment { return w.sentAt + moment(w.ttlMs/3) }

// wornAt is the moment at which half of the trusted time has passed.
func (w window) wornAt() moment { return w.sentAt + moment(w.trustedMs()/2) }

// expiresAt is the moment before which the server does not let the lease expire.
func (w window) expiresAt() moment { return w.sentAt + moment(w.ttlMs) }

// killBy is the latest moment to end work by force: 0.95 of the time to live.
func (w window) killBy() moment { return w.sentAt + moment(w.ttlMs-(w.ttlMs+19)/20) }

func (w window) remaining(at moment) time.Duration { return w.deadline().since(at) }

func (w window) isLive(at moment) bool { return at < w.deadline() }

// isWorn reports whether more than half of the trusted time has passed. A grant that arrives so
// late (the acquire waited in the queue) is renewed before it is used.
func (w window) isWorn(at moment) bool {
	return w.remaining(at) < w.deadline().since(w.sentAt)/2
}

// renewalTimeout is the time after which a renewal without a reply is retried: half of the trusted
// time left, and at least 50 ms.
func (w window) renewalTimeout(at moment) time.Duration { return atLeast50(w.remaining(at) / 2) }

// replyTimeout is the time-out of a renewal: until the deadline, and at least 50 ms.
func (w window) replyTimeout(at moment) time.Duration { return atLeast50(w.remaining(at)) }

func atLeast50(d time.Duration) time.Duration { return longer(d, 50*time.Millisecond) }

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

// retryPause is the pause before retry attempt (1 is the first): doubles from 50 ms to 1 s, of which
// random picks between a half and the whole.
func retryPause(attempt int, random uint64) time.Duration {
	whole := uint64(1000)
	if attempt <= 5 {
		whole = 50
		for i := 1; i < attempt; i++ {
			whole *= 2
		}
	}
	half := whole / 2
	return time.Duration(half+random%(whole-half+1)) * time.Millisecond
}
