package fencepost

import (
	"context"
	"sync"
	"time"
)

// endedHere is the loss of a lease that this program released.
const endedHere LostReason = "ended-here"

// trust says until when a lease or a session may be used, or why it may not. A loss is final: no
// renewal undoes it, because the work that it protected was cancelled.
type trust struct {
	what string
	// parent is the trust of the session of a lease that has one: the lease shares its window.
	parent *trust
	// context ends at the loss.
	context context.Context
	cancel  context.CancelFunc

	mutex    sync.Mutex
	window   window
	hold     hold
	reason   LostReason
	children map[*trust]bool
}

func newTrust(what string, w window, h hold) *trust {
	t := &trust{what: what, window: w, hold: h, children: map[*trust]bool{}}
	t.context, t.cancel = context.WithCancel(context.Background())
	return t
}

// newChild is the trust in a lease of the session t.
func (t *trust) newChild(what string) *trust {
	child := newTrust(what, window{}, hold{})
	child.parent = t
	t.leads(child)
	return child
}

// leads makes other lost as soon as t is.
func (t *trust) leads(other *trust) {
	t.mutex.Lock()
	reason := t.reason
	t.children[other] = true
	t.mutex.Unlock()
	if reason != "" {
		other.lose(reason)
	}
}

func (t *trust) currentWindow() window {
	if t.parent != nil {
		return t.parent.currentWindow()
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.window
}

// lost is the reason why the lease cannot be trusted at this moment; empty if it can. It decides
// by the clock, so that it is right even if no task in the background has run yet.
func (t *trust) lost(at reading) LostReason {
	if t.parent != nil {
		if reason := t.parent.lost(at); reason != "" {
			t.lose(reason)
		}
	}
	t.mutex.Lock()
	reason := t.reason
	if reason == "" && t.parent == nil {
		if end := t.hold.nextEnd(t.window, at); end.at <= at.at {
			reason = end.reason
		}
	}
	t.mutex.Unlock()
	if reason != "" {
		t.lose(reason)
		t.mutex.Lock()
		defer t.mutex.Unlock()
		return t.reason
	}
	return ""
}

// lose marks the lease as lost, and reports whether it was live. The first reason stays.
func (t *trust) lose(reason LostReason) bool {
	t.mutex.Lock()
	if t.reason != "" {
		t.mutex.Unlock()
		return false
	}
	t.reason = reason
	children := t.children
	t.children = map[*trust]bool{}
	t.mutex.Unlock()
	t.cancel()
	for child := range children {
		child.lose(reason)
	}
	if t.parent != nil {
		t.parent.mutex.Lock()
		delete(t.parent.children, t)
		t.parent.mutex.Unlock()
	}
	return true
}

// extend replaces the window after a renewal, unless the lease is lost by then.
func (t *trust) extend(w window, at reading) {
	if t.lost(at) != "" {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.reason == "" {
		t.window = w
	}
}

// progress records that the work makes progress, unless the lease is lost by then.
func (t *trust) progress(at reading) {
	if t.lost(at) != "" {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.hold.progressed = at
}

func (t *trust) remaining(at reading) time.Duration {
	if t.lost(at) != "" {
		return 0
	}
	if t.parent != nil {
		return t.parent.remaining(at)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.hold.nextEnd(t.window, at).at.Since(at.at)
}

// check is the error of a lease that cannot be trusted now; nil if it can.
func (t *trust) check() error {
	switch reason := t.lost(read()); reason {
	case "":
		return nil
	case endedHere:
		return invalid("the lease on %s was released by this program and is used again", t.what)
	default:
		return leaseLost(t.what, reason)
	}
}

// watch waits for the end of the lease by the clock, and calls the warnings before it. It returns
// once the lease is lost.
func (t *trust) watch() {
	warned := warnedEnds{}
	for {
		at := read()
		if t.lost(at) != "" {
			return
		}
		t.mutex.Lock()
		wake := t.hold.nextEnd(t.window, at).at
		warnAt, end, isWarning := t.hold.nextWarning(t.window, at, warned)
		warn := t.hold.limits.warn
		t.mutex.Unlock()
		if isWarning && warnAt <= at.at {
			warned[end.reason] = end.at
			go warn(Warning{Lock: t.what, In: end.at.Since(at.at), Reason: end.reason})
			continue
		}
		if isWarning && warnAt < wake {
			wake = warnAt
		}
		if !sleepUntil(t.context.Done(), wake) {
			return
		}
	}
}

// trustedContext is cancelled with the trust. Err reads the holder's clock itself, so that a
// process which was stopped past its deadline sees the end before any timer has fired.
type trustedContext struct {
	context.Context
	trust  *trust
	cancel context.CancelFunc
}

func (c *trustedContext) Err() error {
	if c.trust.lost(read()) != "" {
		c.cancel()
	}
	return c.Context.Err()
}

// within derives a context from parent that ends with the trust as well. The caller calls the
// function at the end of the work; it frees what the context needs.
func (t *trust) within(parent context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(parent)
	go func() {
		select {
		case <-t.context.Done():
			cancel()
		case <-inner.Done():
		}
	}()
	return &trustedContext{Context: inner, trust: t, cancel: cancel}, cancel
}
