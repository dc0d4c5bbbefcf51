package fencetest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/fencetest"
)

// step is a request of tests/sdk/fake-steps.json.
type step struct {
	Name string
	// Send is the method and the path.
	Send    string
	Body    json.RawMessage
	Text    string
	Headers map[string]string
	// Keep is the name under which later headers have the token of the reply.
	Keep string
	// Waits is the lock that has a waiter once this request waits; its reply comes later.
	Waits string
	// Guard says that the request is for the guard, whatever its path.
	Guard bool
}

func readSteps(t *testing.T) []step {
	text, err := os.ReadFile("../../../tests/sdk/fake-steps.json")
	if err != nil {
		t.Fatal(err)
	}
	ids := regexp.MustCompile(`"\$\d+"`)
	withIDs := ids.ReplaceAllStringFunc(string(text), func(id string) string {
		return fmt.Sprintf(`"00000000-0000-4000-8000-%012s"`, strings.Trim(id, `"$`))
	})
	var read struct{ Steps []step }
	if err := json.Unmarshal([]byte(withIDs), &read); err != nil {
		t.Fatal(err)
	}
	return read.Steps
}

// startReal starts a real server and returns its address.
func startReal(t *testing.T, program string) string {
	folder := os.Getenv("FENCE_BIN")
	if folder == "" {
		folder = "../../../target/debug"
	}
	command := exec.Command(filepath.Join(folder, program),
		"--listen", "127.0.0.1:0", "--store", "memory:", "--unsigned", "--log-filter", "error")
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if _, address, ok := strings.Cut(lines.Text(), "listening on "); ok {
			return address
		}
	}
	t.Fatal(program, "has ended")
	return ""
}

// sendStep returns the compared parts of the reply in a line, and the token in it.
func sendStep(s step, server, token string) (string, string, error) {
	method, path, _ := strings.Cut(s.Send, " ")
	body := s.Text
	if s.Body != nil {
		body = string(s.Body)
	}
	request, err := http.NewRequest(method, server+path, strings.NewReader(body))
	if err != nil {
		return "", "", err
	}
	if s.Body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, value := range s.Headers {
		if value[0] == '$' {
			value = token
		}
		request.Header.Set(name, value)
	}
	client := http.Client{Timeout: time.Minute}
	response, err := client.Do(request)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", "", err
	}
	members := map[string]any{}
	_ = json.Unmarshal(text, &members)
	line := fmt.Sprintf("%s: %d", s.Name, response.StatusCode)
	names := []string{"code", "outcome", "why", "reason", "queue_length"}
	if members["code"] != nil {
		names = append(names, "lock", "owner")
	}
	for _, name := range names {
		line += fmt.Sprintf(" %s=%v", name, members[name])
	}
	if etag, ok := members["etag"]; ok {
		line += fmt.Sprintf(" etag=%v", etag != nil)
	}
	if holder, ok := members["holder"].(map[string]any); ok {
		line += fmt.Sprintf(" holder=%v", holder["owner"])
	}
	header := response.Header
	line += fmt.Sprintf(" guarantee=%s marked=%v tagged=%v replayed=%s",
		header.Get("Fencing-Guarantee"), header.Get("Fencing-Mark") != "", header.Get("ETag") != "",
		header.Get("Idempotency-Replayed"))
	found, _ := members["fencing_token"].(string)
	return line, found, nil
}

// playSteps returns the replies in the order of the steps.
func playSteps(t *testing.T, steps []step, server, guard string) []string {
	kept := map[string]string{}
	lines := make([]chan string, len(steps))
	for i, s := range steps {
		i, s, at := i, s, server
		_, path, _ := strings.Cut(s.Send, " ")
		if s.Guard || strings.HasPrefix(path, "/v1/objects/") || strings.HasPrefix(path, "/v1/fences/") {
			at = guard
		}
		token := kept[strings.TrimPrefix(s.Headers["fencing-token"], "$")]
		lines[i] = make(chan string, 1)
		send := func() string {
			line, found, err := sendStep(s, at, token)
			if err != nil {
				line = fmt.Sprintf("%s: %v", s.Name, err)
			}
			lines[i] <- line
			return found
		}
		if s.Waits == "" {
			if found := send(); s.Keep != "" {
				kept[s.Keep] = found
			}
			continue
		}
		go send()
		state := step{Send: "GET /v1/locks/" + s.Waits}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			line, _, err := sendStep(state, server, "")
			if err == nil && strings.Contains(line, "queue_length=1 ") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: it does not wait: %s, %v", s.Name, line, err)
			}
		}
	}
	all := make([]string, len(steps))
	for i, line := range lines {
		all[i] = <-line
	}
	return all
}

func TestTheFakeServerRepliesAsTheRealOnesDo(t *testing.T) {
	fake := fencetest.NewServer()
	defer fake.Close()
	steps := readSteps(t)
	real := playSteps(t, steps, startReal(t, "lock-server"), startReal(t, "fenced-store"))
	for i, line := range playSteps(t, steps, fake.URL, fake.URL) {
		if line != real[i] {
			t.Errorf("the fake server: %s\nthe real one:    %s", line, real[i])
		}
	}
}
