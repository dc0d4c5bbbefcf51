// Package uuid generates random ids.
package uuid

import (
	"crypto/rand"
	"fmt"
	"io"
)

// New generates a random UUID (version 4).
func New() string {
	b := Random()
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// Random generates 16 random bytes.
func Random() [16]byte {
	var b [16]byte
	if _, err := io.ReadFull(rand.Reader, b[:]); err != nil {
		// Without randomness two acquires could share an id, and both would hold the lock.
		panic("fencepost: the system has no random numbers: " + err.Error())
	}
	return b
}
