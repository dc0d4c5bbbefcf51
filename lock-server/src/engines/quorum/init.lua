-- Gives its quorum to a suspect node that never knew one. It does not vote before ready.lua.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] view [4] members [5] the id that suspect.lua answered, one of them
--        [6] run id [7] floor
--
-- Post:  DONE                        now, or by an earlier call with the same quorum, view and id
--        KNOWN                       it knows a quorum already, or is not suspect under that id for
--                                    that process; nothing changed
local meta = redis.call('HMGET', KEYS[1], 'cluster', 'n', 'view', 'members', 'node', 'state', 'run_id')
if meta[1] == '' and meta[5] == ARGV[5] and meta[6] == 'doubt' and meta[7] == ARGV[6] then
  redis.call('HSET', KEYS[1], 'cluster', ARGV[1], 'n', ARGV[2], 'view', ARGV[3], 'members', ARGV[4],
    'state', 'new', 'floor', ARGV[7])
  return { 'DONE' }
end
for at = 1, 5 do
  if meta[at] ~= ARGV[at] then
    return { 'KNOWN' }
  end
end
return { meta[6] == 'doubt' and 'KNOWN' or 'DONE' }
