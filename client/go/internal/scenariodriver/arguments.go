package main

import (
	"math"
	"time"

	"fencepost"
)

// arguments are the members of a request.
type arguments map[string]any

func (a arguments) text(name string) string {
	text, _ := a[name].(string)
	return text
}

func (a arguments) texts(name string) []string {
	var texts []string
	items, _ := a[name].([]any)
	for _, item := range items {
		if text, ok := item.(string); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

func (a arguments) float(name string) float64 {
	number, _ := a[name].(float64)
	return number
}

func (a arguments) has(name string) bool { return a[name] != nil }

func (a arguments) isSet(name string) bool { return a[name] == true }

func (a arguments) time(name string) time.Duration {
	ms := a.float(name)
	if math.Abs(ms) > float64(math.MaxInt64/int64(time.Millisecond)) {
		return time.Duration(math.MaxInt64)
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// options are those of a lock that the request names.
func (a arguments) options() ([]fencepost.Option, error) {
	var options []fencepost.Option
	times := map[string]func(time.Duration) fencepost.Option{
		"ttl_ms": fencepost.TTL, "wait_ms": fencepost.Wait,
		"progress_within_ms": fencepost.ProgressWithin, "max_hold_ms": fencepost.MaxHold,
	}
	for name, option := range times {
		if a.has(name) {
			options = append(options, option(a.time(name)))
		}
	}
	switch mode := a.text("mode"); mode {
	case "", "exclusive":
	case "shared":
		options = append(options, fencepost.Shared())
	case "permit":
		options = append(options, fencepost.Permit(int(a.float("size"))))
	default:
		return nil, mistake("there is no mode %s", mode)
	}
	if a.has("metadata") {
		options = append(options, fencepost.Metadata(a["metadata"]))
	}
	if a.has("min_token") {
		token := a.float("min_token")
		if token < 0 || token != math.Trunc(token) || token >= math.MaxUint64 {
			return nil, mistake("min_token %v is no whole number from 0 on", a["min_token"])
		}
		options = append(options, fencepost.MinToken(uint64(token)))
	}
	if a.isSet("takeover") {
		options = append(options, fencepost.Takeover())
	}
	return options, nil
}
