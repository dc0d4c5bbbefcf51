-- Brings a suspect node into a new view that f + 1 others have accepted.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] the new view [4] its members [5] the id that suspect.lua answered
--        [6] run id [7] floor [8] for how long it does not vote, ms
--        [9...] a bucket and a token that the others have accepted in it, for each
--
-- Post:  DONE                        it is joining, now or by an earlier call
--        NOMEMBER                    nothing is stored
--        OTHER cluster n             it belongs to another quorum; nothing changed
--        STRANGER id                 its id is another one; nothing changed
--        RUN id                      another process is suspect; nothing changed
--        VIEW view members           it is suspect under that id no more, but in another view, or
--                                    knows one that is newer; nothing changed
local meta = redis.call('HMGET', KEYS[1], 'cluster', 'n', 'state', 'view', 'members', 'node',
  'run_id', 'floor', 'covered')
if not meta[1] then
  return { 'NOMEMBER' }
elseif meta[1] ~= '' and (meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2]) then
  return { 'OTHER', meta[1], meta[2] }
elseif meta[6] ~= ARGV[5] then
  return { 'STRANGER', meta[6] }
elseif meta[3] ~= 'doubt' then
  return meta[4] == ARGV[3] and meta[5] == ARGV[4] and { 'DONE' } or { 'VIEW', meta[4], meta[5] }
elseif meta[7] ~= ARGV[6] then
  return { 'RUN', meta[7] }
elseif tonumber(meta[4]) >= tonumber(ARGV[3]) then
  return { 'VIEW', meta[4], meta[5] }
end

local function int(number)
  return string.format('%.0f', number)
end
local function highest(one, other)
  return int(math.max(tonumber(one or '0'), tonumber(other or '0')))
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changes = {
  'cluster', ARGV[1], 'n', ARGV[2], 'view', ARGV[3], 'members', ARGV[4], 'state', 'joining',
  'floor', highest(meta[8], ARGV[7]),
  -- What it still remembers itself may be longer than what the others know of.
  'ready_at', highest(meta[9], int(now + tonumber(ARGV[8]))),
}
for at = 9, #ARGV, 2 do
  local field = 'p' .. ARGV[at]
  changes[#changes + 1] = field
  changes[#changes + 1] = highest(redis.call('HGET', KEYS[1], field), ARGV[at + 1])
end
redis.call('HSET', KEYS[1], unpack(changes))
return { 'DONE' }
