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

-- Registers this session under a token.
-- Returns one row 'admitted', 'stale' or 'collision' with the mark; or 'sealing', a row each lower
-- session that has to end first, or one row without a session if only open transactions have to.
-- After 'sealing' the session is not registered, and nothing lower can be: call fence.abort, then
-- fence.settle, and register again.
create or replace function fence.register(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns table (verdict text, mark bigint, lease uuid, pid integer, backend_start timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  own_start timestamptz := fence.own_start();
  session record;
  is_lower_running boolean := false;
begin
  perform fence.check_isolation();
  if exists (select from fence.sessions s
      where s.pid = pg_backend_pid() and s.backend_start = own_start and s.closed) then
    perform fence.refuse('FE403', 'this session was registered for good', null,
      'Open another connection for another token.');
  end if;
  select a.verdict, a.mark, a.lease into verdict, mark, lease
    from fence.announce(p_namespace, p_lock, p_token, p_lease) a;
  if verdict <> 'announced' then
    return next;
    return;
  end if;
  for session in select s.token, s.pid, s.backend_start from fence.sessions s
      where s.namespace = p_namespace and s.lock = p_lock
      and (s.pid, s.backend_start) is distinct from (pg_backend_pid(), own_start) loop
    if not fence.is_running(session.pid, session.backend_start) then
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
    values (p_namespace, p_lock, p_token, p_lease, pg_backend_pid(), own_start)
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
    where s.pid = pg_backend_pid() and s.backend_start = fence.own_start()
$$;

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

-- Forgets ended sessions of a lock and finishes its sealing: waits for open transactions that hold a
-- lower mark, as long as `lock_timeout` says, and raises the mark.
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
  for session in select s.token, s.pid, s.backend_start from fence.sessions s
      where s.namespace = p_namespace and s.lock = p_lock loop
    if not fence.is_running(session.pid, session.backend_start) then
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
    perform fence.raise_mark(p_namespace, p_lock, announced.token, announced.lease);
  end if;
end $$;

-- Raises the mark without any other effect.
create or replace function fence.seal(
  p_lock text, p_token bigint, p_lease uuid, p_namespace text default 'default')
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
begin
  perform fence.check_isolation();
  perform fence.check_claimable(p_namespace, p_lock, p_token, p_lease);
  perform fence.enter_checked(p_namespace, p_lock, p_token, p_lease);
  return p_token;
end $$;
