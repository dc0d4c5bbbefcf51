-- Writes, so that a WAIT behind it on the same connection waits for everything up to here.
--
-- KEYS[1] lineage  [2] the highest token that is known to be with enough replicas  [3] token
--     [4] absent, see head.lua
-- ARGV[1] the lineage in which the grants were made  [2] such a token of the caller
--
-- Post: { counter: tokens up to it were taken before, the highest token that is known } | LINEAGE
local got = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
if got[1] ~= ARGV[1] then
  return redis.error_reply('LINEAGE the grant was made in a lineage that is over')
end
local known = string.format('%.0f', math.max(tonumber(got[2] or '') or 0, tonumber(ARGV[2])))
redis.call('SET', KEYS[2], known)
return { got[3], known }
