package fencepost

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fencepost/internal/names"
	"fencepost/internal/timing"
)

const (
	metadataBytesMax = 4096
	permitsMax       = 1024
	locksMax         = 64
	tokenMax         = 999_999_999_999_999
)

// checkName checks the name of a lock or the key of an object.
func checkName(what, name string) *Error {
	if rule := names.Broken(name); rule != "" {
		return invalid("%s %q %s", what, name, rule)
	}
	return nil
}

// checkText checks an owner, an incarnation or a reason.
func checkText(what, text string) *Error {
	isControl := strings.IndexFunc(text, unicode.IsControl) >= 0
	if len(text) < 1 || len(text) > names.BytesMax || isControl || !utf8.ValidString(text) {
		return invalid("%s %q must be 1 to 256 bytes without control characters", what, text)
	}
	return nil
}

// checkTTL checks a time to live and returns it in milliseconds, rounded down.
func checkTTL(ttl time.Duration) (int64, *Error) {
	ms := ttl.Milliseconds()
	if ms < 1 || ms > timing.TTLMaxMs {
		return 0, invalid("a time to live of %v must be from 1ms to 24h (a day)", ttl)
	}
	return ms, nil
}

func checkPermits(size int) *Error {
	if size < 1 || size > permitsMax {
		return invalid("size %d must be 1 to %d permits", size, permitsMax)
	}
	return nil
}

func checkToken(token uint64) *Error {
	if token < 1 || token > tokenMax {
		return invalid("token %d must be an integer from 1 to %d", token, uint64(tokenMax))
	}
	return nil
}

func encodeMetadata(value any) (json.RawMessage, *Error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, invalid("the metadata cannot be written as JSON: %v", err)
	}
	if len(text) > metadataBytesMax {
		return nil, invalid("the metadata has %d bytes as JSON; at most %d are allowed", len(text),
			metadataBytesMax)
	}
	return text, nil
}

// isUUID reports whether text is a UUID in lower case with hyphens, and not nil.
func isUUID(text string) bool {
	if len(text) != 36 || strings.Trim(text, "0-") == "" {
		return false
	}
	for i := 0; i < len(text); i++ {
		isHyphen := i == 8 || i == 13 || i == 18 || i == 23
		isHex := text[i] >= '0' && text[i] <= '9' || text[i] >= 'a' && text[i] <= 'f'
		if isHyphen != (text[i] == '-') || !isHyphen && !isHex {
			return false
		}
	}
	return true
}

// escape percent-encodes all but the unreserved characters of RFC 3986.
func escape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if c := text[i]; names.HasByte(c) && c != ':' && c != '/' || c == '~' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
