package fencepost

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

const (
	// releasePatience is the time for which a release is retried; after it the lease expires.
	releasePatience = 5 * time.Second
	// revokeTimeout: the server gives each guard 2 s, and may start over a few times.
	revokeTimeout = 30 * time.Second
)

func lockPath(lock, verb string) string { return "/v1/locks/" + escape(lock) + verb }

// releaseLease ends a lease by its id. If an attempt of this call whose reply was lost released
// it, that is a success.
func (c *Client) releaseLease(ctx context.Context, lock, leaseID string) error {
	_, err := untilSettled(ctx, "release "+lock, releasePatience,
		func(ctx context.Context) (*endedReply, *failure) {
			body := leaseRequest{LeaseID: leaseID}
			return post[endedReply](ctx, c.server, lockPath(lock, "/release"), body, releasePatience)
		},
		func(f *failure) bool {
			return f.hasCode("lease-lost") && f.problem.endReason() == LostReleased
		})
	return err
}

// Show returns the state of a lock: its holders, waiters and history. The error is of kind
// [ErrUnavailable] if the server is unreachable.
func (c *Client) Show(ctx context.Context, lock string) (*LockState, error) {
	if failed := checkName("lock name", lock); failed != nil {
		return nil, failed
	}
	shown, failed := get[LockState](ctx, c.server, lockPath(lock, ""))
	return result(ctx, shown, failed, "show "+lock, reads)
}

// Locked reports whether a lease held the lock when the server replied. Base no decision on it that
// needs the lock: another client may acquire it at any time; use [Client.TryLock] for that.
func (c *Client) Locked(ctx context.Context, lock string) (bool, error) {
	shown, err := c.Show(ctx, lock)
	return err == nil && shown.State == "held", err
}

// List returns a page of held locks whose names begin with prefix and follow after, ordered by
// name: at most limit, from 1 to 1000.
func (c *Client) List(ctx context.Context, prefix, after string, limit int) (*LockPage, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	if after != "" {
		query.Set("after", after)
	}
	page, failed := get[LockPage](ctx, c.server, "/v1/locks?"+query.Encode())
	return result(ctx, page, failed, "list locks", reads)
}

// Revoked is the result of a revocation.
type Revoked struct {
	Lock    string `json:"lock"`
	LeaseID string `json:"lease_id"`
	Token   uint64 `json:"token"`
	// DelayLifted says that a lock-delay was lifted.
	DelayLifted bool `json:"delay_lifted"`
	// Guards says of each guard whether it refuses the former holders by now.
	Guards []struct {
		Guard   string `json:"guard"`
		Mark    uint64 `json:"mark"`
		Problem string `json:"problem"`
	} `json:"guards"`
}

// Revoke ends every live lease of a lock, and its lock-delay, for an operator; reason has 1 to 256
// bytes. The error is of kind [ErrInvalid] if no lease is live.
func (c *Client) Revoke(ctx context.Context, lock, reason string) (*Revoked, error) {
	if failed := checkName("lock name", lock); failed != nil {
		return nil, failed
	}
	if failed := checkText("reason", reason); failed != nil {
		return nil, failed
	}
	body := map[string]string{"reason": reason}
	revoked, failed := post[Revoked](ctx, c.server, lockPath(lock, "/revoke"), body, revokeTimeout)
	return result(ctx, revoked, failed, "revoke "+lock, changes)
}

// result converts the outcome of a call that is not retried.
func result[T any](
	ctx context.Context, value *T, failed *failure, what string, effect effect,
) (*T, error) {
	if failed == nil {
		return value, nil
	}
	if err := ended(ctx, what); err != nil {
		return nil, err
	}
	return nil, failed.toError(what, effect)
}
