-- The tables of lock servers in PostgreSQL. What works on them is created by each session for itself:
-- functions.sql. The schema was created before.
BEGIN;
-- Two servers may start at once; the number is the project's own.
SELECT pg_advisory_xact_lock(7420076);
-- One row: the format of the tables.
CREATE TABLE IF NOT EXISTS fence_locks.about (format int NOT NULL);
-- A row a namespace. Each commit locks its row, so commits of a namespace are one after the other.
CREATE TABLE IF NOT EXISTS fence_locks.namespaces (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE,
  -- Empty until a server has begun one.
  lineage text NOT NULL DEFAULT '',
  -- The highest token that was taken.
  counter bigint NOT NULL DEFAULT 0,
  -- The server that the lineage was verified at: its system identifier, timeline and start.
  system text,
  timeline bigint,
  started timestamptz,
  reason text,
  -- No lease begins until then, of a pause that was to last so long.
  paused_until_ms bigint NOT NULL DEFAULT 0,
  paused_for_ms bigint NOT NULL DEFAULT 0,
  -- No lease lives after it.
  lives_until_ms bigint NOT NULL DEFAULT 0,
  -- By how much the clock has jumped ahead of the time that records are kept in.
  clock_ahead_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
CREATE TABLE IF NOT EXISTS fence_locks.records (
  namespace int NOT NULL,
  -- lock:NAME or session:ID
  key text COLLATE "C" NOT NULL,
  -- Another one in every write of the value.
  version bigint NOT NULL,
  -- The counter before the tokens that the value names as new.
  base bigint NOT NULL,
  -- From then on there is no record; the row is removed later.
  until_ms bigint,
  value bytea NOT NULL,
  PRIMARY KEY (namespace, key)
) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS fence_locks.items (
  namespace int NOT NULL,
  key text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (namespace, key, name)
);
-- Lock servers, each until when it lives.
CREATE TABLE IF NOT EXISTS fence_locks.servers (
  namespace int NOT NULL,
  server bigint NOT NULL,
  until_ms bigint NOT NULL,
  PRIMARY KEY (namespace, server)
);
INSERT INTO fence_locks.about (format) SELECT 1 WHERE NOT EXISTS (SELECT FROM fence_locks.about);
COMMIT;
