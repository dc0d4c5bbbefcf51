-- What one session of a lock server calls; it ends with the session, so servers of several versions
-- do not share it. Every call is one transaction.
--
-- FL001: the lineage is another one  FL002: the clock shows what is not possible
-- FL003: no lease may begin for so long, ms  FL004: no token is left
-- After each of them nothing was changed.
--
-- Joins compare a namespace with `ns + 0 * n`, which is `ns` and is known only with a row of the other
-- side. With `ns` alone a plan that was made for empty tables may read a whole namespace for each key.

-- The time of the records, ms since 1970.
CREATE FUNCTION pg_temp.time_ms(ahead_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT trunc(extract(epoch FROM clock_timestamp()) * 1000)::bigint - ahead_ms
$$;

-- TRUE where this is the lineage that the caller verified. Of parameters alone, it is called first and
-- once in a query, and sees what the query sees.
CREATE FUNCTION pg_temp.check_lineage(ns int, believed text, seen bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM FROM fence_locks.namespaces n
    WHERE n.id = ns AND n.lineage = believed AND n.counter >= seen;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lineage of this PostgreSQL is another one' USING ERRCODE = 'FL001';
  END IF;
  RETURN true;
END
$$;

-- Records as they stand at one moment, each with its place in `keys`; and the items of locks.
CREATE FUNCTION pg_temp.read(
  ns int, believed text, seen bigint, keys text[],
  OUT base bigint, OUT now_ms bigint, OUT places_of int[], OUT versions bigint[],
  OUT bases bigint[], OUT contents bytea[], OUT item_places int[], OUT item_names text[],
  OUT item_contents bytea[]
) LANGUAGE plpgsql STABLE AS $$
DECLARE
  places int[] := ARRAY(SELECT generate_series(1, cardinality(keys)));
BEGIN
  SELECT n.counter, pg_temp.time_ms(n.clock_ahead_ms) INTO base, now_ms
    FROM fence_locks.namespaces n
    WHERE n.id = ns AND n.lineage = believed AND n.counter >= seen;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lineage of this PostgreSQL is another one' USING ERRCODE = 'FL001';
  END IF;
  SELECT array_agg(w.place), array_agg(x.version), array_agg(x.base), array_agg(x.value)
    INTO places_of, versions, bases, contents
    FROM unnest(places, keys) AS w(place, k)
    JOIN fence_locks.records x ON x.namespace = ns + 0 * w.place AND x.key = w.k
    WHERE x.until_ms IS NULL OR x.until_ms > now_ms;
  IF places_of IS NULL THEN
    RETURN;
  END IF;
  SELECT array_agg(i.place), array_agg(i.name), array_agg(i.value)
    INTO item_places, item_names, item_contents
    FROM (
      SELECT w.place, i.name, i.value
        FROM unnest(places, keys) AS w(place, k)
        JOIN fence_locks.items i ON i.namespace = ns + 0 * w.place AND i.key = w.k
        WHERE w.place = ANY (places_of) AND w.k LIKE 'lock:%'
        ORDER BY w.place, i.name
    ) i;
END
$$;

-- Commits groups of writes, each under the condition that what it was decided on has not changed.
--
-- believed: the lineage that the caller verified; seen: the highest counter that it saw
-- taken: tokens; above: the counter that they are above
-- bound: for how long a lease of this batch may live, ms; 0 where that is known here
-- latest, earliest: bounds of the time by the caller's clock; begins: a lease may begin
-- waves: groups of one wave have no record in common; g_*: of each group its wave and its time
-- r_*: reads  w_*: values  d_*: removals  i_*: items  n_*: messages; *_group counts from 1
--
-- refused: numbers of groups. No record is returned: what a stopped server does not read would hold
-- the row lock.
CREATE FUNCTION pg_temp.commit(
  ns int, believed text, seen bigint, taken bigint, above bigint, bound bigint,
  latest bigint, earliest bigint, begins boolean,
  waves int, has_times boolean, g_wave int[], g_from bigint[], g_before bigint[],
  r_group int[], r_key text[], r_version bigint[],
  w_group int[], w_key text[], w_version bigint[], w_value bytea[], w_lives bigint[],
  d_group int[], d_key text[],
  i_group int[], i_key text[], i_name text[], i_value bytea[],
  n_group int[], n_channel text[], n_message text[],
  OUT base bigint, OUT now_ms bigint, OUT refused int[]
) LANGUAGE plpgsql AS $$
DECLARE
  n fence_locks.namespaces;
  lost int[];
  has_overdue boolean;
BEGIN
  -- First of all the row lock: whatever another session has begun before is visible from here on.
  UPDATE fence_locks.namespaces x
    SET counter = CASE WHEN taken > 0 THEN greatest(x.counter, above) + taken ELSE x.counter END,
      lives_until_ms = CASE WHEN bound > 0
        THEN greatest(x.lives_until_ms, pg_temp.time_ms(x.clock_ahead_ms) + bound)
        ELSE x.lives_until_ms END
    WHERE x.id = ns AND x.lineage = believed AND x.counter >= seen
    RETURNING x.* INTO n;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lineage of this PostgreSQL is another one' USING ERRCODE = 'FL001';
  END IF;
  now_ms := pg_temp.time_ms(n.clock_ahead_ms);
  -- Under a clock that jumped, leases look as if they were over that are not, or live too long.
  IF now_ms > latest OR now_ms < earliest THEN
    RAISE EXCEPTION 'the clock shows what is not possible' USING ERRCODE = 'FL002';
  END IF;
  IF begins AND taken > 0 AND n.paused_until_ms > now_ms THEN
    RAISE EXCEPTION '%', least(n.paused_until_ms - now_ms, n.paused_for_ms)
      USING ERRCODE = 'FL003';
  END IF;
  IF taken > 0 AND n.counter > 999999999999999 THEN
    RAISE EXCEPTION 'no token is left' USING ERRCODE = 'FL004';
  END IF;
  base := n.counter - taken;
  refused := '{}';
  FOR wave IN 1..waves LOOP
    SELECT coalesce(array_agg(DISTINCT r.g) FILTER (WHERE r.v <>
        CASE WHEN x.until_ms <= now_ms THEN 0 ELSE coalesce(x.version, 0) END), '{}'),
        bool_or(x.until_ms <= now_ms)
      INTO lost, has_overdue
      FROM unnest(r_group, r_key, r_version) AS r(g, k, v)
      LEFT JOIN fence_locks.records x ON x.namespace = ns + 0 * r.g AND x.key = r.k
      WHERE waves = 1 OR g_wave[r.g] = wave;
    IF has_times THEN
      lost := lost || ARRAY(
        SELECT g.at::int FROM unnest(g_from, g_before, g_wave) WITH ORDINALITY AS g(f, b, w, at)
          WHERE g.w = wave AND (now_ms < g.f OR now_ms >= g.b));
    END IF;
    IF has_overdue THEN
      WITH gone AS (
        DELETE FROM fence_locks.records x USING unnest(r_group, r_key) AS r(g, k)
          WHERE x.namespace = ns + 0 * r.g AND x.key = r.k AND x.until_ms <= now_ms
            AND (waves = 1 OR g_wave[r.g] = wave)
          RETURNING x.namespace, x.key
      ) DELETE FROM fence_locks.items i USING gone
        WHERE i.namespace = gone.namespace AND i.key = gone.key;
    END IF;
    IF cardinality(d_key) > 0 THEN
      DELETE FROM fence_locks.records x USING unnest(d_group, d_key) AS d(g, k)
        WHERE x.namespace = ns + 0 * d.g AND x.key = d.k
          AND (waves = 1 OR g_wave[d.g] = wave) AND d.g <> ALL (lost);
      DELETE FROM fence_locks.items x USING unnest(d_group, d_key) AS d(g, k)
        WHERE x.namespace = ns + 0 * d.g AND x.key = d.k
          AND (waves = 1 OR g_wave[d.g] = wave) AND d.g <> ALL (lost);
    END IF;
    INSERT INTO fence_locks.records AS x (namespace, key, version, base, until_ms, value)
      SELECT ns, w.k, w.v, commit.base, now_ms + w.lives, w.value
        FROM unnest(w_group, w_key, w_version, w_value, w_lives) AS w(g, k, v, value, lives)
        WHERE (waves = 1 OR g_wave[w.g] = wave) AND w.g <> ALL (lost)
      ON CONFLICT (namespace, key) DO UPDATE SET version = excluded.version,
        base = excluded.base, until_ms = excluded.until_ms, value = excluded.value;
    IF cardinality(i_key) > 0 THEN
      DELETE FROM fence_locks.items x
        USING unnest(i_group, i_key, i_name, i_value) AS i(g, k, name, value)
        WHERE x.namespace = ns + 0 * i.g AND x.key = i.k AND x.name = i.name AND i.value IS NULL
          AND (waves = 1 OR g_wave[i.g] = wave) AND i.g <> ALL (lost);
      INSERT INTO fence_locks.items (namespace, key, name, value)
        SELECT ns, i.k, i.name, i.value
          FROM unnest(i_group, i_key, i_name, i_value) AS i(g, k, name, value)
          JOIN fence_locks.records x ON x.namespace = ns + 0 * i.g AND x.key = i.k
          WHERE i.value IS NOT NULL
            AND (waves = 1 OR g_wave[i.g] = wave) AND i.g <> ALL (lost)
        ON CONFLICT (namespace, key, name) DO UPDATE SET value = excluded.value;
    END IF;
    IF cardinality(n_group) > 0 THEN
      PERFORM pg_notify(m.channel, m.message)
        FROM unnest(n_group, n_channel, n_message) AS m(g, channel, message)
        WHERE (waves = 1 OR g_wave[m.g] = wave) AND m.g <> ALL (lost);
    END IF;
    refused := refused || lost;
  END LOOP;
END
$$;

-- The server behind this session.
CREATE FUNCTION pg_temp.here(OUT system text, OUT timeline bigint, OUT started timestamptz)
LANGUAGE sql STABLE AS $$
  SELECT (SELECT system_identifier::text FROM pg_control_system()),
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint,
    pg_postmaster_start_time()
$$;

-- Shows what the verdict on a namespace's lineage needs, also where there is no row.
CREATE FUNCTION pg_temp.lineage(
  of_name text,
  OUT lineage text, OUT counter bigint, OUT lives_until_ms bigint, OUT ahead_ms bigint,
  OUT is_elsewhere boolean, OUT is_other_line boolean, OUT log_end bigint,
  OUT has_restarted boolean, OUT clock_ms bigint
) LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(n.lineage, ''), coalesce(n.counter, 0), coalesce(n.lives_until_ms, 0),
      coalesce(n.clock_ahead_ms, 0), coalesce(n.system <> here.system, false),
      coalesce(n.timeline <> here.timeline, false), (pg_current_wal_flush_lsn() - '0/0')::bigint,
      coalesce(n.started <> here.started, false), pg_temp.time_ms(0)
    FROM pg_temp.here() here LEFT JOIN fence_locks.namespaces n ON n.name = of_name
$$;

-- Writes the verdict on a lineage where the row is as it was shown. Its counter may have risen, and
-- leases may have begun: these are stored here, and not lost.
--
-- new_id, why: of the lineage that begins; NULL where it continues
-- lifted_to: the counter is lifted to this, and by one at least; NULL where it stays
-- pause: no lease begins for so long, ms; ahead: of the clock, ms; NULL where that stays
CREATE FUNCTION pg_temp.adopt(
  of_name text, was text, was_counter bigint, was_ahead bigint,
  new_id text, why text, lifted_to bigint, pause bigint, ahead bigint,
  OUT ns int, OUT counter bigint, OUT paused_ms bigint
) RETURNS SETOF record LANGUAGE sql AS $$
  -- A row that exists uses up no id.
  INSERT INTO fence_locks.namespaces (name)
    SELECT of_name WHERE NOT EXISTS (SELECT FROM fence_locks.namespaces x WHERE x.name = of_name)
    ON CONFLICT (name) DO NOTHING;
  UPDATE fence_locks.namespaces x SET
      lineage = coalesce(new_id, x.lineage), reason = coalesce(why, x.reason),
      counter = CASE WHEN lifted_to IS NULL THEN x.counter
        ELSE greatest(x.counter + 1, lifted_to) END,
      system = here.system, timeline = here.timeline, started = here.started,
      -- A pause lasts as long as it did, by the time as it is corrected.
      clock_ahead_ms = coalesce(ahead, x.clock_ahead_ms),
      paused_until_ms = greatest(
        x.paused_until_ms + x.clock_ahead_ms - coalesce(ahead, x.clock_ahead_ms),
        CASE WHEN pause > 0 THEN pg_temp.time_ms(coalesce(ahead, x.clock_ahead_ms)) + pause END),
      paused_for_ms = CASE
        WHEN pause > 0 AND x.paused_until_ms < pg_temp.time_ms(x.clock_ahead_ms) + pause THEN pause
        ELSE x.paused_for_ms END
    FROM pg_temp.here() here
    WHERE x.name = of_name AND x.lineage = was AND x.counter >= was_counter
      AND x.clock_ahead_ms = was_ahead
    RETURNING x.id, x.counter, greatest(0,
      least(x.paused_until_ms - pg_temp.time_ms(x.clock_ahead_ms), x.paused_for_ms))
$$;

-- Shows the time, notes that a server lives and for how long leases may live that it knows of,
-- begins a pause, and corrects the time where the clock jumped.
--
-- caller: the server, or 0; caller_ms: for how long it lives
-- lives: for how long a lease may live that it knows of, ms; pause: no lease begins for so long, ms
-- jump: by how much the clock jumped ahead, ms; ahead: clock_ahead_ms as it was then
-- latest, earliest: between which the clock can be by the caller's; at another time the pause and the
-- correction alone are noted, and lives_ms is NULL
CREATE FUNCTION pg_temp.beat(
  ns int, believed text, caller bigint, caller_ms bigint, lives bigint, pause bigint, jump bigint,
  ahead bigint, latest bigint, earliest bigint,
  OUT now_ms bigint, OUT counter bigint, OUT ahead_ms bigint, OUT paused_ms bigint,
  OUT lives_ms bigint, OUT servers bigint[], OUT log_end bigint
) LANGUAGE plpgsql AS $$
DECLARE
  n fence_locks.namespaces;
  is_possible boolean;
BEGIN
  SELECT x.* INTO n FROM fence_locks.namespaces x WHERE x.id = ns AND x.lineage = believed
    FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lineage of this PostgreSQL is another one' USING ERRCODE = 'FL001';
  END IF;
  IF jump <> 0 AND n.clock_ahead_ms = ahead THEN
    n.clock_ahead_ms := ahead + jump;
  END IF;
  now_ms := pg_temp.time_ms(n.clock_ahead_ms);
  is_possible := now_ms BETWEEN earliest AND latest;
  IF pause > 0 AND n.paused_until_ms < now_ms + pause THEN
    n.paused_until_ms := now_ms + pause;
    n.paused_for_ms := pause;
  END IF;
  IF is_possible AND lives > 0 THEN
    n.lives_until_ms := greatest(n.lives_until_ms, now_ms + lives);
  END IF;
  UPDATE fence_locks.namespaces x SET clock_ahead_ms = n.clock_ahead_ms,
      paused_until_ms = n.paused_until_ms, paused_for_ms = n.paused_for_ms,
      lives_until_ms = n.lives_until_ms
    WHERE x.id = ns AND (x.clock_ahead_ms, x.paused_until_ms, x.lives_until_ms)
      IS DISTINCT FROM (n.clock_ahead_ms, n.paused_until_ms, n.lives_until_ms);
  IF is_possible AND caller > 0 THEN
    DELETE FROM fence_locks.servers x WHERE x.namespace = ns AND x.until_ms <= now_ms;
    INSERT INTO fence_locks.servers (namespace, server, until_ms)
      VALUES (ns, caller, now_ms + caller_ms)
      ON CONFLICT (namespace, server) DO UPDATE SET until_ms = excluded.until_ms;
  END IF;
  counter := n.counter;
  ahead_ms := n.clock_ahead_ms;
  paused_ms := greatest(least(n.paused_until_ms - now_ms, n.paused_for_ms), 0);
  IF is_possible THEN
    lives_ms := greatest(n.lives_until_ms - now_ms, 0);
  END IF;
  servers := ARRAY(SELECT x.server FROM fence_locks.servers x
    WHERE x.namespace = ns AND x.until_ms > now_ms);
  log_end := (pg_current_wal_flush_lsn() - '0/0')::bigint;
END
$$;

-- Removes records that are over, of the next `most` after a key.
-- last: the key to go on after; NULL at the end.
CREATE FUNCTION pg_temp.sweep(
  ns int, believed text, latest bigint, earliest bigint, after text, most int,
  OUT last text, OUT removed bigint
) LANGUAGE plpgsql AS $$
DECLARE
  now_ms bigint;
  due text[];
BEGIN
  removed := 0;
  SELECT pg_temp.time_ms(x.clock_ahead_ms) INTO now_ms FROM fence_locks.namespaces x
    WHERE x.id = ns AND x.lineage = believed;
  IF NOT FOUND OR now_ms > latest OR now_ms < earliest THEN
    RETURN;
  END IF;
  SELECT array_agg(page.key) FILTER (WHERE page.until_ms <= now_ms),
      CASE WHEN count(*) = most THEN max(page.key) END
    INTO due, last
    FROM (SELECT x.key, x.until_ms FROM fence_locks.records x
      WHERE x.namespace = ns AND x.key > after ORDER BY x.key LIMIT most) page;
  IF due IS NULL THEN
    RETURN;
  END IF;
  PERFORM FROM fence_locks.namespaces x WHERE x.id = ns AND x.lineage = believed FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  WITH gone AS (
    DELETE FROM fence_locks.records x USING unnest(due) WITH ORDINALITY AS d(k, at)
      WHERE x.namespace = ns + 0 * d.at AND x.key = d.k AND x.until_ms <= now_ms
      RETURNING x.namespace, x.key
  ), items_gone AS (
    DELETE FROM fence_locks.items i USING gone
      WHERE i.namespace = gone.namespace AND i.key = gone.key
  ) SELECT count(*) INTO removed FROM gone;
END
$$;
