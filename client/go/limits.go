package fencepost

import "time"

// Warning is a loss of the lease that is near.
type Warning struct {
	// Lock names the lock or the session.
	Lock string
	// In is the time until the loss.
	In time.Duration
	// Reason is the reason of the loss.
	Reason LostReason
}

// limits tie a lease to the work under it; zero is no limit.
type limits struct {
	progressWithin, maxHold, warnBefore time.Duration
	warn                                func(Warning)
}

func (l *limits) check() *Error {
	if l.warnBefore > 0 && l.warn == nil {
		return invalid("a warning %v before the loss needs a function to call", l.warnBefore)
	}
	for name, limit := range map[string]time.Duration{
		"the limit of progress": l.progressWithin, "the longest hold": l.maxHold,
	} {
		if limit > 0 && l.warnBefore >= limit {
			return invalid("a warning %v before the loss must come later than the start: %s is %v",
				l.warnBefore, name, limit)
		}
	}
	return nil
}

// leaseEnd is a moment at which the lease is lost, and the reason.
type leaseEnd struct {
	at     moment
	reason LostReason
}

// hold is the state of a held lease with respect to its limits. Pure.
type hold struct {
	limits     limits
	began      moment
	progressed reading
}

func newHold(l limits, at reading) hold { return hold{limits: l, began: at.at, progressed: at} }

// ends are the moments at which the lease is lost if nothing is renewed or reported. Time in
// suspend since the last report does not count, because the work could not report then.
func (h *hold) ends(w window, at reading) []leaseEnd {
	ends := []leaseEnd{{w.Deadline(), LostDeadline}}
	if h.limits.progressWithin > 0 {
		slept := at.suspended - h.progressed.suspended
		if slept < 0 {
			slept = 0
		}
		end := h.progressed.at.Plus(h.limits.progressWithin) + slept
		ends = append(ends, leaseEnd{end, LostNoProgress})
	}
	if h.limits.maxHold > 0 {
		ends = append(ends, leaseEnd{h.began.Plus(h.limits.maxHold), LostHeldTooLong})
	}
	return ends
}

func (h *hold) nextEnd(w window, at reading) leaseEnd {
	ends := h.ends(w, at)
	first := ends[0]
	for _, end := range ends[1:] {
		if end.at < first.at {
			first = end
		}
	}
	return first
}

// warnedEnds are the ends that were warned of: each once, and again only when it has moved.
type warnedEnds map[LostReason]moment

// nextWarning is the next end to warn of and the moment of the warning; false if there is none. To
// warn only of renewals that fail, the warning of the deadline comes no earlier than wornAt.
func (h *hold) nextWarning(w window, at reading, warned warnedEnds) (moment, leaseEnd, bool) {
	var warnAt moment
	var next leaseEnd
	found := false
	for _, end := range h.ends(w, at) {
		if warnedAt, ok := warned[end.reason]; ok && warnedAt == end.at {
			continue
		}
		from := end.at - moment(h.limits.warnBefore/time.Millisecond)
		if end.reason == LostDeadline && from < w.WornAt() {
			from = w.WornAt()
		}
		if !found || from < warnAt {
			warnAt, next, found = from, end, true
		}
	}
	return warnAt, next, found && h.limits.warnBefore > 0
}
