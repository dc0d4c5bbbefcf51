package fencepost

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"fencepost/internal/timing"
)

const (
	// openTimeout: a server at which a stream is resumed may first have to read earlier events.
	openTimeout = 10 * time.Second
	// silenceMax is the longest silence of a live server, which sends a comment every 15 s.
	silenceMax    = 45 * time.Second
	eventBytesMax = 64 << 10
)

// Event is one event of a lock. Members that do not apply to its kind are empty.
type Event struct {
	// ID is the position in the stream, for [EventStream.After]; empty for events about this
	// reader alone.
	ID string `json:"-"`
	// Kind is granted, queued, left, released, expired, revoked, superseded, session-ended,
	// refused, session-begun, session-closed, session-blocked, lineage, ready, gap or dropped;
	// Broken or Resumed of this client; or a word of a newer server.
	Kind      string `json:"kind"`
	Lock      string `json:"lock"`
	LeaseID   string `json:"lease_id"`
	Token     uint64 `json:"token"`
	Mode      string `json:"mode"`
	Owner     string `json:"owner"`
	SessionID string `json:"session_id"`
	TTLMs     int64  `json:"ttl_ms"`
	WaitedMs  int64  `json:"waited_ms"`
	HeldMs    int64  `json:"held_ms"`
	// Mark is the one that a refused operation met.
	Mark uint64 `json:"mark"`
	// Missed is, of a gap, the smallest number of missing events.
	Missed int64 `json:"missed"`
	// Text is for people.
	Text   string `json:"text"`
	LateMs int64  `json:"late_ms"`
	MsAgo  int64  `json:"ms_ago"`
	// Err is the cause of Broken.
	Err error `json:"-"`
}

// Kinds of events that the client makes itself.
const (
	// Broken: the connection broke and is retried; no events arrive until Resumed.
	Broken = "broken"
	// Resumed: the stream continues where it broke. If events are missing in between, the next one
	// is of kind gap.
	Resumed = "resumed"
)

// EventStream is a stream of events of locks. Events inform people and dashboards. They may arrive
// late, so do not base a decision on them that a late event would make wrong: use tokens for that.
//
// One goroutine at a time may call Next; Close may be called by any.
type EventStream struct {
	client   *Client
	query    string
	after    string
	context  context.Context
	cancel   context.CancelFunc
	body     *eventBody
	failures int
}

// Events opens the stream of the locks whose names begin with prefix; an empty one includes
// session events. It starts after this id of an earlier stream; now if the id is empty. The caller
// closes the stream. The error is of kind [ErrUnavailable] if the server is unreachable or has too
// many readers, and [ErrInvalid] for a prefix or an id that is not valid, for a missing
// permission, or if the server stores no events.
func (c *Client) Events(ctx context.Context, prefix, after string) (*EventStream, error) {
	return c.events(ctx, "prefix="+escape(prefix), after)
}

// EventsOf opens the stream of the events of one lock, as [Client.Events].
func (c *Client) EventsOf(ctx context.Context, lock, after string) (*EventStream, error) {
	if failed := checkName("lock name", lock); failed != nil {
		return nil, failed
	}
	return c.events(ctx, "lock="+escape(lock), after)
}

func (c *Client) events(ctx context.Context, query, after string) (*EventStream, error) {
	s := &EventStream{client: c, query: query, after: after}
	s.context, s.cancel = context.WithCancel(context.Background())
	if err := s.connect(ctx); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// After is the id of the last event with one: the position from which to resume.
func (s *EventStream) After() string { return s.after }

// Close ends the stream and its connection. A call of Next that waits fails.
func (s *EventStream) Close() { s.cancel() }

// Next returns the next event; it waits without a limit other than ctx. An unreachable server is
// retried about every second, between the events Broken and Resumed. No event is lost if ctx ends.
// Errors are those of [Client.Events] if the server refuses to resume, and of kind [ErrInternal]
// if it sends something that is no event.
func (s *EventStream) Next(ctx context.Context) (*Event, error) {
	if s.body == nil {
		if err := s.connectAgain(ctx); err != nil {
			return nil, err
		}
		return &Event{Kind: Resumed}, nil
	}
	timer := time.NewTimer(silenceMax)
	defer timer.Stop()
	for {
		var why error
		select {
		case <-ctx.Done():
			return nil, ended(ctx, "events")
		case <-s.context.Done():
			return nil, invalid("the stream of events is closed")
		case <-timer.C:
			why = fmt.Errorf("the server was silent for %v", silenceMax)
		case got := <-s.body.items:
			switch {
			case got.event == nil && got.err == nil:
				// A comment: the server is live.
				timer.Reset(silenceMax)
				continue
			case got.err == nil:
				if got.event.ID != "" {
					s.after = got.event.ID
				}
				return got.event, nil
			}
			why = got.err
		}
		s.body.cancel()
		s.body = nil
		if failed, ok := why.(*Error); ok {
			return nil, failed
		}
		return &Event{Kind: Broken, Err: newError(ErrUnavailable, "events: %v", why)}, nil
	}
}

func (s *EventStream) connectAgain(ctx context.Context) error {
	for {
		s.failures++
		sleep(ctx, timing.Pause(s.failures, random()))
		if err := ended(ctx, "events"); err != nil {
			return err
		}
		if s.context.Err() != nil {
			return invalid("the stream of events is closed")
		}
		err := s.connect(ctx)
		failed, ok := err.(*Error)
		if err == nil {
			s.failures = 0
			return nil
		}
		if ok && failed.Kind != ErrUnavailable && failed.Kind != ErrOutcomeUnknown {
			return err
		}
	}
}

// connect opens the connection; ctx and a time-out bound that, not the life of the stream.
func (s *EventStream) connect(ctx context.Context) error {
	life, cancel := context.WithCancel(s.context)
	opened := make(chan struct{})
	go func() {
		timer := time.NewTimer(openTimeout)
		defer timer.Stop()
		select {
		case <-opened:
		case <-timer.C:
			cancel()
		case <-ctx.Done():
			cancel()
		}
	}()
	header := map[string]string{"Accept": "text/event-stream"}
	if s.after != "" {
		header["Last-Event-Id"] = s.after
	}
	response, failed := s.client.server.open(life,
		&request{method: http.MethodGet, path: "/v1/events?" + s.query, header: header})
	close(opened)
	if failed == nil {
		failed = checkStream(response, s.client.server.base)
	}
	if failed != nil {
		cancel()
		if err := ended(ctx, "events"); err != nil {
			return err
		}
		return failed.toError("events", reads)
	}
	s.body = &eventBody{items: make(chan eventItem), cancel: cancel}
	go s.body.read(life, response.Body)
	return nil
}

func checkStream(response *http.Response, base string) *failure {
	kind := response.Header.Get("Content-Type")
	isOK := response.StatusCode >= 200 && response.StatusCode <= 299
	if isOK && strings.HasPrefix(kind, "text/event-stream") {
		return nil
	}
	defer response.Body.Close()
	if isOK {
		return failedUnusable(newError(ErrInternal,
			"%s replied with content type %q, not with events. Check the address", base, kind))
	}
	body, failed := readBody(response.Body, jsonBytesMax, base)
	if failed != nil {
		return failed
	}
	return &failure{
		cause: refused, problem: readProblem(response.StatusCode, response.Header, body, base),
	}
}

// eventBody is one connection. The reader holds at most one event; unread ones stay at the server.
type eventBody struct {
	items  chan eventItem
	cancel context.CancelFunc
}

// eventItem is an event, an error after which nothing follows, or neither: a sign of life.
type eventItem struct {
	event *Event
	err   error
}

func (b *eventBody) read(life context.Context, body io.ReadCloser) {
	defer body.Close()
	scanner := bufio.NewScanner(body)
	scanner.Buffer(make([]byte, 4096), eventBytesMax)
	var parser eventParser
	for scanner.Scan() {
		event, err := parser.line(scanner.Text())
		select {
		case b.items <- eventItem{event, err}:
		case <-life.Done():
			return
		}
		if err != nil {
			return
		}
	}
	err := scanner.Err()
	switch {
	case err == bufio.ErrTooLong:
		err = tooLongEvent()
	case err == nil:
		err = fmt.Errorf("the server has ended the stream")
	}
	select {
	case b.items <- eventItem{err: err}:
	case <-life.Done():
	}
}

// eventParser collects the lines of one server-sent event.
type eventParser struct {
	id   string
	data strings.Builder
}

// line takes one line; returns the event that it ends, or nil. Other fields than id and data
// repeat the data, and comments are keep-alives.
func (p *eventParser) line(text string) (*Event, error) {
	if text != "" {
		name, value, _ := strings.Cut(text, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			p.id = value
		case "data":
			p.data.WriteString(value)
		}
		if p.data.Len() > eventBytesMax {
			return nil, tooLongEvent()
		}
		return nil, nil
	}
	data := p.data.String()
	event := &Event{ID: p.id}
	p.id = ""
	p.data.Reset()
	if data == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(data), event); err != nil || event.Kind == "" {
		return nil, newError(ErrInternal, "events: the server sent no valid event: %q",
			firstBytes([]byte(data)))
	}
	return event, nil
}

func tooLongEvent() *Error {
	return newError(ErrInternal, "events: the server sent an event of more than %d bytes",
		eventBytesMax)
}
