package main

import (
	"context"
	"errors"
	"time"

	"fencepost"
)

func (d *driver) perform(ctx context.Context, r arguments) (any, error) {
	operations := map[string]func(context.Context, arguments) (any, error){
		"client": d.client, "lock": d.lock, "lock_all": d.lockAll, "run": d.run, "check": d.check,
		"release": d.release, "progress": d.progress, "put": d.put, "get": d.get,
		"delete": d.delete, "session": d.session, "session_check": d.sessionCheck,
		"session_end": d.sessionEnd, "campaign": d.campaign, "leader": d.leader,
		"resign": d.release, "events": d.events, "events_close": d.eventsClose, "show": d.show,
		"revoke": d.revoke, "window": window, "pause": pause, "credential": credential,
		"parse_token": parseToken, "cancel": d.cancel,
	}
	operation, ok := operations[r.text("op")]
	if !ok {
		return nil, errUnsupported
	}
	return operation(ctx, r)
}

func (d *driver) client(_ context.Context, r arguments) (any, error) {
	var client *fencepost.Client
	var err error
	if variables, ok := r["env"].(map[string]any); ok {
		client, err = fencepost.FromVariables(func(name string) string {
			value, _ := variables[name].(string)
			return value
		})
	} else {
		client, err = fencepost.New(fencepost.Options{
			Server: r.text("server"), Guard: r.text("guard"), Owner: r.text("owner"),
			Incarnation: r.text("incarnation"), Token: r.text("token"),
			TokenFile: r.text("token_file"), CAFile: r.text("ca_file"), ClientCert: r.text("cert"),
			ClientKey: r.text("key"), InsecureHTTP: r.isSet("insecure_http"),
		})
	}
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.clients[r.text("client")] = client
	return nil, nil
}

func (d *driver) cancel(_ context.Context, r arguments) (any, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	cancel, ok := d.running[int64(r.float("target"))]
	if !ok {
		return nil, mistake("no such request is under way")
	}
	cancel()
	return nil, nil
}

func (d *driver) clientOf(r arguments) (*fencepost.Client, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	client, ok := d.clients[r.text("client")]
	if !ok {
		return nil, mistake("there is no client %s", r.text("client"))
	}
	return client, nil
}

func (d *driver) leaseOf(r arguments) (*heldLease, error) {
	name := r.text("leadership")
	if name == "" {
		name = r.text("lease")
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	lease, ok := d.leases[name]
	if !ok {
		return nil, mistake("there is no lease %s", name)
	}
	return lease, nil
}

func (d *driver) sessionOf(name string) (*fencepost.Session, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	session, ok := d.sessions[name]
	if !ok {
		return nil, mistake("there is no session %s", name)
	}
	return session, nil
}

// keep keeps a lease under a name, and reports its loss.
func (d *driver) keep(name string, client *fencepost.Client, lease *fencepost.Lease) reply {
	d.mutex.Lock()
	d.leases[name] = &heldLease{lease, client}
	d.mutex.Unlock()
	go func() {
		<-lease.Context().Done()
		var failed *fencepost.Error
		if errors.As(lease.Err(), &failed) && failed.Lost() {
			reason, end := loss(failed.Reason)
			d.write(reply{"event": "lost", "lease": name, "reason": reason, "end": end})
		}
	}()
	return reply{
		"token": lease.Token(), "lease_id": lease.ID(), "lock": lease.Name(),
		"fencing_token": lease.FencingToken(), "fencing_credential": lease.FencingCredential(),
		"remaining_ms": lease.Remaining().Milliseconds(),
	}
}

func (d *driver) lock(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	options, err := r.options()
	if err != nil {
		return nil, err
	}
	var lease *fencepost.Lease
	if name := r.text("session"); name != "" {
		session, err := d.sessionOf(name)
		if err != nil {
			return nil, err
		}
		lease, err = session.Lock(ctx, r.text("name"), options...)
		if err != nil {
			return nil, err
		}
	} else if lease, err = client.Lock(ctx, r.text("name"), options...); err != nil {
		return nil, err
	}
	return d.keep(r.text("lease"), client, lease), nil
}

func (d *driver) lockAll(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	options, err := r.options()
	if err != nil {
		return nil, err
	}
	set, err := client.LockAll(ctx, r.texts("names"), options...)
	if err != nil {
		return nil, err
	}
	name := r.text("lease")
	d.mutex.Lock()
	d.sets[name] = set
	d.mutex.Unlock()
	leases := []reply{}
	for _, lease := range set.Leases() {
		d.keep(name+":"+lease.Name(), client, lease)
		leases = append(leases, reply{
			"name": lease.Name(), "token": lease.Token(), "lease_id": lease.ID(),
		})
	}
	return reply{"leases": leases}, nil
}

func (d *driver) run(ctx context.Context, r arguments) (any, error) {
	client, err := d.clientOf(r)
	if err != nil {
		return nil, err
	}
	options, err := r.options()
	if err != nil {
		return nil, err
	}
	err = client.WithLock(ctx, r.text("name"), func(ctx context.Context, _ *fencepost.Lease) error {
		switch r.text("body") {
		case "fail":
			return errBody
		case "block":
			time.Sleep(r.time("body_ms"))
			return nil
		default:
			select {
			case <-time.After(r.time("body_ms")):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}, options...)
	if err != nil {
		return nil, err
	}
	return reply{"body": "finished"}, nil
}

func (d *driver) check(_ context.Context, r arguments) (any, error) {
	lease, err := d.leaseOf(r)
	if err != nil {
		return nil, err
	}
	if err := lease.Check(); err != nil {
		return nil, err
	}
	return reply{"remaining_ms": lease.Remaining().Milliseconds()}, nil
}

func (d *driver) progress(_ context.Context, r arguments) (any, error) {
	lease, err := d.leaseOf(r)
	if err != nil {
		return nil, err
	}
	return nil, lease.Progress()
}

func (d *driver) release(ctx context.Context, r arguments) (any, error) {
	d.mutex.Lock()
	set, isSet := d.sets[r.text("lease")]
	d.mutex.Unlock()
	if isSet && !r.has("leadership") {
		return nil, set.Release(ctx)
	}
	lease, err := d.leaseOf(r)
	if err != nil {
		return nil, err
	}
	return nil, lease.Release(ctx)
}
