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
