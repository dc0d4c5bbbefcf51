package fencepost

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// An object is absent only where a guard says so.
func TestAWrongGuardURLIsAnErrorAndNotAnObjectThatDoesNotExist(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	right := newClient(t, Options{})
	lease := mustLock(t, right, t.Name(), TTL(time.Minute))
	if object, err := right.Objects().Get(ctx, lease, t.Name()); object != nil || err != nil {
		t.Fatalf("%v %v", object, err)
	}
	for _, wrong := range []string{sharedServer, sharedGuard + "/more"} {
		objects := newClient(t, Options{Guard: wrong}).Objects()
		_, err := objects.Get(ctx, lease, t.Name())
		_, unfenced := objects.GetUnfenced(ctx, t.Name())
		_, written := objects.Put(ctx, lease, t.Name(), nil)
		for _, err := range []error{err, unfenced, written} {
			var failed *Error
			isNamed := errors.As(err, &failed) && failed.Kind == ErrInvalid &&
				failed.Code == "not-found" &&
				strings.Contains(err.Error(), wrong+" answers, but not as a guard: ") &&
				strings.Contains(err.Error(), "Check the guard's URL")
			if !isNamed {
				t.Errorf("%s: %v", wrong, err)
			}
		}
	}
	// There, a guard describes the fence of a lock.
	fences := newClient(t, Options{Guard: sharedGuard + "/v1/fences"}).Objects()
	object, err := fences.Get(ctx, lease, t.Name())
	if object != nil || !errors.Is(err, ErrInternal) {
		t.Errorf("%v %v", object, err)
	}
}

func TestAnotherStatusWithTheCodeNotFoundDoesNotSayThatAnObjectIsAbsent(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Fencing-Guarantee", "atomic")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"code":"not-found","detail":"not ready"}`)
	}))
	t.Cleanup(other.Close)
	lease := mustLock(t, newClient(t, Options{}), t.Name(), TTL(time.Minute))
	_, err := newClient(t, Options{Guard: other.URL}).Objects().Get(testContext(t), lease, t.Name())
	var failed *Error
	if !errors.As(err, &failed) || failed.Status != 503 || failed.Code != "not-found" {
		t.Errorf("%v", err)
	}
}
