-- Writes, so that a WAIT behind it on the same connection waits for everything up to here.
--
-- KEYS[1] the lineage  KEYS[2] the highest token that is known to be with enough replicas  KEYS[3] the
-- counter
-- ARGV[1] the lineage in which the grants were made that are asked about  [2] such a token of the caller
--
-- Post:  the counter: tokens up to it were given before
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('LINEAGE the grant was made in a lineage that is over')
end
local known = tonumber(redis.call('GET', KEYS[2]) or '') or 0
redis.call('SET', KEYS[2], string.format('%.0f', math.max(known, tonumber(ARGV[2]))))
return redis.call('GET', KEYS[3])
