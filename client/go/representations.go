package fencepost

import (
	"fmt"
	"strings"
)

// String names the servers and the owner; the bearer token is left out.
func (c *Client) String() string {
	return fmt.Sprintf("client of %s and %s as %s", c.server.base, c.guard.base, c.owner)
}

// GoString leaves the bearer token out.
func (c *Client) GoString() string { return "fencepost.Client{" + c.String() + "}" }

// String names the session.
func (s *Session) String() string { return fmt.Sprintf("session %s of %s", s.id, s.owner) }

// GoString names the session.
func (s *Session) GoString() string { return "fencepost.Session{" + s.String() + "}" }

// String names the locks; the credentials are left out.
func (s *LeaseSet) String() string {
	names := make([]string, 0, len(s.leases))
	for _, lease := range s.leases {
		names = append(names, lease.Name())
	}
	return "leases on " + strings.Join(names, ", ")
}

// GoString leaves the credentials out.
func (s *LeaseSet) GoString() string { return "fencepost.LeaseSet{" + s.String() + "}" }
