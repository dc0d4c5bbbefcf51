package fencepost

import (
	"context"
	"reflect"
)

// LeaseCredentials are the hooks of [Credentials] for one grant alone: once another one is
// followed, they give nothing out, and late work of this grant gets [ErrLeaseLost].
type LeaseCredentials struct {
	owner  *Credentials
	source CredentialSource
}

// For binds the hooks to source, which was given to [Credentials.Follow]: make the pool of each
// lease with its own. They refuse with an error of kind [ErrLeaseLost] while another is followed.
func (c *Credentials) For(source CredentialSource) *LeaseCredentials {
	return &LeaseCredentials{c, source}
}

// Redis is the credential hook of a Redis driver, as [Credentials.Redis].
func (l *LeaseCredentials) Redis(ctx context.Context) (username, password string, err error) {
	password, err = l.Password(ctx)
	return "fence", password, err
}

// Password is the credential of the grant, for a hook before each connection.
func (l *LeaseCredentials) Password(context.Context) (string, error) {
	l.owner.mutex.Lock()
	err := l.check()
	l.owner.mutex.Unlock()
	if err == nil {
		err = l.source.Check()
	}
	if err != nil {
		return "", err
	}
	return l.source.FencingCredential(), nil
}

// Dialer wraps the dialer of a driver, as [Credentials.Dialer]; it dials for this grant alone.
func (l *LeaseCredentials) Dialer(dial Dial) Dial { return l.owner.dialer(dial, l.check) }

// check is the error unless the grant is followed; the caller holds the mutex of the owner.
func (l *LeaseCredentials) check() error {
	followed := l.owner.source
	// Types that cannot be compared are never the same: == would panic.
	if followed != nil && reflect.TypeOf(followed).Comparable() && followed == l.source {
		return nil
	}
	e := newError(ErrLeaseLost, "these connections are of a lease that is not followed any more")
	e.Reason = LostSuperseded
	return e
}
