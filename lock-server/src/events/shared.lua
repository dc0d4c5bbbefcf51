-- Appends events to the namespace's stream, each grant and each end of a lease once.
--
-- KEYS[1] the stream  [2] zset of what was told once -> when, ms  [3] the number of the last event
-- ARGV[1] how many events to keep  [2] how many of what was told once  [3] the caller's server id
-- then two for each event: what it tells once, or empty; the event, a JSON text
--
-- Post:  how many were news. The numbers have no hole, so that a reader sees what it misses.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local news = {}
for i = 4, #ARGV, 2 do
  if ARGV[i] == '' or redis.call('ZADD', KEYS[2], 'NX', now, ARGV[i]) == 1 then
    news[#news + 1] = ARGV[i + 1]
  end
end
if #news == 0 then
  return 0
end
local last = redis.call('INCRBY', KEYS[3], #news)
for at, event in ipairs(news) do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*',
    'n', string.format('%.0f', last - #news + at), 'o', ARGV[3], 'e', event)
end
local over = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[2])
if over > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, over - 1)
end
return #news
