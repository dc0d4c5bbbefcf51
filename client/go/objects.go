package fencepost

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/timing"
)

const (
	// objectTimeout is the time-out of one request about an object.
	objectTimeout = 60 * time.Second
	// changeAttempts is the most times that one change is sent.
	changeAttempts = 3
	opIDBytesMax   = 128
)

// Objects are the objects behind the guard. A call with a lease that can no longer be trusted
// fails without a request.
//
// A write or delete without a reply is repeated up to twice, while its lease can be trusted, under
// one idempotency key: the guard applies it once and replies to a repeat with the outcome of the
// first. An end of ctx does not undo a request that was sent.
type Objects struct {
	client *Client
}

// Object is an object that was read.
type Object struct {
	// Body is the content, at most 256 MiB.
	Body []byte
	// ContentType is the media type, if it has one.
	ContentType string
	Applied
}

// Applied is the guard's statement about an operation that was applied.
type Applied struct {
	// Mark is the mark of the lock: the guard applies nothing with a lower token from now on. 0 if
	// the guard gave none.
	Mark uint64
	// Guarantee is what the guard guarantees for its store: atomic, bounded or observe.
	Guarantee string
	// ETag is the version of the object after the operation, for [IfMatch].
	ETag string
	// Replayed says that an earlier attempt with the same key was applied, and this is its reply.
	Replayed bool
}

// Objects returns the objects behind the guard.
func (c *Client) Objects() *Objects { return &Objects{client: c} }

// PutOption changes one property of a write.
type PutOption func(*put)

type put struct {
	header map[string]string
	opID   string
	failed *Error
}

func (p *put) set(name, value string) {
	for _, c := range value {
		if c < ' ' || c > '~' {
			p.failed = invalid("%s %q has other characters than printable ASCII",
				strings.ReplaceAll(name, "-", ""), value)
		}
	}
	p.header[name] = value
}

// ContentType is the media type of the object.
func ContentType(value string) PutOption {
	return func(p *put) { p.set("Content-Type", value) }
}

// IfMatch writes only if the object still has this version.
func IfMatch(etag string) PutOption { return func(p *put) { p.set("If-Match", etag) } }

// IfAbsent writes only if the object does not exist.
func IfAbsent() PutOption { return func(p *put) { p.set("If-None-Match", "*") } }

// OpID is the idempotency key, random by default: 1 to 128 bytes of A-Z a-z 0-9 . _ : -. For a
// write with an unknown outcome that is repeated later, perhaps by another process.
func OpID(id string) PutOption {
	return func(p *put) {
		if !isWord(strings.ReplaceAll(id, ":", "-"), opIDBytesMax) {
			p.failed = invalid("op-id %q must have 1 to 128 bytes of A-Z a-z 0-9 . _ : -", id)
		}
		p.opID = id
	}
}

// Get reads an object; nil if it does not exist. It raises the mark, so that an older holder can
// no longer change what was read. The error is of kind [ErrLeaseLost] if the lease is lost
// (nothing is sent), [ErrStale] if the guard has seen a higher token.
func (o *Objects) Get(ctx context.Context, lease Fence, key string) (*Object, error) {
	r, err := o.fenced(lease, http.MethodGet, key)
	if err != nil {
		return nil, err
	}
	return o.read(ctx, r, key)
}

// GetUnfenced reads an object without a token. The guard may refuse that; if it does not, any
// holder may change the object at any time.
func (o *Objects) GetUnfenced(ctx context.Context, key string) (*Object, error) {
	if failed := checkName("key", key); failed != nil {
		return nil, failed
	}
	return o.read(ctx, o.request(http.MethodGet, key), key)
}

func (o *Objects) read(ctx context.Context, r *request, key string) (*Object, error) {
	reply, failed := o.send(ctx, r)
	if failed != nil && failed.isAbsent() {
		return nil, nil
	}
	reply, err := result(ctx, reply, failed, "get "+key, reads)
	if err != nil {
		return nil, err
	}
	return &Object{reply.body, reply.header.Get("Content-Type"), *appliedOf(reply)}, nil
}

// Put writes an object. The error is of kind [ErrLeaseLost] if the lease is lost (nothing is
// sent), [ErrStale] if the guard has seen a higher token, [ErrPrecondition] if the object has
// another version, and [ErrOutcomeUnknown] if neither the request nor its repeats got a reply.
// After a refusal of a repeat, [Error].Outcome is the outcome of the first attempt.
func (o *Objects) Put(
	ctx context.Context, lease Fence, key string, body []byte, options ...PutOption,
) (*Applied, error) {
	p := put{header: map[string]string{}, opID: newID()}
	for i, option := range options {
		if option == nil {
			return nil, invalid("put %s: option %d is nil", key, i+1)
		}
		option(&p)
	}
	if p.failed != nil {
		return nil, p.failed
	}
	if body == nil {
		body = []byte{}
	}
	return o.change(ctx, "put "+key, p.opID, func() (*request, error) {
		r, err := o.fenced(lease, http.MethodPut, key)
		if err != nil {
			return nil, err
		}
		for name, value := range p.header {
			r.header[name] = value
		}
		r.body = body
		return r, nil
	})
}

// Delete deletes an object and raises the mark. A delete of nothing succeeds. Errors are those of
// [Objects.Put].
func (o *Objects) Delete(ctx context.Context, lease Fence, key string) (*Applied, error) {
	return o.change(ctx, "delete "+key, newID(), func() (*request, error) {
		return o.fenced(lease, http.MethodDelete, key)
	})
}

// Seal raises the mark of the lock to this lease's token without changing data: the guard applies
// nothing of an older holder from now on. Returns the mark. Not repeated.
func (o *Objects) Seal(ctx context.Context, lease *Lease) (uint64, error) {
	if lease == nil {
		return 0, noLease("seal")
	}
	r, err := o.fenced(lease, http.MethodPost, lease.Name())
	if err != nil {
		return 0, err
	}
	r.path = "/v1/fences/" + escape(lease.Name()) + "/seal"
	type sealed struct {
		Mark uint64 `json:"mark"`
	}
	reply, failed := call[sealed](ctx, o.client.guard, r)
	reply, err = result(ctx, reply, failed, "seal "+lease.Name(), changes)
	if err != nil {
		return 0, err
	}
	return reply.Mark, nil
}

// change sends a change, and repeats it under one key if no reply arrives. build checks the lease
// before each attempt: once the lease is lost, nothing more is sent.
func (o *Objects) change(
	ctx context.Context, what, opID string, build func() (*request, error),
) (*Applied, error) {
	var sent sentChange
	for attempt := 1; ; attempt++ {
		r, err := build()
		if err != nil {
			if failed, ok := err.(*Error); ok {
				return nil, sent.refusedHere(what, failed)
			}
			return nil, err
		}
		// Not in canonical form, see endpoint.build.
		r.header["idempotency-key"] = `"` + opID + `"`
		reply, failed := o.send(ctx, r)
		if failed == nil {
			return appliedOf(reply), nil
		}
		if err := ended(ctx, what); err != nil {
			return nil, err
		}
		isRetried := failed.isOutcomeUnknown() || sent.isUnknown() && failed.isPassing()
		if attempt == changeAttempts || !isRetried {
			return nil, sent.error(what, failed)
		}
		sent.record(failed)
		sleep(ctx, timing.Pause(attempt, random()))
	}
}

// send refuses a success that is not of a guard, such as that of any web server at a wrong
// address, and rewords a not-found that says nothing about an object.
func (o *Objects) send(ctx context.Context, r *request) (*reply, *failure) {
	base := o.client.guard.base
	reply, failed := o.client.guard.send(ctx, r)
	switch {
	case failed != nil && failed.hasCode("not-found") && !failed.isAbsent():
		problem := failed.problem
		problem.Detail = fmt.Sprintf("%s answers, but not as a guard: %s", base, problem.Detail)
		problem.Hint = "Check the guard's URL."
	case failed != nil:
	case reply.header.Get("Fencing-Guarantee") == "",
		// At a wrong path of a guard.
		r.method == http.MethodGet && reply.header.Get("ETag") == "":
		return nil, reply.foreign(base)
	}
	return reply, failed
}

func (o *Objects) request(method, key string) *request {
	return &request{
		method: method, path: "/v1/objects/" + strings.ReplaceAll(escape(key), "%2F", "/"),
		timeout: objectTimeout, bytesMax: objectBytesMax, header: map[string]string{},
	}
}

// fenced builds a request with the lease's token. It checks the lease as late as possible: right
// before the request is sent.
func (o *Objects) fenced(lease Fence, method, key string) (*request, error) {
	if failed := checkName("key", key); failed != nil {
		return nil, failed
	}
	if isNil(lease) {
		return nil, noLease(strings.ToLower(method) + " " + key)
	}
	if err := lease.Check(); err != nil {
		return nil, err
	}
	r := o.request(method, key)
	r.header["Fencing-Token"] = lease.FencingToken()
	isPlain := func(c rune) bool { return c >= ' ' && c <= '~' }
	owner := o.client.owner
	// Only for people who inspect refusals; left out if a header cannot carry it.
	if strings.IndexFunc(owner, func(c rune) bool { return !isPlain(c) }) < 0 {
		r.header["Fence-Owner"] = owner
	}
	return r, nil
}

func isNil(lease Fence) bool {
	switch lease := lease.(type) {
	case nil:
		return true
	case *Lease:
		return lease == nil
	case *HandedToken:
		return lease == nil
	default:
		return false
	}
}

func noLease(what string) *Error {
	return invalid("%s: the lease is nil; look at the error of the call that returned it", what)
}

func appliedOf(r *reply) *Applied {
	mark, err := strconv.ParseUint(r.header.Get("Fencing-Mark"), 10, 64)
	if err != nil {
		mark = 0
	}
	return &Applied{
		Mark: mark, Guarantee: r.header.Get("Fencing-Guarantee"), ETag: r.header.Get("ETag"),
		Replayed: r.header.Get("Idempotency-Replayed") == "true",
	}
}
