package fencepost

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// problem is the body of an error reply (RFC 9457).
type problem struct {
	Code      string `json:"code"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Hint      string `json:"hint"`
	Retryable bool   `json:"retryable"`
	RequestID string `json:"request_id"`

	members    map[string]json.RawMessage
	retryAfter time.Duration
	// waited is the time that the acquire waited in the queue.
	waited time.Duration
	// replayed says that the reply states the outcome of an earlier request with the same key.
	replayed bool
	// ofGuard says that the reply has the header of every guard.
	ofGuard bool
}

// invalidCodes are the known codes of kind invalid; the others are in kindOf.
const invalidCodes = " invalid-request malformed-token unauthorized bad-signature forbidden " +
	"cross-origin session-blocked wrong-lock not-found method-not-allowed lease-id-conflict " +
	"lock-kind-conflict session-conflict quarantine-conflict payload-too-large " +
	"unsupported-media-type misdirected-request op-id-reused token-required " +
	"not-offered-by-store "

// otherCodes are the known codes of the other kinds.
const otherCodes = " lock-held lease-lost session-ended session-unknown takeover-refused " +
	"stale-token token-collision precondition-failed request-timeout limit-reached " +
	"upstream-unavailable store-unavailable draining quarantined not-leader guard-unsealed " +
	"shutting-down outcome-unknown internal "

func (p *problem) isKnown() bool {
	return p.Code != "" && strings.Contains(invalidCodes, " "+p.Code+" ")
}

// isForeign reports whether the code is unknown: of a newer server, or of a proxy.
func (p *problem) isForeign() bool {
	return !p.isKnown() && !strings.Contains(otherCodes, " "+p.Code+" ")
}

// readProblem parses an error reply. A body that is no problem (from a proxy, or another program
// on that port) becomes one made from the status.
func readProblem(status int, header http.Header, body []byte, base string) *problem {
	p := &problem{}
	if json.Unmarshal(body, p) != nil || p.Code == "" || json.Unmarshal(body, &p.members) != nil {
		*p = problem{
			Detail: fmt.Sprintf("%s replied %d without a problem body: %q", base, status,
				firstBytes(body)),
			Hint: "Check that the address is that of a Fencepost server.",
		}
	}
	p.Status = status
	seconds, err := strconv.ParseUint(strings.TrimSpace(header.Get("Retry-After")), 10, 31)
	if err == nil {
		p.retryAfter = time.Duration(seconds) * time.Second
	}
	if id := header.Get("X-Request-Id"); p.RequestID == "" {
		p.RequestID = id
	}
	p.replayed = header.Get("Idempotency-Replayed") == "true"
	p.ofGuard = header.Get("Fencing-Guarantee") != ""
	return p
}

func firstBytes(body []byte) string {
	if len(body) > 200 {
		body = body[:200]
	}
	return string(body)
}

func (p *problem) word(name string) string {
	var word string
	if json.Unmarshal(p.members[name], &word) != nil {
		return ""
	}
	return word
}

// endReason is the end of the lease by the server's reply. A reason of a newer server is unknown
// to this client and counts as superseded: the lease has ended in any case.
func (p *problem) endReason() LostReason {
	switch reason := LostReason(p.word("reason")); reason {
	case LostExpired, LostReleased, LostRevoked, LostSessionEnded:
		return reason
	default:
		return LostSuperseded
	}
}

func (p *problem) text() string {
	code := p.Code
	if code == "" {
		code = fmt.Sprintf("status %d", p.Status)
	}
	waited := ""
	if p.waited > 0 {
		waited = fmt.Sprintf("; waited %v", p.waited)
	}
	return strings.TrimSpace(
		fmt.Sprintf("%s%s (%s): %s", inWords(p.Detail), waited, code, p.hintInWords()))
}

func (p *problem) toError() *Error {
	e := newError(kindOf(p), "%s", p.text())
	e.Code, e.Status, e.Detail, e.Hint = p.Code, p.Status, inWords(p.Detail), p.hintInWords()
	e.Waited = p.waited
	e.RetryAfter, e.RequestID, e.Problem = p.retryAfter, p.RequestID, p.members
	if p.Code != "" {
		e.Retryable = p.Retryable
	}
	if outcome := p.word("outcome"); outcome != "" {
		e.Outcome = outcome
	}
	if e.Kind == ErrLeaseLost {
		e.Reason = p.endReason()
		if p.Code == "session-ended" || p.Code == "session-unknown" {
			e.Reason = LostSessionEnded
		}
	}
	return e
}
