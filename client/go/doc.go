// Package fencepost is the Go SDK of Fencepost: leases with fencing tokens.
//
// A lock server can only promise that it grants a lock to one lease at a time. It cannot promise
// that the holder notices the end of its lease: a process that was stopped, swapped out or
// suspended resumes where it was. So a lease has two protections, and this package applies both:
//
//   - Locally, a lease is trusted for 0.8 of its time to live, counted from before the request was
//     sent, on a clock that runs while the machine is suspended (on Linux; elsewhere on Go's
//     monotonic clock). When that time has passed, the context of the work is cancelled and fenced
//     calls fail without being sent.
//   - At the data, every fenced call carries the lease's token, and the guard refuses a token that
//     is lower than one it has seen. This holds even when the local protection came too late.
//
// The usual form runs a function under a lock:
//
//	client, err := fencepost.FromEnv()
//	…
//	err = client.WithLock(ctx, "orders/42",
//		func(ctx context.Context, lease *fencepost.Lease) error {
//			_, err := client.Objects().Put(ctx, lease, "orders/42", []byte("paid"))
//			return err
//		}, fencepost.Wait(time.Minute))
//
// Every error of a server is an [*Error]; its Kind says what to do, and errors.Is(err, ErrStale)
// tests for it. An end of the caller's own context is returned as that context's error.
//
// A Client and its leases may be used by any number of goroutines. A lease that is not released is
// renewed until its process ends, because Go has no destructors: use [Client.WithLock], or defer
// [Lease.Release].
package fencepost
