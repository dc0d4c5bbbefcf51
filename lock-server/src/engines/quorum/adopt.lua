-- Notes that another process continues with the node's memory, which lost nothing.
--
-- KEYS   meta
-- ARGV   [1] the run id that is stored [2] the run id of the process now
--
-- Post:  DONE                        now or before
--        RUN id                      another one is stored; nothing changed
--        NOMEMBER                    nothing is stored
local stored = redis.call('HGET', KEYS[1], 'run_id')
if not stored then
  return { 'NOMEMBER' }
elseif stored == ARGV[1] then
  redis.call('HSET', KEYS[1], 'run_id', ARGV[2])
elseif stored ~= ARGV[2] then
  return { 'RUN', stored }
end
return { 'DONE' }
