package fencepost

import (
	"context"
	"time"

	"fencepost/internal/timing"
)

// tries are the attempts of one acquire.
type tries struct {
	client *Client
	spec   *spec
	plan   *plan
	claim  *claim
	// unconfirmed is a grant whose window was too short to be used; the next attempt renews it.
	unconfirmed *grant
	// sent has the attempts under the present lease id.
	sent sentChange
}

func newTries(c *Client, s *spec, locks []string) *tries {
	claim := newClaim(c, locks)
	if s.session == nil {
		claim.ttl = milliseconds(s.ttlMs)
	}
	return &tries{client: c, spec: s, plan: newPlan(now(), s.times), claim: claim}
}

// granted is what an acquire obtained: the grants in the order of the request, and of a single one
// the window in which it is trusted.
type granted struct {
	grants []grant
	window window
}

// run repeats attempt until it has the grants, as the plan says. If it fails or ctx ends, grants
// that it may have caused are released in the background.
func (t *tries) run(
	ctx context.Context, attempt func(context.Context) (*granted, *failure),
) (*granted, error) {
	for {
		if err := ended(ctx, "acquire "+t.claim.names()); err != nil {
			t.claim.giveUp()
			return nil, err
		}
		got, failed := attempt(ctx)
		if failed == nil {
			return got, nil
		}
		if ctx.Err() != nil {
			continue
		}
		if err := t.failed(ctx, failed); err != nil {
			t.claim.giveUp()
			return nil, err
		}
	}
}

// failed prepares the next attempt as the plan says, after a pause; the error if there is none.
func (t *tries) failed(ctx context.Context, f *failure) error {
	step, pause := t.plan.after(f, now(), random())
	switch step {
	case stepRetry:
		t.sent.record(f)
		sleep(ctx, pause)
		return nil
	case stepRestart:
		t.unconfirmed = nil
		t.sent = sentChange{}
		sleep(ctx, pause)
		return t.claim.renewID(ctx)
	default:
		sent := t.sent
		if f.hasCode("lock-held") {
			// The server replied that this lease id does not hold the lock.
			sent = sentChange{}
			f.problem.waited = t.plan.waited(now())
		}
		return sent.error(t.claim.what(f), f)
	}
}

// obtain acquires the lock of s.
func (c *Client) obtain(ctx context.Context, s *spec) (*granted, error) {
	t := newTries(c, s, []string{s.lock})
	if s.onQueue != nil {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go t.watchQueue(watching)
	}
	return t.run(ctx, t.attempt)
}

// attempt sends one request. The window counts from before it was sent, because the time to live
// in its reply is what remained when the server handled it.
func (t *tries) attempt(ctx context.Context) (*granted, *failure) {
	if t.unconfirmed != nil {
		return t.confirm(ctx, t.unconfirmed)
	}
	s, c := t.spec, t.client
	sentAt := now()
	request := acquireRequest{
		TTLMs: s.ttlMs, Owner: c.owner, LeaseID: t.claim.leaseID, Metadata: s.metadata,
		MinToken: s.minToken, Incarnation: c.incarnation, Takeover: s.takeover,
		TakeoverOf: s.takeoverOf, Mode: s.mode, Size: s.size,
	}
	if s.session != nil {
		request.SessionID, request.Owner = s.session.id, s.session.owner
	}
	before := t.claim.beginAttempt()
	reply, failed := inTurns(ctx, protocolTurns, func() int64 { return t.plan.waitMs(now()) },
		func(ctx context.Context, waitMs int64) (*grant, *failure) {
			sent := request
			sent.WaitMs = waitMs
			timeout := t.plan.timeout(now(), waitMs)
			reply, failed := post[grant](ctx, c.server, lockPath(s.lock, "/acquire"), sent, timeout)
			if failed == nil {
				failed = reply.check(s.lock, sent.LeaseID, s.mode)
			}
			return reply, failed
		})
	if failed != nil {
		t.claim.recordFailure(before, failed)
		return nil, failed
	}
	w := t.windowOf(sentAt, reply)
	// The trust in a lease of a session is the trust in its session.
	if s.session == nil && w.IsWorn(now()) {
		t.unconfirmed = reply
		return t.confirm(ctx, reply)
	}
	return &granted{[]grant{*reply}, w}, nil
}

// windowOf a reply; the server may not extend the requested time to live.
func (t *tries) windowOf(sentAt moment, reply *grant) window {
	ttlMs := reply.TTLMs
	if ttlMs > t.spec.ttlMs {
		ttlMs = t.spec.ttlMs
	}
	return timing.New(sentAt, ttlMs)
}

// confirm renews a grant before it is used, because less than half of its window is left: the
// acquire waited in the queue, and the client does not know how much of that time passed before
// the grant. A renewal whose reply arrives too late has still extended the lease at the server,
// and the next attempt renews it again.
func (t *tries) confirm(ctx context.Context, g *grant) (*granted, *failure) {
	sentAt := now()
	timeout := shorter(callTimeout, 2*milliseconds(t.spec.ttlMs))
	renewed, failed := t.client.renewOnce(ctx, g, timeout)
	if failed != nil {
		return nil, failed
	}
	w := t.windowOf(sentAt, renewed)
	if !w.IsLive(now()) {
		return nil, failedUnusable(newError(ErrUnavailable,
			"replies take too long for a time to live of %d ms: the lease was granted and renewed, and "+
				"each time 0.8 of that had passed before the reply arrived; retry, or ask for a longer "+
				"time to live", t.spec.ttlMs))
	}
	renewed.WaitedMs = g.WaitedMs
	return &granted{[]grant{*renewed}, w}, nil
}

func (c *Client) renewOnce(
	ctx context.Context, g *grant, timeout time.Duration,
) (*grant, *failure) {
	body := leaseRequest{LeaseID: g.LeaseID}
	reply, failed := post[grant](ctx, c.server, lockPath(g.Lock, "/renew"), body, timeout)
	if failed == nil {
		mode := g.Mode
		if mode == modeExclusive {
			mode = ""
		}
		failed = reply.check(g.Lock, g.LeaseID, mode)
	}
	return reply, failed
}

// watchQueue reports the position of the request until it has its result.
func (t *tries) watchQueue(ctx context.Context) {
	for pause := 200 * time.Millisecond; ; pause = time.Second {
		sleep(ctx, pause)
		if ctx.Err() != nil {
			return
		}
		shown, failed := get[LockState](ctx, t.client.server, lockPath(t.spec.lock, ""))
		if failed != nil || ctx.Err() != nil {
			continue
		}
		position := QueuePosition{
			Lock: t.spec.lock, Length: shown.QueueLength, Holder: shown.Holder,
		}
		for i, waiter := range shown.Queue {
			if waiter.LeaseID == t.claim.shown.Load() {
				position.Position = i + 1
			}
		}
		t.spec.onQueue(position)
	}
}
