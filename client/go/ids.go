package fencepost

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// newID generates a random UUID (version 4).
func newID() string {
	b := randomBytes()
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// random generates a number, for the jitter of retries.
func random() uint64 {
	b := randomBytes()
	return binary.LittleEndian.Uint64(b[:8])
}

func randomBytes() [16]byte {
	var b [16]byte
	if _, err := io.ReadFull(rand.Reader, b[:]); err != nil {
		// Without randomness two acquires could share an id, and both would hold the lock.
		panic("fencepost: the system has no random numbers: " + err.Error())
	}
	return b
}

var (
	incarnationOnce sync.Once
	incarnation     string
)

// processIncarnation is a random id of this process.
func processIncarnation() string {
	incarnationOnce.Do(func() { incarnation = fmt.Sprintf("%x", randomBytes()) })
	return incarnation
}
