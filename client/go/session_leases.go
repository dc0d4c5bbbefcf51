package fencepost

import (
	"context"
	"strings"
)

// Lock acquires a lock for the session: its lease lives as long as the session, unless it is
// released before. Options and errors are those of [Client.Lock], without [TTL] and the limits,
// which are the session's; the error is of kind [ErrLeaseLost] also if the session is lost.
func (s *Session) Lock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	p := newSpec(name, options)
	if failed := checkName("lock name", name); failed != nil {
		return nil, failed
	}
	if err := s.checkOptions(p); err != nil {
		return nil, err
	}
	defer s.wait(1)()
	got, err := s.client.obtain(ctx, p)
	if err != nil {
		return nil, s.refusal(err)
	}
	return s.bind(&got.grants[0])
}

// LockAll acquires all of these locks, or none: 1 to 64, each once. The server grants them in one
// step, and a waiting request holds none of them: clients that ask for some of the same locks, in
// any order, never deadlock. Options and errors are those of [Session.Lock], without takeover;
// [Error.Lock] names the lock that prevented the grant.
func (s *Session) LockAll(
	ctx context.Context, names []string, options ...Option,
) (*LeaseSet, error) {
	p := newSpec(strings.Join(names, ", "), options)
	if err := s.checkOptions(p); err != nil {
		return nil, err
	}
	wishes, failed := wishesOf(names, p)
	if failed != nil {
		return nil, failed
	}
	defer s.wait(len(names))()
	got, err := s.obtainAll(ctx, p, names, wishes)
	if err != nil {
		return nil, s.refusal(err)
	}
	set := &LeaseSet{trust: s.trust.newChild(strings.Join(names, ", "))}
	for i := range got.grants {
		lease, err := s.bind(&got.grants[i])
		if err != nil {
			return nil, err
		}
		// The set can be trusted while every lease in it can.
		lease.trust.leads(set.trust)
		set.leases = append(set.leases, lease)
	}
	return set, nil
}

func (s *Session) checkOptions(p *spec) error {
	l := &p.limits
	if l.progressWithin > 0 || l.maxHold > 0 || l.warnBefore > 0 {
		p.fail(invalid("limits are for the whole session; give them to BeginSession"))
	}
	if failed := p.check(s.client); failed != nil {
		return failed
	}
	p.session, p.ttlMs = s, s.ttlMs
	return s.trust.check()
}

// wishesOf checks that there are 1 to 64 locks, and none twice.
func wishesOf(names []string, p *spec) ([]lockWish, *Error) {
	if len(names) < 1 || len(names) > locksMax {
		return nil, invalid("%d locks at once: must be 1 to %d", len(names), locksMax)
	}
	if p.takeover || p.takeoverOf != "" || p.onQueue != nil || p.reentrant {
		return nil, invalid("takeover, re-entry and the position in a queue are for a single lock")
	}
	seen := map[string]bool{}
	wishes := make([]lockWish, 0, len(names))
	for _, name := range names {
		if failed := checkName("lock name", name); failed != nil {
			return nil, failed
		}
		if seen[name] {
			return nil, invalid("the lock %s is there twice", name)
		}
		seen[name] = true
		wishes = append(wishes, lockWish{name, p.mode, p.size, p.minToken})
	}
	return wishes, nil
}

func (s *Session) obtainAll(
	ctx context.Context, p *spec, names []string, wishes []lockWish,
) (*granted, error) {
	c := s.client
	t := newTries(c, p, names)
	return t.run(ctx, func(ctx context.Context) (*granted, *failure) {
		request := acquireAllRequest{
			Locks: wishes, TTLMs: s.ttlMs, Owner: s.owner, LeaseID: t.claim.leaseID,
			Metadata: p.metadata, SessionID: s.id, Incarnation: c.incarnation,
		}
		before := t.claim.beginAttempt()
		reply, failed := inTurns(ctx, protocolTurns, func() int64 { return t.plan.waitMs(now()) },
			func(ctx context.Context, waitMs int64) (*leasesReply, *failure) {
				sent := request
				sent.WaitMs = waitMs
				timeout := t.plan.timeout(now(), waitMs)
				reply, failed := post[leasesReply](ctx, c.server, "/v1/acquire", sent, timeout)
				if failed == nil {
					failed = reply.check(&sent)
				}
				return reply, failed
			})
		if failed != nil {
			t.claim.recordFailure(before, failed)
			return nil, failed
		}
		return &granted{grants: reply.Leases}, nil
	})
}

// check returns a failure unless every lock was granted as requested, with tokens that rise in the
// order of the request.
func (r *leasesReply) check(request *acquireAllRequest) *failure {
	if len(r.Leases) != len(request.Locks) {
		return failedUnusable(newError(ErrInternal,
			"the reply to a request for %d locks has %d leases", len(request.Locks), len(r.Leases)))
	}
	for i := range r.Leases {
		wish := request.Locks[i]
		if failed := r.Leases[i].check(wish.Lock, request.LeaseID, wish.Mode); failed != nil {
			return failed
		}
		if i > 0 && r.Leases[i-1].Token >= r.Leases[i].Token {
			return failedUnusable(newError(ErrInternal,
				"the token %d of %s is not above that of the lock before it in the same request",
				r.Leases[i].Token, wish.Lock))
		}
	}
	return nil
}

// wait counts requests that the server counts as well; the function that it returns ends that.
func (s *Session) wait(count int) func() {
	change := func(by int) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.waits += by
		s.workEnd = nil
		s.count.change()
	}
	change(count)
	return func() { change(-count) }
}

// refusal marks the session as lost if the error says that it has ended: the heartbeat may notice
// later.
func (s *Session) refusal(err error) error {
	if failed := lostError(err); failed != nil && failed.Reason == LostSessionEnded {
		s.trust.lose(LostSessionEnded)
	}
	return err
}

// bind makes a lease of the session. The session may have ended during the wait.
func (s *Session) bind(g *grant) (*Lease, error) {
	lease := newLease(s.client, *g, s.trust.newChild(g.Lock))
	lease.session = s
	s.mutex.Lock()
	s.leases[lease] = true
	s.workEnd = nil
	s.count.change()
	s.mutex.Unlock()
	if err := lease.Check(); err != nil {
		s.client.background.run(func() { _ = lease.release(context.Background()) })
		return nil, err
	}
	return lease, nil
}

// letGo records that this lease alone has ended; end is the end of its work.
func (s *Session) letGo(l *Lease, end workEnd) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.leases[l] && len(s.leases) == 1 && s.waits == 0 {
		s.workEnd = &end
	}
	delete(s.leases, l)
	s.count.change()
}

// LeaseSet has the leases of one LockAll, in the order of the request.
type LeaseSet struct {
	leases []*Lease
	trust  *trust
	// own is the session of the set alone, which ends with it.
	own *Session
}

// LockAll acquires all of these locks, or none, by a session of their own, which ends when the set
// is released; see [Session.LockAll]. [TTL] and the limits are those of the session.
func (c *Client) LockAll(
	ctx context.Context, names []string, options ...Option,
) (*LeaseSet, error) {
	p := newSpec("", options)
	if failed := p.check(c); failed != nil {
		return nil, failed
	}
	if _, failed := wishesOf(names, p); failed != nil {
		return nil, failed
	}
	ofLocks, ofSession := *p, *p
	ofSession.mode, ofSession.size, ofSession.minToken = "", 0, 0
	ofLocks.limits = limits{}
	session, err := c.BeginSession(ctx, func(s *spec) { *s = ofSession })
	if err != nil {
		return nil, err
	}
	set, err := session.LockAll(ctx, names, func(s *spec) {
		name := s.lock
		*s = ofLocks
		s.lock = name
	})
	if err != nil {
		c.background.run(func() { _, _ = session.End(context.Background()) })
		return nil, err
	}
	set.own = session
	return set, nil
}

// WithLocks acquires all of these locks, runs body under them and releases them; see
// [Client.WithLock]. The loss of one of the leases ends the context of body.
func (c *Client) WithLocks(
	ctx context.Context,
	names []string,
	body func(ctx context.Context, leases *LeaseSet) error,
	options ...Option,
) error {
	if body == nil {
		return noWork(strings.Join(names, ", "))
	}
	set, err := c.LockAll(ctx, names, options...)
	if err != nil {
		return err
	}
	return runUnder(ctx, c, set.trust, set.Release, func(ctx context.Context) error {
		for _, lease := range set.leases {
			ctx = withHeld(ctx, lease)
		}
		return body(ctx, set)
	})
}

// Leases are the leases in the order of the request.
func (s *LeaseSet) Leases() []*Lease { return append([]*Lease(nil), s.leases...) }

// On is the lease on this lock, or nil.
func (s *LeaseSet) On(name string) *Lease {
	for _, lease := range s.leases {
		if lease.grant.Lock == name {
			return lease
		}
	}
	return nil
}

// FencingCredential joins the credentials of all leases, for a connection to the guard's Redis
// port that uses all of these locks; the port takes at most 16.
func (s *LeaseSet) FencingCredential() string {
	each := make([]string, 0, len(s.leases))
	for _, lease := range s.leases {
		each = append(each, lease.FencingCredential())
	}
	return strings.Join(each, ".")
}

// Context ends when one of the leases is lost, or the set is released; see [Lease.Context].
func (s *LeaseSet) Context() context.Context {
	return &trustedContext{Context: s.trust.context, trust: s.trust, cancel: s.trust.cancel}
}

// Check says whether all leases can be trusted now; the error is that of the first that cannot.
func (s *LeaseSet) Check() error {
	for _, lease := range s.leases {
		if err := lease.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Release ends every lease, and the session if it belongs to the set. The error is of kind
// [ErrLeaseLost] if a lease had ended before; the others are released all the same.
func (s *LeaseSet) Release(ctx context.Context) error {
	if s.own != nil {
		// One request ends all; a lease that was lost alone is still an error.
		err := lostError(s.Check())
		for _, lease := range s.leases {
			lease.trust.lose(endedHere)
		}
		s.trust.lose(endedHere)
		if _, endErr := s.own.End(ctx); err == nil {
			return endErr
		}
		return err
	}
	s.trust.lose(endedHere)
	results := make(chan error, len(s.leases))
	for _, lease := range s.leases {
		go func(lease *Lease) { results <- lease.release(ctx) }(lease)
	}
	var first error
	for range s.leases {
		if err := <-results; first == nil || lostError(err) != nil && lostError(first) == nil {
			first = err
		}
	}
	return first
}
