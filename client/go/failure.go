package fencepost

import (
	"context"
	"net/http"
	"time"

	"fencepost/internal/timing"
)

// failureCause says why there is no successful reply.
type failureCause int

const (
	// notSent: no connection could be made, so the request was not sent.
	notSent failureCause = iota
	// noReply: the request was sent, and no readable reply arrived.
	noReply
	// refused: the server replied with an error.
	refused
	// unusable: the client could not build the request, or cannot use its reply.
	unusable
)

// failure is an attempt without a successful reply.
type failure struct {
	cause   failureCause
	why     string
	problem *problem
	err     *Error
}

func failedUnusable(err *Error) *failure {
	return &failure{cause: unusable, why: err.Message, err: err}
}

// effect of a request: one that changes something and got no reply has an unknown outcome.
type effect int

const (
	reads effect = iota
	changes
)

func (f *failure) reason() string {
	switch f.cause {
	case notSent:
		return "cannot reach " + f.why
	case refused:
		return f.problem.text()
	default:
		return f.why
	}
}

func (f *failure) hasCode(codes ...string) bool {
	for _, code := range codes {
		if f.cause == refused && f.problem.Code == code {
			return true
		}
	}
	return false
}

// isAbsent reports whether a guard replied that there is no object.
func (f *failure) isAbsent() bool {
	return f.hasCode("not-found") && f.problem.Status == http.StatusNotFound && f.problem.ofGuard
}

func (f *failure) retryAfter() time.Duration {
	if f.cause != refused {
		return 0
	}
	return f.problem.retryAfter
}

// isOutcomeUnknown reports whether the attempt may have taken effect.
func (f *failure) isOutcomeUnknown() bool {
	switch f.cause {
	case noReply:
		return true
	case refused:
		return kindOf(f.problem) == ErrOutcomeUnknown
	default:
		return false
	}
}

// isInconclusive reports whether the failure concerns this attempt alone, and says nothing about
// earlier ones.
func (f *failure) isInconclusive() bool {
	switch f.cause {
	case notSent:
		return true
	case refused:
		return f.problem.isRetryable()
	default:
		return false
	}
}

// isPassing reports whether a retry can succeed.
func (f *failure) isPassing() bool { return f.isOutcomeUnknown() || f.isInconclusive() }

// isRetryable follows the body, or the status if the code is unknown.
func (p *problem) isRetryable() bool {
	if !p.isForeign() {
		return p.Retryable
	}
	switch p.Status {
	case 408, 429, 502, 503, 504:
		return true
	}
	return false
}

// toError converts the failure to the error of a call with this effect; what names the call.
func (f *failure) toError(what string, effect effect) *Error {
	switch f.cause {
	case notSent:
		return newError(ErrUnavailable, "%s: %s", what, f.why)
	case noReply:
		if effect == reads {
			return newError(ErrUnavailable, "%s: no reply: %s", what, f.why)
		}
		return newError(ErrOutcomeUnknown, "%s: no reply, so the outcome is unknown: %s", what, f.why)
	case refused:
		return f.problem.toError().context(what)
	default:
		return f.err.context(what)
	}
}

// sentChange records the attempts of one change, so that one that may have taken effect is never
// reported as undone because a retry failed.
type sentChange struct {
	// unknownCause is the failure of the first attempt that may have taken effect.
	unknownCause string
	// arrived says that a server received an attempt, whatever its reply.
	arrived bool
}

func (s *sentChange) isUnknown() bool { return s.unknownCause != "" }

func (s *sentChange) record(f *failure) {
	s.arrived = s.arrived || f.cause != notSent
	if f.isOutcomeUnknown() && s.unknownCause == "" {
		s.unknownCause = f.reason()
	}
}

// error is the error for the caller if the last attempt failed. An unknown outcome of an earlier
// attempt stays unknown, unless the server recognised the retry and replied with the outcome of
// the first.
func (s *sentChange) error(what string, last *failure) *Error {
	err := last.toError(what, changes)
	switch {
	case s.unknownCause != "" && last.isPassing():
		return s.unknown(what, err)
	case s.unknownCause != "" && !(last.cause == refused && last.problem.replayed):
		err.Outcome = outcomeUnknown
	}
	return err
}

// refusedHere is the error for the caller if the client itself refuses the next attempt.
func (s *sentChange) refusedHere(what string, err *Error) *Error {
	if s.unknownCause == "" {
		return err
	}
	return s.unknown(what, err)
}

func (s *sentChange) unknown(what string, last *Error) *Error {
	return newError(ErrOutcomeUnknown,
		"%s: no reply, so the outcome is unknown: %s; the retry failed: %s", what, s.unknownCause, last)
}

// untilSettled sends a change, and retries it for patience while the failures say nothing about
// its outcome. A refusal that showsDone after an earlier attempt of this call arrived is a
// success: the result is nil then.
func untilSettled[T any](
	ctx context.Context,
	what string,
	patience time.Duration,
	send func(context.Context) (*T, *failure),
	showsDone func(*failure) bool,
) (*T, error) {
	until := now().Plus(patience)
	var sent sentChange
	for attempt := 1; ; attempt++ {
		reply, failed := send(ctx)
		if failed == nil {
			return reply, nil
		}
		if sent.arrived && showsDone(failed) {
			return nil, nil
		}
		pause := timing.Pause(attempt, random())
		if !failed.isPassing() || now().Plus(pause) >= until || ctx.Err() != nil {
			return nil, sent.error(what, failed)
		}
		sent.record(failed)
		sleep(ctx, pause)
	}
}
