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
