package fencepost

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"fencepost/internal/timing"
)

// claim is a lease id that may have been granted.
type claim struct {
	client       *Client
	locks        []string
	leaseID      string
	maybeGranted bool
	// ttl is the life of a grant that is not renewed; a lease of a session lasts as long as that.
	ttl time.Duration
	// shown is the lease id for the goroutine that reports the position in the queue.
	shown atomic.Value
}

func newClaim(c *Client, locks []string) *claim {
	claim := &claim{client: c, locks: locks, leaseID: newID(), ttl: milliseconds(timing.TTLMaxMs)}
	claim.shown.Store(claim.leaseID)
	return claim
}

// beginAttempt records that a request is about to be sent; returns whether a grant was possible
// before it.
func (c *claim) beginAttempt() bool {
	before := c.maybeGranted
	c.maybeGranted = true
	return before
}

// recordFailure records the failure of a request; before is the result of beginAttempt.
func (c *claim) recordFailure(before bool, f *failure) {
	c.maybeGranted = before || mayHaveGranted(f)
}

// renewID replaces the lease id after it has ended on one of the locks. If the reply that granted
// several locks was lost, the leases on the others may be live, and would block the next request,
// which has another id: they are released first.
func (c *claim) renewID(ctx context.Context) error {
	if c.maybeGranted && len(c.locks) > 1 {
		for _, lock := range c.locks {
			err := c.client.releaseLease(ctx, lock, c.leaseID)
			if failed, ok := err.(*Error); err != nil && (!ok || !failed.Lost()) {
				return err
			}
		}
	}
	c.leaseID, c.maybeGranted = newID(), false
	c.shown.Store(c.leaseID)
	return nil
}

// giveUp releases grants that the request may have caused, in the background, so that an acquire
// that failed or was cancelled does not hold the locks until they expire. If a release arrives
// before its acquire, the server records the id as ended.
func (c *claim) giveUp() {
	if !c.maybeGranted {
		return
	}
	for _, lock := range c.locks {
		lock, leaseID := lock, c.leaseID
		c.client.background.run(func() {
			// Best effort: the lease expires by itself.
			ctx, cancel := context.WithTimeout(context.Background(), c.ttl)
			defer cancel()
			_ = c.client.releaseLease(ctx, lock, leaseID)
		})
	}
}

// names for messages; at most three, and the number of the others.
func (c *claim) names() string {
	if len(c.locks) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(c.locks[:3], ", "), len(c.locks)-3)
	}
	return strings.Join(c.locks, ", ")
}

// what names the call for an error, with the lock that was refused if the server says which.
func (c *claim) what(f *failure) string {
	if f.cause == refused && len(c.locks) > 1 {
		if lock := f.problem.word("lock"); lock != "" {
			return fmt.Sprintf("acquire %s (one of %s)", lock, c.names())
		}
	}
	return "acquire " + c.names()
}
