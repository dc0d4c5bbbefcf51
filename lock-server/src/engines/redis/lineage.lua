-- Shows what the verdict on a lineage needs, or writes one where that has not changed since.
-- Run by EVAL on a connection that carries nothing else yet.
--
-- KEYS[1] lineage  [2] token  [3] meta  [4] paused-for  [5] lives-until  [6] absent  [7] clock-ahead
-- ARGV[1] to [9] the fields that were shown, all but the time; nothing to show them
--     [10] run id and [11] replication id of this process, from INFO  [12] the format of the records
--     [13] the configuration epoch in which sentinels chose this process; '' where none did
--     [14] why a lineage begins; '' where it continues  [15] the id of that lineage
--     [16] the counter is lifted to this, and by one at least; 0 where it stays
--     [17] no lease begins for so long, ms; 0 where none is waited for
--     [18] by how much the clock is ahead of the time of the records, where that changes; or ''
--
-- Post: shown: time, lineage, token, lives-until, clock-ahead, run id, replication id, format, epoch,
--       counter at the last verification; each '' where it is missing
--       written: the counter, and for how long no lease begins, ms; nothing where anything that was
--       shown has changed, other than a counter that rose and the end of the leases: what begins
--       meanwhile is stored here, and not lost
local meta = redis.pcall('HMGET', KEYS[3], 'run_id', 'replication_id', 'format', 'epoch', 'counter')
if meta.err then
  return redis.error_reply('FOREIGN ' .. KEYS[3] .. ' is no hash: no lock server has written it')
end
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[5], KEYS[7])
for at = 1, 5 do
  found[4 + at] = meta[at]
end
for at = 1, 9 do
  found[at] = found[at] or ''
end
if #ARGV == 0 then
  local time = redis.call('TIME')
  return { string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), unpack(found) }
end
local counter = string.match(found[2], '^%d+$') and tonumber(found[2])
for at = 1, 9 do
  -- Counters of a lineage rise while others grant.
  local rose = (at == 2 or at == 9) and counter
    and (tonumber(found[at]) or -1) >= (tonumber(ARGV[at]) or 0)
  if at ~= 3 and found[at] ~= ARGV[at] and not rose then
    return {}
  end
end
-- First of all: where this is not written, no lease begins.
if ARGV[17] ~= '0' and redis.call('PTTL', KEYS[4]) < tonumber(ARGV[17]) then
  redis.call('SET', KEYS[4], ARGV[17], 'PX', ARGV[17])
end
if ARGV[18] ~= '' then
  redis.call('SET', KEYS[7], ARGV[18])
end
counter = counter or 0
if ARGV[16] ~= '0' then
  counter = math.max(counter + 1, tonumber(ARGV[16]))
end
local value = string.format('%.0f', counter)
if ARGV[14] ~= '' then
  redis.call('SET', KEYS[2], value)
  redis.call('SET', KEYS[1], ARGV[15])
  redis.call('HSET', KEYS[3], 'run_id', ARGV[10], 'replication_id', ARGV[11], 'format', ARGV[12],
    'reason', ARGV[14])
end
redis.call('HSET', KEYS[3], 'counter', value)
if ARGV[13] ~= '' then
  redis.call('HSET', KEYS[3], 'epoch', ARGV[13])
end
return { value, string.format('%.0f', math.max(redis.call('PTTL', KEYS[4]), 0)) }
