-- Shows the time, notes that a server lives and for how long leases may live that it knows of, begins a
-- pause, and corrects the time where the clock jumped.
--
-- KEYS[1] lineage  [2] servers  [3] paused-for  [4] lives-until  [5] absent  [6] clock-ahead  [7] token
-- ARGV[1] the lineage that the caller verified  [2] the server, or empty  [3] for how long it lives, ms
--     [4] for how long a lease may live that the caller knows of, ms
--     [5] for how long no lease may begin from now on, ms; 0 begins no pause
--     [6] by how much the clock jumped ahead, ms; 0 for no jump  [7] clock-ahead as it was then
--     [8] the latest time that this Redis can show by the caller's clock, ms since 1970  [9] the earliest
--
-- Post: { now, counter, clock-ahead, what is left of a pause, for how long a lease of any server may
--         live, ms, server... } | LINEAGE
--       Under a time that is not possible nothing was noted, and -1 stands for how long leases live.
local got = redis.call('MGET', KEYS[1], KEYS[4], KEYS[6], KEYS[7])
if got[1] ~= ARGV[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is another one')
end
if ARGV[5] ~= '0' and redis.call('PTTL', KEYS[3]) < tonumber(ARGV[5]) then
  redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[5])
end
local ahead = tonumber(got[3] or '') or 0
if ARGV[6] ~= '0' and ahead == tonumber(ARGV[7]) then
  ahead = ahead + ARGV[6]
  redis.call('SET', KEYS[6], string.format('%.0f', ahead))
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) - ahead
local counter = tonumber(string.match(got[4] or '', '^%d+$') or 0)
local paused_ms = math.max(redis.call('PTTL', KEYS[3]), 0)
if now > tonumber(ARGV[8]) or now < tonumber(ARGV[9]) then
  -- What is noted by a clock that jumped would be believed after its correction.
  return { now, counter, ahead, paused_ms, -1 }
end
local until_ms = tonumber(got[2] or '') or 0
if ARGV[4] ~= '0' and now + ARGV[4] > until_ms then
  until_ms = now + ARGV[4]
  redis.call('SET', KEYS[4], string.format('%.0f', until_ms), 'PX', ARGV[4])
end
if ARGV[2] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[3]), ARGV[2])
  -- The entry that is due last keeps the set.
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.max(last[2] - now, 1)))
end
local reply = redis.call('ZRANGE', KEYS[2], 0, -1)
table.insert(reply, 1, math.max(until_ms - now, 0))
table.insert(reply, 1, paused_ms)
table.insert(reply, 1, ahead)
table.insert(reply, 1, counter)
table.insert(reply, 1, now)
return reply
