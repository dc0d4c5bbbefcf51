package fencetest

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"fencepost"
)

// objects are the rules of the guard: objects, and the mark of each lock. The key of an object is
// the lock that protects it.
type objects struct {
	mutex   sync.Mutex
	objects map[string]*object
	marks   map[string]mark
	// done has operations by their idempotency key.
	done     map[string]operation
	versions int
}

type mark struct {
	token   uint64
	leaseID string
}

type object struct {
	body              []byte
	contentType, etag string
}

// operation is a change that was applied, and its reply.
type operation struct {
	text  string
	reply reply
}

// reply is a successful reply; a body that is no []byte is sent as JSON.
type reply struct {
	status int
	header map[string]string
	body   any
}

func newObjects() *objects {
	return &objects{
		objects: map[string]*object{}, marks: map[string]mark{}, done: map[string]operation{},
	}
}

func (o *objects) mark(lock string) uint64 {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.marks[lock].token
}

// seal raises the mark to the token without changing data.
func (o *objects) seal(lock string, header http.Header) (*reply, *refusal) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if refused := o.admit(lock, header); refused != nil {
		return nil, refused
	}
	body := map[string]any{"lock": lock, "mark": o.marks[lock].token}
	return &reply{http.StatusOK, o.guarantee(lock), body}, nil
}

// handle reads, writes or deletes an object after its token was checked.
func (o *objects) handle(method, key string, header http.Header, body []byte) (*reply, *refusal) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if refused := o.admit(key, header); refused != nil {
		return nil, refused
	}
	if method == http.MethodGet {
		return o.read(key)
	}
	id, match, noneMatch := header.Get("Idempotency-Key"), header.Get("If-Match"),
		header.Get("If-None-Match")
	text := fmt.Sprintf("%s %s %q %q %q", method, key, match, noneMatch, body)
	if earlier, ok := o.done[id]; ok && id != "" {
		if earlier.text != text {
			return nil, refuse(422, "op-id-reused", nil, "the id belongs to another operation")
		}
		replayed := map[string]string{"Idempotency-Replayed": "true"}
		for name, value := range earlier.reply.header {
			replayed[name] = value
		}
		return &reply{earlier.reply.status, replayed, nil}, nil
	}
	etag := ""
	if found := o.objects[key]; found != nil {
		etag = found.etag
	}
	if match != "" && match != etag || noneMatch != "" && etag != "" {
		members := map[string]any{"etag": nil, "outcome": "not-applied"}
		if etag != "" {
			members["etag"] = etag
		}
		return nil, refuse(412, "precondition-failed", members, "%s has version %q", key, etag)
	}
	applied := reply{status: http.StatusNoContent, header: o.guarantee(key)}
	if method == http.MethodPut {
		o.versions++
		written := &object{body, header.Get("Content-Type"), fmt.Sprintf(`"%d"`, o.versions)}
		if etag == "" {
			applied.status = http.StatusCreated
		}
		applied.header["ETag"] = written.etag
		o.objects[key] = written
	} else {
		delete(o.objects, key)
	}
	o.done[id] = operation{text, applied}
	return &applied, nil
}

func (o *objects) read(key string) (*reply, *refusal) {
	found := o.objects[key]
	if found == nil {
		return nil, refuse(404, "not-found", nil, "there is no object %s", key)
	}
	header := o.guarantee(key)
	header["ETag"], header["Content-Type"] = found.etag, found.contentType
	return &reply{http.StatusOK, header, found.body}, nil
}

// admit refuses a stale token, one of another lock, and none; otherwise the mark rises to it.
func (o *objects) admit(lock string, header http.Header) *refusal {
	text := header.Get("Fencing-Token")
	if text == "" {
		members := map[string]any{"lock": lock}
		return refuse(428, "token-required", members, "%s needs a token of its lock", lock)
	}
	presented, err := fencepost.ParseToken(text)
	if err != nil {
		return refuse(400, "malformed-token", nil, "%v", err)
	}
	if presented.Lock != lock {
		members := map[string]any{"lock": lock, "presented_lock": presented.Lock}
		return refuse(403, "wrong-lock", members, "the token is of lock %s", presented.Lock)
	}
	seen := o.marks[lock]
	members := map[string]any{
		"lock": lock, "presented": presented.Token, "mark": seen.token, "min_token": seen.token,
		"outcome": "not-applied",
	}
	if presented.Token < seen.token {
		return refuse(412, "stale-token", members, "token %d of lock %s is below the mark %d",
			presented.Token, lock, seen.token)
	}
	if presented.Token == seen.token && presented.LeaseID != seen.leaseID {
		return refuse(409, "token-collision", members,
			"token %d of lock %s was presented by another lease", presented.Token, lock)
	}
	o.marks[lock] = mark{presented.Token, presented.LeaseID}
	return nil
}

func (o *objects) guarantee(lock string) map[string]string {
	return map[string]string{
		"Fencing-Mark":      strconv.FormatUint(o.marks[lock].token, 10),
		"Fencing-Guarantee": "atomic",
	}
}
