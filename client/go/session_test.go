package fencepost

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestOneHeartbeatKeepsTheLeasesOfASession(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, sharedServer)
	proxy.cause(fault{path: "/v1/sessions", times: 1, drop: true})
	client := newClient(t, Options{Server: proxy.url})
	ctx := testContext(t)
	session := must[*Session](t)(client.BeginSession(ctx, TTL(lasting)))
	begun := proxy.seen("/v1/sessions")
	if len(begun) != 2 || begun[0].body["session_id"] != begun[1].body["session_id"] {
		t.Fatalf("begun by %v", begun)
	}
	first := must[*Lease](t)(session.Lock(ctx, t.Name()+"/1"))
	set := must[*LeaseSet](t)(session.LockAll(ctx, []string{t.Name() + "/2", t.Name() + "/3"}))
	expires := session.trust.currentWindow().ExpiresAt()
	await(t, "the end of the time to live", func() bool { return now() > expires })
	if len(proxy.seen("/heartbeat")) == 0 {
		t.Fatal("no heartbeat")
	}
	if err := first.Check(); err != nil {
		t.Fatal(err)
	}
	err := set.Check()
	if err != nil || set.On(t.Name()+"/2").Token() >= set.On(t.Name()+"/3").Token() {
		t.Fatalf("%v", err)
	}
	mustRelease(t, first)
	if count := must[int](t)(session.End(ctx)); count != 2 {
		t.Fatalf("%d leases ended", count)
	}
	if err := set.Check(); lostError(err) == nil || lostError(err).Reason != LostSessionEnded {
		t.Fatalf("%v", err)
	}
	if _, err := session.Lock(ctx, "a"); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a lock of an ended session: %v", err)
	}
	mustLock(t, client, t.Name()+"/3")
}

func TestTheLossOfOneLeaseOfASessionIsNoticedByTheCount(t *testing.T) {
	t.Parallel()
	client := newClient(t, Options{})
	ctx := testContext(t)
	err := client.WithLocks(ctx, []string{t.Name() + "/1", t.Name() + "/2"},
		func(ctx context.Context, leases *LeaseSet) error {
			_ = must[*Revoked](t)(client.Revoke(ctx, t.Name()+"/2", "a test"))
			select {
			case <-ctx.Done():
			case <-time.After(patience):
				t.Error("the context did not end")
			}
			if leases.Leases()[0].Check() != nil || leases.Leases()[1].Check() == nil {
				t.Error("the wrong lease is lost")
			}
			return ctx.Err()
		}, TTL(lasting))
	if failed := lostError(err); failed == nil || failed.Reason != LostRevoked {
		t.Fatalf("%v", err)
	}
	mustLock(t, client, t.Name()+"/1", Wait(patience))
}

func TestSeveralLocksAreGrantedAllOrNone(t *testing.T) {
	client := newClient(t, Options{})
	ctx := testContext(t)
	held := mustLock(t, client, t.Name()+"/2")
	names := []string{t.Name() + "/1", t.Name() + "/2"}
	_, err := client.LockAll(ctx, names)
	var failed *Error
	if !errors.Is(err, ErrContended) || !errors.As(err, &failed) || failed.Lock() != names[1] {
		t.Fatalf("%v", err)
	}
	mustRelease(t, mustLock(t, client, names[0]))
	mustRelease(t, held)
	set := must[*LeaseSet](t)(client.LockAll(ctx, names, Wait(patience)))
	if _, err := client.Objects().Put(ctx, set.On(names[1]), names[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := set.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := set.Check(); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a released set: %v", err)
	}
}

func TestASessionWithoutHeartbeatsIsLostWithItsLeases(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, sharedServer)
	client := newClient(t, Options{Server: proxy.url})
	ctx := testContext(t)
	session := must[*Session](t)(client.BeginSession(ctx, TTL(4*time.Second)))
	lease := must[*Lease](t)(session.Lock(ctx, t.Name()))
	proxy.cause(fault{path: "/heartbeat", times: -1, refuse: true})
	<-lease.Context().Done()
	if failed := lostError(lease.Err()); failed == nil || failed.Reason != LostDeadline {
		t.Fatalf("%v", lease.Err())
	}
	if _, err := session.End(ctx); err != nil && lostError(err) == nil {
		t.Fatal(err)
	}
}

func TestSharedLeasesPermitsAndTakeover(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	client := newClient(t, Options{Owner: "one", Incarnation: "1"})
	mustLock(t, client, t.Name()+"/s", Shared())
	mustLock(t, client, t.Name()+"/s", Shared())
	if _, err := client.Lock(ctx, t.Name()+"/s"); !errors.Is(err, ErrContended) {
		t.Fatalf("%v", err)
	}
	mustLock(t, client, t.Name()+"/p", Permit(2))
	mustLock(t, client, t.Name()+"/p", Permit(2))
	if _, err := client.Lock(ctx, t.Name()+"/p", Permit(2)); !errors.Is(err, ErrContended) {
		t.Fatalf("%v", err)
	}
	if _, err := client.Lock(ctx, t.Name()+"/p", Permit(3)); !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v", err)
	}
	old := mustLock(t, client, t.Name()+"/t", TTL(lasting))
	restarted := newClient(t, Options{Owner: "one", Incarnation: "2"})
	taken := mustLock(t, restarted, t.Name()+"/t", Takeover())
	if taken.Token() <= old.Token() {
		t.Fatal("the token did not rise")
	}
	<-old.Context().Done()
	if failed := lostError(old.Err()); failed == nil || failed.Reason != LostSuperseded {
		t.Fatalf("%v", old.Err())
	}
	other := newClient(t, Options{Owner: "two"})
	_, err := other.Lock(ctx, t.Name()+"/t", TakeoverOf(taken.ID()))
	if !errors.Is(err, ErrTakeoverRefused) {
		t.Fatalf("%v", err)
	}
	if again := mustLock(t, restarted, t.Name()+"/t", TakeoverOf(taken.ID())); again == nil {
		t.Fatal("not taken")
	}
}

func TestAWaiterLearnsItsPositionAndWorkThatHangsLosesTheLease(t *testing.T) {
	t.Parallel()
	client := newClient(t, Options{})
	ctx := testContext(t)
	warned := make(chan Warning, 1)
	holder := mustLock(t, client, t.Name(), TTL(time.Minute), ProgressWithin(5*time.Second),
		WarnBefore(4900*time.Millisecond, func(w Warning) {
			select {
			case warned <- w:
			default:
			}
		}))
	if err := holder.Progress(); err != nil {
		t.Fatal(err)
	}
	positions := make(chan QueuePosition, 16)
	waited := make(chan error, 1)
	go func() {
		waited <- client.WithLock(ctx, t.Name(), func(context.Context, *Lease) error { return nil },
			Wait(patience), OnQueue(func(p QueuePosition) {
				select {
				case positions <- p:
				default:
				}
			}))
	}()
	if p := <-positions; p.Position != 1 || p.Length != 1 || p.Holder == nil {
		t.Fatalf("%+v", p)
	}
	if w := <-warned; w.Reason != LostNoProgress || w.Lock != t.Name() {
		t.Fatalf("%+v", w)
	}
	<-holder.Context().Done()
	if failed := lostError(holder.Err()); failed == nil || failed.Reason != LostNoProgress {
		t.Fatalf("%v", holder.Err())
	}
	mustRelease(t, holder)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}
