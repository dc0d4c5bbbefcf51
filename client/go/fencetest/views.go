package fencetest

import "fencepost/internal/uuid"

func (s *locks) show(name string) any {
	defer s.enter()()
	l, now := s.lock(name), s.now()
	queue := []map[string]any{}
	waiters := s.waitersOf(name)
	for _, w := range waiters {
		waiting := milliseconds(now.Sub(w.since))
		queue = append(queue, map[string]any{"lease_id": w.id, "owner": w.owner, "waiting_ms": waiting})
	}
	history := []map[string]any{}
	for _, end := range l.ended {
		line := map[string]any{
			"lease_id": end.id, "token": nil, "owner": nil, "reason": end.reason, "held_ms": 0,
			"ended_ms_ago": milliseconds(now.Sub(end.at)),
		}
		if end.lease != nil {
			line["token"], line["owner"] = end.lease.token, end.lease.owner
			line["held_ms"] = milliseconds(end.at.Sub(end.lease.granted))
		}
		if end.why != "" {
			line["why"] = end.why
		}
		history = append(history, line)
	}
	shown := map[string]any{
		"lock": name, "state": "free", "lease_count": len(l.live), "queue_length": len(waiters),
		"queue": queue, "history": history, "events": []any{}, "refusals": []any{},
	}
	others := []map[string]any{}
	for i, one := range l.live {
		if i > 0 {
			others = append(others, one.holder(now))
			continue
		}
		shown["state"], shown["holder"] = "held", one.holder(now)
		if one.Mode == modePermit {
			shown["size"] = one.Size
		}
	}
	if len(others) > 0 {
		shown["also_held"] = others
	}
	return shown
}

type sessionBody struct {
	SessionID string `json:"session_id"`
	TTLMs     *int64 `json:"ttl_ms"`
	Owner     string `json:"owner"`
}

func (s *locks) beginSession(body *sessionBody) (any, *refusal) {
	if refused := checkTTL(body.TTLMs); refused != nil {
		return nil, refused
	}
	if body.SessionID == "" {
		body.SessionID = uuid.New()
	}
	defer s.enter()()
	if s.sessions[body.SessionID] == nil {
		now, ttl := s.now(), ttlOf(body.TTLMs)
		s.sessions[body.SessionID] = &session{
			id: body.SessionID, owner: body.Owner, ttl: ttl, began: now, expires: now.Add(ttl),
		}
	}
	if _, refused := s.sessionOf(body.SessionID, body.Owner); refused != nil {
		return nil, refused
	}
	return s.shownSession(body.SessionID)
}

func (s *locks) heartbeat(id string) (any, *refusal) {
	defer s.enter()()
	one, refused := s.session(id)
	if refused != nil {
		return nil, refused
	}
	one.expires = s.now().Add(one.ttl)
	one.heartbeats++
	return s.shownSession(id)
}

func (s *locks) endSession(id string) (any, *refusal) {
	defer s.enter()()
	one, refused := s.session(id)
	if refused != nil {
		return nil, refused
	}
	count := s.countOf(one)
	s.closeSession(one, "ended")
	return map[string]any{"session_id": id, "reason": "ended", "lease_count": count}, nil
}

func (s *locks) showSession(id string) (any, *refusal) {
	defer s.enter()()
	return s.shownSession(id)
}

func (s *locks) shownSession(id string) (any, *refusal) {
	one, refused := s.session(id)
	if refused != nil {
		return nil, refused
	}
	now := s.now()
	return map[string]any{
		"session_id": id, "owner": one.owner, "ttl_ms": one.ttl.Milliseconds(),
		"expires_in_ms": milliseconds(one.expires.Sub(now)),
		"age_ms":        milliseconds(now.Sub(one.began)), "heartbeats": one.heartbeats,
		"lease_count": s.countOf(one),
	}, nil
}

func (s *locks) session(id string) (*session, *refusal) {
	one := s.sessions[id]
	if one == nil {
		members := map[string]any{"session_id": id}
		return nil, refuse(404, "session-unknown", members, "there is no session %s", id)
	}
	if one.reason != "" {
		return nil, one.over()
	}
	return one, nil
}

// sessionOf is a live session of this owner.
func (s *locks) sessionOf(id, owner string) (*session, *refusal) {
	one, refused := s.session(id)
	if refused == nil && one.owner != owner {
		members := map[string]any{"session_id": id, "owner": one.owner}
		return nil, refuse(409, "session-conflict", members, "session %s: it belongs to %s", id,
			one.owner)
	}
	return one, refused
}

func (s *locks) countOf(one *session) int {
	count := 0
	for _, l := range s.locks {
		for _, held := range l.live {
			if held.session == one {
				count++
			}
		}
	}
	for _, w := range s.waiters {
		if w.session == one {
			count += len(w.wishes)
		}
	}
	return count
}

func (s *locks) closeSession(one *session, reason string) {
	one.reason = reason
	for _, l := range s.locks {
		for _, held := range append([]*lease(nil), l.live...) {
			if held.session == one {
				s.end(held, "session-ended", "")
			}
		}
	}
	for _, w := range append([]*waiter(nil), s.waiters...) {
		if w.session == one {
			s.leave(w)
			w.settle(outcome{refused: one.over()})
		}
	}
}
