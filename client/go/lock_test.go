package fencepost

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestALostReplyIsRepeatedWithTheSameLeaseID(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	proxy.cause(fault{path: "/acquire", times: 2, drop: true})
	lease := mustLock(t, newClient(t, Options{Server: proxy.url}), t.Name(), Patience(patience))
	sent := proxy.seen("/acquire")
	if len(sent) != 3 || len(ids(sent)) != 1 || !ids(sent)[lease.ID()] {
		t.Fatalf("%d requests with ids %v for lease %s", len(sent), ids(sent), lease.ID())
	}
	rival, err := newClient(t, Options{}).Lock(testContext(t), t.Name())
	if !errors.Is(err, ErrContended) {
		t.Fatalf("a rival got %v, %v", rival, err)
	}
	var failed *Error
	if !errors.As(err, &failed) || failed.Holder() == nil || failed.Holder().Token != lease.Token() {
		t.Fatalf("the holder is not named: %#v", failed)
	}
	mustRelease(t, lease)
}

func TestRepliesOfAnUnavailableServerAreRepeatedWithTheSameLeaseID(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, sharedServer)
	for _, status := range []int{503, 502, 429, 408, 504} {
		proxy.cause(fault{path: "/acquire", times: 1, status: status})
	}
	mustLock(t, newClient(t, Options{Server: proxy.url}), t.Name(), Patience(patience))
	if sent := proxy.seen("/acquire"); len(sent) != 6 || len(ids(sent)) != 1 {
		t.Fatalf("%d requests with ids %v", len(sent), ids(sent))
	}
}

func TestTheDeadlineCountsFromBeforeTheSend(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	proxy.cause(fault{path: "/acquire", times: 1, after: func(recorded) {
		time.Sleep(300 * time.Millisecond)
	}})
	lease := mustLock(t, newClient(t, Options{Server: proxy.url}), t.Name(), TTL(time.Minute))
	// A request cannot arrive before it is sent.
	latest := proxy.seen("/acquire")[0].at.Plus(48 * time.Second)
	if deadline := lease.trust.currentWindow().Deadline(); deadline > latest {
		t.Fatalf("the deadline %d is after %d: it counts from the reply", deadline, latest)
	}
}

func TestAnAcquireThatIsGivenUpReleasesItsGrantInTheBackground(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	ctx, cancel := context.WithCancel(testContext(t))
	proxy.cause(fault{path: "/acquire", times: 1, drop: true, after: func(recorded) { cancel() }})
	client := newClient(t, Options{Server: proxy.url})
	if _, err := client.Lock(ctx, t.Name()); !errors.Is(err, context.Canceled) {
		t.Fatalf("the error is %v", err)
	}
	if err := client.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	released := ids(proxy.seen("/release"))
	if len(released) != 1 || !released[proxy.seen("/acquire")[0].body["lease_id"]] {
		t.Fatalf("released are %v", released)
	}
	// At once, far within the time to live of the lost grant.
	mustLock(t, newClient(t, Options{}), t.Name())
}

func TestAGrantThatWaitedIsRenewedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	holder := mustLock(t, newClient(t, Options{}), t.Name())
	proxy := newProxy(t, sharedServer)
	// The server says that the grant has ended meanwhile: another is asked for, not handed out.
	proxy.cause(fault{path: "/renew", times: 1, status: 410,
		reply: `{"code":"lease-lost","reason":"expired","status":410,"retryable":false}`})
	done := make(chan *Lease)
	go func() {
		lease, _ := newClient(t, Options{Server: proxy.url}).Lock(
			testContext(t), t.Name(), TTL(6*time.Second), Wait(patience))
		done <- lease
	}()
	await(t, "the waiter", func() bool {
		shown, err := holder.client.Show(testContext(t), t.Name())
		return err == nil && shown.QueueLength == 1 && len(proxy.seen("/acquire")) == 1 &&
			now() > proxy.seen("/acquire")[0].at.Plus(2400*time.Millisecond)
	})
	mustRelease(t, holder)
	lease := <-done
	if lease == nil || len(ids(proxy.seen("/acquire"))) != 2 || lease.Check() != nil {
		t.Fatal("the grant was used though most of its window may have passed")
	}
	_ = lease.release(testContext(t))
}

func TestTheBodysErrorIsNotHiddenByAFailedRelease(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	proxy.cause(fault{path: "/release", times: -1, status: 500})
	client := newClient(t, Options{Server: proxy.url})
	own := errors.New("the work failed")
	fails := func(context.Context, *Lease) error { return own }
	err := client.WithLock(testContext(t), t.Name(), fails)
	if err != own {
		t.Fatalf("the error is %v", err)
	}
	if len(proxy.seen("/release")) == 0 {
		t.Fatal("nothing was released")
	}
	work := func(context.Context, *Lease) error { return nil }
	if err := client.WithLock(testContext(t), t.Name()+"/b", work); err != nil {
		t.Fatalf("work that was done fails by its release: %v", err)
	}
}

func TestTheBodysContextEndsWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	client := newClient(t, Options{})
	own := errors.New("the work failed")
	for name, bodyErr := range map[string]error{
		"Nil": nil, "Canceled": context.Canceled, "Own": own,
	} {
		bodyErr := bodyErr
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := client.WithLock(testContext(t), t.Name(), func(ctx context.Context, l *Lease) error {
				_ = must[*Revoked](t)(client.Revoke(testContext(t), l.Name(), "a test"))
				select {
				case <-ctx.Done():
				case <-time.After(patience):
					t.Error("the context did not end")
				}
				return bodyErr
			}, TTL(lasting))
			var failed *Error
			isLost := errors.Is(err, ErrLeaseLost) && errors.As(err, &failed)
			if !isLost || failed.Reason != LostRevoked {
				t.Fatalf("after %v the error is %v", bodyErr, err)
			}
			if bodyErr == own && !errors.Is(err, own) {
				t.Fatalf("the work's own error is gone: %v", err)
			}
		})
	}
}

func TestALeaseIsRenewedForLongerThanItsTimeToLive(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, sharedServer)
	proxy.cause(fault{path: "/renew", times: 1, drop: true})
	client := newClient(t, Options{Server: proxy.url})
	lease := mustLock(t, client, t.Name(), TTL(lasting))
	expires := lease.trust.currentWindow().ExpiresAt()
	await(t, "the end of the first time to live", func() bool { return now() > expires })
	if err := lease.Check(); err != nil {
		t.Fatal(err)
	}
	// The first is repeated at once.
	if sent := proxy.seen("/renew"); len(sent) < 2 || len(ids(sent)) != 1 || !ids(sent)[lease.ID()] {
		t.Fatalf("renewals with ids %v", ids(sent))
	}
	mustRelease(t, lease)
}

func TestALeaseWithoutRepliesIsLostByTheClock(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, sharedServer)
	lease := mustLock(t, newClient(t, Options{Server: proxy.url}), t.Name(), TTL(4*time.Second))
	proxy.cause(fault{path: "/renew", times: -1, refuse: true})
	<-lease.Context().Done()
	var failed *Error
	if !errors.As(lease.Err(), &failed) || failed.Reason != LostDeadline {
		t.Fatalf("the error is %v", lease.Err())
	}
	puts := newProxy(t, sharedGuard)
	client := newClient(t, Options{Guard: puts.url})
	_, err := client.Objects().Put(testContext(t), lease, t.Name(), []byte("late"))
	if !errors.Is(err, ErrLeaseLost) || len(puts.seen("/")) != 0 {
		t.Fatalf("%v after %d requests", err, len(puts.seen("/")))
	}
}

func TestALossIsReportedBeforeTheReleaseReachesTheServer(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	reported := make(chan struct{})
	proxy.cause(fault{path: "/release", times: -1, before: func(r recorded) {
		select {
		case <-reported:
		case <-r.gone:
			t.Error("the loss is reported only after the release")
		}
	}})
	client := newClient(t, Options{Server: proxy.url})
	err := client.WithLock(testContext(t), t.Name(), func(ctx context.Context, l *Lease) error {
		l.trust.lose(LostDeadline)
		return ctx.Err()
	})
	close(reported)
	if failed := lostError(err); failed == nil || failed.Reason != LostDeadline {
		t.Fatalf("%v", err)
	}
	if err := client.Close(testContext(t)); err != nil || len(proxy.seen("/release")) != 1 {
		t.Fatalf("%v after %d releases", err, len(proxy.seen("/release")))
	}
}

func TestAReleasedLeaseIsNotUsedAgain(t *testing.T) {
	guard := newProxy(t, sharedGuard)
	client := newClient(t, Options{Guard: guard.url})
	lease := mustLock(t, client, t.Name())
	mustRelease(t, lease)
	if _, err := client.Objects().Get(testContext(t), lease, t.Name()); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a read with a released lease: %v", err)
	}
	if err := lease.Release(testContext(t)); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a second release: %v", err)
	}
	if lease.Remaining() != 0 || len(guard.seen("/")) != 0 {
		t.Fatal("something was sent, or the lease is trusted")
	}
}

func TestALockIsNotTakenAgainByItsHolder(t *testing.T) {
	client := newClient(t, Options{})
	err := client.WithLock(testContext(t), t.Name(), func(ctx context.Context, _ *Lease) error {
		_, err := client.Lock(ctx, t.Name(), Wait(patience))
		return err
	})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "WithLock around this call") {
		t.Fatalf("the error is %v", err)
	}
}

func TestAReentrantLockSharesOneLease(t *testing.T) {
	proxy := newProxy(t, sharedServer)
	client := newClient(t, Options{Server: proxy.url})
	var lost error
	err := client.WithLock(testContext(t), t.Name(), func(ctx context.Context, outer *Lease) error {
		err := client.WithLock(ctx, t.Name(), func(_ context.Context, inner *Lease) error {
			if inner != outer {
				t.Error("another lease")
			}
			return nil
		}, Reentrant())
		if err != nil || outer.Check() != nil {
			t.Errorf("the inner call released the lock, or failed: %v", err)
		}
		outer.trust.lose(LostRevoked)
		lost = client.WithLock(ctx, t.Name(), func(context.Context, *Lease) error {
			t.Error("entered a lock that is lost")
			return nil
		}, Reentrant())
		return nil
	}, Reentrant())
	if !errors.Is(lost, ErrLeaseLost) || !errors.Is(err, ErrLeaseLost) {
		t.Fatalf("%v, %v", lost, err)
	}
	if err := client.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if len(proxy.seen("/acquire")) != 1 || len(proxy.seen("/release")) != 1 {
		t.Fatal("more than one acquire or release")
	}
	if _, err := client.Lock(testContext(t), t.Name(), Reentrant()); !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v", err)
	}
}

func TestAPanicOfTheBodyReleasesTheLock(t *testing.T) {
	client := newClient(t, Options{})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was not passed on")
			}
		}()
		_ = client.WithLock(testContext(t), t.Name(), func(context.Context, *Lease) error {
			panic("a defect of the work")
		})
	}()
	mustLock(t, client, t.Name())
}

func TestGoroutinesShareAClientAndExcludeEachOther(t *testing.T) {
	client := newClient(t, Options{})
	var group sync.WaitGroup
	inside, done := 0, 0
	for i := 0; i < 24; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			err := client.WithLock(testContext(t), t.Name(), func(context.Context, *Lease) error {
				// The race detector sees an overlap, and so does this count.
				inside++
				if inside != 1 {
					t.Error("two holders at once")
				}
				inside--
				done++
				return nil
			}, Wait(patience))
			if err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	if done != 24 {
		t.Fatalf("%d of 24 were done", done)
	}
}

func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	client := must[*Client](t)(New(Options{Server: sharedServer, Guard: sharedGuard}))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := 0; i < 5; i++ {
		lease := must[*Lease](t)(client.Lock(ctx, t.Name()))
		inner, stop := lease.Within(ctx)
		mustRelease(t, lease)
		<-inner.Done()
		stop()
		lost := must[*Lease](t)(client.Lock(ctx, t.Name(), TTL(time.Second)))
		// It may have expired.
		_, _ = client.Revoke(ctx, t.Name(), "a test")
		<-lost.Context().Done()
		session := must[*Session](t)(client.BeginSession(ctx, TTL(6*time.Second)))
		_ = must[*Lease](t)(session.Lock(ctx, t.Name()))
		stream := must[*EventStream](t)(client.Events(ctx, "", ""))
		_ = must[*Event](t)(stream.Next(ctx))
		stream.Close()
		_ = must[int](t)(session.End(ctx))
		given, giveUp := context.WithCancel(ctx)
		giveUp()
		if _, err := client.Lock(given, t.Name()); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	await(t, "the end of all goroutines", func() bool {
		_ = client.Close(ctx)
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		return runtime.NumGoroutine() <= before
	})
}
