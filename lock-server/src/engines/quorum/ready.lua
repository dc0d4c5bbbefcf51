-- Lets a node vote that was initialised or has rejoined.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] view [4] members [5] its id
--
-- Post:  DONE                        it votes, now or before
--        WAIT ms                     what it may have forgotten is not over yet
--        STRANGER id                 it is another one; nothing changed
--        NOMEMBER | OTHER cluster n | NOTREADY (it is suspect) | VIEW view members
local meta = redis.call('HMGET', KEYS[1], 'cluster', 'n', 'state', 'view', 'members', 'node',
  'ready_at')
if not meta[1] or meta[1] == '' then
  return { 'NOMEMBER' }
elseif meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then
  return { 'OTHER', meta[1], meta[2] }
elseif meta[6] ~= ARGV[5] then
  return { 'STRANGER', meta[6] }
elseif meta[3] == 'doubt' then
  return { 'NOTREADY' }
elseif meta[4] ~= ARGV[3] or meta[5] ~= ARGV[4] then
  return { 'VIEW', meta[4], meta[5] }
elseif meta[3] == 'ready' then
  return { 'DONE' }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now < tonumber(meta[7]) then
  return { 'WAIT', tonumber(meta[7]) - now }
end
redis.call('HSET', KEYS[1], 'state', 'ready')
return { 'DONE' }
