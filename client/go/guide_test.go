package fencepost

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// guideBlocks are the code blocks of a language in docs/guides/go.md.
func guideBlocks(t *testing.T, language string) []string {
	page := must[[]byte](t)(os.ReadFile("../../docs/guides/go.md"))
	var blocks []string
	for _, part := range strings.Split(string(page), "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	return blocks
}

func TestTheProgramOfTheGuideEndsInARefusedStaleWrite(t *testing.T) {
	t.Parallel()
	here := must[string](t)(os.Getwd())
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, block := range guideBlocks(t, "go") {
		first, _, _ := strings.Cut(block, "\n")
		write(strings.TrimPrefix(first, "// "), block)
	}
	// It calls the worker of the guide as well.
	write("worker_test.go", `package main

import (
	"context"
	"testing"

	"fencepost"
)

func TestWork(t *testing.T) {
	client, err := fencepost.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if err := work(context.Background(), client, "guide"); err != nil {
		t.Fatal(err)
	}
}
`)
	run := func(words ...string) string {
		t.Helper()
		command := exec.Command("go", words...)
		command.Dir = folder
		command.Env = append(os.Environ(), "FENCE_SERVER="+sharedServer, "FENCE_GUARD="+sharedGuard)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", words, err, output)
		}
		return string(output)
	}
	var printed, last string
	for _, block := range guideBlocks(t, "console") {
		for _, line := range strings.SplitAfter(block, "\n") {
			if strings.HasPrefix(line, "$ go ") {
				line = strings.ReplaceAll(line, "../fencepost/client/go", here)
				printed, last = run(strings.Fields(line)[2:]...), ""
			} else {
				last += line
			}
		}
	}
	if printed != last || !strings.Contains(printed, "refuses the token of A: true") {
		t.Errorf("the program prints\n%snot\n%s", printed, last)
	}
	run("test", "-count=1", ".")
}
