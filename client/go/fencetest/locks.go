package fencetest

import (
	"context"
	"sort"
	"strings"
	"sync"
	"time"
)

// locks are the rules of the lock server: leases, waiters in arrival order, and sessions.
type locks struct {
	mutex    sync.Mutex
	advanced time.Duration
	timer    *time.Timer
	isClosed bool
	locks    map[string]*lock
	sessions map[string]*session
	// waiters are in arrival order, of all locks.
	waiters   []*waiter
	lastToken uint64
}

func newLocks() *locks {
	return &locks{locks: map[string]*lock{}, sessions: map[string]*session{}}
}

func (s *locks) now() time.Time { return time.Now().Add(s.advanced) }

// enter locks the rules and lets expire what has; the function that it returns leaves.
func (s *locks) enter() func() {
	s.mutex.Lock()
	s.elapse()
	return func() {
		s.elapse()
		s.mutex.Unlock()
	}
}

func (s *locks) advance(d time.Duration) {
	s.mutex.Lock()
	s.advanced += d
	s.mutex.Unlock()
	s.enter()()
}

func (s *locks) close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.waiters, s.isClosed = nil, true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// acquire waits until the locks are granted or refused, or the client has disconnected.
func (s *locks) acquire(ctx context.Context, wishes []wish, body *acquireBody) outcome {
	for i := range wishes {
		if wishes[i].Mode == "" {
			wishes[i].Mode = modeExclusive
		}
	}
	leave := s.enter()
	settled, w, t := s.join(wishes, body)
	leave()
	if w == nil {
		return settled
	}
	select {
	case result := <-t.outcome:
		return result
	case <-ctx.Done():
		s.mutex.Lock()
		delete(w.turns, t)
		s.mutex.Unlock()
		s.enter()()
		return outcome{refused: refuse(408, "request-timeout", nil, "the client has disconnected")}
	}
}

// join adds the request to the waiters, unless it has its outcome at once.
func (s *locks) join(wishes []wish, body *acquireBody) (outcome, *waiter, *turn) {
	owner := body.Owner
	var of *session
	if body.SessionID != "" {
		found, refused := s.session(body.SessionID)
		if refused != nil {
			return outcome{refused: refused}, nil, nil
		}
		of, owner = found, found.owner
	}
	if grants, refused := s.repeated(wishes, body.LeaseID, owner); grants != nil || refused != nil {
		return outcome{grants, refused}, nil, nil
	}
	for _, wish := range wishes {
		if refused := s.checkKind(wish); refused != nil {
			return outcome{refused: refused}, nil, nil
		}
	}
	if body.Takeover || body.TakeoverOf != "" {
		if refused := s.takeOver(wishes[0].Lock, body, owner); refused != nil {
			return outcome{refused: refused}, nil, nil
		}
	}
	w := s.waiterOf(body.LeaseID)
	if w == nil {
		w = &waiter{body.LeaseID, owner, wishes, body, of, s.now(), map[*turn]bool{}}
		s.waiters = append(s.waiters, w)
	}
	wait := time.Duration(body.WaitMs) * time.Millisecond
	t := &turn{until: s.now().Add(wait), outcome: make(chan outcome, 1)}
	w.turns[t] = true
	return outcome{}, w, t
}

func (s *locks) waiterOf(id string) *waiter {
	for _, w := range s.waiters {
		if w.id == id {
			return w
		}
	}
	return nil
}

// repeated has the grants or the end of a request that was sent before.
func (s *locks) repeated(wishes []wish, id, owner string) ([]map[string]any, *refusal) {
	var grants []map[string]any
	for _, wish := range wishes {
		found, _ := s.live(wish.Lock, id)
		if found == nil {
			for _, end := range s.lock(wish.Lock).ended {
				if end.id == id {
					return nil, lost(wish.Lock, end.reason, end.why)
				}
			}
			return nil, nil
		}
		if found.owner != owner {
			return nil, refuse(409, "lease-id-conflict", nil,
				"this lease_id on lock %s belongs to a request of another owner", wish.Lock)
		}
		grants = append(grants, found.reply(s.now()))
	}
	return grants, nil
}

func (s *locks) checkKind(w wish) *refusal {
	used := []wish{}
	for _, one := range s.lock(w.Lock).live {
		used = append(used, one.wish)
	}
	for _, waiter := range s.waiters {
		used = append(used, waiter.wishes...)
	}
	for _, one := range used {
		isOther := (one.Mode == modePermit) != (w.Mode == modePermit) || one.Size != w.Size
		if one.Lock == w.Lock && isOther {
			return refuse(409, "lock-kind-conflict", nil, "lock %s is in use as another kind", w.Lock)
		}
	}
	return nil
}

func (s *locks) takeOver(name string, body *acquireBody, owner string) *refusal {
	l := s.lock(name)
	if len(l.live) == 0 || body.TakeoverOf != "" && body.TakeoverOf != l.live[0].id {
		return nil
	}
	holder, why := l.live[0], ""
	switch {
	case holder.owner != owner:
		why = "other-owner"
	case l.former[owner+" "+body.Incarnation]:
		why = "was-taken-over"
	case body.Takeover && holder.incarnation == "":
		why = "no-incarnation"
	case body.Takeover && holder.incarnation == body.Incarnation:
		return nil
	}
	if why != "" {
		members := map[string]any{"why": why, "holder": holder.holder(s.now())}
		return refuse(409, "takeover-refused", members,
			"lock %s is held by %s and was not taken over: %s", name, holder.owner, why)
	}
	l.former[owner+" "+holder.incarnation] = true
	s.end(holder, "superseded", "")
	return nil
}

// elapse lets expire what has, grants what is free, and comes back when something is due.
func (s *locks) elapse() {
	now := s.now()
	for _, one := range s.sessions {
		if one.reason == "" && !one.expires.After(now) {
			s.closeSession(one, "expired")
		}
	}
	for _, l := range s.locks {
		for _, one := range append([]*lease(nil), l.live...) {
			if one.session == nil && !one.expires.After(now) {
				s.end(one, "expired", "")
			}
		}
	}
	s.grant()
	for _, w := range append([]*waiter(nil), s.waiters...) {
		for t := range w.turns {
			if !t.until.After(now) {
				delete(w.turns, t)
				t.outcome <- outcome{refused: s.heldBy(w)}
			}
		}
		if len(w.turns) == 0 {
			s.leave(w)
		}
	}
	s.schedule(now)
}

func (s *locks) schedule(now time.Time) {
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.isClosed {
		return
	}
	next := now.Add(time.Minute)
	earlier := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	for _, one := range s.sessions {
		if one.reason == "" {
			earlier(one.expires)
		}
	}
	for _, l := range s.locks {
		for _, one := range l.live {
			if one.session == nil {
				earlier(one.expires)
			}
		}
	}
	for _, w := range s.waiters {
		for t := range w.turns {
			earlier(t.until)
		}
	}
	s.timer = time.AfterFunc(next.Sub(now)+time.Millisecond, func() { s.enter()() })
}

// grant grants in arrival order; a waiter that cannot be granted holds up later ones of its locks.
func (s *locks) grant() {
	blocked := map[string]bool{}
	for _, w := range append([]*waiter(nil), s.waiters...) {
		isFree := true
		for _, wish := range w.wishes {
			isFree = isFree && !blocked[wish.Lock] && s.isFree(wish)
		}
		if !isFree {
			for _, wish := range w.wishes {
				blocked[wish.Lock] = true
			}
			continue
		}
		s.leave(w)
		var grants []map[string]any
		for _, wish := range w.wishes {
			grants = append(grants, s.granted(wish, w).reply(s.now()))
		}
		w.settle(outcome{grants: grants})
	}
}

func (s *locks) granted(wish wish, w *waiter) *lease {
	if s.lastToken < wish.MinToken {
		s.lastToken = wish.MinToken
	}
	s.lastToken++
	now, ttlMs := s.now(), w.body.TTLMs
	if ttlMs == 0 {
		ttlMs = defaultTTLMs
	}
	ttl := time.Duration(ttlMs) * time.Millisecond
	l := &lease{
		wish: wish, id: w.id, owner: w.owner, token: s.lastToken, session: w.session, ttl: ttl,
		incarnation: w.body.Incarnation, metadata: w.body.Metadata, waited: now.Sub(w.since),
		granted: now, expires: now.Add(ttl),
	}
	s.lock(wish.Lock).live = append(s.lock(wish.Lock).live, l)
	return l
}

func (s *locks) isFree(w wish) bool {
	live := s.lock(w.Lock).live
	switch w.Mode {
	case modePermit:
		return len(live) < w.Size
	case modeShared:
		return len(live) == 0 || live[0].Mode == modeShared
	default:
		return len(live) == 0
	}
}

func (s *locks) heldBy(w *waiter) *refusal {
	name := w.wishes[0].Lock
	for _, wish := range w.wishes {
		if !s.isFree(wish) {
			name = wish.Lock
		}
	}
	queue := len(s.waitersOf(name)) - 1
	members := map[string]any{
		"queue_length": queue, "retryable": true,
		"hint": "Try again after Retry-After, or wait in the queue with wait_ms.",
	}
	if len(w.wishes) > 1 {
		members["lock"] = name
	}
	live := s.lock(name).live
	if len(live) == 0 {
		return refuse(423, "lock-held", members, "lock %s has earlier waiters; %d wait", name, queue)
	}
	holder := live[0].holder(s.now())
	members["holder"] = holder
	return refuse(423, "lock-held", members,
		"lock %s is held by %s with token %d for another %d ms unless it is renewed; %d wait",
		name, live[0].owner, live[0].token, holder["expires_in_ms"], queue)
}

func (s *locks) renew(name, id string, ttlMs int64) (any, *refusal) {
	defer s.enter()()
	l, refused := s.live(name, id)
	if refused != nil {
		return nil, refused
	}
	if l.session != nil && ttlMs != 0 {
		return nil, refuse(409, "session-conflict", nil, "a session's heartbeat renews its leases")
	}
	if ttlMs != 0 {
		l.ttl = time.Duration(ttlMs) * time.Millisecond
	}
	l.expires = s.now().Add(l.ttl)
	l.renewals++
	reply := l.reply(s.now())
	reply["waited_ms"] = 0
	return reply, nil
}

func (s *locks) release(name, id string) (any, *refusal) {
	defer s.enter()()
	if w := s.waiterOf(id); w != nil {
		s.leave(w)
		w.settle(outcome{refused: lost(name, "released", "")})
	}
	l, refused := s.live(name, id)
	if refused != nil {
		// An acquire that arrives later is not granted.
		of := s.lock(name)
		isKnown := false
		for _, end := range of.ended {
			isKnown = isKnown || end.id == id
		}
		if !isKnown {
			of.remember(ended{id: id, reason: "released", at: s.now()})
		}
		return nil, refused
	}
	s.end(l, "released", "")
	return map[string]any{
		"lock": name, "lease_id": id, "token": l.token, "reason": "released",
	}, nil
}

// revoke ends every live lease of a lock, or one, as an operator does.
func (s *locks) revoke(name, why, id string) (any, *refusal) {
	defer s.enter()()
	leases := append([]*lease(nil), s.lock(name).live...)
	if id != "" {
		l, refused := s.live(name, id)
		if refused != nil {
			return nil, refused
		}
		leases = []*lease{l}
	}
	if len(leases) == 0 {
		return nil, refuse(404, "not-found", nil, "lock %s is not held", name)
	}
	for _, l := range leases {
		s.end(l, "revoked", why)
	}
	return map[string]any{
		"lock": name, "lease_id": leases[0].id, "token": leases[0].token, "reason": "revoked",
	}, nil
}

func (s *locks) live(name, id string) (*lease, *refusal) {
	l := s.lock(name)
	for _, one := range l.live {
		if one.id == id {
			return one, nil
		}
	}
	for _, end := range l.ended {
		if end.id == id {
			return nil, lost(name, end.reason, end.why)
		}
	}
	if len(l.live) > 0 {
		return nil, lost(name, "superseded", "")
	}
	return nil, lost(name, "expired", "")
}

func (s *locks) end(l *lease, reason, why string) {
	of := s.lock(l.Lock)
	for i, one := range of.live {
		if one == l {
			of.live = append(of.live[:i:i], of.live[i+1:]...)
			break
		}
	}
	of.remember(ended{l.id, reason, why, l, s.now()})
}

func (l *lock) remember(end ended) {
	l.ended = append([]ended{end}, l.ended...)
	if len(l.ended) > historyMax {
		l.ended = l.ended[:historyMax]
	}
}

func (s *locks) leave(w *waiter) {
	for i, one := range s.waiters {
		if one == w {
			s.waiters = append(s.waiters[:i:i], s.waiters[i+1:]...)
			return
		}
	}
}

func (s *locks) waitersOf(name string) []*waiter {
	var waiters []*waiter
	for _, w := range s.waiters {
		if w.wants(name) {
			waiters = append(waiters, w)
		}
	}
	return waiters
}

func (s *locks) lock(name string) *lock {
	if s.locks[name] == nil {
		s.locks[name] = &lock{former: map[string]bool{}}
	}
	return s.locks[name]
}

// list is a page of the held locks in the order of their names.
func (s *locks) list(prefix, after string, limit int) any {
	defer s.enter()()
	names := []string{}
	for name, l := range s.locks {
		if strings.HasPrefix(name, prefix) && name > after && len(l.live) > 0 {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	page := map[string]any{}
	if len(names) > limit {
		names = names[:limit]
		page["next_after"] = names[limit-1]
	}
	lines := []map[string]any{}
	for _, name := range names {
		line := s.locks[name].live[0].holder(s.now())
		line["lock"], line["queue_length"] = name, len(s.waitersOf(name))
		lines = append(lines, line)
	}
	page["locks"] = lines
	return page
}
