package fencepost

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// respPool is a pool of connections to Redis, with a dialer, a credential hook and a check before
// use as go-redis has them, and without retries.
type respPool struct {
	address     string
	dial        Dial
	credentials func(context.Context) (string, string, error)

	mutex  sync.Mutex
	idle   []*respConn
	dialed int
}

type respConn struct {
	net.Conn
	reader *bufio.Reader
}

// get takes an open connection of the pool, or makes one.
func (p *respPool) get(ctx context.Context) (*respConn, error) {
	for {
		p.mutex.Lock()
		if len(p.idle) == 0 {
			p.dialed++
			p.mutex.Unlock()
			return p.connect(ctx)
		}
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		p.mutex.Unlock()
		if c.isOpen() {
			return c, nil
		}
		_ = c.Close()
	}
}

func (p *respPool) connect(ctx context.Context) (*respConn, error) {
	conn, err := p.dial(ctx, "tcp", p.address)
	if err != nil {
		return nil, err
	}
	c := &respConn{conn, bufio.NewReader(conn)}
	user, password, err := p.credentials(ctx)
	if err == nil {
		_, err = c.do("AUTH", user, password)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// isOpen looks for the end of the connection without waiting, as go-redis does.
func (c *respConn) isOpen() bool {
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	isOpen := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, err := syscall.Read(int(fd), b[:])
		isOpen = n < 0 && (err == syscall.EAGAIN || err == syscall.EWOULDBLOCK)
		return true
	})
	return err == nil && isOpen
}

// do runs one command on a connection of the pool; one that broke does not return to it.
func (p *respPool) do(ctx context.Context, words ...string) (string, error) {
	c, err := p.get(ctx)
	if err != nil {
		return "", RedisError(err)
	}
	text, err := c.do(words...)
	var refusal respError
	if err != nil && !errors.As(err, &refusal) {
		_ = c.Close()
		return "", err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.idle = append(p.idle, c)
	return text, RedisError(err)
}

// respError is an error reply.
type respError string

func (e respError) Error() string { return string(e) }

func (c *respConn) do(words ...string) (string, error) {
	command := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		command += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := c.Write([]byte(command)); err != nil {
		return "", err
	}
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch line[0] {
	case '-':
		return "", respError(line[1:])
	case '$':
		length, err := strconv.Atoi(line[1:])
		if err != nil || length < 0 {
			return "", err
		}
		text := make([]byte, length+2)
		for read := 0; read < len(text); {
			n, err := c.reader.Read(text[read:])
			if err != nil {
				return "", err
			}
			read += n
		}
		return string(text[:length]), nil
	default:
		return line[1:], nil
	}
}

// startRedisPort starts a Redis and a guard with a Redis port before it.
func startRedisPort(t *testing.T) (address string) {
	listener := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	command := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	await(t, "redis-server", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return false
		}
		defer conn.Close()
		text, err := (&respConn{conn, bufio.NewReader(conn)}).do("PING")
		return err == nil && text == "PONG"
	})
	guard := mustStart(t, "fenced-store", "--store", "redis://127.0.0.1:"+port,
		"--redis-listen", "127.0.0.1:0", "--rule", "orders:{id}:**=orders/{id}")
	return guard.redis
}

// careless presents a lease for ever.
type careless struct{ *Lease }

func (careless) Check() error             { return nil }
func (careless) Context() context.Context { return context.Background() }

const pooled = 16

// all runs one command on 16 connections at once, and fails if one of them does.
func (p *respPool) all(t *testing.T, ctx context.Context, value string) {
	t.Helper()
	connections := make([]*respConn, 0, pooled)
	for i := 0; i < pooled; i++ {
		connections = append(connections, must[*respConn](t)(p.get(ctx)))
	}
	results := make(chan error)
	for i, c := range connections {
		go func(i int, c *respConn) {
			_, err := c.do("SET", fmt.Sprintf("orders:pool:%d", i), value)
			results <- err
		}(i, c)
	}
	for range connections {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.idle = append(p.idle, connections...)
}

// writeUntilStale writes without a pause, as long as the guard lets it.
func (p *respPool) writeUntilStale(ctx context.Context, key string) error {
	for ctx.Err() == nil {
		// A connection that the guard has closed shows only its end: the next says why.
		if _, err := p.do(ctx, "SET", key, "old"); errors.Is(err, ErrStale) {
			return nil
		}
	}
	return ctx.Err()
}

func TestAPoolFollowsTheLeaseAndNoWriteOfTheOldHolderLands(t *testing.T) {
	t.Parallel()
	address := startRedisPort(t)
	ctx := testContext(t)
	client := newClient(t, Options{})
	credentials := &Credentials{}
	follower := &respPool{
		address: address, dial: credentials.Dialer(nil), credentials: credentials.Redis,
	}
	if _, err := follower.do(ctx, "PING"); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a pool without a lease: %v", err)
	}
	// Its next renewal, which would notice the loss, is minutes away.
	first := mustLock(t, client, "orders/pool", TTL(10*time.Minute))
	credentials.Follow(first)
	// The same lease in a pool that notices nothing by itself: the guard alone protects the data.
	blind := &Credentials{}
	blind.Follow(careless{first})
	old := &respPool{address: address, dial: blind.Dialer(nil), credentials: blind.Redis}
	follower.all(t, ctx, "old")
	old.all(t, ctx, "old")
	stopped := make(chan error)
	for i := 0; i < pooled; i++ {
		go func(i int) {
			stopped <- old.writeUntilStale(ctx, fmt.Sprintf("orders:pool:%d", i))
		}(i)
	}
	_ = must[*Revoked](t)(client.Revoke(ctx, "orders/pool", "a test"))
	second := mustLock(t, client, "orders/pool")
	before, dialed := credentials.open(), follower.dialed
	credentials.Follow(second)
	// The first write of the new holder succeeds, on a new connection and without a retry.
	if _, err := follower.do(ctx, "SET", "orders:pool:0", "new"); err != nil {
		t.Fatalf("the first write of the new holder: %v", err)
	}
	if before != pooled || credentials.open() != 1 || follower.dialed != dialed+1 {
		t.Fatalf("%d connections before, %d after, %d dialled", before, credentials.open(),
			follower.dialed-dialed)
	}
	if text, err := follower.do(ctx, "GET", "orders:pool:0"); err != nil || text != "new" {
		t.Fatalf("the new holder's write is %q, %v", text, err)
	}
	follower.all(t, ctx, "new")
	for i := 0; i < pooled; i++ {
		if err := <-stopped; err != nil {
			t.Fatalf("a writer of the old holder was not refused: %v", err)
		}
	}
	if _, err := old.do(ctx, "SET", "orders:pool:1", "late"); !errors.Is(err, ErrStale) {
		t.Fatalf("a late write: %v", err)
	}
	for i := 0; i < pooled; i++ {
		text, err := follower.do(ctx, "GET", fmt.Sprintf("orders:pool:%d", i))
		if err != nil || text != "new" {
			t.Fatalf("key %d says %q, %v", i, text, err)
		}
	}
	mustRelease(t, second)
	await(t, "the end of the connections", func() bool {
		_, err := follower.do(ctx, "PING")
		return errors.Is(err, ErrInvalid)
	})
}

func (c *Credentials) open() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.connections)
}
