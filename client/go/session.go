package fencepost

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"fencepost/internal/timing"
)

// Session is a session at the lock server: one heartbeat in the background keeps all its leases
// alive. Use it if a process holds more than one lock. Its leases are lost together, at the latest
// when 0.8 of its time to live has passed without a successful heartbeat.
type Session struct {
	client *Client
	id     string
	owner  string
	ttlMs  int64
	trust  *trust
	// mismatch has room for one notice that the server's count of leases differs from the
	// client's.
	mismatch chan struct{}

	mutex  sync.Mutex
	leases map[*Lease]bool
	waits  int
	count  leaseCount
	// workEnd is the release of the last lease, if none is held or waited for.
	workEnd *workEnd
	ended   bool
}

type sessionRequest struct {
	TTLMs     int64           `json:"ttl_ms"`
	Owner     string          `json:"owner"`
	SessionID string          `json:"session_id"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

type sessionReply struct {
	SessionID   string `json:"session_id"`
	Owner       string `json:"owner"`
	ExpiresInMs int64  `json:"expires_in_ms"`
	LeaseCount  int    `json:"lease_count"`
}

type sessionEndedReply struct {
	LeaseCount int `json:"lease_count"`
}

// BeginSession begins a session, with the options [TTL], [Patience], [Bounded], [Wait] (for an
// unreachable server), [Metadata], [ProgressWithin], [MaxHold] and [WarnBefore].
//
// After a lost reply the request is repeated with the same session id, so that there is never more
// than one session. If ctx ends first, a session that may have begun is ended in the background.
// The error is of kind [ErrInvalid], [ErrUnavailable] or [ErrOutcomeUnknown].
func (c *Client) BeginSession(ctx context.Context, options ...Option) (*Session, error) {
	s := newSpec("", options)
	if s.mode != "" || s.minToken != 0 || s.takeover || s.takeoverOf != "" || s.onQueue != nil ||
		s.reentrant {
		s.fail(invalid("a session takes no option of a single lock (mode, token, takeover, queue); " +
			"give it to Session.Lock"))
	}
	if failed := s.check(c); failed != nil {
		return nil, failed
	}
	reply, w, err := c.obtainSession(ctx, s)
	if err != nil {
		return nil, err
	}
	t := newTrust("session "+reply.SessionID, w, newHold(s.limits, read()))
	session := &Session{
		client: c, id: reply.SessionID, owner: reply.Owner, ttlMs: s.ttlMs, trust: t,
		mismatch: make(chan struct{}, 1), leases: map[*Lease]bool{},
	}
	go t.watch()
	go session.beat()
	go session.probeOnMismatch()
	return session, nil
}

// obtainSession begins a session at the server; its window has not passed yet. If the session has
// ended before the reply arrives, another one is begun while the patience lasts.
func (c *Client) obtainSession(ctx context.Context, s *spec) (*sessionReply, window, error) {
	limits := newRetries(now(), s.times)
	for attempt := 1; ; attempt++ {
		request := sessionRequest{
			TTLMs: s.ttlMs, Owner: c.owner, SessionID: newID(), Metadata: s.metadata,
		}
		sentAt, reply, err := c.begin(ctx, request, limits)
		w := window{}
		if err == nil {
			w = sessionWindow(sentAt, reply, s.ttlMs)
			if w.IsWorn(now()) {
				reply, w, err = c.confirmSession(ctx, request.SessionID, s.ttlMs, limits)
			}
		}
		if err == nil && reply != nil {
			return reply, w, nil
		}
		if failed, ok := err.(*Error); err != nil && (!ok || failed.Outcome == outcomeUnknown) {
			c.background.run(func() {
				// Best effort: the session expires by itself.
				ctx, cancel := context.WithTimeout(context.Background(), milliseconds(s.ttlMs))
				defer cancel()
				_, _ = c.endSession(ctx, request.SessionID)
			})
		}
		if err == nil {
			err = sessionTooLate(limits, s.ttlMs)
		}
		if err != nil {
			return nil, w, err
		}
		sleep(ctx, timing.Pause(attempt, random()))
	}
}

func sessionWindow(sentAt moment, reply *sessionReply, ttlMs int64) window {
	if reply.ExpiresInMs < ttlMs {
		ttlMs = reply.ExpiresInMs
	}
	return timing.New(sentAt, ttlMs)
}

func sessionTooLate(limits retries, ttlMs int64) error {
	if now() < limits.unknownUntil {
		return nil
	}
	return newError(ErrUnavailable, "begin a session: replies take too long for a time to live of "+
		"%d ms; retry, or ask for a longer time to live", ttlMs)
}

// begin sends the request until it has a reply, and returns also when that attempt was sent.
func (c *Client) begin(
	ctx context.Context, request sessionRequest, limits retries,
) (moment, *sessionReply, error) {
	const what = "begin a session"
	var sent sentChange
	for attempt := 1; ; attempt++ {
		if err := ended(ctx, what); err != nil {
			return 0, nil, err
		}
		sentAt := now()
		timeout := limits.timeout(sentAt, callTimeout)
		reply, failed := post[sessionReply](ctx, c.server, "/v1/sessions", request, timeout)
		if failed == nil && !reply.isUsable(request.SessionID) {
			failed = mixedUpSession(request.SessionID, reply)
		}
		if failed == nil {
			return sentAt, reply, nil
		}
		limit := limits.unavailableUntil
		if failed.isOutcomeUnknown() {
			limit = limits.unknownUntil
		}
		pause := longer(timing.Pause(attempt, random()), failed.retryAfter())
		if ctx.Err() == nil && (!failed.isPassing() || now().Plus(pause) >= limit) {
			return 0, nil, sent.error(what, failed)
		}
		sent.record(failed)
		sleep(ctx, pause)
	}
}

// isUsable reports whether the reply is about this session, with counts that can be.
func (r *sessionReply) isUsable(id string) bool {
	return r.SessionID == id && r.ExpiresInMs >= 0 && r.LeaseCount >= 0
}

func mixedUpSession(id string, reply *sessionReply) *failure {
	return failedUnusable(newError(ErrInternal,
		"the reply to a request about session %s is about %q, or its counts are negative",
		id, reply.SessionID))
}

// confirmSession sends heartbeats until a reply arrives within its window; the reply is nil if the
// session has ended.
func (c *Client) confirmSession(
	ctx context.Context, id string, ttlMs int64, limits retries,
) (*sessionReply, window, error) {
	timeout := shorter(callTimeout, 2*milliseconds(ttlMs))
	for {
		if err := ended(ctx, "begin a session"); err != nil {
			return nil, window{}, err
		}
		sentAt := now()
		reply, failed := c.heartbeat(ctx, id, timeout)
		switch {
		case failed == nil:
			if w := sessionWindow(sentAt, reply, ttlMs); w.IsLive(now()) {
				return reply, w, nil
			}
		case isSessionOver(failed):
			return nil, window{}, nil
		case !failed.isPassing() || now() >= limits.unknownUntil:
			return nil, window{}, failed.toError("begin a session", changes)
		}
		if err := sessionTooLate(limits, ttlMs); err != nil {
			return nil, window{}, err
		}
		sleep(ctx, timing.Pause(1, random()))
	}
}

func (c *Client) heartbeat(
	ctx context.Context, id string, timeout time.Duration,
) (*sessionReply, *failure) {
	path := "/v1/sessions/" + id + "/heartbeat"
	reply, failed := post[sessionReply](ctx, c.server, path, struct{}{}, timeout)
	if failed == nil && !reply.isUsable(id) {
		return nil, mixedUpSession(id, reply)
	}
	return reply, failed
}

// isSessionOver reports whether the server replied that the session has ended or is unknown.
func isSessionOver(f *failure) bool { return f.hasCode("session-ended", "session-unknown") }

// endSession ends a session by its id; the reply is nil if an attempt of this call ended it and
// its reply was lost.
func (c *Client) endSession(ctx context.Context, id string) (*sessionEndedReply, error) {
	return untilSettled(ctx, "end session "+id, releasePatience,
		func(ctx context.Context) (*sessionEndedReply, *failure) {
			return call[sessionEndedReply](ctx, c.server, &request{
				method: http.MethodDelete, path: "/v1/sessions/" + id, timeout: releasePatience,
				bytesMax: jsonBytesMax,
			})
		},
		func(f *failure) bool {
			return f.hasCode("session-ended") && f.problem.word("reason") == "ended"
		})
}

// ID is the id of the session at the lock server.
func (s *Session) ID() string { return s.id }

// Owner is the owner of the session and of all its leases.
func (s *Session) Owner() string { return s.owner }

// Remaining is the time for which the session is trusted from now on if no heartbeat succeeds;
// zero once it is lost or ended.
func (s *Session) Remaining() time.Duration { return s.trust.remaining(read()) }

// Check says whether the session can be trusted now, as [Lease.Check].
func (s *Session) Check() error { return s.trust.check() }

// Err is nil while the session can be trusted, and then the reason why its context ended.
func (s *Session) Err() error { return s.trust.check() }

// Context ends when the session is lost or ended, as [Lease.Context].
func (s *Session) Context() context.Context {
	return &trustedContext{Context: s.trust.context, trust: s.trust, cancel: s.trust.cancel}
}

// Progress reports that the work makes progress, as [Lease.Progress].
func (s *Session) Progress() error {
	s.trust.progress(read())
	return s.trust.check()
}

// End ends the session and all its leases in one step; returns their number. It is repeated for up
// to 5 s if no reply arrives, and no longer than the session lasts; in the background if ctx ends
// before. The errors are those of [Lease.Release].
func (s *Session) End(ctx context.Context) (int, error) {
	s.mutex.Lock()
	wasEnded := s.ended
	s.ended = true
	count := len(s.leases)
	s.mutex.Unlock()
	if wasEnded {
		return 0, invalid("session %s was ended already", s.id)
	}
	end := s.endOfWork()
	for _, lease := range s.heldLeases() {
		lease.trust.lose(LostSessionEnded)
	}
	s.trust.lose(endedHere)
	type outcome struct {
		count int
		err   error
	}
	result := make(chan outcome, 1)
	s.client.background.run(func() {
		err := s.trust.untilExpired(context.Background(), func(ctx context.Context) error {
			reply, err := s.client.endSession(ctx, s.id)
			if reply != nil {
				count = reply.LeaseCount
			}
			return err
		})
		result <- outcome{count, end.settle(err)}
	})
	select {
	case ended := <-result:
		return ended.count, ended.err
	case <-ctx.Done():
		return 0, ended(ctx, "end session "+s.id+" (continues in the background)")
	}
}

func (s *Session) heldLeases() []*Lease {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	leases := make([]*Lease, 0, len(s.leases))
	for lease := range s.leases {
		leases = append(leases, lease)
	}
	return leases
}

// endOfWork is the release of the last lease, or now if the session holds one.
func (s *Session) endOfWork() workEnd {
	end := workEndsNow(s.trust)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.workEnd != nil {
		return *s.workEnd
	}
	return end
}
