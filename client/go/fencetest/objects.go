package fencetest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"fencepost"
)

const (
	guarantee = "atomic"
	// operationsMax is the number of named operations that a lock remembers.
	operationsMax = 64
)

// objects are the rules of the guard: objects, and the mark of each lock. The key of an object is
// the lock that protects it.
type objects struct {
	mutex   sync.Mutex
	objects map[string]*object
	marks   map[string]mark
	// named are the operations of each lock.
	named    map[string]*named
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

// operation is a named change, and its outcome.
type operation struct {
	text    string
	reply   *reply
	refused *refusal
}

// named are the operations of one lock by their idempotency key.
type named struct {
	done map[string]*operation
	// ids are in the order of the operations.
	ids []string
}

// reply is a successful reply; a body that is no []byte is sent as JSON.
type reply struct {
	status int
	header map[string]string
	body   any
}

func newObjects() *objects {
	return &objects{
		objects: map[string]*object{}, marks: map[string]mark{}, named: map[string]*named{},
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
	if refused := o.check("lock name", lock); refused != nil {
		return nil, refused
	}
	if refused := o.admit(lock, header, nil); refused != nil {
		return nil, refused
	}
	body := map[string]any{"lock": lock, "mark": o.marks[lock].token}
	return &reply{http.StatusOK, o.guarantee(lock), body}, nil
}

func (o *objects) check(what, name string) *refusal {
	refused := checkName(what, name)
	if refused != nil {
		refused.header = map[string]string{"Fencing-Guarantee": guarantee}
	}
	return refused
}

// handle reads, writes or deletes an object after its token was checked.
func (o *objects) handle(method, key string, header http.Header, body []byte) (*reply, *refusal) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if refused := o.check("key", key); refused != nil {
		return nil, refused
	}
	if method == http.MethodGet {
		if refused := o.admit(key, header, nil); refused != nil {
			return nil, refused
		}
		return o.read(key)
	}
	if o.named[key] == nil {
		o.named[key] = &named{done: map[string]*operation{}}
	}
	of, id := o.named[key], strings.Trim(header.Get("Idempotency-Key"), `"`)
	text := fmt.Sprintf("%s %s %q %q %q %q", method, key, header.Get("If-Match"),
		header.Get("If-None-Match"), typeOf(header), body)
	earlier := of.done[id]
	isRepeat := earlier != nil && earlier.text == text
	var first *operation
	if isRepeat {
		first = earlier
	}
	if refused := o.admit(key, header, first); refused != nil {
		return nil, refused
	}
	switch {
	case isRepeat:
		return o.outcome(key, earlier, map[string]string{"Idempotency-Replayed": "true"})
	case earlier != nil:
		members := map[string]any{"outcome": "not-applied"}
		refused := refuse(422, "op-id-reused", members, "the id belongs to another operation")
		refused.header = o.guarantee(key)
		return nil, refused
	}
	changed := o.change(method, key, header, body)
	changed.text = text
	of.remember(id, changed)
	return o.outcome(key, changed, nil)
}

// outcome is the reply to an operation, or to its repeat.
func (o *objects) outcome(
	lock string, of *operation, more map[string]string,
) (*reply, *refusal) {
	if of.refused != nil {
		refused := *of.refused
		refused.header = merged(of.refused.header, o.guarantee(lock), more)
		return nil, &refused
	}
	sent := *of.reply
	sent.header = merged(of.reply.header, o.guarantee(lock), more)
	return &sent, nil
}

func merged(headers ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, one := range headers {
		for name, value := range one {
			all[name] = value
		}
	}
	return all
}

func (n *named) remember(id string, done *operation) {
	if id == "" {
		return
	}
	n.done[id], n.ids = done, append(n.ids, id)
	if len(n.ids) > operationsMax {
		delete(n.done, n.ids[0])
		n.ids = n.ids[1:]
	}
}

func (o *objects) change(method, key string, header http.Header, body []byte) *operation {
	etag, match := "", header.Get("If-Match")
	if found := o.objects[key]; found != nil {
		etag = found.etag
	}
	if match != "" && match != etag || header.Get("If-None-Match") != "" && etag != "" {
		members := map[string]any{"etag": nil, "outcome": "not-applied"}
		refused := refuse(412, "precondition-failed", members, "%s has version %q", key, etag)
		if etag != "" {
			members["etag"], refused.header = etag, map[string]string{"ETag": etag}
		}
		return &operation{refused: refused}
	}
	if method != http.MethodPut {
		delete(o.objects, key)
		return &operation{reply: &reply{status: http.StatusNoContent}}
	}
	o.versions++
	written := &object{body, typeOf(header), fmt.Sprintf(`"%d"`, o.versions)}
	o.objects[key] = written
	status := http.StatusNoContent
	if etag == "" {
		status = http.StatusCreated
	}
	return &operation{reply: &reply{status, map[string]string{"ETag": written.etag}, nil}}
}

func typeOf(header http.Header) string {
	if given := header.Get("Content-Type"); given != "" {
		return given
	}
	return "application/octet-stream"
}

func (o *objects) read(key string) (*reply, *refusal) {
	found := o.objects[key]
	if found == nil {
		refused := refuse(404, "not-found", nil, "there is no object %s", key)
		refused.header = o.guarantee(key)
		return nil, refused
	}
	header := o.guarantee(key)
	header["ETag"], header["Content-Type"] = found.etag, found.contentType
	return &reply{http.StatusOK, header, found.body}, nil
}

// admit refuses a stale token, one of another lock, and none; otherwise the mark rises to it. first
// is the operation if this is its repeat.
func (o *objects) admit(lock string, header http.Header, first *operation) *refusal {
	presented, refused := presentedToken(lock, header)
	if refused != nil {
		refused.header = map[string]string{"Fencing-Guarantee": guarantee}
		return refused
	}
	seen := o.marks[lock]
	members := map[string]any{
		"lock": lock, "presented": presented.Token, "mark": seen.token, "min_token": seen.token,
		"outcome": "not-applied",
	}
	switch {
	case presented.Token < seen.token:
		refused = refuse(412, "stale-token", members, "token %d of lock %s is below the mark %d",
			presented.Token, lock, seen.token)
	case presented.Token == seen.token && presented.LeaseID != seen.leaseID:
		refused, first = refuse(409, "token-collision", members,
			"token %d of lock %s was presented by another lease", presented.Token, lock), nil
	default:
		o.marks[lock] = mark{presented.Token, presented.LeaseID}
		return nil
	}
	refused.header = o.guarantee(lock)
	if first == nil {
		return refused
	}
	refused.header["Idempotency-Replayed"] = "true"
	if first.reply != nil {
		members["outcome"], members["etag"] = "applied", nil
		if etag := first.reply.header["ETag"]; etag != "" {
			members["etag"] = etag
		}
	}
	return refused
}

func presentedToken(lock string, header http.Header) (*fencepost.HandedToken, *refusal) {
	text := header.Get("Fencing-Token")
	if text == "" {
		members := map[string]any{"lock": lock}
		return nil, refuse(428, "token-required", members, "%s needs a token of its lock", lock)
	}
	presented, err := fencepost.ParseToken(text)
	if err != nil {
		return nil, refuse(400, "malformed-token", nil, "%v", err)
	}
	if presented.Lock != lock {
		members := map[string]any{"lock": lock, "presented_lock": presented.Lock}
		return nil, refuse(403, "wrong-lock", members, "the token is of lock %s", presented.Lock)
	}
	return presented, nil
}

func (o *objects) guarantee(lock string) map[string]string {
	return map[string]string{
		"Fencing-Mark":      strconv.FormatUint(o.marks[lock].token, 10),
		"Fencing-Guarantee": guarantee,
	}
}
