// Package fencetest has a lock server and a guard in the process of a unit test, in memory.
//
// They keep the contract of the real ones for leases of all modes, waiters, sessions and objects,
// and have no events, no access control and no signatures: their tokens are for no real guard.
//
//	fake := fencetest.NewServer()
//	defer fake.Close()
//	client := fake.Client(fencepost.Options{Owner: "tests"})
package fencetest

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fencepost"
)

// Server is a lock server and a guard at one address of this machine.
type Server struct {
	// URL is the address of both.
	URL     string
	http    *httptest.Server
	locks   *locks
	objects *objects
}

// NewServer starts a server on a free port. It panics if there is none, as httptest does.
func NewServer() *Server { return start(nil) }

// NewServerOn starts a server on this listener.
func NewServerOn(listener net.Listener) *Server { return start(listener) }

func start(listener net.Listener) *Server {
	s := &Server{locks: newLocks(), objects: newObjects()}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	if listener != nil {
		_ = s.http.Listener.Close()
		s.http.Listener = listener
	}
	s.http.Start()
	s.URL = s.http.URL
	return s
}

// Client is a client of this server, with the other options as they are. It panics if they break a
// rule.
func (s *Server) Client(options fencepost.Options) *fencepost.Client {
	options.Server, options.Guard = s.URL, s.URL
	client, err := fencepost.New(options)
	if err != nil {
		panic(err)
	}
	return client
}

// Advance moves the server's clock on, and not that of its clients: leases and sessions expire, and
// their holders learn it as in production, by the next renewal or a refused write.
func (s *Server) Advance(d time.Duration) { s.locks.advance(d) }

// Mark is the highest token that the guard has seen of a lock; 0 for none.
func (s *Server) Mark(lock string) uint64 { return s.objects.mark(lock) }

// Close ends the server, and with it all that it has.
func (s *Server) Close() {
	s.locks.close()
	s.http.CloseClientConnections()
	s.http.Close()
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	for i, part := range parts {
		if parts[i], err = url.PathUnescape(part); err != nil {
			return
		}
	}
	answer, refused := s.handle(r, parts, body)
	if refused != nil {
		problem := map[string]any{
			"type": "urn:fencepost:" + refused.code, "title": refused.code, "status": refused.status,
			"code": refused.code, "detail": refused.detail, "hint": "", "retryable": false,
		}
		for name, value := range refused.members {
			problem[name] = value
		}
		w.Header().Set("Content-Type", "application/problem+json")
		answer = &reply{refused.status, refused.header, problem}
	}
	for name, value := range answer.header {
		w.Header().Set(name, value)
	}
	text, isBytes := answer.body.([]byte)
	if !isBytes && answer.body != nil {
		text, _ = json.Marshal(answer.body)
		if refused == nil {
			w.Header().Set("Content-Type", "application/json")
		}
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(text)
}

func (s *Server) handle(r *http.Request, parts []string, body []byte) (*reply, *refusal) {
	if parts[0] != "v1" {
		return nil, refuse(404, "not-found", nil, "there is nothing at %s %s", r.Method, r.URL.Path)
	}
	kind, key := "", ""
	if len(parts) > 1 {
		kind = parts[1]
		key = strings.Join(parts[2:], "/")
	}
	switch kind {
	case "objects":
		return s.objects.handle(r.Method, key, r.Header, body)
	case "fences":
		return s.objects.seal(strings.TrimSuffix(key, "/seal"), r.Header)
	}
	var value any
	var refused *refusal
	switch kind {
	case "locks", "acquire":
		value, refused = s.ofLocks(r, parts, body)
	case "sessions":
		value, refused = s.ofSessions(r, parts, body)
	default:
		refused = refuse(501, "not-offered-by-store", nil, "the fake server has no %s", kind)
	}
	return &reply{http.StatusOK, nil, value}, refused
}

func (s *Server) ofLocks(r *http.Request, parts []string, body []byte) (any, *refusal) {
	query := r.URL.Query()
	if parts[1] == "locks" && len(parts) > 2 {
		if refused := checkName("lock name", parts[2]); refused != nil {
			return nil, refused
		}
	}
	switch {
	case r.Method == http.MethodGet && len(parts) > 2:
		return s.locks.show(parts[2]), nil
	case r.Method == http.MethodGet:
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil {
			limit = 100
		}
		return s.locks.list(query.Get("prefix"), query.Get("after"), limit), nil
	}
	var sent struct {
		acquireBody
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		return nil, refuse(400, "invalid-request", nil, "%v", err)
	}
	if parts[1] == "acquire" {
		result := s.locks.acquire(r.Context(), sent.Locks, &sent.acquireBody)
		return map[string]any{"leases": result.grants}, result.refused
	}
	name, verb := parts[2], parts[len(parts)-1]
	switch verb {
	case "acquire":
		sent.Lock = name
		result := s.locks.acquire(r.Context(), []wish{sent.wish}, &sent.acquireBody)
		if result.refused != nil {
			return nil, result.refused
		}
		return result.grants[0], nil
	case "renew":
		return s.locks.renew(name, sent.LeaseID, sent.TTLMs)
	case "release":
		return s.locks.release(name, sent.LeaseID)
	case "revoke":
		return s.locks.revoke(name, sent.Reason, sent.LeaseID)
	default:
		return nil, refuse(404, "not-found", nil, "there is no path with %s", verb)
	}
}

func (s *Server) ofSessions(r *http.Request, parts []string, body []byte) (any, *refusal) {
	if len(parts) < 3 {
		var sent sessionBody
		if err := json.Unmarshal(body, &sent); err != nil {
			return nil, refuse(400, "invalid-request", nil, "%v", err)
		}
		return s.locks.beginSession(&sent)
	}
	switch {
	case r.Method == http.MethodDelete:
		return s.locks.endSession(parts[2])
	case parts[len(parts)-1] == "heartbeat":
		return s.locks.heartbeat(parts[2])
	default:
		return s.locks.showSession(parts[2])
	}
}
