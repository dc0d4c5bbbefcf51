-- A page of the items of one record; nothing is changed.
--
-- KEYS[1] lineage  [2] absent  [3] the record, see head.lua
-- ARGV[1] the lineage that the caller verified  [2] where the page begins, as ZRANGEBYLEX takes it
--     [3] how many items
--
-- Post: items | LINEAGE, FOREIGN
local got = redis.call('MGET', KEYS[1], KEYS[3])
if got[1] ~= ARGV[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is ' .. (got[1] or 'missing'))
elseif got[2] and #got[2] < 24 or not got[2] and redis.call('EXISTS', KEYS[3]) > 0 then
  return redis.error_reply('FOREIGN ' .. KEYS[3] .. ' is no record')
elseif not got[2] or string.sub(got[2], 24, 24) ~= '1' then
  return {}
end
return redis.call('ZRANGEBYLEX', KEYS[3] .. '#', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
