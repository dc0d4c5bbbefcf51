-- Registry of the PostgreSQL port, in the database that the port serves. Run it once as the role
-- that the guard logs in as (--postgres-upstream); that role owns the schema, and needs
--   GRANT pg_read_all_stats, pg_signal_backend TO <role>;
-- No other role gets any right here.
BEGIN;
CREATE SCHEMA fence;
REVOKE ALL ON SCHEMA fence FROM PUBLIC;

CREATE TABLE fence.meta (version int NOT NULL);
INSERT INTO fence.meta VALUES (1);

-- Highest token of each lock, and its lease.
CREATE TABLE fence.marks (
  namespace text COLLATE "C" NOT NULL,
  lock text COLLATE "C" NOT NULL,
  token bigint NOT NULL CHECK (token > 0),
  lease uuid NOT NULL,
  PRIMARY KEY (namespace, lock)
);

-- Back ends that were admitted under a token. A row is removed once its back end has ended.
CREATE TABLE fence.sessions (
  namespace text COLLATE "C" NOT NULL,
  lock text COLLATE "C" NOT NULL,
  pid int NOT NULL,
  backend_start timestamptz NOT NULL,
  token bigint NOT NULL,
  PRIMARY KEY (namespace, lock, pid, backend_start)
);

-- True while the back end runs. A start time that this role may not see counts as the same.
CREATE FUNCTION fence.is_running(p_pid int, p_start timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE pid = p_pid AND (backend_start = p_start OR backend_start IS NULL))
$$;

-- Registers a back end under a token, or without one raises the mark alone. Verdicts: admitted;
-- stale and collision, with the mark that refused; sealing: the mark is raised, and back ends with
-- lower tokens have to end (fence.abort) before the next attempt.
CREATE FUNCTION fence.register(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid, p_pid int,
  OUT verdict text, OUT mark bigint, OUT mark_lease uuid
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  started timestamptz;
BEGIN
  IF p_pid IS NOT NULL THEN
    SELECT backend_start INTO started FROM pg_stat_activity
      WHERE pid = p_pid AND datname = current_database();
    IF started IS NULL THEN
      RAISE EXCEPTION 'no back end % in this database, or its start is hidden', p_pid
        USING ERRCODE = '08006';
    END IF;
  END IF;
  INSERT INTO fence.marks VALUES (p_namespace, p_lock, p_token, p_lease) ON CONFLICT DO NOTHING;
  SELECT m.token, m.lease INTO mark, mark_lease FROM fence.marks m
    WHERE m.namespace = p_namespace AND m.lock = p_lock FOR UPDATE;
  IF p_token < mark THEN
    verdict := 'stale';
    RETURN;
  ELSIF p_token = mark AND p_lease <> mark_lease THEN
    verdict := 'collision';
    RETURN;
  ELSIF p_token > mark THEN
    UPDATE fence.marks m SET token = p_token, lease = p_lease
      WHERE m.namespace = p_namespace AND m.lock = p_lock;
    mark := p_token;
    mark_lease := p_lease;
  END IF;
  DELETE FROM fence.sessions s
    WHERE s.namespace = p_namespace AND s.lock = p_lock
      AND NOT fence.is_running(s.pid, s.backend_start);
  IF EXISTS (SELECT FROM fence.sessions s
      WHERE s.namespace = p_namespace AND s.lock = p_lock AND s.token < p_token) THEN
    verdict := 'sealing';
    RETURN;
  END IF;
  IF p_pid IS NOT NULL THEN
    INSERT INTO fence.sessions VALUES (p_namespace, p_lock, p_pid, started, p_token)
      ON CONFLICT DO NOTHING;
  END IF;
  verdict := 'admitted';
END
$$;

-- Ends the back ends registered below the mark, and waits for each at most so long. Its result is
-- their number; fence.register finds out whether they have ended.
CREATE FUNCTION fence.abort(p_namespace text, p_lock text, p_timeout_ms bigint) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  pids int[];
  one int;
BEGIN
  SELECT coalesce(array_agg(s.pid), '{}') INTO pids
    FROM fence.sessions s
    JOIN fence.marks m ON m.namespace = s.namespace AND m.lock = s.lock AND s.token < m.token
    JOIN pg_stat_activity a ON a.pid = s.pid AND a.backend_start = s.backend_start
    WHERE s.namespace = p_namespace AND s.lock = p_lock;
  FOREACH one IN ARRAY pids LOOP
    PERFORM pg_terminate_backend(one);
  END LOOP;
  FOREACH one IN ARRAY pids LOOP
    PERFORM pg_terminate_backend(one, p_timeout_ms)
      FROM pg_stat_get_activity(one) a
      JOIN fence.sessions s ON s.pid = a.pid AND s.backend_start = a.backend_start;
  END LOOP;
  RETURN cardinality(pids);
END
$$;

REVOKE ALL ON ALL TABLES IN SCHEMA fence FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fence FROM PUBLIC;
COMMIT;
