-- Writes, so that a WAIT behind it on the same connection waits for everything up to here.
--
-- KEYS[1] the lineage  KEYS[2] what is written; nobody reads it
-- ARGV[1] the lineage in which the grants were made that are asked about
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('LINEAGE the grant was made in a lineage that is over')
end
return redis.call('SET', KEYS[2], '1')
