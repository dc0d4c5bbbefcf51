package fencepost

import (
	"context"
	"time"

	"fencepost/internal/timing"
)

// keep renews the lease at a third of its time to live, and retries until that succeeds or the
// lease is lost or released.
func (l *Lease) keep(ttlMs int64) {
	ctx := l.trust.context
	for sleepUntil(ctx.Done(), l.trust.currentWindow().RenewAt()) {
		failed := untilSuccess(ctx,
			func(ctx context.Context) *failure { return l.renew(ctx, ttlMs) },
			func() time.Duration { return l.trust.currentWindow().RenewalTimeout(now()) },
			func(f *failure) bool { return f.hasCode("lease-lost") })
		if failed != nil {
			l.trust.lose(failed.problem.endReason())
		}
	}
}

func (l *Lease) renew(ctx context.Context, ttlMs int64) *failure {
	sentAt := now()
	reply, failed := l.client.renewOnce(ctx, &l.grant, l.trust.currentWindow().ReplyTimeout(sentAt))
	if failed != nil {
		return failed
	}
	if reply.Token != l.grant.Token {
		// A store that lost its memory granted a late retry of the acquire as a new lease. Another
		// client may have held the lock in between, and the guard refuses this lease's token.
		l.trust.lose(LostSuperseded)
		return nil
	}
	// A reply may not extend the lease beyond the requested time to live.
	if reply.TTLMs > ttlMs {
		reply.TTLMs = ttlMs
	}
	// If this comes too late, the lease is lost all the same.
	l.trust.extend(timing.New(sentAt, reply.TTLMs), read())
	return nil
}
