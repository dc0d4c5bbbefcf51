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
