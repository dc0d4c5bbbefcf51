package fencetest

// takeOver ends the lease that a request takes over; false if it is granted or waits like others.
func (s *locks) takeOver(name string, body *acquireBody, owner string) (bool, *refusal) {
	l := s.lock(name)
	isOf := body.TakeoverOf != ""
	if !body.Takeover && !isOf || len(l.live) == 0 || l.live[0].Mode != modeExclusive {
		return false, nil
	}
	holder, why := l.live[0], ""
	switch {
	case isOf && body.TakeoverOf != holder.id:
		return false, nil
	case holder.owner != owner:
		why = "other-owner"
	case isOf:
	case l.former[owner+" "+body.Incarnation]:
		why = "was-taken-over"
	case holder.incarnation == "":
		why = "no-incarnation"
	case holder.incarnation == body.Incarnation:
		return false, nil
	}
	if why == "" {
		if holder.incarnation != "" {
			l.former[owner+" "+holder.incarnation] = true
		}
		s.end(holder, "superseded", "")
		return true, nil
	}
	if body.Takeover && why != "was-taken-over" && body.WaitMs > 0 {
		return false, nil
	}
	members := map[string]any{"why": why, "holder": holder.holder(s.now())}
	return false, refuse(409, "takeover-refused", members,
		"lock %s is held by %s and was not taken over: %s", name, holder.owner, why)
}

// awaited is the first lock that a request waits for: it is held, or has earlier waiters. "" if
// there is none.
func (s *locks) awaited(w *waiter) string {
	for _, wish := range w.wishes {
		if !s.isFree(wish) || s.waitersOf(wish.Lock)[0] != w {
			return wish.Lock
		}
	}
	return ""
}

// firstToEnd is the lease of a lock that ends first; nil if there is none.
func (s *locks) firstToEnd(name string) *lease {
	var first *lease
	for _, one := range s.lock(name).live {
		if first == nil || one.leftMs(s.now()) < first.leftMs(s.now()) {
			first = one
		}
	}
	return first
}

func (s *locks) heldBy(w *waiter) *refusal {
	name := s.awaited(w)
	if name == "" {
		name = w.wishes[0].Lock
	}
	queue := len(s.waitersOf(name)) - 1
	members := map[string]any{
		"queue_length": queue, "retryable": true,
		"hint": "Try again after Retry-After, or wait in the queue with wait_ms.",
	}
	first := s.firstToEnd(name)
	if first == nil {
		return w.body.part(name, refuse(423, "lock-held", members,
			"lock %s is free, and kept for a request that waits for other locks too; %d wait", name, queue))
	}
	holder := first.holder(s.now())
	members["holder"] = holder
	return w.body.part(name, refuse(423, "lock-held", members,
		"lock %s is held by %s with token %d for another %d ms unless it is renewed; %d wait",
		name, first.owner, first.token, holder["expires_in_ms"], queue))
}
