package fencepost

import (
	"encoding/binary"
	"fmt"
	"sync"

	"fencepost/internal/uuid"
)

func newID() string { return uuid.New() }

// random generates a number, for the jitter of retries.
func random() uint64 {
	b := uuid.Random()
	return binary.LittleEndian.Uint64(b[:8])
}

var (
	incarnationOnce sync.Once
	incarnation     string
)

// processIncarnation is a random id of this process.
func processIncarnation() string {
	incarnationOnce.Do(func() { incarnation = fmt.Sprintf("%x", uuid.Random()) })
	return incarnation
}
