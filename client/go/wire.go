package fencepost

import "encoding/json"

// HolderInfo is the holder of a lock, as other callers see it.
type HolderInfo struct {
	Owner string `json:"owner"`
	Token uint64 `json:"token"`
	// HeldMs and ExpiresInMs are milliseconds: for how long the lease is held, and when it expires
	// unless it is renewed.
	HeldMs      int64 `json:"held_ms"`
	ExpiresInMs int64 `json:"expires_in_ms"`
	// The following members are absent from errors.
	LeaseID     string          `json:"lease_id"`
	TTLMs       int64           `json:"ttl_ms"`
	Renewals    int64           `json:"renewals"`
	Mode        string          `json:"mode"`
	SessionID   string          `json:"session_id"`
	Incarnation string          `json:"incarnation"`
	Metadata    json.RawMessage `json:"metadata"`
}

// Waiter is a request in the queue of a lock.
type Waiter struct {
	LeaseID   string `json:"lease_id"`
	Owner     string `json:"owner"`
	WaitingMs int64  `json:"waiting_ms"`
	Mode      string `json:"mode"`
}

// EndedLease is a lease that has ended.
type EndedLease struct {
	LeaseID string     `json:"lease_id"`
	Token   uint64     `json:"token"`
	Owner   string     `json:"owner"`
	Reason  LostReason `json:"reason"`
	// Why is the reason that the operator gave who revoked it.
	Why        string `json:"why"`
	HeldMs     int64  `json:"held_ms"`
	EndedMsAgo int64  `json:"ended_ms_ago"`
}

// LockState is the state of a lock, as the server replied.
type LockState struct {
	Lock string `json:"lock"`
	// State is free, held or delayed.
	State string `json:"state"`
	// Holder is the oldest live lease; AlsoHeld has at most 100 others.
	Holder     *HolderInfo  `json:"holder"`
	AlsoHeld   []HolderInfo `json:"also_held"`
	LeaseCount int          `json:"lease_count"`
	// Size is the number of permits of a semaphore in use.
	Size        int   `json:"size"`
	DelayedMs   int64 `json:"delayed_ms"`
	QueueLength int   `json:"queue_length"`
	// Queue has the first waiters in their order, at most 100; History the last ended leases.
	Queue   []Waiter     `json:"queue"`
	History []EndedLease `json:"history"`
}

// LockLine is a held lock in a list.
type LockLine struct {
	Lock string `json:"lock"`
	HolderInfo
	QueueLength int `json:"queue_length"`
}

// LockPage is a page of held locks, ordered by name.
type LockPage struct {
	Locks []LockLine `json:"locks"`
	// NextAfter continues the list; empty on the last page.
	NextAfter string `json:"next_after"`
}

// grant is the reply to acquire and renew: a live lease.
type grant struct {
	Lock       string `json:"lock"`
	LeaseID    string `json:"lease_id"`
	Mode       string `json:"mode"`
	Token      uint64 `json:"token"`
	TTLMs      int64  `json:"ttl_ms"`
	Owner      string `json:"owner"`
	WaitedMs   int64  `json:"waited_ms"`
	Credential string `json:"fencing_credential"`
	Header     string `json:"fencing_token"`
}

// check returns a failure if the reply is about another lock, lease or mode than requested:
// nothing in it can be trusted.
func (g *grant) check(lock, leaseID, mode string) *failure {
	got := g.Mode
	if got == modeExclusive {
		got = ""
	}
	if g.Lock == lock && g.LeaseID == leaseID && got == mode && checkToken(g.Token) == nil {
		return g.checkFields()
	}
	return failedUnusable(newError(ErrInternal,
		"the reply to a request about %s is about %q %q (token %d)", lock, g.Lock, g.LeaseID, g.Token))
}

// checkFields returns a failure if the reply lacks what the lease needs.
func (g *grant) checkFields() *failure {
	if g.Header != "" && g.Credential != "" && g.TTLMs >= 0 {
		return nil
	}
	return failedUnusable(newError(ErrInternal,
		"the reply to a request about %s lacks fencing_token, fencing_credential or ttl_ms", g.Lock))
}

const (
	modeExclusive = "exclusive"
	modeShared    = "shared"
	modePermit    = "permit"
)

type acquireRequest struct {
	TTLMs       int64           `json:"ttl_ms"`
	WaitMs      int64           `json:"wait_ms"`
	Owner       string          `json:"owner,omitempty"`
	LeaseID     string          `json:"lease_id"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	MinToken    uint64          `json:"min_token,omitempty"`
	SessionID   string          `json:"session_id,omitempty"`
	Incarnation string          `json:"incarnation"`
	Takeover    bool            `json:"takeover,omitempty"`
	TakeoverOf  string          `json:"takeover_of,omitempty"`
	Mode        string          `json:"mode,omitempty"`
	Size        int             `json:"size,omitempty"`
}

type lockWish struct {
	Lock     string `json:"lock"`
	Mode     string `json:"mode,omitempty"`
	Size     int    `json:"size,omitempty"`
	MinToken uint64 `json:"min_token,omitempty"`
}

type acquireAllRequest struct {
	Locks       []lockWish      `json:"locks"`
	TTLMs       int64           `json:"ttl_ms"`
	WaitMs      int64           `json:"wait_ms"`
	Owner       string          `json:"owner,omitempty"`
	LeaseID     string          `json:"lease_id"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	SessionID   string          `json:"session_id,omitempty"`
	Incarnation string          `json:"incarnation"`
}

type leasesReply struct {
	Leases []grant `json:"leases"`
}

type leaseRequest struct {
	LeaseID string `json:"lease_id"`
}

type endedReply struct {
	LeaseID string     `json:"lease_id"`
	Token   uint64     `json:"token"`
	Reason  LostReason `json:"reason"`
}
