package fencepost

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var wordsOfHTTP = regexp.MustCompile(`_ms|_id|_of|_token|\bheader|Authorization|Bearer|` +
	`Retry-After|Idempotency|content-type|Allow|\b0 wait`)

func failureOf(t *testing.T, err error) *Error {
	t.Helper()
	var failed *Error
	if !errors.As(err, &failed) {
		t.Fatalf("the error is %v", err)
	}
	for _, text := range []string{failed.Error(), failed.Detail, failed.Hint} {
		if word := wordsOfHTTP.FindString(text); word != "" {
			t.Errorf("%q is in %q", word, text)
		}
	}
	return failed
}

func expectMatch(t *testing.T, pattern, text string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("%q does not match %s", text, pattern)
	}
}

func TestALockThatIsHeldSaysHowLongWasWaitedAndWhatToDo(t *testing.T) {
	client := newClient(t, Options{Owner: "alice"})
	mustLock(t, client, t.Name(), TTL(time.Minute))
	_, err := client.Lock(testContext(t), t.Name())
	atOnce := failureOf(t, err)
	expectMatch(t, `is held by alice with token \d+ for another \d+ ms unless it is renewed `+
		`\(lock-held\): Wait in the queue with the option Wait\.$`, atOnce.Error())
	_, err = client.Lock(testContext(t), t.Name(), Wait(50*time.Millisecond))
	waited := failureOf(t, err)
	expectMatch(t, `renewed; waited \d+ms \(lock-held\): Wait for longer with the option Wait\.$`,
		waited.Error())
	if atOnce.Waited != 0 || waited.Waited < 50*time.Millisecond {
		t.Errorf("waited %v and %v", atOnce.Waited, waited.Waited)
	}
	_, err = client.LockAll(testContext(t), []string{"other", t.Name()}, Wait(50*time.Millisecond))
	expectMatch(t, `\(one of other, .*; waited \d+ms`, failureOf(t, err).Error())
}

func TestACallerWithoutATokenIsAskedForItByTheNameOfTheOption(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	entry, err := exec.Command(filepath.Join(fenceBin, "fence"), "auth", "new", "tests", "--allow",
		"use *", "--secret-file", filepath.Join(folder, "secret")).Output()
	if err != nil {
		t.Fatal(err)
	}
	access := filepath.Join(folder, "access.toml")
	if err := os.WriteFile(access, entry, 0o600); err != nil {
		t.Fatal(err)
	}
	server := mustStart(t, "lock-server", "--store", "memory:", "--access-file", access)
	client := newClient(t, Options{Server: server.url})
	_, err = client.Lock(testContext(t), "a")
	expectMatch(t, `Give a token of the server's access file: Options\.Token or TokenFile`,
		failureOf(t, err).Error())
}

func TestNoErrorNamesAHeaderOrAField(t *testing.T) {
	page := must[[]byte](t)(os.ReadFile("../../docs/reference/errors.md"))
	codes := regexp.MustCompile("(?m)^- `([a-z-]+)` \\((\\d+)\\): (.+)$").
		FindAllStringSubmatch(string(page), -1)
	if len(codes) < 30 {
		t.Fatalf("%d codes", len(codes))
	}
	for _, code := range codes {
		p := &problem{Code: code[1], Hint: code[3], Detail: "takeover_of and min_token, ttl_ms 5, " +
			"wait_ms 6 of lease_id 7, session_id 8; the request has more than one Fencing-Token " +
			"header; the Authorization header is not ASCII text; 0 wait"}
		failureOf(t, p.toError())
	}
	own := &problem{Code: "lock-held", Detail: "x; 2 wait", Hint: "Look at the console."}
	if text := own.text(); text != "x; 2 other requests wait (lock-held): Look at the console." {
		t.Error(text)
	}
}

func TestALockIsTriedOnceAndALockThatIsHeldIsNoError(t *testing.T) {
	client := newClient(t, Options{})
	lease, ok, err := client.TryLock(testContext(t), t.Name(), TTL(time.Minute))
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	if second, ok, err := client.TryLock(testContext(t), t.Name()); second != nil || ok || err != nil {
		t.Fatalf("%v, %v, %v", second, ok, err)
	}
	if locked := must[bool](t)(client.Locked(testContext(t), t.Name())); !locked {
		t.Error("the lock is not locked")
	}
	mustRelease(t, lease)
	if locked := must[bool](t)(client.Locked(testContext(t), t.Name())); locked {
		t.Error("the lock is locked")
	}
	_, _, err = client.TryLock(testContext(t), t.Name(), Wait(time.Second))
	expectMatch(t, "TryLock does not wait; use Lock", failureOf(t, err).Error())
	away := newClient(t, Options{Server: "http://127.0.0.1:1"})
	if _, _, err := away.TryLock(testContext(t), "a", Patience(0)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the error is %v", err)
	}
}

func TestAWaitForEverLastsUntilTheLockIsFree(t *testing.T) {
	t.Parallel()
	client := newClient(t, Options{})
	holder := mustLock(t, client, t.Name(), TTL(time.Minute))
	granted := make(chan error, 1)
	go func() {
		next, err := client.Lock(testContext(t), t.Name(), WaitForever())
		if err == nil {
			err = next.Release(testContext(t))
		}
		granted <- err
	}()
	await(t, "a waiter", func() bool {
		return must[*LockState](t)(client.Show(testContext(t), t.Name())).QueueLength == 1
	})
	mustRelease(t, holder)
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
}

func TestAMissingValueIsNamed(t *testing.T) {
	client := newClient(t, Options{})
	var lease *Lease
	var handed *HandedToken
	_, ofPut := client.Objects().Put(testContext(t), lease, "a", nil)
	_, ofHanded := client.Objects().Get(testContext(t), handed, "a")
	_, ofNil := client.Objects().Delete(testContext(t), nil, "a")
	_, ofSeal := client.Objects().Seal(testContext(t), nil)
	_, ofOption := client.Lock(testContext(t), t.Name(), TTL(time.Minute), nil)
	held := mustLock(t, client, t.Name())
	_, ofPutOption := client.Objects().Put(testContext(t), held, "a", nil, nil)
	for err, why := range map[error]string{
		ofPut: "put a: the lease is nil", ofHanded: "get a: the lease is nil",
		ofNil: "delete a: the lease is nil", ofSeal: "seal: the lease is nil",
		ofOption: "option 2 is nil", ofPutOption: "put a: option 1 is nil",
		client.WithLock(testContext(t), "b", nil):            "the work under lock b is nil",
		client.WithLocks(testContext(t), []string{"b"}, nil): "the work under lock b is nil",
		client.WithLeadership(testContext(t), "b", nil):      "the work under lock b is nil",
	} {
		failed := failureOf(t, err)
		if failed.Kind != ErrInvalid || !strings.Contains(failed.Error(), why) {
			t.Errorf("the error is %v, not of %s", err, why)
		}
	}
}
