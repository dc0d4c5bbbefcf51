package fencepost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

// heldSource is a grant of no server.
type heldSource struct{ credential string }

func (s *heldSource) FencingCredential() string { return s.credential }
func (s *heldSource) Check() error              { return nil }
func (s *heldSource) Context() context.Context  { return context.Background() }

// closing is a connection with a function that its end calls.
type closing struct {
	net.Conn
	closed func()
}

func (c *closing) Close() error {
	c.closed()
	return nil
}

func TestAConnectionOfAnEarlierTermGetsNoCredentialOfTheNext(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	credentials := &Credentials{}
	credentials.Follow(&heldSource{"first"})
	got, closed := "", 0
	dial := credentials.Dialer(func(context.Context, string, string) (net.Conn, error) {
		return &closing{closed: func() {
			closed++
			// The connection is open until now: its driver may ask for a credential.
			got, _ = credentials.Password(ctx)
		}}, nil
	})
	_ = must[net.Conn](t)(dial(ctx, "tcp", "x"))
	credentials.Follow(&heldSource{"second"})
	if closed != 1 || got != "" {
		t.Fatalf("%d closed; a connection of the first term gets %q", closed, got)
	}
	if got := must[string](t)(credentials.Password(ctx)); got != "second" {
		t.Fatalf("after the hand-over: %q", got)
	}
}

func TestALeaseThatIsPrintedDoesNotShowItsCredential(t *testing.T) {
	t.Parallel()
	lease := mustLock(t, newClient(t, Options{}), "print")
	defer mustRelease(t, lease)
	handed := must[*HandedToken](t)(ParseToken(lease.FencingToken()))
	secret := handed.sig
	if secret == "" {
		secret = lease.FencingToken()
	}
	for _, value := range []any{lease, handed, *handed, []*HandedToken{handed}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			text := fmt.Sprintf(verb, value)
			if strings.Contains(text, "fc1_") || strings.Contains(text, secret) {
				t.Errorf("%s of %T shows the credential: %s", verb, value, text)
			}
		}
	}
	for _, text := range []string{lease.String(), handed.String()} {
		if !strings.Contains(text, "print") {
			t.Errorf("%s does not name the lock", text)
		}
	}
}

func TestAGrantWithoutItsCredentialIsNotUsed(t *testing.T) {
	t.Parallel()
	whole := grant{
		Lock: "a", LeaseID: "b", Token: 5, TTLMs: 1000, Header: "5", Credential: "fc1_x",
	}
	if failed := whole.check("a", "b", ""); failed != nil {
		t.Fatal(failed)
	}
	noHeader, noCredential, negative := whole, whole, whole
	noHeader.Header, noCredential.Credential, negative.TTLMs = "", "", -1
	for _, broken := range []grant{noHeader, noCredential, negative} {
		if broken.check("a", "b", "") == nil {
			t.Errorf("accepted: %#v", broken)
		}
	}
}

func TestASessionWithNegativeCountsIsNotUsed(t *testing.T) {
	t.Parallel()
	for _, broken := range []sessionReply{
		{SessionID: "a", ExpiresInMs: -1}, {SessionID: "a", LeaseCount: -1}, {SessionID: "b"},
	} {
		if broken.isUsable("a") {
			t.Errorf("accepted: %+v", broken)
		}
	}
	if whole := (sessionReply{SessionID: "a", ExpiresInMs: 1}); !whole.isUsable("a") {
		t.Error("a usable reply is refused")
	}
}

func TestTheCredentialsOfALeaseEndWithTheNext(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	credentials := &Credentials{}
	first, second := &heldSource{"first"}, &heldSource{"second"}
	credentials.Follow(first)
	of := credentials.For(first)
	dialed := 0
	dial := of.Dialer(func(context.Context, string, string) (net.Conn, error) {
		dialed++
		return &closing{closed: func() {}}, nil
	})
	_ = must[net.Conn](t)(dial(ctx, "tcp", "x"))
	if got := must[string](t)(of.Password(ctx)); got != "first" {
		t.Fatalf("the first lease's: %q", got)
	}
	credentials.Follow(second)
	_, dialErr := dial(ctx, "tcp", "x")
	_, _, hookErr := of.Redis(ctx)
	_, wordErr := of.Password(ctx)
	for _, err := range []error{dialErr, hookErr, wordErr} {
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("late work of the first lease: %v", err)
		}
	}
	if dialed != 1 {
		t.Errorf("late work dialled")
	}
	if got := must[string](t)(credentials.For(second).Password(ctx)); got != "second" {
		t.Fatalf("the second lease's: %q", got)
	}
}
