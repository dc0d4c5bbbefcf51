package fencepost

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// faultProxy stands before a server, records the requests and causes faults.
type faultProxy struct {
	url    string
	target string
	// cut closes all connections.
	cut func()

	mutex    sync.Mutex
	requests []recorded
	faults   []*fault
}

// recorded is a request that came to the proxy.
type recorded struct {
	method, path string
	header       http.Header
	body         map[string]any
	at           moment
	// gone is closed when the client no longer waits for the reply.
	gone <-chan struct{}
}

// fault concerns the next requests whose path contains path.
type fault struct {
	path  string
	times int
	// before runs before the server gets the request, after before its reply is passed on.
	before, after func(recorded)
	// drop closes the connection in place of the reply; refuse does without asking the server.
	drop, refuse bool
	// status replies in place of the server.
	status int
	header map[string]string
	reply  string
}

func newProxy(t *testing.T, target string) *faultProxy {
	p := &faultProxy{target: target}
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	p.url, p.cut = server.URL, server.CloseClientConnections
	return p
}

func (p *faultProxy) cause(f fault) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.faults = append(p.faults, &f)
}

// seen returns the requests whose path contains a text.
func (p *faultProxy) seen(path string) []recorded {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var found []recorded
	for _, r := range p.requests {
		if strings.Contains(r.path, path) {
			found = append(found, r)
		}
	}
	return found
}

// record keeps a request and takes the fault that concerns it.
func (p *faultProxy) record(r recorded) *fault {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.requests = append(p.requests, r)
	for _, f := range p.faults {
		if f.times != 0 && strings.Contains(r.path, f.path) {
			f.times--
			return f
		}
	}
	return &fault{}
}

func (p *faultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	record := recorded{method: r.Method, path: r.URL.Path, header: r.Header.Clone(), at: now(),
		gone: r.Context().Done()}
	_ = json.Unmarshal(body, &record.body)
	f := p.record(record)
	if f.before != nil {
		f.before(record)
	}
	if f.refuse {
		panic(http.ErrAbortHandler)
	}
	if f.status != 0 {
		for name, value := range f.header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(f.status)
		_, _ = io.WriteString(w, f.reply)
		return
	}
	forward, err := http.NewRequestWithContext(r.Context(), r.Method,
		p.target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	forward.Header = r.Header.Clone()
	response, err := http.DefaultTransport.RoundTrip(forward)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	if f.after != nil {
		f.after(record)
	}
	if f.drop {
		panic(http.ErrAbortHandler)
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	relay(w, response.Body)
}

// relay passes a reply on as it comes: an event must not wait for the next.
func relay(w http.ResponseWriter, body io.Reader) {
	w.(http.Flusher).Flush()
	buffer := make([]byte, 32<<10)
	for {
		n, err := body.Read(buffer)
		_, _ = w.Write(buffer[:n])
		w.(http.Flusher).Flush()
		if err != nil {
			return
		}
	}
}

// ids are the distinct lease ids of requests.
func ids(requests []recorded) map[any]bool {
	found := map[any]bool{}
	for _, r := range requests {
		found[r.body["lease_id"]] = true
	}
	return found
}
