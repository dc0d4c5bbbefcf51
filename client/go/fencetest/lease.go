package fencetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

const (
	modeExclusive = "exclusive"
	modeShared    = "shared"
	modePermit    = "permit"
	// historyMax is the number of ended leases that a lock remembers.
	historyMax   = 8
	defaultTTLMs = 15_000
)

// refusal becomes a problem body.
type refusal struct {
	status       int
	code, detail string
	members      map[string]any
	header       map[string]string
}

func refuse(
	status int, code string, members map[string]any, format string, values ...any,
) *refusal {
	return &refusal{status, code, fmt.Sprintf(format, values...), members, nil}
}

// wish is one lock of an acquire.
type wish struct {
	Lock     string  `json:"lock"`
	Mode     string  `json:"mode"`
	Size     int     `json:"size"`
	MinToken *uint64 `json:"min_token"`
}

// acquireBody is the body of an acquire; one of several locks has them in Locks.
type acquireBody struct {
	wish
	Locks       []wish          `json:"locks"`
	TTLMs       *int64          `json:"ttl_ms"`
	WaitMs      int64           `json:"wait_ms"`
	Owner       string          `json:"owner"`
	LeaseID     string          `json:"lease_id"`
	SessionID   string          `json:"session_id"`
	Incarnation string          `json:"incarnation"`
	Takeover    bool            `json:"takeover"`
	TakeoverOf  string          `json:"takeover_of"`
	Metadata    json.RawMessage `json:"metadata"`
}

// part adds the lock that refused to the refusal of several.
func (b *acquireBody) part(name string, refused *refusal) *refusal {
	if refused == nil || b.Locks == nil {
		return refused
	}
	if refused.members == nil {
		refused.members = map[string]any{}
	}
	refused.members["lock"] = name
	return refused
}

// lease is a live lease.
type lease struct {
	wish
	id, owner   string
	token       uint64
	incarnation string
	metadata    json.RawMessage
	session     *session
	ttl, waited time.Duration
	granted     time.Time
	expires     time.Time
	renewals    int
}

// ended is the end of a lease, or of an id that was never granted.
type ended struct {
	id, reason, why string
	lease           *lease
	at              time.Time
}

type lock struct {
	live  []*lease
	ended []ended
	// former are incarnations that were taken over.
	former map[string]bool
}

type session struct {
	id, owner  string
	ttl        time.Duration
	began      time.Time
	expires    time.Time
	heartbeats int
	// reason of its end; empty while it is live.
	reason string
}

// outcome of an acquire.
type outcome struct {
	grants  []map[string]any
	refused *refusal
}

// turn is one of the requests that wait under one lease id.
type turn struct {
	until   time.Time
	outcome chan outcome
}

// waiter has the requests that await its grant.
type waiter struct {
	id, owner string
	wishes    []wish
	body      *acquireBody
	session   *session
	since     time.Time
	turns     map[*turn]bool
}

func (w *waiter) settle(o outcome) {
	for t := range w.turns {
		t.outcome <- o
	}
	w.turns = map[*turn]bool{}
}

func (w *waiter) wants(name string) bool {
	for _, wish := range w.wishes {
		if wish.Lock == name {
			return true
		}
	}
	return false
}

func milliseconds(d time.Duration) int64 {
	if d < 0 {
		return 0
	}
	return d.Milliseconds()
}

func (l *lease) leftMs(now time.Time) int64 {
	if l.session != nil {
		return milliseconds(l.session.expires.Sub(now))
	}
	return milliseconds(l.expires.Sub(now))
}

// holder is a lease as the server shows it to others.
func (l *lease) holder(now time.Time) map[string]any {
	shown := map[string]any{
		"lease_id": l.id, "owner": l.owner, "token": l.token,
		"held_ms": milliseconds(now.Sub(l.granted)), "expires_in_ms": l.leftMs(now),
		"ttl_ms": l.ttl.Milliseconds(), "renewals": l.renewals,
	}
	l.addMode(shown)
	if l.session != nil {
		shown["session_id"] = l.session.id
	}
	if l.incarnation != "" {
		shown["incarnation"] = l.incarnation
	}
	if l.metadata != nil {
		shown["metadata"] = l.metadata
	}
	return shown
}

// reply is a lease as its holder gets it.
func (l *lease) reply(now time.Time) map[string]any {
	header := fmt.Sprintf(`%d;lock="%s";lease="%s";ns="default"`, l.token, l.Lock, l.id)
	credential := "fc1_" + base64.RawURLEncoding.EncodeToString([]byte(header))
	shown := map[string]any{
		"lock": l.Lock, "lease_id": l.id, "token": l.token, "ttl_ms": l.leftMs(now),
		"owner": l.owner, "waited_ms": l.waited.Milliseconds(), "fencing_token": header,
		"fencing_credential": credential,
	}
	l.addMode(shown)
	return shown
}

func (l *lease) addMode(shown map[string]any) {
	if l.Mode != modeExclusive {
		shown["mode"] = l.Mode
	}
}

func lost(name, reason, why string) *refusal {
	members := map[string]any{"reason": reason}
	said := ""
	if why != "" {
		members["why"], said = why, " ("+why+")"
	}
	return refuse(410, "lease-lost", members, "the lease on lock %s has ended: %s%s", name, reason, said)
}

func idConflict(name, owner string) *refusal {
	return refuse(409, "lease-id-conflict", nil,
		"this lease_id on lock %s belongs to a request of %s", name, owner)
}

func (s *session) over() *refusal {
	members := map[string]any{"session_id": s.id, "reason": s.reason}
	return refuse(410, "session-ended", members, "session %s has ended: %s", s.id, s.reason)
}
