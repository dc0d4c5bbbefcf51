-- Settles the locks that are due, at most 64 a call.
--
-- Post:  NEXT ms   when the next one is due; empty where none is held
for _, lock in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'held', '-inf', int(now), 'LIMIT', 0, 64)) do
  local record = load(lock, redis.call('GET', prefix .. 'l:' .. lock))
  settle(record)
  if not record.holder then
    redis.call('ZREM', prefix .. 'held', lock)
  end
end
local first = redis.call('ZRANGE', prefix .. 'held', 0, 0, 'WITHSCORES')
return reply({ 'NEXT', first[2] and int(math.max(tonumber(first[2]) - now, 0)) or '' })
