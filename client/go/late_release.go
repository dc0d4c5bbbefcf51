package fencepost

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

// excuse reports whether this refusal of a release only says that it arrived too late: the lease
// expired, after its work had ended. A refusal that arrives before the deadline has another cause
// (a stepped clock, a server that lost its memory), and the work may have overlapped with another
// holder's.
func (w workEnd) excuse(refusal *Error, at moment) bool {
	hasExpired := false
	switch refusal.Code {
	case "lease-lost":
		hasExpired = refusal.Reason == LostExpired || refusal.Reason == LostSessionEnded
	case "session-ended":
		var reason string
		refusal.Member("reason", &reason)
		hasExpired = reason == "expired" || reason == "blocked"
	}
	return hasExpired && w.inTime && w.deadline <= at
}

func (w workEnd) settle(err error) error {
	if refusal, ok := err.(*Error); ok && w.excuse(refusal, now()) {
		return nil
	}
	return err
}
