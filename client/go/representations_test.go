package fencepost

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"testing"
	"time"
)

// shown are all ways in which a program prints a value, and what it points to.
func shown(value any) []string {
	var texts []string
	values := []any{value, []any{value}, struct{ Field any }{value}}
	if pointer := reflect.ValueOf(value); pointer.Kind() == reflect.Ptr {
		values = append(values, pointer.Elem().Interface())
	}
	for _, value := range values {
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			texts = append(texts, fmt.Sprintf(format, value))
		}
	}
	return texts
}

func TestNoRepresentationHasACredential(t *testing.T) {
	options := Options{Server: sharedServer, Guard: sharedGuard, Token: "hunter2"}
	client := newClient(t, options)
	ctx := testContext(t)
	lease := mustLock(t, client, t.Name(), TTL(time.Minute))
	session := must[*Session](t)(client.BeginSession(ctx, TTL(time.Minute)))
	ofSession := must[*Lease](t)(session.Lock(ctx, t.Name()+"/session"))
	set := must[*LeaseSet](t)(client.LockAll(ctx, []string{t.Name() + "/set"}, TTL(time.Minute)))
	handed := must[*HandedToken](t)(ParseToken(lease.FencingToken()))
	stream := must[*EventStream](t)(client.Events(ctx, "a", ""))
	defer stream.Close()
	credentials := &Credentials{}
	credentials.Follow(lease)
	objects := client.Objects()
	_, wrongLock := objects.Put(ctx, lease, "other", nil)
	_, contended := client.Lock(ctx, t.Name())
	shownLock := must[*LockState](t)(client.Show(ctx, t.Name()))
	for _, value := range []any{
		options, &options, client, objects, lease, session, ofSession, set, handed, stream,
		credentials, credentials.For(lease), wrongLock, contended, shownLock, lease.Context(),
		session.Context(), set.Leases(),
	} {
		for _, text := range shown(value) {
			pattern := `hunter2|fc1_|sig=|` + regexp.QuoteMeta(handed.sig)
			if found := regexp.MustCompile(pattern).FindString(text); found != "" {
				t.Errorf("%T shows %q: %s", value, found, text)
			}
		}
	}
	if handed.sig == "" || !errors.Is(wrongLock, ErrInvalid) || !errors.Is(contended, ErrContended) {
		t.Errorf("%v, %v", wrongLock, contended)
	}
	if _, err := session.End(ctx); err != nil {
		t.Error(err)
	}
	if err := set.Release(ctx); err != nil {
		t.Error(err)
	}
}
