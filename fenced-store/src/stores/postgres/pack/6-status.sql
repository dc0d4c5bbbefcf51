-- What is installed, a line each. For the owner, and roles that are granted it.
create or replace function fence.status() returns table (item text, value text)
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
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
  union all select 'reads keys', r.rolname from pg_roles r
    where r.rolcanlogin and not r.rolsuper and r.rolname <> current_user
    and exists (select from pg_roles g where pg_has_role(r.oid, g.oid, 'member')
      and (has_any_column_privilege(g.oid, 'fence.keys', 'select')
        or g.rolname in ('pg_read_server_files', 'pg_execute_server_program')))
  union all select 'table', g.relation::text || ' by ' || g.namespace || ' ' || g.lock
    from fence.guarded g
  union all select 'GAP', format('%s lacks %s: guard its table again', p.relation, p.missing)
    from fence.gaps() p
$$;
