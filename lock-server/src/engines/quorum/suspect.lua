-- Stops a node from voting, because it may have forgotten votes or never knew any.
--
-- KEYS   meta
-- ARGV   [1] the run id of its process now [2] a new id to rejoin under [3] format
--        [4] the node's id as the caller has seen it, empty where nothing was stored
--
-- Post:  DOUBTED id                  it is suspect, and that is its id: the one of an earlier call
--                                    where it was suspect for the same process already
--        STRANGER id                 its id is another one by now: probe again; nothing changed
local meta = redis.call('HMGET', KEYS[1], 'state', 'run_id', 'node')
if meta[1] == 'doubt' and meta[2] == ARGV[1] then
  return { 'DOUBTED', meta[3] }
elseif (meta[3] or '') ~= ARGV[4] then
  return { 'STRANGER', meta[3] or '' }
end
if not meta[1] then
  redis.call('HSET', KEYS[1], 'format', ARGV[3], 'cluster', '', 'n', 0, 'view', 0, 'members', '',
    'floor', 0, 'ready_at', 0, 'covered', 0, 'state', 'doubt', 'run_id', ARGV[1], 'node', ARGV[2])
else
  redis.call('HSET', KEYS[1], 'state', 'doubt', 'run_id', ARGV[1], 'node', ARGV[2])
end
return { 'DOUBTED', ARGV[2] }
