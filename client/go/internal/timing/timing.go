// Package timing has the moments at which a lease is renewed and no longer trusted: pure rules,
// without a clock and I/O.
package timing

import "time"

// TTLMaxMs is the longest time to live of the protocol: a day.
const TTLMaxMs = 86_400_000

// Moment is a point in time on the holder's clock, in milliseconds.
type Moment int64

// Plus is the moment later by the whole milliseconds of d.
func (m Moment) Plus(d time.Duration) Moment { return m + Moment(d/time.Millisecond) }

// Since is the time from earlier to m; zero if m is not later.
func (m Moment) Since(earlier Moment) time.Duration {
	if m <= earlier {
		return 0
	}
	return time.Duration(m-earlier) * time.Millisecond
}

// Window is the time that one reply of the lock server granted to a lease. It counts from before
// the request was sent. The server counts from when it handled the request, which is later, so the
// window ends before the server's lease does.
type Window struct {
	sentAt Moment
	ttlMs  int64
}

// New is the window of a reply with ttlMs left; more than the protocol's maximum is cut.
func New(sentAt Moment, ttlMs int64) Window {
	if ttlMs > TTLMaxMs {
		ttlMs = TTLMaxMs
	}
	return Window{sentAt: sentAt, ttlMs: ttlMs}
}

// Deadline is the moment until which the lease is trusted: 0.8 of its time to live. The rest
// allows for clocks that run at different rates.
func (w Window) Deadline() Moment { return w.sentAt + Moment(w.trustedMs()) }

func (w Window) trustedMs() int64 { return w.ttlMs/5*4 + w.ttlMs%5*4/5 }

// RenewAt is the moment of the renewal: a third of the time to live.
func (w Window) RenewAt() Moment { return w.sentAt + Moment(w.ttlMs/3) }

// WornAt is the moment at which half of the trusted time has passed.
func (w Window) WornAt() Moment { return w.sentAt + Moment(w.trustedMs()/2) }

// ExpiresAt is the moment before which the server does not let the lease expire.
func (w Window) ExpiresAt() Moment { return w.sentAt + Moment(w.ttlMs) }

// KillBy is the latest moment to end work by force: 0.95 of the time to live.
func (w Window) KillBy() Moment { return w.sentAt + Moment(w.ttlMs-(w.ttlMs+19)/20) }

// Remaining is the trusted time left at a moment; zero once it has passed.
func (w Window) Remaining(at Moment) time.Duration { return w.Deadline().Since(at) }

// IsLive reports whether the lease is trusted at a moment.
func (w Window) IsLive(at Moment) bool { return at < w.Deadline() }

// IsWorn reports whether more than half of the trusted time has passed. A grant that arrives so
// late (the acquire waited in the queue) is renewed before it is used.
func (w Window) IsWorn(at Moment) bool {
	return w.Remaining(at) < w.Deadline().Since(w.sentAt)/2
}

// RenewalTimeout is the time after which a renewal without a reply is retried: half of the trusted
// time left, and at least 50 ms.
func (w Window) RenewalTimeout(at Moment) time.Duration { return atLeast50(w.Remaining(at) / 2) }

// ReplyTimeout is the time-out of a renewal: until the deadline, and at least 50 ms.
func (w Window) ReplyTimeout(at Moment) time.Duration { return atLeast50(w.Remaining(at)) }

func atLeast50(d time.Duration) time.Duration {
	if d < 50*time.Millisecond {
		return 50 * time.Millisecond
	}
	return d
}

// Pause is the pause before retry attempt (1 is the first): doubles from 50 ms to 1 s, of which
// random picks between a half and the whole.
func Pause(attempt int, random uint64) time.Duration {
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
