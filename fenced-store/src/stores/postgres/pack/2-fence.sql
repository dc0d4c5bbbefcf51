-- Comparison of a token with its lock's mark, and the raise. Functions without a search_path, here and
-- below, are called by functions that set it: setting it again would cost more than the call.

-- The common error. SQLSTATEs: docs/reference/postgres-pack.md.
create or replace function fence.refuse(
  p_code text, p_message text, p_detail text, p_hint text)
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = p_code, message = p_message,
    detail = coalesce(p_detail, ''), hint = coalesce(p_hint, '');
end $$;

create or replace function fence.refuse_stale(
  p_namespace text, p_lock text, p_token bigint, p_mark bigint)
returns void language sql set search_path = pg_catalog, pg_temp as $$
  select fence.refuse('FE412', format('token %s of lock %s is stale', p_token, p_lock),
    format('namespace %s, lock %s, token %s, mark %s', p_namespace, p_lock, p_token, p_mark),
    'A later holder has been here. Roll back, stop the work, and acquire the lock again.')
$$;

create or replace function fence.refuse_collision(p_namespace text, p_lock text, p_token bigint)
returns void language sql set search_path = pg_catalog, pg_temp as $$
  select fence.refuse('FE409', format('token %s of lock %s belongs to another lease', p_token, p_lock),
    format('namespace %s, lock %s, token %s, mark %s', p_namespace, p_lock, p_token, p_token),
    'Two leases with one token: the lock server lost its counter. Set a floor above it.')
$$;

create or replace function fence.check_names(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql immutable as $$
begin
  if p_lock is null or length(p_lock) not between 1 and 256
     or p_lock !~ '^[A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*$' or p_lock ~ '(^|/)\.\.?(/|$)' then
    perform fence.refuse('FE400', format('%L is no lock name', p_lock), null,
      '1 to 256 of A-Z a-z 0-9 . _ : / - without an empty, "." or ".." segment.');
  end if;
  if p_namespace is null or p_namespace !~ '^[A-Za-z0-9._-]{1,64}$' then
    perform fence.refuse('FE400', format('%L is no namespace', p_namespace), null, null);
  end if;
  if p_token is null or p_token not between 1 and 999999999999999 or p_lease is null then
    perform fence.refuse('FE400', 'a token is 1 to 999999999999999 and comes with its lease',
      null, null);
  end if;
end $$;

-- Start of a session, which with its pid names it.
create or replace function fence.start_of(p_pid integer) returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  started timestamptz;
begin
  perform pg_stat_clear_snapshot();
  select a.backend_start into started from pg_stat_get_activity(p_pid) a where p_pid is not null;
  if started is null then
    perform fence.refuse('FE503', format('there is no session %s, or its start cannot be read', p_pid),
      null, 'The owner of schema fence needs pg_read_all_stats.');
  end if;
  return started;
end $$;

create or replace function fence.refuse_hidden(p_pid integer) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  select fence.refuse('FE503', format('the start of session %s cannot be read', p_pid), null,
    'GRANT pg_read_all_stats TO the owner of schema fence.')
$$;

-- True as long as the session may still act. The end of its transaction comes first.
create or replace function fence.is_running(p_pid integer, p_start timestamptz) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  started timestamptz;
begin
  -- A transaction would see the same sessions again and again.
  perform pg_stat_clear_snapshot();
  select a.backend_start into started from pg_stat_get_activity(p_pid) a;
  if not found then return false; end if;
  if started is null then perform fence.refuse_hidden(p_pid); end if;
  return started = p_start;
end $$;

-- Waits for the end of a session that got the signal. The server's own wait looks ten times a second.
create or replace function fence.await_end(
  p_pid integer, p_start timestamptz, p_timeout_ms bigint)
returns boolean language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  deadline timestamptz := clock_timestamp() + p_timeout_ms * interval '1 ms';
  pause double precision := 0.0005;
begin
  while fence.is_running(p_pid, p_start) loop
    if clock_timestamp() >= deadline then return false; end if;
    perform pg_sleep(pause);
    pause := least(pause * 1.5, 0.05);
  end loop;
  return true;
end $$;

-- Ends the sessions of a lock that are registered below a token. Returns those still running.
create or replace function fence.end_lower(
  p_namespace text, p_lock text, p_token bigint, p_timeout_ms bigint)
returns table (pid integer, backend_start timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  lower record;
begin
  -- All get the signal before one is awaited.
  for lower in select s.pid, s.backend_start from fence.sessions s
      where s.namespace = p_namespace and s.lock = p_lock and s.token < p_token
      and s.pid <> pg_backend_pid() loop
    if fence.is_running(lower.pid, lower.backend_start) then
      perform pg_terminate_backend(lower.pid);
    end if;
  end loop;
  for lower in select s.pid, s.backend_start from fence.sessions s
      where s.namespace = p_namespace and s.lock = p_lock and s.token < p_token
      and s.pid <> pg_backend_pid() loop
    if not fence.await_end(lower.pid, lower.backend_start, p_timeout_ms) then
      pid := lower.pid;
      backend_start := lower.backend_start;
      return next;
    end if;
  end loop;
end $$;

-- As fence.end_lower, or raises FE503.
create or replace function fence.end_lower_or_refuse(p_namespace text, p_lock text, p_token bigint)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  lower record;
begin
  select * into lower from fence.end_lower(p_namespace, p_lock, p_token, 5000) limit 1;
  if found then
    perform fence.refuse('FE503', format('a lower session of lock %s does not end', p_lock),
      format('namespace %s, lock %s, token %s, session %s', p_namespace, p_lock, p_token, lower.pid),
      'Retry. End that process if it is stopped.');
  end if;
end $$;

-- Advisory locks show a transaction that enters a fence, and its token, so that a seal finds it: one
-- with 14 bits of the lock and the 50 of the token, and one of both, since an application's own locks
-- may look like the first. A third one shows a raise that waits, so that no more lower transactions
-- enter and it ends. They protect nothing: that is the mark's row. A client that takes others makes a
-- seal wait and fail, or others enter more slowly.
create or replace function fence.holder_key(p_namespace text, p_lock text) returns bigint
language sql immutable as $$
  select hashtextextended(p_namespace || ' ' || p_lock, 6497)
$$;

create or replace function fence.token_key(p_namespace text, p_lock text, p_token bigint)
returns bigint language sql immutable as $$
  select hashtextextended(p_namespace || ' ' || p_lock || ' ' || p_token::text, 6497)
$$;

create or replace function fence.show_token(p_namespace text, p_lock text, p_token bigint)
returns void language plpgsql volatile as $$
declare
  shown constant bit(64) := (fence.holder_key(p_namespace, p_lock) & 16383)::bit(14) || p_token::bit(50);
  -- Assignments cost less than PERFORM.
  are_taken constant boolean :=
    pg_try_advisory_xact_lock_shared(fence.token_key(p_namespace, p_lock, p_token)) and
    pg_try_advisory_xact_lock_shared(substring(shown for 32)::integer,
      substring(shown from 33)::integer);
begin
end $$;

-- The other transactions that entered the fence, each with its highest token. A prepared one has no
-- pid.
create or replace function fence.shown(p_namespace text, p_lock text)
returns table (pid integer, virtualtransaction text, token bigint)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with held as materialized (
    select l.pid, l.virtualtransaction, l.objsubid, l.classid::bigint as high, l.objid::bigint as low
      from pg_locks l where l.locktype = 'advisory' and l.granted
      and l.database = (select oid from pg_database where datname = current_database())
      and l.pid is distinct from pg_backend_pid()
  )
  select min(t.pid), t.virtualtransaction, max(t.token)
    from (select h.pid, h.virtualtransaction, (h.high & 262143) << 32 | h.low as token from held h
      where h.objsubid = 2 and h.high >> 18 = fence.holder_key(p_namespace, p_lock) & 16383) t
    join held k on k.virtualtransaction = t.virtualtransaction and k.objsubid = 1
      -- The second is of a transaction that entered before version 2 was installed.
      and (k.high << 32 | k.low) in (fence.token_key(p_namespace, p_lock, t.token),
        fence.holder_key(p_namespace, p_lock))
    group by t.virtualtransaction
$$;

create or replace function fence.show_raise(p_namespace text, p_lock text) returns boolean
language plpgsql volatile as $$
begin
  return pg_try_advisory_xact_lock(hashtextextended(p_namespace || ' ' || p_lock, 6498));
end $$;

-- True unless another transaction raises the mark.
create or replace function fence.is_quiet(p_namespace text, p_lock text) returns boolean
language plpgsql volatile as $$
declare
  key bigint := hashtextextended(p_namespace || ' ' || p_lock, 6498);
begin
  return pg_try_advisory_lock_shared(key) and pg_advisory_unlock_shared(key);
end $$;

-- Waits until another transaction that raises the mark has ended. Holds no lock afterwards.
create or replace function fence.await_raise(p_namespace text, p_lock text) returns void
language plpgsql volatile as $$
begin
  perform from fence.seals s where s.namespace = p_namespace and s.lock = p_lock for share;
  raise exception using errcode = 'FE000';
exception when sqlstate 'FE000' then
  null;
end $$;

-- Ends the other transactions that entered the fence with a lower token.
create or replace function fence.end_holders(p_namespace text, p_lock text, p_token bigint)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  pids integer[];
  starts timestamptz[];
begin
  perform pg_stat_clear_snapshot();
  select array_agg(s.pid), array_agg(a.backend_start) into pids, starts
    from fence.shown(p_namespace, p_lock) s cross join lateral pg_stat_get_activity(s.pid) a
    where s.token < p_token and s.pid is not null;
  for i in 1..coalesce(array_length(pids, 1), 0) loop
    perform pg_terminate_backend(pids[i]);
  end loop;
  for i in 1..coalesce(array_length(pids, 1), 0) loop
    if not fence.await_end(pids[i], starts[i], 5000) then
      perform fence.refuse_busy(p_namespace, p_lock, p_token);
    end if;
  end loop;
end $$;

-- Raises 55P03 and names what entered the fence and is still there: sessions, and prepared
-- transactions, which have none.
create or replace function fence.refuse_busy(p_namespace text, p_lock text, p_token bigint)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  sessions text;
  prepared text;
begin
  select string_agg(distinct s.pid::text, ', '), string_agg(distinct quote_literal(x.gid), ', ')
    into sessions, prepared
    from fence.shown(p_namespace, p_lock) s left join pg_locks t on s.pid is null
      and t.virtualtransaction = s.virtualtransaction
    left join pg_prepared_xacts x on x.transaction = t.transactionid
      and x.database = current_database()
    -- What waits for a lock itself is not named.
    where not exists (select from pg_locks w where w.pid = s.pid and not w.granted);
  perform fence.refuse('55P03', format('an older transaction of lock %s does not end', p_lock),
    format('namespace %s, lock %s, token %s, sessions: %s, prepared transactions: %s', p_namespace,
      p_lock, p_token, coalesce(sessions, 'none'), coalesce(prepared, 'none')),
    'COMMIT PREPARED or ROLLBACK PREPARED what is prepared; end a process that is stopped. Retry.');
end $$;

-- A mark must not be lost while the effects of its holder are kept elsewhere.
create or replace function fence.commit_durably() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
end $$;

-- Announces a token: nothing lower registers from the caller's commit on, and nothing enters by a
-- statement that begins then. Serializes raises and registrations of the lock until the caller's
-- transaction ends.
-- Returns 'announced'; or 'stale' or 'collision' with the higher mark, and nothing was changed.
create or replace function fence.announce(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid,
  out verdict text, out mark bigint, out lease uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  marked fence.marks;
  announced fence.seals;
  bound fence.meta;
begin
  perform fence.check_names(p_namespace, p_lock, p_token, p_lease);
  -- An older snapshot than the last lower commit would let this holder read what it replaces.
  if current_setting('transaction_isolation') <> 'read committed' then
    perform fence.refuse('FE425', format('lock %s has to be sealed before this transaction', p_lock),
      format('namespace %s, lock %s, token %s, isolation %s', p_namespace, p_lock, p_token,
        current_setting('transaction_isolation')),
      'Call fence.seal in a transaction of its own, in read committed; then begin this one again.');
  end if;
  insert into fence.seals as s (namespace, lock, token, lease)
    values (p_namespace, p_lock, 0, p_lease) on conflict (namespace, lock) do nothing;
  select * into announced from fence.seals s
    where s.namespace = p_namespace and s.lock = p_lock for update;
  select * into marked from fence.marks m where m.namespace = p_namespace and m.lock = p_lock;
  -- Locked until the end, so that a new floor waits for what was admitted below it.
  select * into bound from fence.meta for share;
  mark := announced.token;
  lease := announced.lease;
  if marked.token > mark then
    mark := marked.token;
    lease := marked.lease;
  end if;
  if p_token < mark then
    verdict := 'stale';
  elsif p_token < bound.floor then
    verdict := 'stale';
    mark := bound.floor;
    lease := bound.floor_lease;
  elsif p_token = mark and p_lease <> lease then
    verdict := 'collision';
  else
    verdict := 'announced';
    mark := p_token;
    lease := p_lease;
    if marked.token is null or p_token > marked.token then
      perform fence.show_raise(p_namespace, p_lock);
    end if;
    if p_token > announced.token then
      update fence.seals s set token = p_token, lease = p_lease
        where s.namespace = p_namespace and s.lock = p_lock;
      perform fence.commit_durably();
    end if;
  end if;
end $$;

-- Raises the mark; waits for open transactions that hold a lower one. The caller has announced the
-- token in this transaction, and ended the lower sessions. What has this mark already, and lost its
-- lease to a floor, stays as it is.
create or replace function fence.raise_mark(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  marked fence.marks;
begin
  select * into marked from fence.marks m where m.namespace = p_namespace and m.lock = p_lock;
  update fence.seals s set sealing = false where s.namespace = p_namespace and s.lock = p_lock
    and s.sealing;
  if marked.token = p_token and (marked.lease = p_lease
      or p_token < (select b.floor from fence.meta b)) then
    return;
  end if;
  insert into fence.marks as m (namespace, lock, token, lease)
    values (p_namespace, p_lock, p_token, p_lease)
    on conflict (namespace, lock) do update
      set token = excluded.token, lease = excluded.lease, raised_at = clock_timestamp()
      where m.token < excluded.token;
  -- A second check, independent of the one that decided.
  if not found then
    perform fence.refuse('FE503', format('refusing to lower the mark of lock %s', p_lock), null, null);
  end if;
  perform fence.commit_durably();
end $$;

-- As fence.announce and fence.raise_mark; lower transactions that do not end in time are ended. One
-- that entered just before the raise was shown may not be in the first list.
create or replace function fence.announce_ending(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_wait_ms integer,
  out verdict text, out mark bigint, out lease uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
  wait_ms integer := greatest(p_wait_ms, 1);
begin
  for attempt in 1..5 loop
    begin
      perform set_config('lock_timeout', wait_ms::text, true);
      select a.verdict, a.mark, a.lease into verdict, mark, lease
        from fence.announce(p_namespace, p_lock, p_token, p_lease) a;
      return;
    exception when lock_not_available then
      -- One raised the mark, and its transaction is open.
      perform fence.end_holders(p_namespace, p_lock, p_token);
      wait_ms := 1000;
    end;
  end loop;
  perform fence.refuse_busy(p_namespace, p_lock, p_token);
end $$;

create or replace function fence.raise_ending(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_wait_ms integer)
returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
  wait_ms integer := greatest(p_wait_ms, 1);
begin
  for attempt in 1..5 loop
    begin
      perform set_config('lock_timeout', wait_ms::text, true);
      perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
      return;
    exception when lock_not_available then
      perform fence.end_holders(p_namespace, p_lock, p_token);
      wait_ms := 1000;
    end;
  end loop;
  perform fence.refuse_busy(p_namespace, p_lock, p_token);
end $$;

-- Signature of a transaction's claims, which are a line each: namespace, lock, token, lease. A server
-- has only one transaction with its number ever.
create or replace function fence.signature(p_inner_pad bytea, p_outer_pad bytea, p_claims text)
returns text language sql volatile as $$
  select encode(sha256(p_outer_pad || sha256(p_inner_pad || convert_to(
    pg_backend_pid() || ' ' || pg_current_xact_id()::text || E'\n' || p_claims, 'UTF8'))), 'hex')
$$;

-- Holds the mark until the transaction ends, if it is this owner's (`TOKEN LEASE`) and nothing higher
-- is announced. FOR KEY SHARE would let a raise overtake it. Another mark is not locked, because a
-- raise takes the seal's row first. Returns the signature of `p_claims`, null where it is not held.
-- Every guarded change runs this one statement. A token that is announced after its snapshot waits
-- for the mark that it locks. A floor that was set while it waited is not in its snapshot either, but
-- has given the mark to another lease, which is compared anew.
create or replace function fence.hold(
  p_namespace text, p_lock text, p_owner text, p_claims text, out signature text)
language plpgsql volatile as $$
begin
  select fence.signature(k.inner_pad, k.outer_pad, p_claims) into signature
    from fence.marks m cross join fence.keys k cross join fence.meta b
    left join fence.seals s on s.namespace = p_namespace and s.lock = p_lock
    where m.namespace = p_namespace and m.lock = p_lock
    and m.token || ' ' || m.lease = p_owner and k.kid = ''
    and coalesce(s.token, 0) <= m.token and b.floor <= m.token for share of m;
end $$;

-- The mark that decides on a token: the lock's, or a higher floor or announced token. Locks nothing.
create or replace function fence.decisive(
  p_namespace text, p_lock text, p_token bigint, out mark bigint, out lease uuid)
language plpgsql volatile as $$
#variable_conflict use_column
declare
  higher record;
begin
  select m.token, m.lease into mark, lease from fence.marks m
    where m.namespace = p_namespace and m.lock = p_lock;
  select s.token, s.lease, b.floor, b.floor_lease into higher from fence.meta b
    left join fence.seals s on s.namespace = p_namespace and s.lock = p_lock and s.token > p_token
    where s.token > p_token or b.floor > p_token;
  if found and coalesce(mark, 0) <= p_token then
    if higher.floor > coalesce(higher.token, 0) then
      mark := higher.floor;
      lease := higher.floor_lease;
    else
      mark := higher.token;
      lease := higher.lease;
    end if;
  end if;
end $$;

-- Refuses a token unless the mark that decides is its own.
create or replace function fence.compare(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_mark bigint, p_owner uuid)
returns void language plpgsql volatile as $$
begin
  if p_mark is null then
    perform fence.refuse('FE503', format('the mark of lock %s was removed', p_lock), null, null);
  elsif p_mark > p_token then
    perform fence.refuse_stale(p_namespace, p_lock, p_token, p_mark);
  elsif p_mark < p_token then
    perform fence.refuse('FE503', format('the mark of lock %s was lowered', p_lock), null, null);
  elsif p_owner <> p_lease then
    perform fence.refuse_collision(p_namespace, p_lock, p_token);
  end if;
end $$;

-- Holds the mark of a token that has been here, or refuses it with its reason.
create or replace function fence.hold_or_refuse(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile as $$
declare
  decisive record;
begin
  -- Once more, for a mark that was raised between the two statements.
  for attempt in 1..2 loop
    if fence.hold(p_namespace, p_lock, p_token || ' ' || p_lease, '') is not null then return; end if;
    decisive := fence.decisive(p_namespace, p_lock, p_token);
    perform fence.compare(p_namespace, p_lock, p_token, p_lease, decisive.mark, decisive.lease);
  end loop;
  perform fence.refuse('FE503', format('the mark of lock %s cannot be held', p_lock),
    format('namespace %s, lock %s, token %s', p_namespace, p_lock, p_token),
    'Retry. Install the pack again if that does not help.');
end $$;

-- Checks a token against its lock's mark, raises it, and holds it until the transaction ends.
create or replace function fence.enter_checked(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile as $$
declare
  decisive record;
  announced record;
begin
  if fence.hold(p_namespace, p_lock, p_token || ' ' || p_lease, '') is not null then return; end if;
  perform fence.check_names(p_namespace, p_lock, p_token, p_lease);
  decisive := fence.decisive(p_namespace, p_lock, p_token);
  if decisive.mark is null or decisive.mark < p_token then
    select * into announced from fence.announce(p_namespace, p_lock, p_token, p_lease);
    if announced.verdict = 'stale' then
      perform fence.refuse_stale(p_namespace, p_lock, p_token, announced.mark);
    elsif announced.verdict = 'collision' then
      perform fence.refuse_collision(p_namespace, p_lock, p_token);
    end if;
    perform fence.end_lower_or_refuse(p_namespace, p_lock, p_token);
    perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
  end if;
  perform fence.hold_or_refuse(p_namespace, p_lock, p_token, p_lease);
end $$;
