package fencepost

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/timing"
)

// Nothing has run in the background when the check comes, as after a stop of the process.
func TestChecksAndContextsReadTheClockThemselves(t *testing.T) {
	passed := timing.New(now()-10_000, 5_000)
	trust := newTrust("a", passed, newHold(limits{}, read()))
	lease := &Lease{trust: trust}
	ctx := lease.Context()
	inner, cancel := trust.within(context.Background())
	defer cancel()
	if ctx.Err() == nil || inner.Err() == nil {
		t.Fatal("a context believes in a lease whose deadline has passed")
	}
	if err := lease.Check(); lostError(err) == nil || lostError(err).Reason != LostDeadline {
		t.Fatalf("the check says %v", err)
	}
	trust.extend(timing.New(now(), 60_000), read())
	if lease.Check() == nil || lease.Remaining() != 0 {
		t.Fatal("a renewal after the deadline brought the lease back")
	}
}

func TestLimitsEndTheHoldWhateverIsRenewed(t *testing.T) {
	const second = time.Second
	l := limits{progressWithin: 30 * second, maxHold: 60 * second}
	h := newHold(l, reading{at: 1000})
	long := timing.New(0, timing.TTLMaxMs)
	expect := func(at reading, end leaseEnd) {
		t.Helper()
		if got := h.nextEnd(long, at); got != end {
			t.Fatalf("at %v the end is %v, not %v", at, got, end)
		}
	}
	expect(reading{at: 1000}, leaseEnd{31_000, LostNoProgress})
	h.progressed = reading{at: 20_000}
	expect(reading{at: 20_000}, leaseEnd{50_000, LostNoProgress})
	// Time in suspend stops the clock of progress alone.
	expect(reading{at: 25_000, suspended: 5_000}, leaseEnd{55_000, LostNoProgress})
	h.progressed = reading{at: 40_000}
	expect(reading{at: 40_000}, leaseEnd{61_000, LostHeldTooLong})
	expect(reading{at: 40_000, suspended: 600_000}, leaseEnd{61_000, LostHeldTooLong})
}

func TestEachEndIsWarnedOfOnceUntilItMoves(t *testing.T) {
	l := limits{progressWithin: 30 * time.Second, warnBefore: 10 * time.Second}
	h := newHold(l, reading{})
	long := timing.New(0, timing.TTLMaxMs)
	warned := warnedEnds{}
	at, end, ok := h.nextWarning(long, reading{}, warned)
	if !ok || at != 20_000 || end.at != 30_000 {
		t.Fatalf("%v %v %v", at, end, ok)
	}
	warned[end.reason] = end.at
	if at, end, _ = h.nextWarning(long, reading{at: 20_000}, warned); end.reason != LostDeadline {
		t.Fatalf("%v %v", at, end)
	}
	h.progressed = reading{at: 25_000}
	if at, end, _ = h.nextWarning(long, reading{at: 25_000}, warned); at != 45_000 {
		t.Fatalf("%v %v", at, end)
	}
	// Renewals that succeed cause no warning, however early it is asked for.
	h = newHold(limits{warnBefore: time.Hour}, reading{})
	if at, _, _ = h.nextWarning(timing.New(0, 15_000), reading{}, warnedEnds{}); at != 6_000 {
		t.Fatalf("a warning at %v", at)
	}
}

func TestOnlyAnExpiryAfterTheDeadlineIsLaterThanTheWork(t *testing.T) {
	refusal := func(code, reason string) *Error {
		text, _ := json.Marshal(map[string]string{"code": code, "reason": reason})
		return readProblem(410, http.Header{}, text, "").toError()
	}
	end := workEnd{deadline: 2_400, inTime: true}
	for _, c := range [][2]string{{"lease-lost", "expired"}, {"lease-lost", "session-ended"},
		{"session-ended", "expired"}, {"session-ended", "blocked"}} {
		refused := refusal(c[0], c[1])
		if !end.excuse(refused, 2_400) || end.excuse(refused, 2_399) ||
			(workEnd{}).excuse(refused, 2_400) {
			t.Errorf("%v", c)
		}
	}
	for _, c := range [][2]string{{"lease-lost", "revoked"}, {"lease-lost", "superseded"},
		{"lease-lost", "released"}, {"session-ended", "ended"}, {"session-unknown", "expired"}} {
		if (workEnd{inTime: true}).excuse(refusal(c[0], c[1]), 9_000) {
			t.Errorf("%v", c)
		}
	}
	// A retry finds what its first attempt left, and the server may have forgotten it.
	for _, c := range [][2]string{{"lease-lost", "expired"}, {"lease-lost", "superseded"},
		{"session-ended", "expired"}, {"session-unknown", ""}} {
		refused := refusal(c[0], c[1])
		refused.Outcome = outcomeUnknown
		if !end.excuse(refused, 0) || (workEnd{}).excuse(refused, 0) {
			t.Errorf("%v after an attempt without a reply", c)
		}
	}
}

func TestTheNextRequestOfALongWaitIsSentBeforeTheFirstTimesOut(t *testing.T) {
	times := turnTimes{maxWaitMs: 100, nextAfter: 60 * time.Millisecond,
		overlap: 20 * time.Millisecond, pause: time.Millisecond}
	var sent int32
	end := now().Plus(patience)
	got, failed := inTurns(testContext(t), times, func() int64 { return int64(end - now()) },
		func(ctx context.Context, waitMs int64) (*int32, *failure) {
			number := atomic.AddInt32(&sent, 1)
			if waitMs > times.maxWaitMs {
				t.Errorf("a wait of %d ms", waitMs)
			}
			switch number {
			case 2:
				// It ends nothing: the first still has the entry.
				return nil, &failure{cause: notSent}
			case 5:
				return &number, nil
			}
			<-ctx.Done()
			return nil, &failure{cause: noReply}
		})
	if failed != nil || *got != 5 {
		t.Fatalf("%v after %d requests", failed, sent)
	}
}

func TestAnAttemptThatMayHaveTakenEffectStaysUnknown(t *testing.T) {
	silent := &failure{cause: noReply, why: "cut"}
	unsent := &failure{cause: notSent, why: "refused"}
	problem := func(code string, members string) *failure {
		text := `{"code":"` + code + `","status":503,"retryable":true` + members + `}`
		return &failure{cause: refused, problem: readProblem(503, http.Header{}, []byte(text), "")}
	}
	for _, last := range []*failure{silent, unsent, problem("store-unavailable", "")} {
		var sent sentChange
		sent.record(silent)
		if err := sent.error("put a", last); err.Kind != ErrOutcomeUnknown {
			t.Errorf("%v", err)
		}
	}
	var sent sentChange
	sent.record(silent)
	stale := &failure{cause: refused, problem: readProblem(412, http.Header{},
		[]byte(`{"code":"stale-token","outcome":"not-applied"}`), "")}
	if err := sent.error("put a", stale); err.Kind != ErrStale || err.Outcome != outcomeUnknown {
		t.Errorf("%v %s", err, err.Outcome)
	}
	stale.problem.replayed = true
	if err := sent.error("put a", stale); err.Outcome != outcomeNotApplied {
		t.Errorf("%v %s", err, err.Outcome)
	}
	if err := (&sentChange{}).error("put a", unsent); err.Kind != ErrUnavailable {
		t.Errorf("%v", err)
	}
}

func TestASurplusOfLeasesIsExplainedOnlyByAProbe(t *testing.T) {
	var c leaseCount
	if c.isMismatch(2, c.expect(2)) || !c.isMismatch(3, c.expect(2)) {
		t.Fatal("the counts are compared wrongly")
	}
	c.explain(c.last)
	if c.isMismatch(3, c.expect(2)) || !c.isMismatch(2, c.expect(2)) || !c.isMismatch(1, c.expect(2)) {
		t.Fatal("an explained surplus hides a loss")
	}
	c.change()
	if !c.isMismatch(3, c.expect(2)) {
		t.Fatal("a change of the own leases keeps the explanation")
	}
}

// The vectors are those of docs/reference/fencing-token.md.
func TestTokensAndCredentialsAreThoseOfTheReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/fencing-token.md")
	if err != nil {
		t.Fatal(err)
	}
	_, vectors, _ := strings.Cut(string(page), "### Vectors")
	blocks := strings.Split(vectors, "```")
	var headers []string
	for _, block := range []string{blocks[1], blocks[3]} {
		lines := strings.Fields(block)
		header, credential := lines[1], lines[2]
		got, err := Credential(header)
		if err != nil || got != credential {
			t.Errorf("%s: %s %v", header, got, err)
		}
		headers = append(headers, header)
	}
	if got, err := Credential(headers...); err != nil || got != strings.Fields(blocks[5])[1] {
		t.Errorf("joined: %s %v", got, err)
	}
	if _, err := Credential(headers[0], headers[0]); err == nil {
		t.Error("two tokens of one lock are joined")
	}
	token, err := ParseToken(headers[0])
	if err != nil || token.Token != 34 || token.Lock != "orders/42" || token.Namespace != "default" {
		t.Fatalf("%+v %v", token, err)
	}
	const lease = `;lease="67e55044-10b1-426f-9247-bb680e5fe0c8"`
	if _, err := ParseToken(` 34;` + lease[1:] + ` ; lock="a"`); err == nil {
		t.Error("a space before a semicolon is taken")
	}
	if _, err := ParseToken(` 34` + lease + `; lock="a"`); err != nil {
		t.Errorf("another order and a space: %v", err)
	}
	other := ` 7; lease="67e55044-10b1-426f-9247-bb680e5fe0c8";lock="jobs:nightly"`
	if got, err := Credential(other); err != nil || got != strings.Fields(blocks[3])[2] {
		t.Errorf("another order: %s %v", got, err)
	}
	for _, bad := range []string{
		``, `0;lock="a"` + lease, `-1;lock="a"` + lease, `01;lock="a"` + lease,
		`1000000000000000;lock="a"` + lease, `34.0;lock="a"` + lease, `"34";lock="a"` + lease,
		`34` + lease, `34;lock="a"`, `34;lock="a"` + lease + `;kid="k"`, `34;lock="a"` + lease + `;x=1`,
		`34;lock="a"` + lease + `;kid="k";sig=:AAAA:`, `34;lock="a";lease="abc"`, `34;lock=a` + lease,
		`34;lock="a"` + lease + `;lock="a"`, `34;lock="orders/../42"` + lease,
		`34;lock="a"` + lease + `;`, `34;lock="a"` + lease + `;x="1"`} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestSettingsAreReadFromVariablesAndTheFile(t *testing.T) {
	folder := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(folder, "fence.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := filepath.Join(folder, "token")
	if err := os.WriteFile(secret, []byte(" word \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := func(text string, variables map[string]string) (*Client, error) {
		variables["FENCE_CONFIG"] = file(text)
		return FromVariables(func(name string) string { return variables[name] })
	}
	client, err := from("# mine\nserver = \"http://127.0.0.1:1/\" # here\nauth_file = '"+secret+
		"'\ninsecure-http = true\nlog = \"debug\"\n",
		map[string]string{"FENCE_GUARD": "http://10.0.0.5:2", "FENCE_OWNER": ""})
	if err != nil || client.server.base != "http://127.0.0.1:1" || client.server.token() != "word" ||
		client.guard.base != "http://10.0.0.5:2" || client.isOwnerGiven {
		t.Fatalf("%+v %v", client, err)
	}
	for text, reason := range map[string]string{
		"sever = \"x\"": `line 1: there is no setting "sever"`, "server": "not of the form",
		"server = x": "server must be a text", "owner = \"a\"\nowner = \"b\"": "a second time",
		"insecure-http = \"yes\"": "must be true or false",
		"server = \"ftp://a\"":    "must begin with http",
	} {
		_, err := from(text, map[string]string{})
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", text, err)
		}
	}
	both := map[string]string{"FENCE_OWNER": "a", "FENCE_OWNER_FILE": secret}
	if _, err := from("", both); err == nil || !strings.Contains(err.Error(), "both set") {
		t.Errorf("%v", err)
	}
}

func TestAddressesAreCheckedWhereTheyAreGiven(t *testing.T) {
	for address, reason := range map[string]string{
		"127.0.0.1:7420": "", "redis://a": "must begin", "http://u:hunter2@a": "neither credentials",
		"http://a?b=c": "nor a query", "http://a:70000": "a port from 1", "http://a:": "a port from 1",
		"http://10.0.0.5:7420": "plain HTTP", "http://127.0.0.1.example": "plain HTTP",
		"http://localhost.": "plain HTTP", "http://[::ffff:127.0.0.1]": "plain HTTP",
	} {
		_, err := New(Options{Server: address})
		if err == nil || !strings.Contains(err.Error(), reason) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", address, err)
		}
	}
	options := Options{Token: "hunter2"}
	if text := fmt.Sprintf("%v %+v %#v %s", options, options, options, options); strings.Contains(
		text, "hunter2") {
		t.Error(text)
	}
	for _, address := range []string{"http://localhost:1", "http://127.0.0.2", "http://[::1]:7",
		"https://10.0.0.5/x/"} {
		if _, err := New(Options{Server: address}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestValuesOutOfRangeAreRefusedBeforeAnythingIsSent(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	client := newClient(t, Options{Server: proxy.url, Guard: proxy.url})
	ctx := testContext(t)
	for _, name := range []string{"", "/a", "a/", "a//b", "..", "a/./b", "a b", "ä", "a\n",
		strings.Repeat("a", 257)} {
		_, err := client.Lock(ctx, name)
		_, ofObject := client.Objects().Get(ctx, &HandedToken{}, name)
		_, ofState := client.Show(ctx, name)
		for _, err := range []error{err, ofObject, ofState} {
			if failed, ok := err.(*Error); !ok || failed.Kind != ErrInvalid {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	for what, option := range map[string]Option{
		"ttl": TTL(0), "long ttl": TTL(25 * time.Hour), "wait": Wait(-1), "permits": Permit(0),
		"many permits": Permit(1025), "token": MinToken(0), "big token": MinToken(1e15),
		"metadata": Metadata(strings.Repeat("x", 4095)), "no JSON": Metadata(make(chan int)),
		"hold": MaxHold(0), "progress": ProgressWithin(time.Microsecond),
		"takeover": Takeover(), "lease": TakeoverOf("abc"),
		"warning": WarnBefore(time.Second, nil),
	} {
		if _, err := client.Lock(ctx, "a", option); lostError(err) != nil || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, owner := range []string{strings.Repeat("x", 257), "a\nb"} {
		if _, err := New(Options{Owner: owner}); err == nil {
			t.Errorf("owner %q", owner)
		}
	}
	if _, err := client.LockAll(ctx, []string{"a", "a"}); err == nil {
		t.Error("a lock twice")
	}
	if seen := proxy.seen("/"); len(seen) != 0 {
		t.Errorf("%d requests were sent", len(seen))
	}
}

func TestTheVersionIsTheServers(t *testing.T) {
	text := must[[]byte](t)(os.ReadFile("../../Cargo.toml"))
	_, version, _ := strings.Cut(string(text), "\nversion = \"")
	if version, _, _ = strings.Cut(version, "\""); version != Version {
		t.Fatalf("the servers are %s, this is %s", version, Version)
	}
}
