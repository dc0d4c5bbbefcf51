package fencepost

import "context"

// workEnd is the end of the work under a lease or a session, as the client observed it.
type workEnd struct {
	// deadline is the moment until which the lease was trusted when its work ended; inTime is
	// false if it was lost by then.
	deadline moment
	inTime   bool
}

func workEndsNow(t *trust) workEnd {
	if t.lost(read()) != "" {
		return workEnd{}
	}
	return workEnd{deadline: t.currentWindow().Deadline(), inTime: true}
}

// excuse reports whether the lease ended by its time or by this release, and only after its work
// had ended. A first refusal that arrives before the deadline has another cause (a takeover, a
// stepped clock, a server that lost its memory), and the work may have overlapped with another
// holder's.
func (w workEnd) excuse(refusal *Error, at moment) bool {
	mayBeDone := refusal.Outcome == outcomeUnknown
	isByTimeOrRelease := false
	switch refusal.Code {
	case "":
		// The release was stopped when the lease had expired.
		isByTimeOrRelease = refusal.Reason == LostDeadline
	case "lease-lost":
		// A server has forgotten a release, because others have held the lock since.
		isByTimeOrRelease = refusal.Reason == LostExpired || refusal.Reason == LostSessionEnded ||
			mayBeDone && refusal.Reason == LostSuperseded
	case "session-ended":
		var reason string
		refusal.Member("reason", &reason)
		isByTimeOrRelease = reason == "expired" || reason == "blocked"
	case "session-unknown":
		isByTimeOrRelease = mayBeDone
	}
	return isByTimeOrRelease && w.inTime && (mayBeDone || w.deadline <= at)
}

func (w workEnd) settle(err error) error {
	if refusal, ok := err.(*Error); ok && w.excuse(refusal, now()) {
		return nil
	}
	return err
}

// untilExpired calls release with a context that ends when the lease has expired: then nothing is
// left to release.
func (t *trust) untilExpired(ctx context.Context, release func(context.Context) error) error {
	bounded, expire := context.WithCancel(ctx)
	defer expire()
	go func() {
		// The heartbeat of a session continues while one of its leases is released.
		for t.currentWindow().ExpiresAt() > now() {
			if !sleepUntil(bounded.Done(), t.currentWindow().ExpiresAt()) {
				return
			}
		}
		expire()
	}()
	err := release(bounded)
	if err != nil && lostError(err) == nil && bounded.Err() != nil && ctx.Err() == nil {
		return leaseLost(t.what, LostDeadline)
	}
	return err
}
