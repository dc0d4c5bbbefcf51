package fencepost

import (
	"encoding/json"
	"time"
)

const (
	defaultTTLMs    = 15_000
	defaultPatience = 5 * time.Second
	longestTime     = 7 * 24 * time.Hour
	// withoutEnd is a wait that no program outlasts.
	withoutEnd = 100 * 365 * 24 * time.Hour
)

// Option changes one property of a request for a lock, a session or an election. A value that
// breaks a rule is reported by the call that takes the options, before anything is sent.
type Option func(*spec)

// spec is a request for locks with its options.
type spec struct {
	lock       string
	ttlMs      int64
	times      waitTimes
	minToken   uint64
	metadata   json.RawMessage
	limits     limits
	takeover   bool
	takeoverOf string
	mode       string
	size       int
	session    *Session
	onQueue    func(QueuePosition)
	reentrant  bool
	// failed is the first option that breaks a rule.
	failed *Error
}

// waitTimes bound an acquire.
type waitTimes struct {
	// wait is the longest wait in the queue, patience the time beyond it for which requests are
	// retried; isBounded: the wait bounds the retries of an unreachable server too.
	wait, patience time.Duration
	isBounded      bool
}

func newSpec(lock string, options []Option) *spec {
	s := &spec{lock: lock, ttlMs: defaultTTLMs, times: waitTimes{patience: defaultPatience}}
	for i, option := range options {
		if option == nil {
			s.fail(invalid("option %d is nil", i+1))
			continue
		}
		option(s)
	}
	return s
}

func (s *spec) fail(err *Error) {
	if s.failed == nil {
		s.failed = err
	}
}

func (s *spec) time(name string, d, min time.Duration, slot *time.Duration) {
	if d < min || d > longestTime {
		s.fail(invalid("%s of %v must be from %v to %v", name, d, min, longestTime))
		return
	}
	*slot = d
}

// check refuses options that could never be granted, before anything is sent.
func (s *spec) check(c *Client) *Error {
	if s.failed != nil {
		return s.failed
	}
	if failed := s.limits.check(); failed != nil {
		return failed
	}
	isTakeover := s.takeover || s.takeoverOf != ""
	if isTakeover && s.mode != "" {
		return invalid("the lock %s cannot be taken over in mode %s: a takeover is for exclusive leases",
			s.lock, s.mode)
	}
	if isTakeover && !c.isOwnerGiven {
		return invalid("the lock %s cannot be taken over as %s: a takeover needs an owner that stays "+
			"the same after a restart, and this one ends in the process id; configure one "+
			"(Options.Owner, FENCE_OWNER)", s.lock, c.owner)
	}
	return nil
}

// TTL is the time to live of the lease unless it is renewed: 15 s by default, from 1 ms to a day.
// The lease is trusted for 0.8 of it, and renewed in the background every third of it.
func TTL(ttl time.Duration) Option {
	return func(s *spec) {
		ms, failed := checkTTL(ttl)
		if failed != nil {
			s.fail(failed)
			return
		}
		s.ttlMs = ms
	}
}

// Wait is the longest wait in the queue while another lease holds the lock, at most 7 days.
// Without it the server replies at once. A wait beyond the five minutes of one request is
// continued by further ones at the same position.
func Wait(wait time.Duration) Option {
	return func(s *spec) { s.time("a wait", wait, 0, &s.times.wait) }
}

// WaitForever waits without end, also for a server that is unreachable; the context of the call
// ends the wait.
func WaitForever() Option { return func(s *spec) { s.times.wait = withoutEnd } }

// Bounded makes the wait bound the call: an unreachable server is retried only while the wait
// lasts; the patience is for requests that may have been granted.
func Bounded() Option { return func(s *spec) { s.times.isBounded = true } }

// Patience is the time beyond the wait for which requests to an unreachable server are retried:
// 5 s by default.
func Patience(patience time.Duration) Option {
	return func(s *spec) { s.time("a patience", patience, 0, &s.times.patience) }
}

// Shared shares the lock with other shared leases; they exclude exclusive ones. A guard admits one
// of several live leases of a lock: do not present the tokens of several shared leases to one.
func Shared() Option { return func(s *spec) { s.mode, s.size = modeShared, 0 } }

// Permit acquires one of size permits, 1 to 1024: at most size leases hold the lock at a time. All
// clients must name the same size. A permit bounds concurrency; its token is not for guards.
func Permit(size int) Option {
	return func(s *spec) {
		if failed := checkPermits(size); failed != nil {
			s.fail(failed)
		}
		s.mode, s.size = modePermit, size
	}
}

// MinToken requires a grant with a token above this one, which a guard has seen.
func MinToken(token uint64) Option {
	return func(s *spec) {
		if failed := checkToken(token); failed != nil {
			s.fail(failed)
		}
		s.minToken = token
	}
}

// Metadata is a value shown, as JSON of at most 4096 bytes, to people who inspect the lock.
func Metadata(value any) Option {
	return func(s *spec) {
		text, failed := encodeMetadata(value)
		if failed != nil {
			s.fail(failed)
		}
		s.metadata = text
	}
}

// ProgressWithin is the longest time between two calls of [Lease.Progress], at least 1 ms; without
// a report in time the lease is lost. Time in suspend does not count.
func ProgressWithin(limit time.Duration) Option {
	return func(s *spec) {
		s.time("a limit of progress", limit, time.Millisecond, &s.limits.progressWithin)
	}
}

// MaxHold is the longest time for which the lock may be held, renewals included, at least 1 ms.
func MaxHold(limit time.Duration) Option {
	return func(s *spec) { s.time("a longest hold", limit, time.Millisecond, &s.limits.maxHold) }
}

// WarnBefore calls warn, in a goroutine of its own, this long before the lease will be lost unless
// the work reports progress or a renewal succeeds. It must be less than the other limits. Each end
// is warned of once, and again when it has moved; failing renewals not before half of the trusted
// time has passed.
func WarnBefore(before time.Duration, warn func(Warning)) Option {
	return func(s *spec) {
		s.time("a warning", before, time.Millisecond, &s.limits.warnBefore)
		s.limits.warn = warn
	}
}

// Takeover takes the lock over from an earlier incarnation of this owner, at once and before the
// waiters: for a process that restarts while the lease of its crashed predecessor is live. The
// owner must be configured and stay the same after a restart; the incarnation must change.
func Takeover() Option { return func(s *spec) { s.takeover, s.takeoverOf = true, "" } }

// TakeoverOf takes the lock over from this lease of the same owner, at once: for a supervisor that
// saw the holder die. If that lease has ended already, this is a usual acquire.
func TakeoverOf(leaseID string) Option {
	return func(s *spec) {
		if !isUUID(leaseID) {
			s.fail(invalid("lease id %q must be a UUID in lower case", leaseID))
		}
		s.takeover, s.takeoverOf = false, leaseID
	}
}

// Reentrant lets a [Client.WithLock] inside another one of the same client and lock share its
// lease: for a function that needs the lock and calls another one that needs it too. The context
// passed to the inner call must be that of the outer body, or derived from it.
func Reentrant() Option { return func(s *spec) { s.reentrant = true } }

// QueuePosition is the place of a waiting request in the queue of its lock.
type QueuePosition struct {
	// Lock is the name of the lock.
	Lock string
	// Position is 1 for the next to be granted; 0 if it is not among the first 100.
	Position int
	// Length is the number of waiters.
	Length int
	// Holder is the present holder, if there is one.
	Holder *HolderInfo
}

// OnQueue calls report about once a second while the acquire waits, and first after 200 ms. The
// acquire does not wait for it.
func OnQueue(report func(QueuePosition)) Option {
	return func(s *spec) { s.onQueue = report }
}
