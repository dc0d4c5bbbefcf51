package fencepost

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Kind is the class of an [Error], by what the caller should do. Each kind is an error itself, to
// be used with errors.Is.
type Kind string

// Kinds of errors.
const (
	// ErrContended says that another lease holds the lock: retry later, or wait in the queue.
	ErrContended Kind = "contended"
	// ErrTakeoverRefused says that the lock may not be taken over: wait in the queue, or stop.
	ErrTakeoverRefused Kind = "takeover-refused"
	// ErrLeaseLost says that the lease can no longer be trusted: stop the work under it.
	ErrLeaseLost Kind = "lease-lost"
	// ErrStale says that the guard has seen a higher token: stop, and never retry.
	ErrStale Kind = "stale"
	// ErrPrecondition says that the object has another version: read it again before deciding.
	ErrPrecondition Kind = "precondition"
	// ErrUnavailable says that a server or its store is unreachable and nothing was done.
	ErrUnavailable Kind = "unavailable"
	// ErrOutcomeUnknown says that the request may or may not have been applied.
	ErrOutcomeUnknown Kind = "outcome-unknown"
	// ErrInvalid says that the request breaks a rule: correct it.
	ErrInvalid Kind = "invalid"
	// ErrInternal says that the client or the server has a defect: report it.
	ErrInternal Kind = "internal"
)

// Error returns the word of the kind.
func (k Kind) Error() string { return string(k) }

// LostReason is the reason why a lease can no longer be trusted. Ends that the lock server
// reported have the server's word: expired, superseded, released, revoked or session-ended.
type LostReason string

// Reasons of a loss.
const (
	// LostDeadline: 0.8 of the time to live passed on this machine without a successful renewal.
	LostDeadline LostReason = "deadline"
	// LostNoProgress: the work did not report progress within the limit.
	LostNoProgress LostReason = "no-progress"
	// LostHeldTooLong: the lease was held for the longest allowed time.
	LostHeldTooLong LostReason = "held-too-long"
	// LostExpired: the lock server replied that the lease has expired.
	LostExpired LostReason = "expired"
	// LostSuperseded: a later incarnation of the owner or the next holder has the lock.
	LostSuperseded LostReason = "superseded"
	// LostReleased: the lock server replied that the lease was released.
	LostReleased LostReason = "released"
	// LostRevoked: an operator ended the lease.
	LostRevoked LostReason = "revoked"
	// LostSessionEnded: the session of the lease has ended.
	LostSessionEnded LostReason = "session-ended"
)

// IsEnded reports whether the lock server reported the end of the lease.
func (r LostReason) IsEnded() bool {
	return r != "" && r != LostDeadline && r != LostNoProgress && r != LostHeldTooLong
}

func (r LostReason) sentence() string {
	switch r {
	case LostDeadline:
		return "0.8 of its time to live passed without a renewal"
	case LostNoProgress:
		return "no progress was reported in time"
	case LostHeldTooLong:
		return "it was held for the longest allowed time"
	case LostSuperseded:
		return "the lock server has ended it: superseded by a later incarnation of its owner, or " +
			"by the next holder"
	default:
		return "the lock server has ended it: " + string(r)
	}
}

// Error is the error of every call, except for the end of the caller's own context.
type Error struct {
	// Kind says what to do next.
	Kind Kind
	// Message says what happened, with the values.
	Message string
	// Code is the word of the server's problem body; empty if the error was found here.
	Code string
	// Status is the HTTP status of the reply; 0 without one.
	Status int
	// Detail and Hint are the server's sentences in words of this package: what happened, and
	// what to do next.
	Detail, Hint string
	// Retryable says that the same call can help and cannot harm.
	Retryable bool
	// RetryAfter is the time after which a retry is worthwhile; 0 if the server gave none.
	RetryAfter time.Duration
	// Waited is the time that a contended acquire waited in the queue.
	Waited time.Duration
	// RequestID names the request in the server's log.
	RequestID string
	// Reason says why the lease was lost; empty for other kinds.
	Reason LostReason
	// Outcome is applied, not-applied or unknown, as far as the error says: a write that is
	// refused as stale may be the retry of one that was applied before.
	Outcome string
	// Problem has all members of the problem body, for those that only some codes have.
	Problem map[string]json.RawMessage
}

// Error says what happened, with the values, and what to do next.
func (e *Error) Error() string { return e.Message }

// Is reports whether target is the kind of this error.
func (e *Error) Is(target error) bool {
	kind, ok := target.(Kind)
	return ok && kind == e.Kind
}

// Lost reports whether the lease can no longer be trusted, so that its work must stop.
func (e *Error) Lost() bool { return e.Kind == ErrLeaseLost }

// Stale reports whether the guard has seen a higher token.
func (e *Error) Stale() bool { return e.Kind == ErrStale }

// Member decodes a member of the problem body, and reports whether it exists with that shape.
func (e *Error) Member(name string, into any) bool {
	raw, ok := e.Problem[name]
	return ok && json.Unmarshal(raw, into) == nil
}

// MinToken is the token that the next grant must exceed to be admitted by the guard, for
// [MinToken]; 0 unless the guard refused a token.
func (e *Error) MinToken() uint64 {
	var token uint64
	if e.Kind == ErrStale && !e.Member("min_token", &token) {
		e.Member("mark", &token)
	}
	return token
}

// Lock is the lock that the server refused, if it named one.
func (e *Error) Lock() string {
	var lock string
	e.Member("lock", &lock)
	return lock
}

// Holder is the lease that holds the lock, of a contended or refused one; nil if it is not named.
func (e *Error) Holder() *HolderInfo {
	var holder HolderInfo
	if !e.Member("holder", &holder) {
		return nil
	}
	return &holder
}

func newError(kind Kind, format string, values ...any) *Error {
	e := &Error{Kind: kind, Message: fmt.Sprintf(format, values...)}
	e.Retryable = kind == ErrContended || kind == ErrUnavailable || kind == ErrOutcomeUnknown
	if kind == ErrOutcomeUnknown {
		e.Outcome = outcomeUnknown
	}
	return e
}

func invalid(format string, values ...any) *Error { return newError(ErrInvalid, format, values...) }

func leaseLost(what string, reason LostReason) *Error {
	e := newError(ErrLeaseLost, "the lease on %s is lost: %s", what, reason.sentence())
	e.Reason = reason
	return e
}

func (e *Error) context(what string) *Error {
	named := *e
	named.Message = what + ": " + e.Message
	return &named
}

const (
	outcomeUnknown    = "unknown"
	outcomeApplied    = "applied"
	outcomeNotApplied = "not-applied"
)

// kindOf maps a problem to its kind; no other code does.
func kindOf(p *problem) Kind {
	switch p.Code {
	case "lock-held":
		return ErrContended
	case "lease-lost", "session-ended", "session-unknown":
		return ErrLeaseLost
	case "takeover-refused":
		return ErrTakeoverRefused
	case "stale-token", "token-collision":
		return ErrStale
	case "precondition-failed":
		return ErrPrecondition
	case "request-timeout", "limit-reached", "upstream-unavailable", "store-unavailable",
		"draining", "quarantined", "not-leader", "guard-unsealed", "shutting-down":
		return ErrUnavailable
	case "outcome-unknown":
		return ErrOutcomeUnknown
	case "internal":
		return ErrInternal
	}
	if p.isKnown() {
		return ErrInvalid
	}
	return kindByStatus(p.Status)
}

// kindByStatus is the kind of a reply whose code is unknown: from a newer server, or from a proxy.
func kindByStatus(status int) Kind {
	switch {
	case status == 423:
		return ErrContended
	case status == 410:
		return ErrLeaseLost
	case status == 408 || status == 429 || status == 502 || status == 503:
		return ErrUnavailable
	case status == 504:
		return ErrOutcomeUnknown
	case status >= 400 && status <= 499:
		return ErrInvalid
	default:
		return ErrInternal
	}
}

// bodyAndLoss is the error of work that failed under a lease which was lost as well. The work's
// own error comes first.
type bodyAndLoss struct {
	body error
	loss *Error
}

func (e *bodyAndLoss) Error() string { return e.body.Error() + " (and " + e.loss.Message + ")" }

func (e *bodyAndLoss) Unwrap() error { return e.body }

func (e *bodyAndLoss) Is(target error) bool { return e.loss.Is(target) }

func (e *bodyAndLoss) As(target any) bool {
	return errors.As(e.body, target) || errors.As(error(e.loss), target)
}
