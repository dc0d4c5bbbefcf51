package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"fencepost/internal/timing"
)

const (
	// electionRound is the time of one round of a campaign. Shorter than the longest wait of the
	// protocol, because a candidate whose server vanished without closing the connection notices
	// only at its end.
	electionRound = 60 * time.Second
	// electionRoundMin is the shortest round, for candidates with little patience.
	electionRoundMin = time.Second
	// observeAgain is the pause before a failed query of the leader is retried.
	observeAgain = 500 * time.Millisecond
	// observeRefresh is the period of the queries without an event: the server does not promise an
	// event for every expiry.
	observeRefresh = 60 * time.Second
)

// Leader is the leader of an election, as an observer sees it. This was true when the server
// replied. Do not base a decision on it that needs the leader to be still in office: use the
// token.
type Leader struct {
	// Owner is the owner of the leader's lease.
	Owner string
	// Token numbers the term: higher than that of every earlier one.
	Token uint64
	// LeaseID is the id of the leader's lease.
	LeaseID string
	// Held is the time in office.
	Held time.Duration
	// Metadata is that of the leader's campaign, if it gave some.
	Metadata json.RawMessage
}

// Campaign waits until this client is the leader of the election name, which is a lock; its lease
// is the office, and [Lease.Release] resigns. Candidates are elected in the order of the queue.
//
// Options are those of [Client.Lock] without Wait. An unreachable server is retried until ctx
// ends, or for the time of [Patience] if it is given. If ctx ends, the candidate leaves the queue.
func (c *Client) Campaign(ctx context.Context, name string, options ...Option) (*Lease, error) {
	given := newSpec(name, append([]Option{Patience(0)}, options...))
	patience := given.times.patience
	round := electionRound
	if patience > 0 {
		round = longer(shorter(patience, round), electionRoundMin)
	}
	inRound := append(append([]Option{}, options...), Wait(round), Patience(0))
	failures := 0
	failingSince := now()
	for {
		lease, err := c.Lock(ctx, name, inRound...)
		if err == nil {
			return lease, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, ErrContended):
			// The server is well, and the office is taken. The pause avoids a tight loop if the
			// server replies at once, against the contract.
			failures = 0
		case errors.Is(err, ErrUnavailable), errors.Is(err, ErrOutcomeUnknown),
			errors.Is(err, ErrLeaseLost):
			if failures == 0 {
				failingSince = now()
			}
			if patience > 0 && now().Since(failingSince) >= patience {
				return nil, err
			}
			failures++
		default:
			return nil, err
		}
		sleep(ctx, timing.Pause(failures, random()))
	}
}

// WithLeadership campaigns, runs body as the leader and resigns; see [Client.WithLock].
func (c *Client) WithLeadership(
	ctx context.Context,
	name string,
	body func(ctx context.Context, office *Lease) error,
	options ...Option,
) error {
	if body == nil {
		return noWork(name)
	}
	office, err := c.Campaign(ctx, name, options...)
	if err != nil {
		return err
	}
	return office.run(ctx, body)
}

// Leader returns the current leader of the election name; nil if the office is vacant.
func (c *Client) Leader(ctx context.Context, name string) (*Leader, error) {
	shown, err := c.Show(ctx, name)
	if err != nil || shown.State != "held" || shown.Holder == nil {
		return nil, err
	}
	h := shown.Holder
	return &Leader{h.Owner, h.Token, h.LeaseID, milliseconds(h.HeldMs), h.Metadata}, nil
}

// Observe calls changed with the current leader of the election name, and again at each change;
// with nil for a vacant office, and with an error while the server is unreachable, once until the
// state is known again. It returns when ctx ends, or the server refuses. It is no candidate. A
// term that ends before it was queried may be left out.
func (c *Client) Observe(
	ctx context.Context, name string, changed func(leader *Leader, unknown error),
) error {
	stream, err := c.EventsOf(ctx, name, "")
	if err != nil {
		return err
	}
	defer stream.Close()
	o := observer{client: c, name: name, changed: changed}
	for {
		due, err := o.refresh(ctx)
		if err != nil {
			return err
		}
		for isCurrent := true; isCurrent; {
			next, cancel := context.WithTimeout(ctx, due)
			event, err := stream.Next(next)
			cancel()
			switch {
			case ctx.Err() != nil:
				return ended(ctx, "observe "+name)
			case errors.Is(err, context.DeadlineExceeded):
				isCurrent = false
			case err != nil:
				return err
			default:
				isCurrent = o.apply(event)
			}
		}
	}
}

// observer has the known state of an office.
type observer struct {
	client  *Client
	name    string
	changed func(*Leader, error)
	leader  uint64
	isKnown bool
}

// refresh queries the leader and reports a change; returns the time after which to query again.
func (o *observer) refresh(ctx context.Context) (time.Duration, error) {
	leader, err := o.client.Leader(ctx, o.name)
	switch {
	case ctx.Err() != nil:
		return 0, ended(ctx, "observe "+o.name)
	case errors.Is(err, ErrUnavailable):
		o.unknown(err)
		return observeAgain, nil
	case err != nil:
		return 0, err
	}
	token := uint64(0)
	if leader != nil {
		token = leader.Token
	}
	if !o.isKnown || token != o.leader {
		o.leader, o.isKnown = token, true
		o.changed(leader, nil)
	}
	return observeRefresh, nil
}

func (o *observer) unknown(err error) {
	if o.isKnown {
		o.isKnown = false
		o.changed(nil, err)
	}
}

// apply reports whether the known state is still current after the event. Any event of a lease is
// a reason to query: the events of two terms may arrive in another order than the terms.
func (o *observer) apply(event *Event) bool {
	switch event.Kind {
	case Broken:
		o.unknown(event.Err)
		return true
	case "queued", "left", "refused", "ready":
		return true
	default:
		return false
	}
}
