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
	if refused := checkAcquire(wishes, body); refused != nil {
		return outcome{refused: refused}
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
	w, grants, refused := s.admit(wishes, body)
	if grants != nil || refused != nil {
		return outcome{grants, refused}, nil, nil
	}
	wait := time.Duration(body.WaitMs) * time.Millisecond
	t := &turn{until: s.now().Add(wait), outcome: make(chan outcome, 1)}
	w.turns[t] = true
	return outcome{}, w, t
}

// admit has the waiter of a request, or its outcome.
func (s *locks) admit(wishes []wish, body *acquireBody) (*waiter, []map[string]any, *refusal) {
	owner, first := body.Owner, wishes[0].Lock
	if owner == "" && body.SessionID != "" {
		found, refused := s.session(body.SessionID)
		if refused != nil {
			return nil, nil, refused
		}
		owner = found.owner
	}
	if owner == "" {
		owner = "anonymous"
	}
	grants, refused := s.repeated(wishes, body, owner)
	if grants != nil || refused != nil {
		return nil, grants, refused
	}
	w, refused := s.waiting(wishes, body, owner)
	for i := 0; i < len(wishes) && w == nil && refused == nil; i++ {
		refused = body.part(wishes[i].Lock, s.checkKind(wishes[i]))
	}
	if refused != nil {
		return nil, nil, refused
	}
	var of *session
	if body.SessionID != "" {
		if of, refused = s.sessionOf(body.SessionID, owner); refused != nil {
			return nil, nil, body.part(first, refused)
		}
	}
	isTaken, refused := s.takeOver(first, body, owner)
	if refused != nil {
		return nil, nil, refused
	}
	if w == nil {
		w = &waiter{body.LeaseID, owner, wishes, body, of, s.now(), map[*turn]bool{}}
		s.waiters = append(s.waiters, w)
	}
	if isTaken {
		// It is granted before all waiters.
		s.leave(w)
		s.waiters = append([]*waiter{w}, s.waiters...)
	}
	return w, nil, nil
}

// waiterOf is the waiter of this id for a lock.
func (s *locks) waiterOf(name, id string) *waiter {
	for _, w := range s.waitersOf(name) {
		if w.id == id {
			return w
		}
	}
	return nil
}

// waiting is the waiter of this id, if it is the same request.
func (s *locks) waiting(wishes []wish, body *acquireBody, owner string) (*waiter, *refusal) {
	for _, wish := range wishes {
		found := s.waiterOf(wish.Lock, body.LeaseID)
		if found == nil {
			continue
		}
		isSame := found.owner == owner && len(found.wishes) == len(wishes)
		for i := 0; i < len(wishes) && isSame; i++ {
			isSame = found.wishes[i].Lock == wishes[i].Lock
		}
		if !isSame {
			return nil, body.part(wish.Lock, idConflict(wish.Lock, found.owner))
		}
		return found, nil
	}
	return nil, nil
}

// repeated has the grants or the end of a request that was sent before.
func (s *locks) repeated(
	wishes []wish, body *acquireBody, owner string,
) ([]map[string]any, *refusal) {
	var grants []map[string]any
	missing := ""
	for _, wish := range wishes {
		found, _ := s.live(wish.Lock, body.LeaseID)
		switch end := s.lock(wish.Lock).endOf(body.LeaseID); {
		case found == nil && end != nil:
			return nil, body.part(wish.Lock, lost(wish.Lock, end.reason, end.why))
		case found == nil && missing == "":
			missing = wish.Lock
		case found == nil:
		case found.owner != owner:
			return nil, body.part(wish.Lock, idConflict(wish.Lock, found.owner))
		default:
			grants = append(grants, found.reply(s.now()))
		}
	}
	if missing != "" && grants != nil {
		return nil, body.part(missing, lost(missing, "superseded", ""))
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
	if wish.MinToken != nil && s.lastToken < *wish.MinToken {
		s.lastToken = *wish.MinToken
	}
	s.lastToken++
	now, ttl := s.now(), ttlOf(w.body.TTLMs)
	if w.session != nil {
		ttl = w.session.ttl
	}
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

func (s *locks) renew(name, id string, ttlMs *int64) (any, *refusal) {
	if refused := checkTTL(ttlMs); refused != nil {
		return nil, refused
	}
	defer s.enter()()
	l, refused := s.live(name, id)
	if refused != nil {
		return nil, refused
	}
	if l.session != nil && ttlMs != nil {
		return nil, refuse(409, "session-conflict", nil, "a session's heartbeat renews its leases")
	}
	if ttlMs != nil {
		l.ttl = ttlOf(ttlMs)
	}
	l.expires = s.now().Add(l.ttl)
	l.renewals++
	reply := l.reply(s.now())
	reply["waited_ms"] = 0
	return reply, nil
}

func (s *locks) release(name, id string) (any, *refusal) {
	defer s.enter()()
	if w := s.waiterOf(name, id); w != nil {
		s.leave(w)
		w.settle(outcome{refused: lost(name, "released", "")})
	}
	l, refused := s.live(name, id)
	if refused != nil {
		// An acquire that arrives later is not granted.
		of := s.lock(name)
		if of.endOf(id) == nil {
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
	if end := l.endOf(id); end != nil {
		return nil, lost(name, end.reason, end.why)
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

func (l *lock) endOf(id string) *ended {
	for i := range l.ended {
		if l.ended[i].id == id {
			return &l.ended[i]
		}
	}
	return nil
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
