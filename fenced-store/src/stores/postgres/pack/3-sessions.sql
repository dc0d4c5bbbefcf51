-- Preempt and abort: sessions registered under a token before they act. Each call is a transaction
-- of its own, in read committed, which the client cannot roll back.

-- An older snapshot would miss sessions.
create or replace function fence.check_isolation() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform fence.refuse('FE425', 'this function runs in read committed', null,
      'Call it in a transaction of its own: BEGIN ISOLATION LEVEL READ COMMITTED.');
  end if;
end $$;

-- Sessions of a lock, whether they still run, by one look at the server's: that look costs as much as
-- there are sessions.
create or replace function fence.sessions_of(p_namespace text, p_lock text)
returns table (token bigint, pid integer, backend_start timestamptz, is_running boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  session record;
begin
  perform pg_stat_clear_snapshot();
  for session in select s.token, s.pid, s.backend_start, a.pid is not null as is_there,
      a.backend_start as started
      from fence.sessions s left join pg_stat_get_activity(null) a on a.pid = s.pid
      where s.namespace = p_namespace and s.lock = p_lock loop
    if session.is_there and session.started is null then
      perform fence.refuse_hidden(session.pid);
    end if;
    token := session.token;
    pid := session.pid;
    backend_start := session.backend_start;
    is_running := session.started is not distinct from session.backend_start;
    return next;
  end loop;
end $$;

-- Registers a session under a token: this one, or for a guard's own connection that of a client
-- that has sent nothing yet.
-- Returns one row 'admitted', 'stale' or 'collision' with the mark; or 'sealing', a row each lower
-- session that has to end first, or one row without a session if only open transactions have to.
-- After 'sealing' the session is not registered, and nothing lower can be: call fence.abort, then
-- fence.settle, and register again.
create or replace function fence.register(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid,
  p_pid integer default pg_backend_pid())
returns table (verdict text, mark bigint, lease uuid, pid integer, backend_start timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  start timestamptz := fence.start_of(p_pid);
  session record;
  is_lower_running boolean := false;
begin
  perform fence.check_isolation();
  if exists (select from fence.sessions s
      where s.pid = p_pid and s.backend_start = start and s.closed) then
    perform fence.refuse('FE403', 'this session was registered for good', null,
      'Open another connection for another token.');
  end if;
  select a.verdict, a.mark, a.lease into verdict, mark, lease
    from fence.announce_ending(p_namespace, p_lock, p_token, p_lease, 1000) a;
  if verdict <> 'announced' then
    return next;
    return;
  end if;
  for session in select * from fence.sessions_of(p_namespace, p_lock) s
      where s.pid <> pg_backend_pid() or s.backend_start <> start loop
    if not session.is_running then
      delete from fence.sessions s where s.namespace = p_namespace and s.lock = p_lock
        and s.pid = session.pid and s.backend_start = session.backend_start;
    elsif session.token < p_token then
      verdict := 'sealing';
      pid := session.pid;
      backend_start := session.backend_start;
      is_lower_running := true;
      return next;
    end if;
  end loop;
  if not is_lower_running then
    begin
      perform set_config('lock_timeout', '10ms', true);
      perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
    exception when lock_not_available then
      is_lower_running := true;
      verdict := 'sealing';
      return next;
    end;
  end if;
  if is_lower_running then
    update fence.seals s set sealing = true where s.namespace = p_namespace and s.lock = p_lock;
    return;
  end if;
  insert into fence.sessions as s (namespace, lock, token, lease, pid, backend_start)
    values (p_namespace, p_lock, p_token, p_lease, p_pid, start)
    on conflict (namespace, lock, pid, backend_start)
      do update set token = excluded.token, lease = excluded.lease;
  perform fence.commit_durably();
  verdict := 'admitted';
  return next;
end $$;

-- Ends registration on this session: from here it may register and enter nothing else.
create or replace function fence.close() returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  update fence.sessions s set closed = true
    where s.pid = pg_backend_pid() and s.backend_start = fence.start_of(pg_backend_pid())
$$;

-- Waits, for a while, until a raise or a floor that is under way has ended; it holds these rows.
create or replace function fence.await_seal(p_namespace text, p_lock text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
begin
  perform from fence.seals s where s.namespace = p_namespace and s.lock = p_lock for share;
  perform from fence.meta for share;
end $$;

-- Ends the sessions of a lock below its announced token. Returns those that do not end in time; the
-- call may be repeated, by any session. Holds no lock.
create or replace function fence.abort(
  p_namespace text, p_lock text, p_timeout_ms bigint default 5000)
returns table (pid integer, backend_start timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query select e.pid, e.backend_start from fence.seals s,
    fence.end_lower(p_namespace, p_lock, s.token, p_timeout_ms) e
    where s.namespace = p_namespace and s.lock = p_lock;
end $$;

-- Forgets ended sessions of a lock and finishes its sealing: gives open transactions that hold a
-- lower mark a second, ends them, and raises the mark.
-- Returns the lower sessions that still run. None: the lock is settled.
create or replace function fence.settle(p_namespace text, p_lock text)
returns table (pid integer, backend_start timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  announced fence.seals;
  session record;
  is_lower_running boolean := false;
begin
  perform fence.check_isolation();
  select * into announced from fence.seals s
    where s.namespace = p_namespace and s.lock = p_lock for update;
  if not found then return; end if;
  for session in select * from fence.sessions_of(p_namespace, p_lock) loop
    if not session.is_running then
      delete from fence.sessions s where s.namespace = p_namespace and s.lock = p_lock
        and s.pid = session.pid and s.backend_start = session.backend_start;
    elsif announced.sealing and session.token < announced.token then
      pid := session.pid;
      backend_start := session.backend_start;
      is_lower_running := true;
      return next;
    end if;
  end loop;
  if announced.sealing and not is_lower_running then
    perform fence.raise_ending(p_namespace, p_lock, announced.token, announced.lease, 1000);
  end if;
end $$;

-- Raises the mark and ends what has to end first: lower sessions at once, and lower transactions that
-- entered the fence after they had `p_wait_ms` to finish.
create or replace function fence.seal_checked(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_wait_ms integer)
returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  announced record;
begin
  perform fence.show_token(p_namespace, p_lock, p_token);
  select * into announced
    from fence.announce_ending(p_namespace, p_lock, p_token, p_lease, p_wait_ms);
  if announced.verdict = 'announced' then
    perform fence.end_lower_or_refuse(p_namespace, p_lock, p_token);
    perform fence.raise_ending(p_namespace, p_lock, p_token, p_lease, p_wait_ms);
  end if;
  perform fence.enter_checked(p_namespace, p_lock, p_token, p_lease);
end $$;

-- As its name says. No transaction below the token acts once this has returned and committed.
create or replace function fence.seal(
  p_lock text, p_token bigint, p_lease uuid, p_namespace text default 'default',
  p_wait_ms integer default 5000)
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
begin
  perform fence.check_claimable(p_namespace, p_lock, p_token, p_lease);
  perform fence.seal_checked(p_namespace, p_lock, p_token, p_lease, p_wait_ms);
  return p_token;
end $$;

-- Sets the first token to admit, after marks were lost or a backup was restored. A higher one stays.
-- Returns the floor in force. For the owner, and roles that are granted it.
create or replace function fence.set_floor(p_token bigint) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  lower record;
begin
  perform fence.check_isolation();
  if p_token is null or p_token not between 1 and 999999999999999 then
    perform fence.refuse('FE400', 'a floor is 1 to 999999999999999', null, null);
  end if;
  -- Waits for raises under way, and holds up new ones.
  update fence.meta set floor = p_token, floor_lease = gen_random_uuid() where floor < p_token;
  if found then
    for lower in select s.namespace, s.lock from fence.sessions s where s.token < p_token
        group by 1, 2 loop
      perform fence.end_lower_or_refuse(lower.namespace, lower.lock, p_token);
    end loop;
    -- A changed row waits for the transactions that hold it, and fails those with an older snapshot.
    -- A fence.hold that waited for this reads the lease anew, and not the floor: so it is another one.
    update fence.marks set lease = gen_random_uuid() where token < p_token;
    perform fence.commit_durably();
  end if;
  return (select floor from fence.meta);
end $$;
