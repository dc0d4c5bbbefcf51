package fencepost

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

const (
	// jsonBytesMax is the longest JSON body that is read.
	jsonBytesMax = 4 << 20
	// objectBytesMax is the longest object that is read into memory.
	objectBytesMax = 256 << 20
	connectTimeout = 3 * time.Second
	// poolIdle is shorter than the servers' idle time-out (75 s), so that a request does not use a
	// connection that the server is closing.
	poolIdle = 60 * time.Second
	// callTimeout is the time-out of a call that does not wait in a queue.
	callTimeout = 10 * time.Second

	userAgent = "fencepost-go/" + Version
)

// endpoint is one server, with the connections to it.
type endpoint struct {
	http *http.Client
	base string
	// token is the bearer token, "" for none: a print of the client shows no function's values.
	token func() string
}

// String hides the bearer token.
func (e endpoint) String() string { return e.base }

// GoString hides the bearer token.
func (e endpoint) GoString() string { return e.base }

// newHTTPClient ignores proxies of the environment and redirects: a token is sent only to the
// servers that were configured.
func newHTTPClient(config *tls.Config) *http.Client {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         dialer.DialContext,
			TLSClientConfig:     config,
			TLSHandshakeTimeout: connectTimeout,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     poolIdle,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request is one attempt. Its path begins with a slash and is percent-encoded.
type request struct {
	method, path string
	header       map[string]string
	body         []byte
	timeout      time.Duration
	bytesMax     int64
}

// reply is a successful reply, read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (e *endpoint) build(ctx context.Context, r *request) (*http.Request, *failure) {
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	built, err := http.NewRequestWithContext(ctx, r.method, e.base+r.path, body)
	if err != nil {
		return nil, failedUnusable(invalid("%s: %v", e.base, err))
	}
	built.Header.Set("User-Agent", userAgent)
	if token := e.token(); token != "" {
		built.Header.Set("Authorization", "Bearer "+token)
	}
	for name, value := range r.header {
		// Not Set: net/http resends a request with the canonical name Idempotency-Key by itself,
		// and a resend without a check of the lease is not wanted.
		built.Header[name] = []string{value}
	}
	return built, nil
}

// send sends one request and reads the whole reply.
func (e *endpoint) send(ctx context.Context, r *request) (*reply, *failure) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	response, failed := e.open(ctx, r)
	if failed != nil {
		return nil, failed
	}
	defer response.Body.Close()
	body, failed := readBody(response.Body, r.bytesMax, e.base)
	if failed != nil {
		return nil, failed
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		p := readProblem(response.StatusCode, response.Header, body, e.base)
		return nil, &failure{cause: refused, problem: p}
	}
	return &reply{status: response.StatusCode, header: response.Header, body: body}, nil
}

// open sends a request and waits for the head of its reply.
func (e *endpoint) open(ctx context.Context, r *request) (*http.Response, *failure) {
	hasConnection, isReused := false, false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			hasConnection, isReused = true, info.Reused
		},
	})
	built, failed := e.build(ctx, r)
	if failed != nil {
		return nil, failed
	}
	response, err := e.http.Do(built)
	if err == nil {
		return response, nil
	}
	var inner interface{ Unwrap() error }
	if errors.As(err, &inner) && inner.Unwrap() != nil {
		// The outermost text repeats the method and the address.
		err = inner.Unwrap()
	}
	why := fmt.Sprintf("%s: %v", e.base, explain(err, e.base))
	// A server that refuses the client's certificate says so on a connection's first request,
	// which it has not read then.
	var tlsError *net.OpError
	isRefusedTLS := !isReused && errors.As(err, &tlsError) && tlsError.Op == "remote error"
	if !hasConnection || isRefusedTLS {
		return nil, &failure{cause: notSent, why: why +
			". Check that the server runs and that the address is right"}
	}
	return nil, &failure{cause: noReply, why: why}
}

// explain adds a hint: a plain request to a port that speaks TLS ends by a reply that is no HTTP.
func explain(err error, base string) string {
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		text = "timed out"
	}
	isPlain := strings.HasPrefix(base, "http://")
	if isPlain && (strings.Contains(text, "malformed HTTP") || text == "EOF") {
		text += " (if this port speaks TLS, write https://)"
	}
	return text
}

func readBody(body io.Reader, bytesMax int64, base string) ([]byte, *failure) {
	read, err := io.ReadAll(io.LimitReader(body, bytesMax+1))
	switch {
	case err != nil:
		return nil, &failure{cause: noReply, why: fmt.Sprintf("%s: the reply broke off: %v", base, err)}
	case int64(len(read)) > bytesMax:
		why := fmt.Sprintf("%s: the reply is longer than %d bytes", base, bytesMax)
		return nil, &failure{cause: noReply, why: why}
	default:
		return read, nil
	}
}

// decode parses a whole reply. One that is no JSON is not from a Fencepost server.
func decode[T any](r *reply, base string) (*T, *failure) {
	into := new(T)
	if err := json.Unmarshal(r.body, into); err != nil {
		return nil, r.foreign(base)
	}
	return into, nil
}

// foreign is the failure of a success that is not of a Fencepost server.
func (r *reply) foreign(base string) *failure {
	return failedUnusable(newError(ErrInternal,
		"%s replied %d with something that is no reply of a Fencepost server: %q. Check the address",
		base, r.status, firstBytes(r.body)))
}

// post sends body as JSON and parses the reply.
func post[T any](
	ctx context.Context, e *endpoint, path string, body any, timeout time.Duration,
) (*T, *failure) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, failedUnusable(invalid("the request cannot be written as JSON: %v", err))
	}
	return call[T](ctx, e, &request{
		method: http.MethodPost, path: path, body: text, timeout: timeout, bytesMax: jsonBytesMax,
		header: map[string]string{"Content-Type": "application/json"},
	})
}

func get[T any](ctx context.Context, e *endpoint, path string) (*T, *failure) {
	return call[T](ctx, e, &request{
		method: http.MethodGet, path: path, timeout: callTimeout, bytesMax: jsonBytesMax,
	})
}

func call[T any](ctx context.Context, e *endpoint, r *request) (*T, *failure) {
	reply, failed := e.send(ctx, r)
	if failed != nil {
		return nil, failed
	}
	return decode[T](reply, e.base)
}

// ended is the caller's own error if its context has ended: that explains any failure.
func ended(ctx context.Context, what string) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, ctx.Err())
}
