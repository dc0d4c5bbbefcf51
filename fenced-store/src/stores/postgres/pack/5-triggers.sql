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
