-- Comparison of a token with its lock's mark, and the raise.

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
returns void language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
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
  if started is null then
    perform fence.refuse('FE503', format('the start of session %s cannot be read', p_pid), null,
      'GRANT pg_read_all_stats TO the owner of schema fence.');
  end if;
  return started = p_start;
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
    if fence.is_running(lower.pid, lower.backend_start) then
      perform pg_terminate_backend(lower.pid, p_timeout_ms);
      if fence.is_running(lower.pid, lower.backend_start) then
        pid := lower.pid;
        backend_start := lower.backend_start;
        return next;
      end if;
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
-- for the lock, one with 14 bits of the lock and the 50 of the token. They protect nothing: that is
-- the mark's row. A client that takes others makes a seal wait and fail.
create or replace function fence.holder_key(p_namespace text, p_lock text) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(p_namespace || ' ' || p_lock, 6497)
$$;

create or replace function fence.show_token(p_namespace text, p_lock text, p_token bigint)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  key bigint := fence.holder_key(p_namespace, p_lock);
  shown bit(64) := (key & 16383)::bit(14) || p_token::bit(50);
begin
  perform pg_try_advisory_xact_lock_shared(key);
  perform pg_try_advisory_xact_lock_shared(substring(shown for 32)::integer,
    substring(shown from 33)::integer);
end $$;

-- Ends the other transactions that entered the fence with a lower token.
create or replace function fence.end_holders(p_namespace text, p_lock text, p_token bigint)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  key bigint := fence.holder_key(p_namespace, p_lock);
  here oid := (select oid from pg_database where datname = current_database());
begin
  perform pg_terminate_backend(l.pid, 5000) from pg_locks l
    where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.database = here
    and l.pid <> pg_backend_pid()
    and l.classid = ((key >> 32) & 4294967295)::oid and l.objid = (key & 4294967295)::oid
    and p_token > (select max((t.classid::bigint & 262143) << 32 | t.objid::bigint) from pg_locks t
      where t.locktype = 'advisory' and t.objsubid = 2 and t.granted and t.database = here
      and t.pid = l.pid and t.classid::bigint >> 18 = key & 16383);
end $$;

-- A mark must not be lost while the effects of its holder are kept elsewhere.
create or replace function fence.commit_durably() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
end $$;

-- Announces a token: nothing lower registers or enters from the caller's commit on. Serializes
-- raises and registrations of the lock until the caller's transaction ends.
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
  elsif p_token = mark and p_lease <> lease then
    verdict := 'collision';
  elsif p_token < bound.floor then
    verdict := 'stale';
    mark := bound.floor;
    lease := bound.floor_lease;
  else
    verdict := 'announced';
    mark := p_token;
    lease := p_lease;
    if p_token > announced.token then
      update fence.seals s set token = p_token, lease = p_lease
        where s.namespace = p_namespace and s.lock = p_lock;
      perform fence.commit_durably();
    end if;
  end if;
end $$;

-- Raises the mark; waits for open transactions that hold a lower one. The caller has announced the
-- token in this transaction, and ended the lower sessions.
create or replace function fence.raise_mark(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  marked fence.marks;
begin
  select * into marked from fence.marks m where m.namespace = p_namespace and m.lock = p_lock;
  if marked.token = p_token and marked.lease = p_lease then return; end if;
  insert into fence.marks as m (namespace, lock, token, lease)
    values (p_namespace, p_lock, p_token, p_lease)
    on conflict (namespace, lock) do update
      set token = excluded.token, lease = excluded.lease, raised_at = clock_timestamp()
      where m.token < excluded.token;
  -- A second check, independent of the one that decided.
  if not found then
    perform fence.refuse('FE503', format('refusing to lower the mark of lock %s', p_lock), null, null);
  end if;
  update fence.seals s set sealing = false where s.namespace = p_namespace and s.lock = p_lock
    and s.sealing;
  perform fence.commit_durably();
end $$;

-- As fence.announce and fence.raise_mark; lower transactions that do not end in time are ended.
create or replace function fence.announce_ending(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_wait_ms integer,
  out verdict text, out mark bigint, out lease uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
begin
  begin
    perform set_config('lock_timeout', greatest(p_wait_ms, 1)::text, true);
    select a.verdict, a.mark, a.lease into verdict, mark, lease
      from fence.announce(p_namespace, p_lock, p_token, p_lease) a;
  exception when lock_not_available then
    -- One raised the mark, and its transaction is open.
    perform fence.end_holders(p_namespace, p_lock, p_token);
    select a.verdict, a.mark, a.lease into verdict, mark, lease
      from fence.announce(p_namespace, p_lock, p_token, p_lease) a;
  end;
end $$;

create or replace function fence.raise_ending(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_wait_ms integer)
returns void language plpgsql volatile
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
begin
  perform set_config('lock_timeout', greatest(p_wait_ms, 1)::text, true);
  perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
exception when lock_not_available then
  perform fence.end_holders(p_namespace, p_lock, p_token);
  perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
end $$;

-- Holds the mark until the transaction ends, if it is exactly this token's. FOR KEY SHARE would let
-- a raise overtake it.
create or replace function fence.hold(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, out mark bigint, out lease uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  announced fence.seals;
  bound fence.meta;
begin
  select m.token, m.lease into mark, lease from fence.marks m
    where m.namespace = p_namespace and m.lock = p_lock for share;
  if mark = p_token then
    -- Nothing lower enters any more once a raise waits.
    select * into announced from fence.seals s
      where s.namespace = p_namespace and s.lock = p_lock and s.token > p_token;
    if found then
      mark := announced.token;
      lease := announced.lease;
    end if;
    select * into bound from fence.meta where floor > mark;
    if found then
      mark := bound.floor;
      lease := bound.floor_lease;
    end if;
  end if;
end $$;

-- Checks a token against its lock's mark, raises it, and holds it until the transaction ends.
create or replace function fence.enter_checked(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  held record;
  announced record;
begin
  perform fence.check_names(p_namespace, p_lock, p_token, p_lease);
  -- Without a lock: a raise takes the seal's row first, as a registration does.
  select m.token into held from fence.marks m where m.namespace = p_namespace and m.lock = p_lock;
  if held.token is null or held.token < p_token then
    select * into announced from fence.announce(p_namespace, p_lock, p_token, p_lease);
    if announced.verdict = 'stale' then
      perform fence.refuse_stale(p_namespace, p_lock, p_token, announced.mark);
    elsif announced.verdict = 'collision' then
      perform fence.refuse_collision(p_namespace, p_lock, p_token);
    end if;
    perform fence.end_lower_or_refuse(p_namespace, p_lock, p_token);
    perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
  end if;
  select * into held from fence.hold(p_namespace, p_lock, p_token, p_lease);
  if held.mark is null then
    perform fence.refuse('FE503', format('the mark of lock %s was removed', p_lock), null, null);
  elsif held.mark > p_token then
    perform fence.refuse_stale(p_namespace, p_lock, p_token, held.mark);
  elsif held.mark < p_token then
    perform fence.refuse('FE503', format('the mark of lock %s was lowered', p_lock), null, null);
  elsif held.lease <> p_lease then
    perform fence.refuse_collision(p_namespace, p_lock, p_token);
  end if;
end $$;
