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
