package fencetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"fencepost"
	"fencepost/fencetest"
)

func ExampleServer() {
	fake := fencetest.NewServer()
	defer fake.Close()
	ctx := context.Background()
	alice := fake.Client(fencepost.Options{Owner: "alice"})
	bob := fake.Client(fencepost.Options{Owner: "bob"})
	old, _ := alice.Lock(ctx, "orders/42", fencepost.TTL(time.Hour))
	_, held, _ := bob.TryLock(ctx, "orders/42")
	fmt.Println("bob holds it:", held)
	fake.Advance(time.Hour) // the server's clock: the lease has expired
	next, _ := bob.Lock(ctx, "orders/42")
	_, err := bob.Objects().Put(ctx, next, "orders/42", []byte("new"))
	fmt.Println("bob has written:", err == nil)
	_, err = alice.Objects().Put(ctx, old, "orders/42", []byte("late"))
	fmt.Println("the late write is refused:", errors.Is(err, fencepost.ErrStale))
	// Output:
	// bob holds it: false
	// bob has written: true
	// the late write is refused: true
}

func TestTheFakeServerListsRevokesAndEndsSessions(t *testing.T) {
	fake := fencetest.NewServer()
	defer fake.Close()
	ctx := context.Background()
	client := fake.Client(fencepost.Options{Owner: "alice"})
	lease, err := client.Lock(ctx, "a/1", fencepost.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Objects().Put(ctx, lease, "a/1", nil); err != nil || fake.Mark("a/1") != lease.Token() {
		t.Errorf("%v, mark %d", err, fake.Mark("a/1"))
	}
	page, err := client.List(ctx, "a/", "", 10)
	if err != nil || len(page.Locks) != 1 || page.Locks[0].Owner != "alice" {
		t.Errorf("%v, %v", page, err)
	}
	if _, err := client.Revoke(ctx, "a/1", "by the test"); err != nil {
		t.Error(err)
	}
	var failed *fencepost.Error
	if err := lease.Release(ctx); !errors.As(err, &failed) || failed.Reason != fencepost.LostRevoked {
		t.Errorf("the error is %v", err)
	}
	session, err := client.BeginSession(ctx, fencepost.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Lock(ctx, "a/2"); err != nil {
		t.Fatal(err)
	}
	fake.Advance(time.Hour)
	if locked, err := client.Locked(ctx, "a/2"); locked || err != nil {
		t.Errorf("%v, %v", locked, err)
	}
	if _, err := session.End(ctx); !errors.Is(err, fencepost.ErrLeaseLost) {
		t.Errorf("the error is %v", err)
	}
	if _, err := client.Events(ctx, "", ""); err == nil {
		t.Error("the fake server has events")
	}
}

func TestTheFakeServerGrantsInOrderAndEndsNoOtherLease(t *testing.T) {
	fake := fencetest.NewServer()
	defer fake.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := func(owner string) *fencepost.Client {
		return fake.Client(fencepost.Options{Owner: owner})
	}
	alice := client("alice")
	old, err := alice.Lock(ctx, "a", fencepost.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	shown := func() *fencepost.LockState {
		state, err := alice.Show(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	granted := make(chan *fencepost.Lease, 2)
	for waiting, owner := range []string{"bob", "carol"} {
		owner := owner
		go func() {
			lease, _ := client(owner).Lock(ctx, "a", fencepost.TTL(time.Hour), fencepost.WaitForever())
			granted <- lease
		}()
		for shown().QueueLength <= waiting {
			time.Sleep(time.Millisecond)
		}
	}
	fake.Advance(time.Hour)
	second := <-granted
	if second == nil {
		t.Fatal("nothing was granted")
	}
	if err := old.Release(ctx); !errors.Is(err, fencepost.ErrLeaseLost) {
		t.Errorf("the error is %v", err)
	}
	if holder := shown().Holder; holder == nil || holder.Owner != "bob" {
		t.Fatalf("the holder is %v", holder)
	}
	if err := second.Release(ctx); err != nil {
		t.Fatal(err)
	}
	third := <-granted
	if third == nil || second.Token() <= old.Token() || third.Token() <= second.Token() {
		t.Errorf("the leases are %v, %v and %v", old, second, third)
	}
}

func TestAnObjectIsAbsentOnlyAtTheFakeGuard(t *testing.T) {
	fake := fencetest.NewServer()
	defer fake.Close()
	ctx := context.Background()
	client := fake.Client(fencepost.Options{Owner: "alice"})
	lease, err := client.Lock(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if object, err := client.Objects().Get(ctx, lease, "a"); object != nil || err != nil {
		t.Errorf("%v, %v", object, err)
	}
	wrong, err := fencepost.New(fencepost.Options{Server: fake.URL, Guard: fake.URL + "/more"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.Objects().Get(ctx, lease, "a"); !errors.Is(err, fencepost.ErrInvalid) {
		t.Errorf("the error is %v", err)
	}
}
