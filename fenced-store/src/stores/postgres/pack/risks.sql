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
