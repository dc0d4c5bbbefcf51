// Scenariodriver lets the conformance scenarios drive the Go SDK: it reads one JSON object a line
// and writes one a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"fencepost"
)

// lineBytesMax is the longest request.
const lineBytesMax = 16 << 20

// reply is a result or an event.
type reply map[string]any

// errUnsupported says that the package lacks an operation.
var errUnsupported = errors.New("unsupported")

// errBody is the error of the work of a run.
var errBody = errors.New("the work failed")

// driver has clients, leases and sessions by the names that the requests give them.
type driver struct {
	output sync.Mutex

	mutex    sync.Mutex
	clients  map[string]*fencepost.Client
	leases   map[string]*heldLease
	sessions map[string]*fencepost.Session
	sets     map[string]*fencepost.LeaseSet
	streams  map[string]*fencepost.EventStream
	running  map[int64]context.CancelFunc
}

type heldLease struct {
	*fencepost.Lease
	client *fencepost.Client
}

func main() {
	d := &driver{
		clients: map[string]*fencepost.Client{}, leases: map[string]*heldLease{},
		sessions: map[string]*fencepost.Session{}, sets: map[string]*fencepost.LeaseSet{},
		streams: map[string]*fencepost.EventStream{}, running: map[int64]context.CancelFunc{},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 4096), lineBytesMax)
	for lines.Scan() {
		var r arguments
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			d.write(reply{"event": "no JSON", "line": lines.Text()})
			continue
		}
		id := int64(r.float("id"))
		if r.text("op") == "quit" {
			d.write(reply{"id": id, "ok": reply{}})
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mutex.Lock()
		d.running[id] = cancel
		d.mutex.Unlock()
		go d.serve(ctx, id, r)
	}
}

func (d *driver) write(line reply) {
	text, err := json.Marshal(line)
	if err != nil {
		text = []byte(fmt.Sprintf(`{"event":"no JSON","line":%q}`, err.Error()))
	}
	d.output.Lock()
	defer d.output.Unlock()
	// The test that reads it is gone if this fails.
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func (d *driver) serve(ctx context.Context, id int64, r arguments) {
	done, err := d.perform(ctx, r)
	d.mutex.Lock()
	cancel := d.running[id]
	delete(d.running, id)
	d.mutex.Unlock()
	cancel()
	switch {
	case errors.Is(err, errUnsupported):
		d.write(reply{"id": id, "unsupported": true})
	case err != nil:
		d.write(reply{"id": id, "error": errorReply(err)})
	case done == nil:
		d.write(reply{"id": id, "ok": reply{}})
	default:
		d.write(reply{"id": id, "ok": done})
	}
}

func errorReply(err error) reply {
	if errors.Is(err, errBody) {
		return reply{"kind": "body", "code": nil, "retryable": false, "message": err.Error()}
	}
	var failed *fencepost.Error
	if !errors.As(err, &failed) {
		kind := "internal"
		if errors.Is(err, context.Canceled) {
			kind = "cancelled"
		}
		return reply{"kind": kind, "code": nil, "retryable": false, "message": err.Error()}
	}
	line := reply{
		"kind": failed.Kind, "code": nil, "retryable": failed.Retryable, "message": err.Error(),
	}
	if failed.Code != "" {
		line["code"] = failed.Code
	}
	line["reason"], line["end"] = loss(failed.Reason)
	return line
}

// loss splits a reason in the word of the protocol and the end that the server gave.
func loss(reason fencepost.LostReason) (any, any) {
	switch {
	case reason == "":
		return nil, nil
	case reason.IsEnded():
		return "ended", reason
	default:
		return reason, nil
	}
}

// mistake is the error of a request that makes no sense here.
func mistake(format string, values ...any) error {
	return &fencepost.Error{Kind: fencepost.ErrInvalid, Message: fmt.Sprintf(format, values...)}
}
