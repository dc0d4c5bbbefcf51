-- Fencepost's pack for PostgreSQL, version 3: docs/guides/postgresql.md. Generated.
-- Run it as a superuser, or as the role that the guide describes; again, to upgrade or to add:
--   psql -f fence-pack.sql
--   psql -v client=app -v table=orders -v lock='orders/{id}' -f fence-pack.sql
-- Optional: namespace=default; kid=k1 and key=HEX, of the lock server's key file.
\set ON_ERROR_STOP on
\if :{?namespace} \else
  \set namespace default
\endif
begin;
set local standard_conforming_strings = on;
set local client_min_messages = warning;
-- Schema of the pack: marks, announced seals, sessions. Part of one transaction with the files after
-- it. Idempotent; refuses a newer pack, and a schema that another role could have prepared.
do $$
begin
  -- One installation at a time.
  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('fence pack', 6497));
  if exists (select from pg_catalog.pg_namespace n
             where n.nspname = 'fence'
             and n.nspowner <> (select oid from pg_catalog.pg_roles where rolname = current_user)) then
    raise exception 'schema fence belongs to another role' using errcode = '42501',
      hint = 'Install as its owner, or drop it if it is not Fencepost''s.';
  end if;
  if exists (select from pg_catalog.pg_proc p
             where p.pronamespace = to_regnamespace('fence')
             and p.proowner <> (select oid from pg_catalog.pg_roles where rolname = current_user))
     or exists (select from pg_catalog.pg_class c
             where c.relnamespace = to_regnamespace('fence')
             and c.relowner <> (select oid from pg_catalog.pg_roles where rolname = current_user))
  then
    raise exception 'schema fence has objects of another role' using errcode = '42501';
  end if;
  if not pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'usage')
     or not pg_catalog.pg_has_role(current_user, 'pg_signal_backend', 'usage') then
    raise exception 'role % cannot see and end the sessions of other roles', current_user
      using errcode = '42501',
      hint = 'GRANT pg_read_all_stats, pg_signal_backend TO it, or install as a superuser.';
  end if;
end $$;

create schema if not exists fence;
create table if not exists fence.meta (
  only_row boolean primary key default true check (only_row),
  version integer not null,
  -- First token to admit, 0 for none.
  floor bigint not null default 0,
  floor_lease uuid not null default gen_random_uuid(),
  id uuid not null default gen_random_uuid()
);

do $$
declare
  this constant integer := 3;
  installed integer;
begin
  select version into installed from fence.meta;
  if installed > this then
    raise exception 'the pack in this database has version %, this one has %', installed, this
      using errcode = '55000', hint = 'Install with the fenced-store of that version, or a later one.';
  end if;
  -- Changes of tables and of functions' parameters, by the version that is installed, go here.
  -- Unchanged, the row is not locked: open transactions that raised a mark hold it.
  if installed is null then
    insert into fence.meta (version) values (this);
  elsif installed < this then
    drop function if exists fence.transaction_key();
    drop function if exists fence.hold(text, text, bigint, uuid);
    update fence.meta set version = this;
  end if;
end $$;

-- The marks. A transaction that holds a token holds FOR SHARE on the row until it ends.
create table if not exists fence.marks (
  namespace text collate "C" not null,
  lock text collate "C" not null,
  token bigint not null check (token between 1 and 999999999999999),
  lease uuid not null,
  raised_at timestamptz not null default clock_timestamp(),
  primary key (namespace, lock)
);

-- Tokens announced over a mark whose lower transactions may still be open. Clients' transactions
-- never lock these rows for longer than a raise, so that a seal is announced at once.
create table if not exists fence.seals (
  namespace text collate "C" not null,
  lock text collate "C" not null,
  token bigint not null check (token between 0 and 999999999999999),
  lease uuid not null,
  sealing boolean not null default false,
  primary key (namespace, lock)
);

-- Sessions that may act under a token without a further check. A pid is used again, so that only
-- with its start it names a session; sessions of an earlier server run match none.
create table if not exists fence.sessions (
  namespace text collate "C" not null,
  lock text collate "C" not null,
  token bigint not null,
  lease uuid not null,
  pid integer not null,
  backend_start timestamptz not null,
  -- The session may register and enter nothing else.
  closed boolean not null default false,
  primary key (namespace, lock, pid, backend_start)
);
create index if not exists sessions_pid on fence.sessions (pid);

-- Keys that verify tokens, and the key of this database's own claims, as HMAC's two pads.
create table if not exists fence.keys (
  kid text collate "C" primary key,
  inner_pad bytea not null,
  outer_pad bytea not null
);

-- Tables whose changes need a token.
create table if not exists fence.guarded (
  relation regclass primary key,
  namespace text collate "C" not null,
  lock text collate "C" not null
);
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
-- Tokens of a transaction, and the check that triggers make.

-- HMAC-SHA256 with the server's own sha256: no extension is needed.
create or replace function fence.pad(p_key bytea, p_byte integer) returns bytea
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  padded bytea := p_key;
begin
  if length(padded) > 64 then padded := sha256(padded); end if;
  padded := padded || decode(repeat('00', 64 - length(padded)), 'hex');
  for i in 0..63 loop
    padded := set_byte(padded, i, get_byte(padded, i) # p_byte);
  end loop;
  return padded;
end $$;

create or replace function fence.authenticate(p_kid text, p_text text) returns bytea
language plpgsql stable as $$
declare
  key fence.keys;
begin
  select * into key from fence.keys k where k.kid = p_kid;
  return sha256(key.outer_pad || sha256(key.inner_pad || convert_to(p_text, 'UTF8')));
end $$;

-- Adds a key that verifies tokens, as in the lock server's key file. For the owner alone.
create or replace function fence.set_key(p_kid text, p_key bytea) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_kid !~ '^[A-Za-z0-9._-]{1,32}$' or length(p_key) < 32 then
    perform fence.refuse('FE400', 'a key has a name and at least 32 bytes', null, null);
  end if;
  insert into fence.keys as k (kid, inner_pad, outer_pad)
    values (p_kid, fence.pad(p_key, 54), fence.pad(p_key, 92))
    on conflict (kid) do update
      set inner_pad = excluded.inner_pad, outer_pad = excluded.outer_pad;
end $$;

-- The key of this database's own claims. No token can name it.
do $$
declare
  key bytea := decode(replace(gen_random_uuid()::text || gen_random_uuid()::text
    || gen_random_uuid()::text, '-', ''), 'hex');
begin
  insert into fence.keys (kid, inner_pad, outer_pad)
    values ('', fence.pad(key, 54), fence.pad(key, 92)) on conflict (kid) do nothing;
end $$;

-- Refuses a token that this session may not claim.
create or replace function fence.check_claimable(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile as $$
begin
  if not exists (select from fence.sessions s where s.pid = pg_backend_pid() and s.closed) then
    return;
  end if;
  if exists (select from fence.sessions s
      where s.pid = pg_backend_pid() and s.closed and s.backend_start = fence.start_of(pg_backend_pid()))
    and not exists (select from fence.sessions s
      where s.pid = pg_backend_pid() and s.backend_start = fence.start_of(pg_backend_pid())
      and s.namespace = p_namespace and s.lock = p_lock and s.token = p_token
      and s.lease = p_lease) then
    perform fence.refuse('FE403', format('this session is not registered for lock %s', p_lock), null,
      'Log in with the token of this lock.');
  end if;
end $$;

create or replace function fence.sign(p_claims text) returns text
language plpgsql volatile as $$
declare
  key fence.keys;
begin
  select * into key from fence.keys k where k.kid = '';
  return fence.signature(key.inner_pad, key.outer_pad, p_claims);
end $$;

-- The transaction's claims, a line each: namespace, lock, token, lease. A client can read and write
-- the setting, but not sign it; and a claim is no more than the right to try fence.hold().
create or replace function fence.claims() returns text
language plpgsql volatile as $$
declare
  setting text := current_setting('fence.claims', true);
begin
  if setting is null or length(setting) < 65 or pg_current_xact_id_if_assigned() is null then
    return '';
  end if;
  if left(setting, 64) <> fence.sign(substr(setting, 65)) then
    return '';
  end if;
  return substr(setting, 65);
end $$;

create or replace function fence.claim_line(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns text language plpgsql immutable as $$
begin
  return p_namespace || ' ' || p_lock || ' ' || p_token::text || ' ' || p_lease::text || E'\n';
end $$;

create or replace function fence.is_claimed(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns boolean language plpgsql volatile as $$
begin
  return strpos(E'\n' || fence.claims(),
    E'\n' || fence.claim_line(p_namespace, p_lock, p_token, p_lease)) > 0;
end $$;

-- The newest claim is the first one.
create or replace function fence.claim(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile as $$
declare
  claimed text;
begin
  if fence.is_claimed(p_namespace, p_lock, p_token, p_lease) then return; end if;
  claimed := fence.claim_line(p_namespace, p_lock, p_token, p_lease) || fence.claims();
  claimed := set_config('fence.claims', fence.sign(claimed) || claimed, true);
end $$;

-- Enters a fence with a token: from here until the transaction ends nothing higher is admitted, and
-- tables that need the lock can be changed. Raises FE412 for a stale token.
create or replace function fence.enter(
  p_lock text, p_token bigint, p_lease uuid, p_namespace text default 'default')
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
  claim constant text := fence.claim_line(p_namespace, p_lock, p_token, p_lease);
  signed text;
  ignored text;
begin
  if claim is null or p_token not between 1 and 999999999999999 then
    perform fence.check_names(p_namespace, p_lock, p_token, p_lease);
  end if;
  ignored := fence.check_claimable(p_namespace, p_lock, p_token, p_lease);
  ignored := fence.show_token(p_namespace, p_lock, p_token);
  -- A raise waits for those who have entered, so that these do not wait for it.
  if not fence.is_quiet(p_namespace, p_lock) then
    if not fence.is_claimed(p_namespace, p_lock, p_token, p_lease) then
      perform fence.await_raise(p_namespace, p_lock);
    end if;
  elsif coalesce(current_setting('fence.claims', true), '') = '' then
    signed := fence.hold(p_namespace, p_lock, p_token || ' ' || p_lease, claim);
    if signed is not null then
      ignored := set_config('fence.claims', signed || claim, true);
      return p_token;
    end if;
  end if;
  perform fence.enter_checked(p_namespace, p_lock, p_token, p_lease);
  perform fence.claim(p_namespace, p_lock, p_token, p_lease);
  return p_token;
end $$;

-- Reads a Fencing-Token header in the form that the lock server writes, and verifies its signature.
create or replace function fence.verify(
  p_header text, out namespace text, out lock text, out token bigint, out lease uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  parts text[] := regexp_match(p_header,
    '^([0-9]{1,15});lock="([A-Za-z0-9._:/-]+)";lease="([0-9a-f-]{36})";'
    'ns="([A-Za-z0-9._-]{1,64})";kid="([A-Za-z0-9._-]{1,64})";sig=:([A-Za-z0-9+/]{43}=):$');
  expected bytea;
begin
  if parts is null then
    perform fence.refuse('FE400', 'the text is no signed Fencing-Token header', null,
      'Pass the grant''s fencing_token as it is.');
  end if;
  token := parts[1];
  lock := parts[2];
  lease := parts[3];
  namespace := parts[4];
  expected := fence.authenticate(parts[5], concat_ws(E'\n', 'fencepost-token-v1',
    parts[4], parts[2], token::text, lease::text, parts[5], ''));
  -- Compared by a digest, whose time says nothing about the bytes.
  if expected is null or sha256(expected) <> sha256(decode(parts[6], 'base64')) then
    perform fence.refuse('FE401', 'the token''s signature is not valid here',
      format('namespace %s, lock %s, token %s, key %s', namespace, lock, token, parts[5]),
      'Give the database the lock server''s keys: fence.set_key.');
  end if;
end $$;

-- As fence.enter, with a signed header.
create or replace function fence.enter(p_header text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  fence_token record;
begin
  select * into fence_token from fence.verify(p_header);
  return fence.enter(fence_token.lock, fence_token.token, fence_token.lease, fence_token.namespace);
end $$;

-- As fence.seal, with a signed header.
create or replace function fence.seal(p_header text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  fence_token record;
begin
  select * into fence_token from fence.verify(p_header);
  return fence.seal(fence_token.lock, fence_token.token, fence_token.lease, fence_token.namespace);
end $$;

-- Checks that this session or transaction has a token for the lock which is the lock's mark, and
-- holds the mark until the transaction ends: anew each time, because ROLLBACK TO may have released
-- it.
create or replace function fence.require_own(p_namespace text, p_lock text) returns void
language plpgsql volatile as $$
declare
  prefix constant text := E'\n' || p_namespace || ' ' || p_lock || ' ';
  setting constant text := current_setting('fence.claims', true);
  owner text := split_part(split_part(E'\n' || substr(setting, 65), prefix, 2), E'\n', 1);
  own_token bigint;
  own_lease uuid;
begin
  if owner <> ''
      and fence.hold(p_namespace, p_lock, owner, substr(setting, 65)) = left(setting, 64) then
    return;
  end if;
  owner := split_part(split_part(E'\n' || fence.claims(), prefix, 2), E'\n', 1);
  if owner <> '' then
    own_token := split_part(owner, ' ', 1);
    own_lease := split_part(owner, ' ', 2);
  else
    select s.token, s.lease into own_token, own_lease from fence.sessions s
      where s.namespace = p_namespace and s.lock = p_lock and s.pid = pg_backend_pid()
      and s.backend_start = fence.start_of(pg_backend_pid());
    if not found then
      perform fence.refuse('FE428', format('no token for lock %s', p_lock),
        format('namespace %s, lock %s', p_namespace, p_lock),
        'Acquire the lock, then SELECT fence.enter(...) in this transaction.');
    end if;
  end if;
  perform fence.hold_or_refuse(p_namespace, p_lock, own_token, own_lease);
end $$;

-- As fence.require_own, for triggers that run as the client.
create or replace function fence.require(p_namespace text, p_lock text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  ignored constant text := fence.require_own(p_namespace, p_lock);
begin
end $$;
-- Triggers of guarded tables. Those that read a row run as the client: a column's type may have casts
-- of its owner's.

create or replace function fence.check_table() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  ignored constant text := fence.require_own(tg_argv[0], tg_argv[1]);
begin
  if tg_level = 'STATEMENT' then return null; end if;
  return coalesce(new, old);
end $$;

-- Lock of a row: the pattern's texts and the columns' values, in turns.
create or replace function fence.row_lock(p_row jsonb, p_parts text[]) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  name text := p_parts[1];
  value text;
begin
  for i in 2..array_length(p_parts, 1) by 2 loop
    value := p_row ->> p_parts[i];
    if value is null or value !~ '^[A-Za-z0-9._:-]+$' then
      raise exception using errcode = 'FE400',
        message = format('column %s names no lock: %L', p_parts[i], value),
        hint = 'One segment of a lock''s name: A-Z a-z 0-9 . _ : -';
    end if;
    name := name || value || p_parts[i + 1];
  end loop;
  return name;
end $$;

-- After the row is changed: a trigger that runs before it could still replace the columns.
create or replace function fence.check_row() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  parts text[] := tg_argv[1:];
  old_lock text;
  new_lock text;
  ignored text;
begin
  if tg_op <> 'INSERT' then
    old_lock := fence.row_lock(to_jsonb(old), parts);
    ignored := fence.require(tg_argv[0], old_lock);
  end if;
  if tg_op <> 'DELETE' then
    new_lock := fence.row_lock(to_jsonb(new), parts);
    if new_lock is distinct from old_lock then
      ignored := fence.require(tg_argv[0], new_lock);
    end if;
  end if;
  return null;
end $$;

create or replace function fence.refuse_truncate() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = 'FE428', message = format('TRUNCATE of %s has no one lock', tg_relid::regclass),
    hint = 'DELETE the rows whose locks you hold.';
end $$;

-- Creates the triggers of one table. ALWAYS: session_replication_role does not switch them off.
create or replace function fence.add_triggers(
  p_table regclass, p_namespace text, p_parts text[], p_is_rooted boolean)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp
set client_min_messages = warning as $$
declare
  arguments text := quote_literal(p_namespace);
  is_partitioned boolean := (select relkind = 'p' from pg_class where oid = p_table);
  part text;
begin
  foreach part in array p_parts loop
    arguments := arguments || ', ' || quote_literal(part);
  end loop;
  execute format('drop trigger if exists fence_truncate on %s', p_table);
  execute format('create trigger fence_truncate before truncate on %s for each statement '
    'execute function %s', p_table, case when array_length(p_parts, 1) = 1
      then format('fence.check_table(%s)', arguments) else 'fence.refuse_truncate()' end);
  execute format('alter table only %s enable always trigger fence_truncate', p_table);
  if p_is_rooted then
    execute format('drop trigger if exists fence_change on %s', p_table);
    if array_length(p_parts, 1) > 1 then
      execute format('create trigger fence_change after insert or update or delete on %s '
        'for each row execute function fence.check_row(%s)', p_table, arguments);
    else
      -- A statement on a partition does not run its parent's statement triggers.
      execute format('create trigger fence_change %s insert or update or delete on %s '
        'for each %s execute function fence.check_table(%s)',
        case when is_partitioned then 'after' else 'before' end, p_table,
        case when is_partitioned then 'row' else 'statement' end, arguments);
    end if;
  end if;
  execute format('alter table only %s enable always trigger fence_change', p_table);
end $$;

-- Reason why no column of this name can name a lock; null if one can.
create or replace function fence.column_flaw(p_table regclass, p_column text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  kind oid;
  generated text;
  base record;
begin
  select a.atttypid, a.attgenerated into kind, generated from pg_attribute a
    where a.attrelid = p_table and a.attnum > 0 and not a.attisdropped and a.attname = p_column;
  if not found then return format('table %s has no column %s', p_table, p_column); end if;
  if generated = 'v' then
    return format('column %s is a virtual generated one: triggers see no value of it', p_column);
  end if;
  loop
    select t.oid, t.typtype, t.typcategory, t.typbasetype into base from pg_type t where t.oid = kind;
    exit when base.typtype <> 'd';
    kind := base.typbasetype;
  end loop;
  if kind = 'bpchar'::regtype then
    return format('column %s has type char(n), which pads its values with blanks', p_column);
  end if;
  -- Others are written as the client's settings say (TimeZone, extra_float_digits, …): it would
  -- choose the lock.
  if base.typtype <> 'e' and base.typcategory <> 'S' and kind not in ('int2'::regtype,
      'int4'::regtype, 'int8'::regtype, 'numeric'::regtype, 'uuid'::regtype, 'date'::regtype,
      'bool'::regtype) then
    return format('column %s has a type that names no lock', p_column);
  end if;
  return null;
end $$;

-- Guards a table: its changes need a token for the lock. 'orders/{id}' names a lock a row, by the
-- value of column id; a name without columns is one lock for the whole table. Partitions are
-- guarded too; call it again after another one was attached.
create or replace function fence.guard(
  p_table regclass, p_lock text, p_namespace text default 'default')
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  parts text[] := array[]::text[];
  piece text;
  member record;
begin
  foreach piece in array regexp_split_to_array(p_lock, '[{}]') loop
    parts := parts || piece;
  end loop;
  perform fence.check_names(p_namespace, regexp_replace(p_lock, '\{[^{}]+\}', 'x', 'g'), 1,
    gen_random_uuid());
  for i in 2..array_length(parts, 1) by 2 loop
    piece := fence.column_flaw(p_table, parts[i]);
    if piece is not null then
      perform fence.refuse('FE400', piece, null, 'Name a stored column with a text (varchar, not char), '
        'an integer, numeric, uuid, date, boolean or an enumeration.');
    end if;
  end loop;
  if not exists (select from pg_class where oid = p_table and relkind in ('r', 'p'))
     or exists (select from pg_inherits i join pg_class c on c.oid = i.inhparent
       where p_table in (i.inhparent, i.inhrelid) and c.relkind = 'r') then
    perform fence.refuse('FE400', format('%s is no table, or inherits from one', p_table), null,
      'Views and inheritance are not guarded; partitioned tables are.');
  end if;
  if exists (select from pg_class where oid = p_table and relispartition) then
    perform fence.refuse('FE400', format('%s is a partition', p_table), null,
      'Guard the partitioned table.');
  end if;
  insert into fence.guarded as g (relation, namespace, lock) values (p_table, p_namespace, p_lock)
    on conflict (relation) do update set namespace = excluded.namespace, lock = excluded.lock;
  perform fence.add_triggers(p_table, p_namespace, parts, true);
  for member in select t.relid from pg_partition_tree(p_table) t where t.relid <> p_table loop
    perform fence.add_triggers(member.relid, p_namespace, parts, false);
  end loop;
end $$;

create or replace function fence.unguard(p_table regclass) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
set client_min_messages = warning as $$
declare
  member record;
begin
  execute format('drop trigger if exists fence_change on %s', p_table);
  execute format('drop trigger if exists fence_truncate on %s', p_table);
  for member in select t.relid from pg_partition_tree(p_table) t where t.relid <> p_table loop
    execute format('drop trigger if exists fence_truncate on %s', member.relid);
  end loop;
  delete from fence.guarded g where g.relation = p_table;
end $$;

-- Guarded tables and partitions that lack a trigger, or have it switched off; those that are changed
-- through another table, which runs none of their statement triggers; and columns that name no lock
-- any more.
create or replace function fence.gaps() returns table (relation regclass, missing text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select r.relid, n.name from fence.guarded g
  cross join lateral (select t.relid from pg_partition_tree(g.relation) t
    union select g.relation) r
  cross join (values ('fence_change'), ('fence_truncate')) n (name)
  where not exists (select from pg_trigger t
    where t.tgrelid = r.relid and t.tgname = n.name and t.tgenabled = 'A')
  union all
  select g.relation, 'a trigger for changes through ' || i.inhparent::regclass
  from fence.guarded g join pg_inherits i on i.inhrelid = g.relation
  union all
  select g.relation, 'a column for its lock (' || f.flaw || ')'
  from fence.guarded g
  cross join lateral regexp_matches(g.lock, '\{([^{}]+)\}', 'g') c (name)
  cross join lateral fence.column_flaw(g.relation, c.name[1]) f (flaw) where f.flaw is not null
$$;
create or replace function fence.risks() returns table (role oid, reason text)
language sql stable set search_path = pg_catalog, pg_temp as $$
-- Roles that could change the fence, hold hand-overs up or leave work behind, each with the reason:
-- its own, or that of a role that it can become. The port asks this of a database, too.
with risky as materialized (
  select g.oid, g.rolname, f.reason
  from pg_roles g cross join pg_namespace n cross join pg_database d
  cross join lateral (select case
    when g.rolsuper then 'is a superuser'
    when g.rolcreaterole then 'creates roles'
    when g.rolreplication then 'replicates'
    when g.oid = n.nspowner then 'owns schema fence'
    when g.oid = d.datdba or g.rolname = 'pg_database_owner' then 'owns the database'
    when g.rolname = 'pg_execute_server_program' then 'runs programs of the server'
    when g.rolname in ('pg_read_server_files', 'pg_write_server_files')
      then 'reads or writes files of the server'
    when g.rolname = 'pg_signal_backend' then 'ends sessions of other roles'
    when g.rolname = 'pg_use_reserved_connections' then 'takes the last connections of the server'
    when g.rolname = 'pg_create_subscription'
      or exists (select from pg_subscription s where s.subowner = g.oid and s.subdbid = d.oid)
      then 'may have subscriptions, which write after a session has ended'
    when has_schema_privilege(g.oid, n.oid, 'create') then 'creates objects in schema fence'
    when exists (select from pg_proc p where p.pronamespace = n.oid
      and (p.proowner = g.oid or p.prorettype <> 'trigger'::regtype
        and p.proname not in ('enter', 'seal', 'require', 'row_lock', 'status')
        and has_function_privilege(g.oid, p.oid, 'execute')))
      then 'owns or runs functions of schema fence that are a guard''s'
    when has_any_column_privilege(g.oid, 'fence.keys', 'select') then 'reads fence.keys'
    when exists (select from pg_class c where c.relnamespace = n.oid and c.relkind = 'r'
      and (has_any_column_privilege(g.oid, c.oid, 'insert, update, references')
        or has_table_privilege(g.oid, c.oid, 'delete, truncate, trigger')))
      then 'writes or locks tables of schema fence'
    -- The privilege has no name before PostgreSQL 17.
    when current_setting('server_version_num')::int >= 170000
      and exists (select from pg_class c where c.relnamespace = n.oid and c.relkind = 'r'
        and has_table_privilege(g.oid, c.oid, 'maintain')) then 'locks tables of schema fence by MAINTAIN'
    end as reason) f
  where n.nspname = 'fence' and d.datname = current_database() and f.reason is not null
)
select r.oid as role, coalesce('is a member of ' || string_agg(k.rolname, ', ' order by k.rolname)
    filter (where k.oid <> r.oid) || ', which ', '') || k.reason as reason
  from pg_roles r join risky k on k.oid = r.oid
    or not r.rolsuper and pg_has_role(r.oid, k.oid, 'member')
  group by r.oid, k.reason
$$;
-- What is installed, a line each.

-- Locks of whole tables that keep hand-overs waiting.
create or replace function fence.blockers() returns setof text
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select format('%s %s %s of fence.%s, since %s', coalesce('session ' || l.pid || ' of role '
      || pg_get_userbyid(a.usesysid), 'prepared transaction ' || x.gid, 'session ' || l.pid),
    case when l.granted then 'holds' else 'waits for' end, l.mode, c.relname,
    date_trunc('second', coalesce(a.xact_start, x.prepared)))
  from pg_locks l
  join pg_class c on c.oid = l.relation and c.relnamespace = to_regnamespace('fence')
  left join pg_stat_get_activity(null) a on a.pid = l.pid
  left join pg_prepared_xacts x on l.pid is null and l.virtualtransaction = '-1/' || x.transaction
  where l.database = (select oid from pg_database where datname = current_database())
    and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    and l.pid is distinct from pg_backend_pid()
$$;

-- Clients of the pack that are a risk to the fence. Superusers are anyway, and guards may be.
create or replace function fence.risky_clients() returns setof text
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select r.rolname || ' ' || string_agg(k.reason, ' and ' order by k.reason)
  from fence.risks() k join pg_roles r on r.oid = k.role
  where r.rolcanlogin and not r.rolsuper and r.rolname <> current_user
    and not has_function_privilege(r.oid, 'fence.register(text, text, bigint, uuid, integer)', 'execute')
    and exists (select from pg_roles g where pg_has_role(r.oid, g.oid, 'member')
      and (has_function_privilege(g.oid, 'fence.enter(text)', 'execute')
        or has_function_privilege(g.oid, 'fence.enter(text, bigint, uuid, text)', 'execute')
        or exists (select from fence.guarded t
          where has_any_column_privilege(g.oid, t.relation, 'insert, update')
          or has_table_privilege(g.oid, t.relation, 'delete, truncate'))))
  group by r.rolname
$$;

-- For the owner, and roles that are granted it.
create or replace function fence.status() returns table (item text, value text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
begin
  return query select 'BLOCKED', b from fence.blockers() b;
  return query
  select 'version', version::text from fence.meta
  union all select 'floor', floor::text from fence.meta
  union all select 'highest mark', coalesce(max(token), 0)::text from fence.marks
  union all select 'locks', count(*)::text from fence.marks
  union all select 'sealing', s.namespace || ' ' || s.lock || ' under ' || s.token
    from fence.seals s where s.sealing
  union all select 'sessions', count(*)::text from fence.sessions s
    where fence.is_running(s.pid, s.backend_start)
  union all select 'key', k.kid from fence.keys k where k.kid <> ''
  -- It could make tokens of these keys. Superusers can anyway.
  union all select 'reads keys', r.rolname::text from pg_roles r
    where r.rolcanlogin and not r.rolsuper and r.rolname <> current_user
    and exists (select from pg_roles g where pg_has_role(r.oid, g.oid, 'member')
      and (has_any_column_privilege(g.oid, 'fence.keys', 'select')
        or g.rolname in ('pg_read_server_files', 'pg_execute_server_program')))
  union all select 'risk', r from fence.risky_clients() r
  union all select 'table', g.relation::text || ' by ' || g.namespace || ' ' || g.lock
    from fence.guarded g
  union all select 'GAP', format('%s lacks %s: guard its table again', p.relation, p.missing)
    from fence.gaps() p;
exception when lock_not_available then
  return query select 'BLOCKED', 'the rest, by the locks above';
end $$;
-- Objects of a guard (`fenced-store --store postgres://…`), beside the marks that fence them. A guard
-- runs a batch of operations as one transaction: fence.admit_all, fence.lock_objects,
-- fence.store_objects. All guards take the rows in the order of their names: locks, objects that are
-- there, objects that are new, outcomes. So none waits for a guard that waits for it.

create table if not exists fence.objects (
  namespace text collate "C" not null,
  key text collate "C" not null,
  etag text collate "C" not null,
  content_type text not null,
  body bytea not null,
  primary key (namespace, key)
);
-- Compressing a large body would hold up the others of its batch.
alter table fence.objects alter column body set storage external;

-- Outcomes of operations that have a name, the last ones of each scope.
create table if not exists fence.outcomes (
  namespace text collate "C" not null,
  scope text collate "C" not null,
  name text collate "C" not null,
  outcome text not null,
  number bigint generated always as identity,
  primary key (namespace, scope, name)
);
create unique index if not exists outcomes_number on fence.outcomes (namespace, scope, number);

-- True if nothing with a lower token has to end before the mark is raised. The caller has announced the
-- token; the mark's row is locked then.
create or replace function fence.is_free(p_namespace text, p_lock text, p_token bigint)
returns boolean language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from fence.sessions s where s.namespace = p_namespace and s.lock = p_lock
      and s.token < p_token and fence.is_running(s.pid, s.backend_start)) then
    return false;
  end if;
  perform from fence.marks m where m.namespace = p_namespace and m.lock = p_lock
    for no key update skip locked;
  return found or not exists (select from fence.marks m
    where m.namespace = p_namespace and m.lock = p_lock);
end $$;

-- Checks a token against its lock's mark, and raises or holds the mark until the transaction ends.
-- Returns the mark that decides: the token and its lease, if it is admitted; none, if something else
-- has to end or be awaited first (then fence.seal does that, in a transaction of its own).
-- `is_changed`: the transaction has something to commit.
create or replace function fence.admit(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid,
  out token bigint, out lease uuid, out is_changed boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  marked fence.marks;
  announced record;
begin
  is_changed := false;
  -- The guard may be stopped before its transaction ends.
  perform fence.show_token(p_namespace, p_lock, p_token);
  -- Without a lock: a raise takes the seal's row first.
  select * into marked from fence.marks m where m.namespace = p_namespace and m.lock = p_lock;
  if marked.token > p_token then
    token := marked.token;
    lease := marked.lease;
    return;
  end if;
  if marked.token = p_token then
    perform from fence.marks m where m.namespace = p_namespace and m.lock = p_lock
      for share skip locked;
    if not found then return; end if;
    if fence.hold(p_namespace, p_lock, p_token || ' ' || p_lease, '') is not null then
      token := p_token;
      lease := p_lease;
    else
      select d.mark, d.lease into token, lease
        from fence.decisive(p_namespace, p_lock, p_token) d;
    end if;
    return;
  end if;
  begin
    select * into announced from fence.announce(p_namespace, p_lock, p_token, p_lease);
    if announced.verdict <> 'announced' then
      token := announced.mark;
      lease := announced.lease;
      return;
    end if;
    is_changed := true;
    if fence.is_free(p_namespace, p_lock, p_token) then
      perform fence.raise_mark(p_namespace, p_lock, p_token, p_lease);
      token := p_token;
      lease := p_lease;
    end if;
  exception when lock_not_available then
    is_changed := false;
  end;
end $$;

-- As fence.admit, for each lock once, in the order of their names. No lock waits for another's holder.
create or replace function fence.admit_all(
  p_namespace text, p_locks text[], p_tokens bigint[], p_leases uuid[])
returns table (lock text, token bigint, lease uuid, is_changed boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $$
#variable_conflict use_column
begin
  perform fence.check_isolation();
  return query select f.lock, a.token, a.lease, a.is_changed
    from (select * from unnest(p_locks, p_tokens, p_leases) u (lock, token, lease)
      order by u.lock collate "C") f
    cross join lateral fence.admit(p_namespace, f.lock, f.token, f.lease) a;
end $$;

-- Tags of the objects that a batch changes, which are locked until the transaction ends.
create or replace function fence.lock_objects(p_namespace text, p_keys text[])
returns table (key text, etag text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query select o.key, o.etag from fence.objects o
    where o.namespace = p_namespace and o.key = any (p_keys) order by o.key for update;
end $$;

-- Earlier outcomes of named operations.
create or replace function fence.load_outcomes(p_namespace text, p_scopes text[], p_names text[])
returns table (scope text, name text, outcome text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query select o.scope, o.name, o.outcome from fence.outcomes o
    join unnest(p_scopes, p_names) n (scope, name) on n.scope = o.scope and n.name = o.name
    where o.namespace = p_namespace;
end $$;

-- Writes objects, and removes those without a body. `p_before`: the tag that was decided on, null for
-- none; if another guard changed that, the batch is run again.
create or replace function fence.store_objects(
  p_namespace text, p_keys text[], p_before text[], p_etags text[], p_types text[],
  p_bodies bytea[])
returns void language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
  written bigint := 0;
  changed bigint;
begin
  perform fence.commit_durably();
  delete from fence.objects o using unnest(p_keys, p_before, p_bodies) n (key, before, body)
    where o.namespace = p_namespace and o.key = n.key and o.etag = n.before and n.body is null;
  get diagnostics changed = row_count;
  written := written + changed;
  update fence.objects o set etag = n.etag, content_type = n.content_type, body = n.body
    from unnest(p_keys, p_before, p_etags, p_types, p_bodies)
      n (key, before, etag, content_type, body)
    where o.namespace = p_namespace and o.key = n.key and o.etag = n.before and n.body is not null;
  get diagnostics changed = row_count;
  written := written + changed;
  insert into fence.objects as o (namespace, key, etag, content_type, body)
    select p_namespace, n.key, n.etag, n.content_type, n.body
    from unnest(p_keys, p_before, p_etags, p_types, p_bodies)
      n (key, before, etag, content_type, body)
    where n.before is null and n.body is not null order by n.key collate "C"
    on conflict (namespace, key) do nothing;
  get diagnostics changed = row_count;
  written := written + changed;
  if written <> coalesce(array_length(p_keys, 1), 0) then
    perform fence.refuse('40001', 'another guard wrote the same object', null, 'Run it again.');
  end if;
end $$;

-- Stores outcomes, none of which fence.load_outcomes returned, and drops the oldest of each scope.
create or replace function fence.store_outcomes(
  p_namespace text, p_scopes text[], p_names text[], p_outcomes text[], p_capacities integer[])
returns void language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
  written bigint;
  full_scope record;
begin
  perform fence.commit_durably();
  insert into fence.outcomes as o (namespace, scope, name, outcome)
    select p_namespace, n.scope, n.name, n.outcome
    from unnest(p_scopes, p_names, p_outcomes) n (scope, name, outcome)
    order by n.scope collate "C", n.name collate "C" on conflict (namespace, scope, name) do nothing;
  get diagnostics written = row_count;
  if written <> coalesce(array_length(p_scopes, 1), 0) then
    perform fence.refuse('40001', 'another guard stored the same name', null, 'Run it again.');
  end if;
  for full_scope in select distinct n.scope, n.capacity
      from unnest(p_scopes, p_capacities) n (scope, capacity) loop
    delete from fence.outcomes o where o.namespace = p_namespace and o.scope = full_scope.scope
      and o.number <= (select d.number from fence.outcomes d
        where d.namespace = p_namespace and d.scope = full_scope.scope
        order by d.number desc offset full_scope.capacity limit 1);
  end loop;
end $$;

-- Removes what a guard's start-up probe wrote in a namespace of its own.
create or replace function fence.forget_probe(p_namespace text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not starts_with(p_namespace, 'fencepost-probe-') then
    perform fence.refuse('FE400', 'no probe has this namespace', null, null);
  end if;
  delete from fence.objects o where o.namespace = p_namespace;
  delete from fence.outcomes o where o.namespace = p_namespace;
  delete from fence.marks m where m.namespace = p_namespace;
  delete from fence.seals s where s.namespace = p_namespace;
end $$;
-- Rights: none on tables, and no function but those that triggers call as the client. Others are
-- granted by name: enter and seal to clients, the rest of 3-sessions.sql to a guard.
revoke all on schema fence from public;
revoke all on all tables in schema fence from public;
revoke all on all functions in schema fence from public;
grant usage on schema fence to public;
grant execute on function fence.require(text, text), fence.row_lock(jsonb, text[]) to public;
\o /dev/null
\if :{?key}
  select fence.set_key(:'kid', decode(:'key', 'hex'));
\endif
\if :{?client}
  select exists (select from fence.keys where kid <> '') as is_signed \gset
  \if :is_signed
    revoke execute on function fence.enter(text, bigint, uuid, text), fence.seal(text, bigint, uuid, text, integer) from :"client";
    grant execute on function fence.enter(text), fence.seal(text) to :"client";
  \else
    revoke execute on function fence.enter(text), fence.seal(text) from :"client";
    grant execute on function fence.enter(text, bigint, uuid, text), fence.seal(text, bigint, uuid, text, integer) to :"client";
  \endif
\endif
\if :{?table}
  select fence.guard(:'table', :'lock', :'namespace');
\endif
\o
commit;
