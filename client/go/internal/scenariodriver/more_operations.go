package main

import (
	"context"

	"fencepost"
	"fencepost/internal/timing"
)

func (d *driver) put(ctx context.Context, r arguments) (any, error) {
	lease, err := d.leaseOf(r)
	if err != nil {
		return nil, err
	}
	var options []fencepost.PutOption
	if r.has("if_match") {
		options = append(options, fencepost.IfMatch(r.text("if_match")))
	}
	if r.isSet("if_absent") {
		options = append(options, fencepost.IfAbsent())
	}
	if r.has("op_id") {
		options = append(options, fencepost.OpID(r.text("op_id")))
	}
	body := []byte(r.text("value"))
	applied, err := lease.client.Objects().Put(ctx, lease, r.text("key"), body, options...)
	if err != nil {
		return nil, err
	}
	return reply{"etag": applied.ETag}, nil
}

func (d *driver) get(ctx context.Context, r arguments) (any, error) {
	lease, err := d.leaseOf(r)
	if err != nil {
		return nil, err
	}
	object, err := lease.client.Objects().Get(ctx, lease, r.text("key"))
	if err != nil {
		return nil, err
	}
	if object == nil {
		return reply{"value": nil, "etag": nil}, nil
	}
	return reply{"value": string(object.Body), "etag": object.ETag}, nil
}

func (d *driver) delete(ctx context.Context, r arguments) (any, error) {
	lease, err := d.leaseOf(r)
	if err != nil {
		return nil, err
	}
	_, err = lease.client.Objects().Delete(ctx, lease, r.text("key"))
	return nil, err
}

func (d *driver) session(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	options, err := r.options()
	if err != nil {
		return nil, err
	}
	session, err := client.BeginSession(ctx, options...)
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.sessions[r.text("session")] = session
	return reply{"session_id": session.ID()}, nil
}

func (d *driver) sessionCheck(_ context.Context, r arguments) (any, error) {
	session, err := d.sessionOf(r.text("session"))
	if err != nil {
		return nil, err
	}
	return nil, session.Check()
}

func (d *driver) sessionEnd(ctx context.Context, r arguments) (any, error) {
	session, err := d.sessionOf(r.text("session"))
	if err != nil {
		return nil, err
	}
	count, err := session.End(ctx)
	if err != nil {
		return nil, err
	}
	return reply{"leases": count}, nil
}

func (d *driver) campaign(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	bounded := ctx
	if r.has("wait_ms") {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, r.time("wait_ms"))
		defer cancel()
	}
	delete(r, "wait_ms")
	options, err := r.options()
	if err != nil {
		return nil, err
	}
	office, err := client.Campaign(bounded, r.text("name"), options...)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return nil, &fencepost.Error{
			Kind: fencepost.ErrContended, Message: "not elected within the wait",
		}
	}
	if err != nil {
		return nil, err
	}
	d.keep(r.text("leadership"), client, office)
	return reply{"token": office.Token()}, nil
}

func (d *driver) leader(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	leader, err := client.Leader(ctx, r.text("name"))
	if err != nil {
		return nil, err
	}
	if leader == nil {
		return reply{"owner": nil, "token": nil}, nil
	}
	return reply{"owner": leader.Owner, "token": leader.Token}, nil
}

func (d *driver) events(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	stream, err := client.Events(ctx, r.text("prefix"), "")
	if err != nil {
		return nil, err
	}
	name := r.text("stream")
	d.mutex.Lock()
	d.streams[name] = stream
	d.mutex.Unlock()
	go func() {
		for {
			event, err := stream.Next(context.Background())
			if err != nil {
				d.write(reply{"event": "stream-failed", "message": err.Error()})
				return
			}
			if event.Kind == fencepost.Broken || event.Kind == fencepost.Resumed {
				continue
			}
			line := reply{"event": "item", "stream": name, "kind": event.Kind, "lock": nil}
			if event.Lock != "" {
				line["lock"] = event.Lock
			}
			d.write(line)
		}
	}()
	return nil, nil
}

func (d *driver) eventsClose(_ context.Context, r arguments) (any, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	stream, ok := d.streams[r.text("stream")]
	if !ok {
		return nil, mistake("there is no such stream")
	}
	delete(d.streams, r.text("stream"))
	stream.Close()
	return nil, nil
}

func (d *driver) show(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	shown, err := client.Show(ctx, r.text("name"))
	if err != nil {
		return nil, err
	}
	if shown.Holder == nil {
		return reply{"state": shown.State, "owner": nil}, nil
	}
	return reply{"state": shown.State, "owner": shown.Holder.Owner}, nil
}

func (d *driver) revoke(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	_, err = client.Revoke(ctx, r.text("name"), r.text("reason"))
	return nil, err
}

func window(_ context.Context, r arguments) (any, error) {
	w := timing.New(timing.Moment(r.float("sent_at_ms")), int64(r.float("ttl_ms")))
	return reply{
		"renew_at": w.RenewAt(), "deadline": w.Deadline(), "kill_by": w.KillBy(),
		"expires_at": w.ExpiresAt(),
	}, nil
}

func pause(_ context.Context, r arguments) (any, error) {
	pause := timing.Pause(int(r.float("attempt")), uint64(r.float("random")))
	return reply{"ms": pause.Milliseconds()}, nil
}

func credential(_ context.Context, r arguments) (any, error) {
	joined, err := fencepost.Credential(r.texts("tokens")...)
	if err != nil {
		return nil, err
	}
	return reply{"credential": joined}, nil
}

func parseToken(_ context.Context, r arguments) (any, error) {
	token, err := fencepost.ParseToken(r.text("header"))
	if err != nil {
		return nil, err
	}
	return reply{"token": token.Token, "lock": token.Lock, "lease": token.LeaseID}, nil
}
