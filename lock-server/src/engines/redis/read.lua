-- Records as they stand, with the items of locks; nothing is changed.
--
-- KEYS[1] lineage  [2] token  [3] absent  [4] clock-ahead  [5...] records, see head.lua
-- ARGV[1] the lineage that the caller verified  [2] the highest counter that it saw
--     [3...] for each record '1' where its items are wanted
--
-- Post: { counter, now, value, items... } | LINEAGE, FOREIGN
local got = redis.call('MGET', unpack(KEYS))
if got[1] ~= ARGV[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is ' .. (got[1] or 'missing'))
end
local counter = tonumber(got[2] or '')
if not counter or not (counter >= tonumber(ARGV[2])) then
  return redis.error_reply('LINEAGE the counter fell to ' .. (got[2] or 'nothing'))
end
local time = redis.call('TIME')
local reply = { counter, time[1] * 1000 + math.floor(time[2] / 1000)
  - (tonumber(got[4] or '') or 0) }
for k = 5, #KEYS do
  local value = got[k]
  if value and #value < 24 or not value and redis.call('EXISTS', KEYS[k]) > 0 then
    return redis.error_reply('FOREIGN ' .. KEYS[k] .. ' is no record')
  end
  local has_items = value and ARGV[k - 2] == '1' and string.sub(value, 24, 24) == '1'
  reply[#reply + 1] = value
  reply[#reply + 1] = has_items and redis.call('ZRANGE', KEYS[k] .. '#', 0, -1)
end
return reply
