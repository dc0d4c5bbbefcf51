// Package names has the rule of the names of locks and of the keys of objects.
package names

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// BytesMax is the longest name.
const BytesMax = 256

// HasByte reports whether names may contain a byte.
func HasByte(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' ||
		strings.IndexByte("._:/-", c) >= 0
}

// Broken returns the rule that a name breaks, or "": 1 to 256 bytes of A-Z a-z 0-9 . _ : / - with
// no empty, . or .. segment between slashes.
func Broken(name string) string {
	if name == "" {
		return "must not be empty"
	}
	if len(name) > BytesMax {
		return fmt.Sprintf("has %d bytes; at most %d are allowed", len(name), BytesMax)
	}
	for _, c := range name {
		if c >= utf8.RuneSelf || !HasByte(byte(c)) {
			return fmt.Sprintf("contains %q; only A-Z a-z 0-9 . _ : / - are allowed", c)
		}
	}
	for _, segment := range strings.Split(name, "/") {
		switch segment {
		case "":
			return "has an empty segment (a slash at an end, or two in a row)"
		case ".", "..":
			return fmt.Sprintf("has a segment %q", segment)
		}
	}
	return ""
}
