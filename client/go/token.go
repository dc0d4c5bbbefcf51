package fencepost

import (
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"

	"fencepost/internal/names"
)

const (
	headerBytesMax     = 1024
	credentialTokenMax = 16
	credentialPrefix   = "fc1_"
)

// Fence is the proof of a grant that every fenced call takes: a [Lease] or a [HandedToken].
type Fence interface {
	// FencingToken is the value of the Fencing-Token header.
	FencingToken() string
	// Check says whether the grant can be trusted now, as far as this process knows.
	Check() error
}

// HandedToken is the token of a lease that another process holds and watches: a child of fence run
// gets it in FENCE_HEADER. The holder ends the child when the lease is lost, and the guard refuses
// the token once it is stale; Check always succeeds.
type HandedToken struct {
	header string
	// kid and sig are the signature in the header, if it has one.
	kid, sig string
	// Token is the number that the guard compares.
	Token uint64
	// Lock and LeaseID name the grant; Namespace is that of the lock.
	Lock, LeaseID, Namespace string
}

// HandedTokenFromEnv reads the token from FENCE_HEADER, which fence run sets.
func HandedTokenFromEnv() (*HandedToken, error) {
	header := os.Getenv("FENCE_HEADER")
	if header == "" {
		return nil, invalid("FENCE_HEADER is not set; run this under fence run")
	}
	return ParseToken(header)
}

// FencingToken is the value of the Fencing-Token header.
func (t *HandedToken) FencingToken() string { return t.header }

// Check always succeeds: this process cannot know whether the lease is live.
func (t *HandedToken) Check() error { return nil }

// String names the grant; the header with its signature is left out.
func (t HandedToken) String() string {
	return fmt.Sprintf("token %d of lease %s on %s", t.Token, t.LeaseID, t.Lock)
}

// GoString leaves the signature out.
func (t HandedToken) GoString() string { return "fencepost.HandedToken{" + t.String() + "}" }

// ParseToken parses the value of a Fencing-Token header. Its signature is not verified: only the
// guard can do that. The error is of kind [ErrInvalid].
func ParseToken(header string) (*HandedToken, error) {
	t, rule := parseToken(header)
	if rule != "" {
		return nil, invalid("Fencing-Token %q %s", header, rule)
	}
	return t, nil
}

// parseToken returns the rule that the text breaks, or "".
func parseToken(header string) (*HandedToken, string) {
	if len(header) > headerBytesMax {
		return nil, fmt.Sprintf("is longer than %d bytes", headerBytesMax)
	}
	number, rest, _ := strings.Cut(strings.Trim(header, " ")+";", ";")
	token, err := strconv.ParseUint(number, 10, 64)
	if err != nil || number[0] == '0' || token > tokenMax || len(number) > 15 {
		return nil, "must begin with an integer, the token, from 1 to 999999999999999"
	}
	t := &HandedToken{header: header, Token: token, Namespace: "default"}
	seen := map[string]bool{}
	for rest != "" {
		key, value, isQuoted, after, ok := parameter(rest)
		if !ok {
			return nil, "is malformed"
		}
		if seen[key] {
			return nil, "repeats the parameter " + key
		}
		seen[key] = true
		if rule := t.set(key, value, isQuoted); rule != "" {
			return nil, rule
		}
		rest = after
	}
	for _, key := range []string{"lock", "lease"} {
		if !seen[key] {
			return nil, "lacks the parameter " + key
		}
	}
	if seen["kid"] != seen["sig"] {
		return nil, "has only one of kid and sig"
	}
	return t, ""
}

// parameter splits one off: spaces, a key, and a quoted string or a byte sequence between colons.
func parameter(text string) (key, value string, isQuoted bool, rest string, ok bool) {
	key, text, ok = strings.Cut(strings.TrimLeft(text, " "), "=")
	if !ok || text == "" || (text[0] != '"' && text[0] != ':') {
		return "", "", false, "", false
	}
	isQuoted = text[0] == '"'
	value, rest, ok = strings.Cut(text[1:], text[:1])
	if !ok || !strings.HasPrefix(rest, ";") || strings.Contains(value, `\`) {
		return "", "", false, "", false
	}
	return key, value, isQuoted, rest[1:], true
}

func (t *HandedToken) set(key, value string, isQuoted bool) string {
	if isQuoted != (key != "sig") {
		return "has a parameter " + key + " of the wrong type"
	}
	ok := true
	switch key {
	case "lock":
		t.Lock, ok = value, checkName("lock name", value) == nil
	case "lease":
		t.LeaseID = strings.ToLower(value)
		ok = isUUID(t.LeaseID)
	case "ns":
		t.Namespace, ok = value, isWord(value, 64)
	case "kid":
		t.kid, ok = value, isWord(value, 32)
	case "sig":
		t.sig = value
		mac, err := base64.StdEncoding.DecodeString(value)
		ok = err == nil && len(mac) == 32
	default:
		return "has an unknown parameter " + key
	}
	if !ok {
		return "has a parameter " + key + " that is not valid"
	}
	return ""
}

// canonical is the header value as writers order it: guards take no other form in a credential.
func (t *HandedToken) canonical() string {
	text := fmt.Sprintf(`%d;lock="%s";lease="%s";ns="%s"`, t.Token, t.Lock, t.LeaseID, t.Namespace)
	if t.kid != "" {
		text += fmt.Sprintf(`;kid="%s";sig=:%s:`, t.kid, t.sig)
	}
	return text
}

func isWord(text string, max int) bool {
	for i := 0; i < len(text); i++ {
		if c := text[i]; !names.HasByte(c) || c == ':' || c == '/' {
			return false
		}
	}
	return len(text) >= 1 && len(text) <= max
}

// Credential joins the tokens of these Fencing-Token headers to a password for the guard's Redis
// port: 1 to 16, each of another lock. The error is of kind [ErrInvalid].
func Credential(headers ...string) (string, error) {
	if len(headers) < 1 || len(headers) > credentialTokenMax {
		return "", invalid("a credential has 1 to %d tokens, not %d", credentialTokenMax, len(headers))
	}
	locks := map[string]bool{}
	parts := make([]string, 0, len(headers))
	for _, header := range headers {
		token, err := ParseToken(header)
		if err != nil {
			return "", err
		}
		if locks[token.Lock] {
			return "", invalid("a credential has at most one token of lock %s", token.Lock)
		}
		locks[token.Lock] = true
		text := base64.RawURLEncoding.EncodeToString([]byte(token.canonical()))
		parts = append(parts, credentialPrefix+text)
	}
	return strings.Join(parts, "."), nil
}
