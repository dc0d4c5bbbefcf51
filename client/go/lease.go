package fencepost

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lease is a live lease on a lock. It is renewed in the background until it is released or lost,
// and it can be lost at any time: its context ends then, and fenced calls with it fail without
// being sent. Any number of goroutines may use it.
type Lease struct {
	client *Client
	// grant lacks what proves it: a print of the lease shows no function's values.
	grant   grant
	proof   func() (header, credential string)
	trust   *trust
	session *Session
	// spec is the request, for ReacquireAbove; nil for a lease of a session.
	spec *spec
	// isAboveMarks says that ReacquireAbove acquired it.
	isAboveMarks bool

	mutex    sync.Mutex
	released bool
}

// Lock acquires a lock. After a lost reply, a time-out or an unavailable server the request is
// repeated with the same lease id, so that there is never more than one grant.
//
// ctx bounds the acquire alone, not the lease: if it ends first, a grant that the request may have
// caused is released in the background, and the error is that of ctx. Other errors are of kind
// [ErrContended] if another lease holds the lock for longer than the [Wait], [ErrTakeoverRefused],
// [ErrUnavailable] and [ErrOutcomeUnknown] if the server is unreachable or does not reply, and
// [ErrInvalid] for a name or an option that breaks a rule, and for a lock that the caller holds by
// the context of a [Client.WithLock] around this call.
func (c *Client) Lock(ctx context.Context, name string, options ...Option) (*Lease, error) {
	s := newSpec(name, options)
	if failed := checkName("lock name", name); failed != nil {
		return nil, failed
	}
	return c.lock(ctx, s)
}

func newLease(c *Client, g grant, t *trust) *Lease {
	header, credential := g.Header, g.Credential
	g.Header, g.Credential = "", ""
	proof := func() (string, string) { return header, credential }
	return &Lease{client: c, grant: g, proof: proof, trust: t}
}

func (c *Client) lock(ctx context.Context, s *spec) (*Lease, error) {
	name := s.lock
	if failed := s.check(c); failed != nil {
		return nil, failed
	}
	if s.reentrant {
		return nil, invalid("Reentrant is for WithLock alone: it releases what it acquired itself")
	}
	outer := heldBy(ctx, c, name)
	if s.mode != modePermit && outer != nil && outer.Check() == nil {
		return nil, invalid("the lock %s is held by the WithLock around this call, which would wait "+
			"for itself; use the lease that it passed, or the option Reentrant", name)
	}
	got, err := c.obtain(ctx, s)
	if err != nil {
		return nil, err
	}
	t := newTrust(name, got.window, newHold(s.limits, read()))
	lease := newLease(c, got.grants[0], t)
	lease.spec = s
	go t.watch()
	go lease.keep(s.ttlMs)
	return lease, nil
}

// TryLock acquires a lock if that is possible at once; false, without an error, if another lease
// holds it. Otherwise as [Client.Lock], without [Wait].
func (c *Client) TryLock(
	ctx context.Context, name string, options ...Option,
) (lease *Lease, ok bool, err error) {
	if newSpec(name, options).times.wait > 0 {
		return nil, false, invalid("TryLock does not wait; use Lock with the option Wait")
	}
	lease, err = c.Lock(ctx, name, options...)
	if errors.Is(err, ErrContended) {
		return nil, false, nil
	}
	return lease, err == nil, err
}

// WithLock acquires a lock, runs body under it and releases it. The context of body ends with ctx
// and as soon as the lease can no longer be trusted; body must stop then.
//
// An error of body is returned as it is: a failed release does not hide it. If the lease was lost,
// the error is of kind [ErrLeaseLost], also if body succeeded, because its effects may overlap
// with another holder's; an error of body is wrapped with it, unless it is only the end of the
// context. A release that does not reach the server is no error: the lease expires by itself.
func (c *Client) WithLock(
	ctx context.Context,
	name string,
	body func(ctx context.Context, lease *Lease) error,
	options ...Option,
) error {
	if body == nil {
		return noWork(name)
	}
	if newSpec(name, options).reentrant {
		if outer := heldBy(ctx, c, name); outer != nil {
			return outer.enterAgain(ctx, body)
		}
		options = append(options[:len(options):len(options)], func(s *spec) { s.reentrant = false })
	}
	lease, err := c.Lock(ctx, name, options...)
	if err != nil {
		return err
	}
	return lease.run(ctx, body)
}

func noWork(name string) *Error {
	return invalid("the work under lock %s is nil; pass a function", name)
}

// enterAgain runs body under a lease that the caller holds, and leaves the release to it. A lease
// that is lost is no reason for a new grant, which would hide from the outer body that it must
// stop.
func (l *Lease) enterAgain(ctx context.Context, body func(context.Context, *Lease) error) error {
	if err := l.Check(); err != nil {
		return err
	}
	if err := body(ctx, l); err != nil {
		return err
	}
	return l.Check()
}

// run runs body under the lease, then releases it; a panic of body is passed on after the release.
func (l *Lease) run(ctx context.Context, body func(context.Context, *Lease) error) error {
	return runUnder(ctx, l.client, l.trust, l.release,
		func(ctx context.Context) error { return body(withHeld(ctx, l), l) })
}

// runUnder runs body while t can be trusted, then calls release: in the background if the lease was
// lost, because nothing is left to wait for.
func runUnder(
	ctx context.Context,
	c *Client,
	t *trust,
	release func(context.Context) error,
	body func(context.Context) error,
) error {
	inner, cancel := t.within(ctx)
	isDone := false
	defer func() {
		cancel()
		if !isDone {
			// body panicked.
			_ = release(context.Background())
		}
	}()
	bodyErr := body(inner)
	isDone = true
	loss := lostError(t.check())
	if loss != nil {
		c.background.run(func() { _ = release(context.Background()) })
	} else {
		// Not with ctx, which may have ended: that must not keep the lock.
		loss = lostError(release(context.Background()))
	}
	switch {
	case loss == nil:
		return bodyErr
	case bodyErr == nil:
		return loss
	case errors.Is(bodyErr, ErrLeaseLost):
		return bodyErr
	case errors.Is(bodyErr, context.Canceled) && ctx.Err() == nil:
		return loss
	default:
		return &bodyAndLoss{body: bodyErr, loss: loss}
	}
}

func lostError(err error) *Error {
	if failed, ok := err.(*Error); ok && failed.Lost() {
		return failed
	}
	return nil
}

// String names the lease; its credential is left out.
func (l *Lease) String() string {
	return fmt.Sprintf("lease %s on %s (token %d)", l.grant.LeaseID, l.grant.Lock, l.grant.Token)
}

// GoString leaves the credential out.
func (l *Lease) GoString() string { return "fencepost.Lease{" + l.String() + "}" }

// Name is the name of the lock.
func (l *Lease) Name() string { return l.grant.Lock }

// ID is the id of the grant.
func (l *Lease) ID() string { return l.grant.LeaseID }

// Token is the fencing token: higher than that of every earlier grant of this lock.
func (l *Lease) Token() uint64 { return l.grant.Token }

// FencingToken is the value of the Fencing-Token header, for calls to the guard by other clients.
// Call [Lease.Check] before it is sent.
func (l *Lease) FencingToken() string {
	header, _ := l.proof()
	return header
}

// FencingCredential is the same token as a password for the guard's Redis port.
func (l *Lease) FencingCredential() string {
	_, credential := l.proof()
	return credential
}

// Waited is the time that the acquire waited in the queue.
func (l *Lease) Waited() time.Duration { return milliseconds(l.grant.WaitedMs) }

// Remaining is the time for which the lease is trusted from now on if no renewal succeeds and no
// progress is reported; zero once it is lost or released.
func (l *Lease) Remaining() time.Duration { return l.trust.remaining(read()) }

// Check says whether the lease can be trusted now. It reads the clock, so the result is right even
// in a process that has just resumed; it sends nothing. The error is of kind [ErrLeaseLost], or
// [ErrInvalid] once the lease was released.
func (l *Lease) Check() error { return l.trust.check() }

// Err is nil while the lease can be trusted, and then the reason why its context ended; as Check.
func (l *Lease) Err() error { return l.trust.check() }

// Context ends when the lease is lost or released. It has no values and no deadline, because
// renewals move the deadline; its Err reads the holder's clock. [Lease.Err] gives the reason.
func (l *Lease) Context() context.Context {
	return &trustedContext{Context: l.trust.context, trust: l.trust, cancel: l.trust.cancel}
}

// Within derives a context from ctx that also ends when the lease is lost or released. Call the
// function at the end of the work: it frees what the context needs.
func (l *Lease) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return l.trust.within(ctx)
}

// Progress reports that the work makes progress, which restarts the time of [ProgressWithin]. It
// sends nothing. The error is that of Check: a late report does not restore the lease.
func (l *Lease) Progress() error {
	l.trust.progress(read())
	return l.trust.check()
}

// Release ends the lease; the next waiter is granted at once. It is repeated for up to 5 s if no
// reply arrives, and no longer than the lease lasts; in the background if ctx ends before.
//
// A lease that was live when Release was called and expired before a reply arrived is no error,
// because the work under it ended in time; neither is a repeated request that finds the lock with
// the next holder. The error is of kind [ErrLeaseLost] if the lease had ended before: unfenced
// effects of the work may overlap with another holder's. It is [ErrUnavailable] or
// [ErrOutcomeUnknown] if the server is unreachable; the lease then expires by itself. A second
// release is [ErrInvalid].
func (l *Lease) Release(ctx context.Context) error {
	if !l.beginRelease() {
		return invalid("the lease on %s was released already", l.grant.Lock)
	}
	return l.end(ctx)
}

// release is Release for a lease that the body may have released itself.
func (l *Lease) release(ctx context.Context) error {
	if !l.beginRelease() {
		return nil
	}
	return l.end(ctx)
}

// beginRelease reports whether the lease was not released before.
func (l *Lease) beginRelease() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	wasReleased := l.released
	l.released = true
	return !wasReleased
}

func (l *Lease) end(ctx context.Context) error {
	end := workEndsNow(l.trust)
	l.trust.lose(endedHere)
	if l.session != nil {
		l.session.letGo(l, end)
	}
	result := make(chan error, 1)
	l.client.background.run(func() {
		result <- end.settle(l.releaseOnce(context.Background()))
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ended(ctx, "release "+l.grant.Lock+" (continues in the background)")
	}
}

// releaseOnce sends the release while the lease lasts.
func (l *Lease) releaseOnce(ctx context.Context) error {
	return l.trust.untilExpired(ctx, func(ctx context.Context) error {
		return l.client.releaseLease(ctx, l.grant.Lock, l.grant.LeaseID)
	})
}

// heldKey finds the leases that the callers of a function hold.
type heldKey struct{}

// heldLease is a lease of a WithLock, with those of the WithLocks around it.
type heldLease struct {
	lease *Lease
	outer *heldLease
}

func withHeld(ctx context.Context, l *Lease) context.Context {
	outer, _ := ctx.Value(heldKey{}).(*heldLease)
	return context.WithValue(ctx, heldKey{}, &heldLease{l, outer})
}

// heldBy is the lease that a WithLock around this call holds on the lock, lost or not; nil if
// there is none or it was released.
func heldBy(ctx context.Context, c *Client, name string) *Lease {
	held, _ := ctx.Value(heldKey{}).(*heldLease)
	for ; held != nil; held = held.outer {
		isSame := held.lease.client == c && held.lease.grant.Lock == name
		if isSame && !errors.Is(held.lease.Check(), ErrInvalid) {
			return held.lease
		}
	}
	return nil
}
