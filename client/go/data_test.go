package fencepost

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAStaleWriteIsRefusedByTheGuard(t *testing.T) {
	client := newClient(t, Options{})
	objects := client.Objects()
	ctx := testContext(t)
	first := mustLock(t, client, t.Name())
	_ = must[*Applied](t)(objects.Put(ctx, first, t.Name(), []byte("first")))
	_ = must[*Revoked](t)(client.Revoke(ctx, t.Name(), "a test"))
	second := mustLock(t, client, t.Name())
	applied := must[*Applied](t)(objects.Put(ctx, second, t.Name(), []byte("second")))
	if applied.Mark != second.Token() || applied.Guarantee != "atomic" {
		t.Fatalf("%+v", applied)
	}
	// A client that does not watch its lease.
	careless := must[*HandedToken](t)(ParseToken(first.FencingToken()))
	_, err := objects.Put(ctx, careless, t.Name(), []byte("too late"))
	var failed *Error
	if !errors.Is(err, ErrStale) || !errors.As(err, &failed) || failed.Code != "stale-token" ||
		failed.MinToken() != second.Token() || failed.Retryable || !failed.Stale() {
		t.Fatalf("%v", err)
	}
	object := must[*Object](t)(objects.Get(ctx, second, t.Name()))
	if string(object.Body) != "second" {
		t.Fatalf("the object says %s", object.Body)
	}
}

func TestAWriteWithoutAReplyIsRepeatedUnderOneKeyAndAppliedOnce(t *testing.T) {
	proxy := newProxy(t, sharedGuard)
	proxy.cause(fault{path: "/v1/objects", times: 1, drop: true})
	client := newClient(t, Options{Guard: proxy.url})
	lease := mustLock(t, client, t.Name())
	ctx := testContext(t)
	applied := must[*Applied](t)(client.Objects().Put(ctx, lease, t.Name(), []byte("1"), IfAbsent()))
	sent := proxy.seen("/v1/objects")
	keys := map[string]bool{}
	for _, r := range sent {
		keys[r.header.Get("Idempotency-Key")] = true
	}
	if !applied.Replayed || len(sent) != 2 || len(keys) != 1 {
		t.Fatalf("%+v after %d requests with keys %v", applied, len(sent), keys)
	}
	_, err := client.Objects().Put(ctx, lease, t.Name(), []byte("2"), IfAbsent())
	if !errors.Is(err, ErrPrecondition) {
		t.Fatalf("%v", err)
	}
	_ = must[*Applied](t)(client.Objects().Put(ctx, lease, t.Name(), []byte("2"),
		IfMatch(applied.ETag), ContentType("text/plain"), OpID("a:1")))
	_ = must[*Applied](t)(client.Objects().Delete(ctx, lease, t.Name()))
	if object, err := client.Objects().Get(ctx, lease, t.Name()); object != nil || err != nil {
		t.Fatalf("%v %v", object, err)
	}
	if mark := must[uint64](t)(client.Objects().Seal(ctx, lease)); mark != lease.Token() {
		t.Fatalf("sealed at %d", mark)
	}
}

// net/http repeats a request with the header Idempotency-Key on a broken connection by itself.
func TestNothingIsRepeatedBehindTheBackOfTheLeasesCheck(t *testing.T) {
	proxy := newProxy(t, sharedGuard)
	client := newClient(t, Options{Guard: proxy.url})
	lease := mustLock(t, client, t.Name())
	ctx := testContext(t)
	_ = must[*Applied](t)(client.Objects().Delete(ctx, lease, t.Name()))
	// The connection is used a second time, and the lease ends while the request is on its way.
	proxy.cause(fault{path: "/v1/objects", times: 1, drop: true, before: func(recorded) {
		lease.trust.lose(LostDeadline)
	}})
	_, err := client.Objects().Delete(ctx, lease, t.Name())
	if !errors.Is(err, ErrOutcomeUnknown) || len(proxy.seen("/v1/objects")) != 2 {
		t.Fatalf("%v after %d requests", err, len(proxy.seen("/v1/objects")))
	}
}

func TestAServerThatIsNoFencepostIsNamed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 404, 500} {
		status := status
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>another program</html>")
		}))
		t.Cleanup(other.Close)
		_, err := newClient(t, Options{Server: other.URL}).Lock(testContext(t), "a")
		var failed *Error
		isNamed := errors.As(err, &failed) && strings.Contains(err.Error(), other.URL) &&
			strings.Contains(err.Error(), "<html>another")
		if !isNamed || failed.Kind != ErrInternal && failed.Kind != ErrInvalid {
			t.Errorf("%d: %v", status, err)
		}
		client := newClient(t, Options{Guard: other.URL})
		lease := mustLock(t, client, t.Name())
		_, err = client.Objects().Put(testContext(t), lease, "a", nil)
		_, readErr := client.Objects().Get(testContext(t), lease, "a")
		for _, err := range []error{err, readErr} {
			if !errors.Is(err, ErrInternal) && !errors.Is(err, ErrInvalid) {
				t.Errorf("an object of another program, %d: %v", status, err)
			}
		}
		mustRelease(t, lease)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	proxy.cause(fault{times: -1, status: 307, header: map[string]string{"Location": sharedServer}})
	_, err := newClient(t, Options{Server: proxy.url}).Show(testContext(t), "a")
	if !errors.Is(err, ErrInternal) || len(proxy.seen("/")) != 1 {
		t.Fatalf("%v", err)
	}
}

func TestTheServersCertificateIsVerifiedAndTheTokenSent(t *testing.T) {
	t.Parallel()
	target := must[*url.URL](t)(url.Parse(sharedServer))
	seen := make(chan string, 8)
	forward := httputil.NewSingleHostReverseProxy(target)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		r.Host = target.Host
		forward.ServeHTTP(w, r)
	}))
	defer secure.Close()
	_, err := newClient(t, Options{Server: secure.URL}).Show(testContext(t), "a")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("a certificate of an unknown CA: %v", err)
	}
	folder := t.TempDir()
	ca, token := filepath.Join(folder, "ca.pem"), filepath.Join(folder, "token")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}
	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := newClient(t, Options{Server: secure.URL, CAFile: ca, TokenFile: token})
	if _, err := client.Show(testContext(t), "a"); err != nil || <-seen != "Bearer secret" {
		t.Fatalf("%v", err)
	}
	for _, bad := range []Options{{CAFile: token}, {CAFile: "/none"}, {ClientCert: ca}, {Token: "a b"},
		{ClientCert: ca, ClientKey: ca}, {Token: "a", TokenFile: token}} {
		if _, err := New(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestEventsContinueAfterABrokenConnection(t *testing.T) {
	client := newClient(t, Options{})
	proxy := newProxy(t, sharedServer)
	ctx := testContext(t)
	reader := newClient(t, Options{Server: proxy.url})
	stream := must[*EventStream](t)(reader.Events(ctx, t.Name(), ""))
	defer stream.Close()
	next := func(kind string) *Event {
		t.Helper()
		event := must[*Event](t)(stream.Next(ctx))
		if event.Kind != kind {
			t.Fatalf("%+v, not %s", event, kind)
		}
		return event
	}
	next("ready")
	lease := mustLock(t, client, t.Name()+"/a")
	if event := next("granted"); event.Lock != t.Name()+"/a" || event.Token != lease.Token() {
		t.Fatalf("%+v", event)
	}
	proxy.cut()
	next(Broken)
	mustRelease(t, lease)
	next(Resumed)
	next("released")
	if ids := proxy.seen("/v1/events"); len(ids) != 2 || ids[1].header.Get("Last-Event-Id") == "" {
		t.Fatalf("%v", ids)
	}
	given, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := stream.Next(given); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
}

func TestWhatIsNoEventIsAnError(t *testing.T) {
	for text, reason := range map[string]string{
		"data: nonsense\n\n": "no valid event", "data: {}\n\n": "no valid event",
		"data: " + strings.Repeat("x", eventBytesMax+1):   "more than 65536",
		strings.Repeat("data: aaaaaaaa\n", eventBytesMax): "more than 65536",
	} {
		body := &eventBody{items: make(chan eventItem)}
		ctx, cancel := context.WithCancel(testContext(t))
		go body.read(ctx, io.NopCloser(bytes.NewBufferString(text)))
		for {
			got := <-body.items
			if got.event == nil && got.err == nil {
				continue
			}
			if got.err == nil || !strings.Contains(got.err.Error(), reason) {
				t.Errorf("%+v", got)
			}
			break
		}
		cancel()
	}
}

func TestALeaderIsElectedObservedAndResigns(t *testing.T) {
	ctx := testContext(t)
	a := newClient(t, Options{Owner: "a"})
	b := newClient(t, Options{Owner: "b"})
	if leader, err := b.Leader(ctx, t.Name()); leader != nil || err != nil {
		t.Fatalf("%v %v", leader, err)
	}
	seen := make(chan string, 8)
	watching, stop := context.WithCancel(ctx)
	observed := make(chan error)
	go func() {
		observed <- a.Observe(watching, t.Name(), func(leader *Leader, unknown error) {
			if leader == nil {
				seen <- "vacant"
				return
			}
			seen <- leader.Owner + string(leader.Metadata)
		})
	}()
	if first := <-seen; first != "vacant" {
		t.Fatal(first)
	}
	office := must[*Lease](t)(a.Campaign(ctx, t.Name(), Metadata("x:1")))
	if got := <-seen; got != `a"x:1"` {
		t.Fatal(got)
	}
	elected := make(chan *Lease)
	go func() {
		lease, _ := b.Campaign(ctx, t.Name(), TTL(time.Minute))
		elected <- lease
	}()
	await(t, "the candidate", func() bool {
		shown, err := b.Show(ctx, t.Name())
		return err == nil && shown.QueueLength == 1
	})
	mustRelease(t, office)
	next := <-elected
	if next == nil || next.Token() <= office.Token() {
		t.Fatal("b was not elected")
	}
	for got := <-seen; got != "b"; got = <-seen {
		if got != "vacant" {
			t.Fatal(got)
		}
	}
	mustRelease(t, next)
	stop()
	if err := <-observed; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
}

func TestALockServerBelowTheMarksIsRaisedOnlyForALiveLease(t *testing.T) {
	ctx := testContext(t)
	client := newClient(t, Options{})
	lease := mustLock(t, client, t.Name())
	// Another lock server with the same key, whose tokens are higher because it started later.
	other := newClient(t, Options{Server: mustStart(t, "lock-server", "--store", "memory:").url})
	higher := mustLock(t, other, t.Name())
	_ = must[*Applied](t)(other.Objects().Put(ctx, higher, t.Name(), []byte("1")))
	_, refusal := client.Objects().Put(ctx, lease, t.Name(), []byte("2"))
	if _, err := lease.ReacquireAbove(ctx, errors.New("other")); !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v", err)
	}
	above := must[*Lease](t)(lease.ReacquireAbove(ctx, refusal))
	_ = must[*Applied](t)(client.Objects().Put(ctx, above, t.Name(), []byte("3")))
	if above.Token() <= higher.Token() || lease.Check() == nil {
		t.Fatal("the token is not above the mark, or the old lease is used on")
	}
	_, refusal = other.Objects().Put(ctx, higher, t.Name(), []byte("4"))
	_ = must[*Revoked](t)(other.Revoke(ctx, t.Name(), "a test"))
	// A holder that was replaced gets nothing.
	if _, err := higher.ReacquireAbove(ctx, refusal); !errors.Is(err, ErrLeaseLost) {
		t.Fatalf("%v", err)
	}
	mustRelease(t, above)
}
