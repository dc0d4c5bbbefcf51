package fencepost

import (
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
)

// CredentialSource is a grant whose credential a driver presents: a [Lease] or a [LeaseSet].
type CredentialSource interface {
	// FencingCredential is the password for the guard.
	FencingCredential() string
	// Check says whether the grant can be trusted now.
	Check() error
	// Context ends when the grant is lost or released.
	Context() context.Context
}

// Dial is the function by which drivers open connections.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Credentials give a driver's pool the credential of the newest lease, and close every connection
// from before a hand-over, so that none returns to the pool. Give [Credentials.Redis] to the
// driver as its credential hook and [Credentials.Dialer] as its dialer, and turn its retries off:
// a write may otherwise be repeated under the next lease. With go-redis:
//
//	credentials := &fencepost.Credentials{}
//	client := redis.NewClient(&redis.Options{
//		Addr:                       "127.0.0.1:6380",
//		CredentialsProviderContext: credentials.Redis,
//		Dialer:                     credentials.Dialer(nil),
//		MaxRetries:                 -1,
//	})
//
// The zero value is usable: it refuses connections until [Credentials.Follow] is called. For
// drivers that ask for a password before each connection, such as a PostgreSQL driver in front of
// a guard, [Credentials.Password] has that shape.
//
// A pool of these hooks presents the newest lease for every goroutine that uses it: late work of an
// earlier lease gets the next one's credential. Where work of two leases can overlap, make a pool
// for each lease with the hooks of [Credentials.For].
type Credentials struct {
	mutex  sync.Mutex
	source CredentialSource
	// term counts the grants that were followed.
	term        uint64
	connections map[*followedConn]bool
	// stop ends the watch of the present source.
	stop context.CancelFunc
}

// Follow makes source the newest grant; connections of earlier ones are closed. They are closed
// too when source is lost or released, and no new ones are made then. The credential of source is
// given out only after the earlier connections are closed, so that none of them can present it.
func (c *Credentials) Follow(source CredentialSource) {
	watch, stop := context.WithCancel(source.Context())
	c.mutex.Lock()
	before := c.stop
	c.source, c.stop = nil, stop
	c.term++
	term := c.term
	open := c.take()
	c.mutex.Unlock()
	if before != nil {
		before()
	}
	closeAll(open)
	c.mutex.Lock()
	if c.term == term {
		c.source = source
	}
	c.mutex.Unlock()
	go func() {
		<-watch.Done()
		stop()
		c.mutex.Lock()
		var open map[*followedConn]bool
		if c.term == term {
			open = c.take()
		}
		c.mutex.Unlock()
		closeAll(open)
	}()
}

// take takes the connections of the term, for closing them; the caller holds the mutex, so that one
// of the next term is not among them.
func (c *Credentials) take() map[*followedConn]bool {
	open := c.connections
	c.connections = nil
	return open
}

func closeAll(open map[*followedConn]bool) {
	for connection := range open {
		_ = connection.Conn.Close()
	}
}

// Redis is the credential hook of a Redis driver, as CredentialsProviderContext of go-redis. The
// error is of kind [ErrLeaseLost] or [ErrInvalid] if there is no lease that can be trusted.
func (c *Credentials) Redis(ctx context.Context) (username, password string, err error) {
	password, err = c.Password(ctx)
	return "fence", password, err
}

// Password is the credential of the newest grant, for a hook before each connection.
func (c *Credentials) Password(context.Context) (string, error) {
	c.mutex.Lock()
	source, term := c.source, c.term
	c.mutex.Unlock()
	if source == nil && term > 0 {
		return "", newError(ErrUnavailable, "the lock passes on at this moment; connect again")
	}
	if source == nil {
		return "", invalid("there is no lease yet to connect with; call Credentials.Follow first")
	}
	if err := source.Check(); err != nil {
		return "", err
	}
	return source.FencingCredential(), nil
}

// Dialer wraps the dialer of a driver, net.Dialer if dial is nil, so that Follow knows the
// connections.
func (c *Credentials) Dialer(dial Dial) Dial {
	return c.dialer(dial, func() error { return nil })
}

// dialer is Dialer; check, which is called with the mutex, refuses to dial.
func (c *Credentials) dialer(dial Dial, check func() error) Dial {
	if dial == nil {
		dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c.mutex.Lock()
		term, refused := c.term, check()
		c.mutex.Unlock()
		if refused != nil {
			return nil, refused
		}
		inner, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		connection := &followedConn{Conn: inner, owner: c}
		c.mutex.Lock()
		isCurrent := c.term == term
		if isCurrent {
			if c.connections == nil {
				c.connections = map[*followedConn]bool{}
			}
			c.connections[connection] = true
		}
		c.mutex.Unlock()
		if !isCurrent {
			_ = inner.Close()
			return nil, newError(ErrUnavailable, "the lock passed on while %s was dialled; dial again",
				address)
		}
		return connection, nil
	}
}

// followedConn is a connection that a hand-over closes.
type followedConn struct {
	net.Conn
	owner *Credentials
}

// Close closes the connection.
func (c *followedConn) Close() error {
	c.owner.mutex.Lock()
	delete(c.owner.connections, c)
	c.owner.mutex.Unlock()
	return c.Conn.Close()
}

// SyscallConn lets a pool check whether the connection is open before it uses it.
func (c *followedConn) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := c.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	return nil, syscall.ENOTSUP
}

// RedisError maps a refusal by the guard's Redis port, FENCED or COLLISION, to an error of kind
// [ErrStale], and a NOTOKEN, WRONGTOKEN or DENIED to one of kind [ErrInvalid]; any other error is
// returned as it is. The driver's error stays in the message.
func RedisError(err error) error {
	if err == nil {
		return nil
	}
	word, _, _ := strings.Cut(err.Error(), " ")
	switch word {
	case "FENCED":
		stale := newError(ErrStale, "%s", err.Error())
		stale.Code = "stale-token"
		return stale
	case "COLLISION":
		stale := newError(ErrStale, "%s", err.Error())
		stale.Code = "token-collision"
		return stale
	case "NOTOKEN", "WRONGTOKEN", "DENIED":
		return invalid("%s", err.Error())
	default:
		return err
	}
}
