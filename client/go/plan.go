package fencepost

import (
	"time"

	"fencepost/internal/timing"
)

const (
	// waitMargin is the time that a request may take beyond its wait.
	waitMargin = 5 * time.Second
	// timeoutMin is the shortest time-out of a request of a bounded call.
	timeoutMin = 100 * time.Millisecond
	// restartsAtOnce is the number of restarts with a fresh lease id without a pause: a restart
	// follows a grant that could not be delivered and was rolled back.
	restartsAtOnce = 5
)

// retries are the ends of the retries of a call.
type retries struct {
	// unavailableUntil is for a server or store that is unreachable, unknownUntil for requests
	// whose outcome is unknown.
	unavailableUntil, unknownUntil moment
	isBounded                      bool
}

func newRetries(at moment, times waitTimes) retries {
	waitUntil := at.Plus(times.wait)
	r := retries{unknownUntil: waitUntil.Plus(times.patience), isBounded: times.isBounded}
	r.unavailableUntil = r.unknownUntil
	if times.isBounded {
		r.unavailableUntil = waitUntil
	}
	return r
}

// timeout of a request sent at this moment: whole, but not beyond the end of a bounded call.
func (r *retries) timeout(at moment, whole time.Duration) time.Duration {
	if !r.isBounded {
		return whole
	}
	return longer(shorter(whole, r.unknownUntil.Since(at)), timeoutMin)
}

// acquireStep is the reaction to an attempt without a grant.
type acquireStep int

const (
	// stepRetry sends the same request, with the same lease id, after a pause.
	stepRetry acquireStep = iota
	// stepRestart sends a request with a fresh lease id after a pause: the old id has ended.
	stepRestart
	// stepFail returns the error.
	stepFail
)

// plan has the time and the attempts of one acquire. Pure.
type plan struct {
	began, waitUntil   moment
	retries            retries
	attempts, restarts int
}

func newPlan(at moment, times waitTimes) *plan {
	return &plan{began: at, waitUntil: at.Plus(times.wait), retries: newRetries(at, times)}
}

// waitMs is the time left of the wait in the queue.
func (p *plan) waitMs(at moment) int64 { return p.waitUntil.Since(at).Milliseconds() }

// waited is the time that was waited in the queue; zero without a wait.
func (p *plan) waited(at moment) time.Duration {
	if p.waitUntil == p.began {
		return 0
	}
	return at.Since(p.began)
}

func (p *plan) timeout(at moment, waitMs int64) time.Duration {
	return p.retries.timeout(at, milliseconds(waitMs)+waitMargin)
}

// after decides the next step after a failure; random is the jitter of the pause.
func (p *plan) after(f *failure, at moment, random uint64) (acquireStep, time.Duration) {
	if f.hasCode("lease-lost") {
		return p.restart(at, random)
	}
	// A reply that arrives too late has taken its time already: the pause does not grow.
	isLate := f.cause == unusable && f.err.Kind == ErrUnavailable
	p.attempts++
	if isLate {
		p.attempts = 1
	}
	limit := p.retries.unknownUntil
	again := true
	switch {
	case f.hasCode("lock-held"):
		// The server's own limit may be shorter than the wait: the client waits for the rest.
		limit = p.waitUntil
	case f.cause == refused:
		again = f.problem.isRetryable()
		if f.problem.Status != 504 {
			limit = p.retries.unavailableUntil
		}
	case f.cause == notSent:
		limit = p.retries.unavailableUntil
	case f.cause == unusable:
		again = isLate
	}
	pause := timing.Pause(p.attempts, random)
	if !f.hasCode("lock-held") {
		pause = longer(pause, f.retryAfter())
	}
	if again && at.Plus(pause) < limit {
		return stepRetry, pause
	}
	return stepFail, 0
}

func (p *plan) restart(at moment, random uint64) (acquireStep, time.Duration) {
	p.restarts++
	pause := time.Duration(0)
	if p.restarts > restartsAtOnce {
		pause = timing.Pause(p.restarts-restartsAtOnce, random)
	}
	if at.Plus(pause) < p.retries.unknownUntil {
		return stepRestart, pause
	}
	return stepFail, 0
}

// mayHaveGranted reports whether the attempt may have caused a grant.
func mayHaveGranted(f *failure) bool {
	switch f.cause {
	case notSent:
		return false
	case refused:
		return f.problem.Code == "outcome-unknown" || f.problem.Code == "internal" ||
			f.problem.isForeign()
	default:
		return true
	}
}
