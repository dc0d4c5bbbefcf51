package fencepost

import (
	"regexp"
	"strings"
)

// ownWords has words of HTTP, each followed by what it is here; longer ones come first.
var ownWords = strings.NewReplacer(
	"takeover and takeover_of", "Takeover and TakeoverOf",
	"takeover_of", "TakeoverOf",
	"min_token", "MinToken",
	"ttl_ms", "TTL in ms",
	"wait_ms", "Wait in ms",
	"session_id", "session id",
	"lease_id", "lease id",
	"fencing_token", "FencingToken",
	"the Fencing-Token header", "the FencingToken",
	"Fencing-Token header", "FencingToken",
	"Authorization header", "bearer token",
	"Idempotency-Key", "OpID",
	"after Retry-After", "later",
	"at least Retry-After", "then try again",
)

const checkAddresses = "Check the addresses of Server and Guard: another program or an older " +
	"server may run there."

// ownHints are next steps by the code, in place of those that name headers and fields.
var ownHints = map[string]string{
	"malformed-token":        "Use the FencingToken of the lease, unchanged.",
	"unauthorized":           "Give a token of the server's access file: Options.Token or TokenFile (FENCE_AUTH_FILE).",
	"bad-signature":          "Use a lease of this guard's lock server; both need the same key file.",
	"not-found":              checkAddresses,
	"method-not-allowed":     checkAddresses,
	"unsupported-media-type": checkAddresses,
	"misdirected-request":    "Name the server by address, localhost, or one of its --host-name.",
	"lease-id-conflict":      "Acquire again.",
	"lease-lost":             "Stop the work that the lease protected, then acquire again.",
	"op-id-reused":           "Use a fresh OpID for every operation, and repeat it unchanged.",
	"lock-held":              "Wait in the queue with the option Wait.",
	"token-required":         "Acquire the lock that the detail names, and pass its lease.",
	"guard-unsealed":         "Try again; an operator must check the guards that are named.",
	"outcome-unknown":        "It may have been done: read the state before you repeat it.",
}

var (
	ofHTTP = regexp.MustCompile(`_(ms|id|of|token)\b|\bheader|Retry-After|Authorization|` +
		`Idempotency-Key|content-type|Allow|Host|http-api|\bGET\b`)
	waitersAtEnd = regexp.MustCompile(`; (\d+) wait$`)
)

// inWords is the text without words of HTTP, and with the number of waiters in words.
func inWords(text string) string {
	return waitersAtEnd.ReplaceAllStringFunc(ownWords.Replace(text), func(end string) string {
		switch count := waitersAtEnd.FindStringSubmatch(end)[1]; count {
		case "0":
			return ""
		case "1":
			return "; 1 other request waits"
		default:
			return "; " + count + " other requests wait"
		}
	})
}

// hintInWords is the next step for the caller.
func (p *problem) hintInWords() string {
	if p.Code == "lock-held" && p.waited > 0 {
		return "Wait for longer with the option Wait."
	}
	if own := ownHints[p.Code]; own != "" && ofHTTP.MatchString(p.Hint) {
		return own
	}
	return inWords(p.Hint)
}
