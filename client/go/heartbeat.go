package fencepost

import (
	"context"
	"time"
)

// beat sends a heartbeat at a third of the time to live until the session is lost or ended.
//
// Its reply says that the session is live, not that a single lease was revoked or taken over. But
// it counts the leases, and if the count differs from the client's, each lease is probed. So a
// heartbeat costs one request for any number of leases.
func (s *Session) beat() {
	ctx := s.trust.context
	for sleepUntil(ctx.Done(), s.trust.currentWindow().RenewAt()) {
		failed := untilSuccess(ctx, s.beatOnce,
			func() time.Duration { return s.trust.currentWindow().RenewalTimeout(now()) },
			isSessionOver)
		if failed != nil {
			s.trust.lose(LostSessionEnded)
		}
	}
}

func (s *Session) beatOnce(ctx context.Context) *failure {
	s.mutex.Lock()
	expected := s.count.expect(len(s.leases) + s.waits)
	s.mutex.Unlock()
	sentAt := now()
	reply, failed := s.client.heartbeat(ctx, s.id, s.trust.currentWindow().ReplyTimeout(sentAt))
	if failed != nil {
		return failed
	}
	s.trust.extend(sessionWindow(sentAt, reply, s.ttlMs), read())
	s.mutex.Lock()
	isMismatch := s.count.isMismatch(reply.LeaseCount, expected)
	s.mutex.Unlock()
	if isMismatch {
		select {
		case s.mismatch <- struct{}{}:
		default:
		}
	}
	return nil
}

// probeOnMismatch probes each lease when the counts differ, beside the heartbeat: the probe of
// many leases takes long.
func (s *Session) probeOnMismatch() {
	for {
		select {
		case <-s.mismatch:
		case <-s.trust.context.Done():
			return
		}
		s.mutex.Lock()
		seen := s.count.last
		s.mutex.Unlock()
		allLive := true
		for _, lease := range s.heldLeases() {
			allLive = s.probe(lease) && allLive
		}
		if allLive {
			s.mutex.Lock()
			s.count.explain(seen)
			s.mutex.Unlock()
		}
	}
}

// probe reports whether the server confirms that the lease is live. It sends a renewal, which has
// no effect on a lease of a session.
func (s *Session) probe(l *Lease) bool {
	_, failed := s.client.renewOnce(s.trust.context, &l.grant, callTimeout)
	if failed == nil {
		return true
	}
	if failed.hasCode("lease-lost") {
		if reason := failed.problem.endReason(); reason == LostSessionEnded {
			s.trust.lose(reason)
		} else {
			l.trust.lose(reason)
			s.letGo(l, workEndsNow(s.trust))
		}
	}
	return false
}

// leaseCount compares the server's count of a session's leases with the client's. Pure.
//
// The server may count leases that the client does not know: grants whose request was cancelled
// and that are not released yet. That must not cause a probe of every lease at each heartbeat, but
// it must not hide the loss of a lease either. So a surplus counts as explained only after a probe
// has found every lease live, and only until the client's own leases change. A deficit is never
// explained.
type leaseCount struct {
	epoch           uint64
	last, explained countDifference
}

// countDifference is the result of a comparison: the leases that the server counts beyond the
// expected ones.
type countDifference struct {
	epoch   uint64
	surplus int
}

// expectedCount is the number of leases that the client expects at the server, at a moment.
type expectedCount struct {
	epoch uint64
	count int
}

func (c *leaseCount) change() { c.epoch++ }

func (c *leaseCount) expect(count int) expectedCount { return expectedCount{c.epoch, count} }

func (c *leaseCount) isMismatch(counted int, expected expectedCount) bool {
	c.last = countDifference{expected.epoch, counted - expected.count}
	if c.explained.epoch == expected.epoch {
		return c.last.surplus != c.explained.surplus
	}
	return c.last.surplus != 0
}

// explain records that a probe found every lease live; seen was the last comparison when it began.
func (c *leaseCount) explain(seen countDifference) {
	if seen.epoch == c.epoch && seen.surplus > 0 {
		c.explained = seen
	}
}
