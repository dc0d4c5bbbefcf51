package fencetest

import (
	"time"

	"fencepost/internal/names"
	"fencepost/internal/uuid"
)

// The limits of the real lock server.
const (
	ttlMsMin   = 100
	ttlMsMax   = 3_600_000
	waitMsMax  = 300_000
	locksMax   = 64
	tokenMax   = 999_999_999_999_999
	epoch2025S = 1_735_689_600
	// liftMax is how far above the clock a request may lift the tokens: an hour of a token a µs.
	liftMax = 3_600_000_000
)

func invalidRequest(format string, values ...any) *refusal {
	return refuse(400, "invalid-request", nil, format, values...)
}

func checkName(what, name string) *refusal {
	if rule := names.Broken(name); rule != "" {
		return invalidRequest("%s %q %s", what, name, rule)
	}
	return nil
}

func checkTTL(ms *int64) *refusal {
	if ms == nil || *ms >= ttlMsMin && *ms <= ttlMsMax {
		return nil
	}
	return invalidRequest("ttl_ms %d is out of range: this server takes %d to %d", *ms, ttlMsMin,
		ttlMsMax)
}

func ttlOf(ms *int64) time.Duration {
	if ms == nil {
		return defaultTTLMs * time.Millisecond
	}
	return time.Duration(*ms) * time.Millisecond
}

// checkAcquire checks an acquire of one lock or several, and gives it an id if it has none.
func checkAcquire(wishes []wish, body *acquireBody) *refusal {
	if len(wishes) < 1 || len(wishes) > locksMax {
		return invalidRequest("locks has %d entries: one request acquires 1 to %d", len(wishes),
			locksMax)
	}
	seen := map[string]bool{}
	for i := range wishes {
		one := &wishes[i]
		if refused := checkName("lock name", one.Lock); refused != nil {
			return refused
		}
		if seen[one.Lock] {
			return invalidRequest("lock %s is named twice: one request has one lease of each lock",
				one.Lock)
		}
		seen[one.Lock] = true
		if one.Mode == "" {
			one.Mode = modeExclusive
		}
		if refused := checkMinToken(one.MinToken); refused != nil {
			return refused
		}
	}
	if refused := checkTTL(body.TTLMs); refused != nil {
		return refused
	}
	if body.WaitMs < 0 || body.WaitMs > waitMsMax {
		return invalidRequest("wait_ms %d is out of range: at most %d", body.WaitMs, waitMsMax)
	}
	if body.Takeover || body.TakeoverOf != "" {
		if refused := checkTakeover(wishes[0].Mode, body); refused != nil {
			return refused
		}
	}
	if body.LeaseID == "" {
		body.LeaseID = uuid.New()
	}
	return nil
}

func checkMinToken(minToken *uint64) *refusal {
	if minToken == nil {
		return nil
	}
	sinceEpoch := time.Since(time.Unix(epoch2025S, 0))
	ceiling := uint64(sinceEpoch.Microseconds()) + liftMax
	if ceiling > tokenMax-1 {
		ceiling = tokenMax - 1
	}
	if *minToken < 1 || *minToken > ceiling {
		return invalidRequest("min_token %d is out of range: no guard can have seen more than %d",
			*minToken, ceiling)
	}
	return nil
}

func checkTakeover(mode string, body *acquireBody) *refusal {
	switch isOf := body.TakeoverOf != ""; {
	case body.Takeover && isOf:
		return invalidRequest(
			"takeover and takeover_of exclude each other: an earlier self, or one lease")
	case body.Takeover && body.Incarnation == "":
		return invalidRequest(
			"takeover needs incarnation: a text that every restart of the owner changes")
	case isOf && body.TakeoverOf == body.LeaseID:
		return invalidRequest("takeover_of %s is the lease_id of this request; the grant needs a "+
			"new one", body.TakeoverOf)
	case body.Owner == "":
		return invalidRequest("a takeover needs owner: it never crosses owners")
	case mode != modeExclusive:
		return invalidRequest("a takeover is exclusive, and mode %s is not", mode)
	}
	return nil
}
