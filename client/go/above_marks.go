package fencepost

import (
	"context"
	"errors"
)

// ReacquireAbove releases this lease and acquires the lock with a token above the guard's mark, if
// the lock server issues tokens below the marks.
//
// A guard that refuses the token of a lease as stale has seen a higher one. Nearly always another
// client has acquired the lock and this holder has not noticed: it must stop. But a lock server
// that lost its memory issues tokens below the marks, and then every holder is refused. The lock
// server decides which case it is: releasing the lease succeeds only if it was live until then, so
// that no other client can have been granted the lock since. Only then is the lock acquired again.
//
// The result is another grant. Data that was read under the old lease may have changed since:
// restart the work from its first read, and never just repeat the refused write.
//
// The error is of kind [ErrLeaseLost] if this lease has ended: stop. It is [ErrStale] if this
// lease was acquired by this method already: two lock servers issue tokens for one guard, and an
// operator must investigate. It is [ErrInvalid] if refusal is no guard's refusal of this lease's
// token, and for leases of a session, shared ones and permits.
func (l *Lease) ReacquireAbove(ctx context.Context, refusal error) (*Lease, error) {
	mark, err := l.markAbove(refusal)
	if err != nil {
		return nil, err
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	if l.spec == nil || l.spec.mode != "" {
		return nil, invalid("token %d of lock %s is below the mark %d of another holder: acquire an "+
			"exclusive lease of its own for guarded data", l.Token(), l.Name(), mark)
	}
	if l.isAboveMarks {
		return nil, newError(ErrStale, "the lock %s was acquired above a guard's mark once, and its "+
			"token %d is below the mark %d again: two lock servers issue tokens for one guard, or "+
			"tokens are forged; an operator must investigate", l.Name(), l.Token(), mark)
	}
	if !l.beginRelease() {
		return nil, invalid("the lease on %s was released already", l.Name())
	}
	l.trust.lose(endedHere)
	// The proof: a release that succeeds, without an excuse, means that the lease was live until
	// now.
	if err := l.releaseOnce(ctx); err != nil {
		return nil, err
	}
	s := *l.spec
	s.minToken = mark
	lease, err := l.client.lock(ctx, &s)
	if err != nil {
		return nil, err
	}
	lease.isAboveMarks = true
	return lease, nil
}

// markAbove is the mark in a guard's refusal of this lease's token.
func (l *Lease) markAbove(refusal error) (uint64, error) {
	var failed *Error
	var presented uint64
	isStale := errors.As(refusal, &failed) && failed.Kind == ErrStale
	if isStale && failed.Member("presented", &presented) {
		mark := failed.MinToken()
		if presented == l.Token() && failed.Lock() == l.Name() && mark >= l.Token() {
			return mark, nil
		}
	}
	return 0, invalid("this is no guard's refusal of token %d of lock %s: %v", l.Token(), l.Name(),
		refusal)
}
