package fencepost

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The servers of all tests that do not stop one; each test has lock names of its own.
var (
	sharedServer, sharedGuard string
	// fenceBin is the folder of the programs, keyFile the file with the key that signs tokens.
	fenceBin, keyFile string
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	fenceBin = os.Getenv("FENCE_BIN")
	if fenceBin == "" {
		fenceBin = "../../target/debug"
	}
	folder, err := os.MkdirTemp("", "fencepost-go")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(folder)
	keyFile = filepath.Join(folder, "keys.txt")
	key := "k1:" + strings.Repeat("00112233445566778899aabbccddeeff", 2) + "\n"
	if err := os.WriteFile(keyFile, []byte(key), 0o600); err != nil {
		fmt.Println(err)
		return 1
	}
	lock, err := startServer("lock-server", "--store", "memory:")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer lock.kill()
	guard, err := startServer("fenced-store", "--store", "memory:")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer guard.kill()
	sharedServer, sharedGuard = lock.url, guard.url
	return m.Run()
}

// serverProcess is a running server.
type serverProcess struct {
	command *exec.Cmd
	// url is the address of its API, redis that of the guard's Redis port.
	url, redis string
}

// startServer starts a server on a free port and waits until it listens.
func startServer(program string, args ...string) (*serverProcess, error) {
	args = append([]string{"--listen", "127.0.0.1:0", "--token-key-file", keyFile,
		"--log-filter", "error"}, args...)
	command := exec.Command(filepath.Join(fenceBin, program), args...)
	// The servers end with the tests, however those end.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("%w (FENCE_BIN names the folder of the servers)", err)
	}
	s := &serverProcess{command: command}
	expected := 1
	for _, arg := range args {
		if arg == "--redis-listen" {
			expected = 2
		}
	}
	lines := bufio.NewScanner(output)
	for expected > 0 && lines.Scan() {
		_, address, ok := strings.Cut(lines.Text(), "listening on ")
		switch {
		case ok && strings.HasPrefix(address, "redis://"):
			s.redis = strings.TrimPrefix(address, "redis://")
			expected--
		case ok:
			s.url = address
			expected--
		}
	}
	if expected > 0 {
		s.kill()
		return nil, fmt.Errorf("%s ended before it listened", program)
	}
	return s, nil
}

func (s *serverProcess) kill() {
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
}

func mustStart(t *testing.T, program string, args ...string) *serverProcess {
	t.Helper()
	s, err := startServer(program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

func newClient(t *testing.T, options Options) *Client {
	t.Helper()
	if options.Server == "" {
		options.Server = sharedServer
	}
	if options.Guard == "" {
		options.Guard = sharedGuard
	}
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// So that no goroutine of a test is left to the next.
		if err := client.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	})
	return client
}

// lasting is the time to live of a lease whose end a test waits for: the holder learns of it at the
// next renewal, after 3 s, and is not stopped for so long that it passes its deadline, after 7.2 s.
const lasting = 9 * time.Second

// patience is how long a test waits for what must come: a limit for a broken SDK, not what a busy
// machine may take.
var patience = scaledPatience()

func scaledPatience() time.Duration {
	const variable = "FENCE_TEST_PATIENCE"
	text := os.Getenv(variable)
	if text == "" {
		text = "1"
	}
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || !(factor > 0 && factor <= 1000) {
		panic(fmt.Sprintf("%s=%q: expected a number above 0, at most 1000", variable, text))
	}
	return time.Duration(factor * float64(45*time.Second))
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits until the condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		// Before the look: a pause of the machine after it has shown nothing.
		isLast := time.Now().After(until)
		if holds() {
			return
		}
		if isLast {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func mustLock(t *testing.T, c *Client, name string, options ...Option) *Lease {
	t.Helper()
	lease, err := c.Lock(testContext(t), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.release(context.Background()) })
	return lease
}

func mustRelease(t *testing.T, lease *Lease) {
	t.Helper()
	if err := lease.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
}
