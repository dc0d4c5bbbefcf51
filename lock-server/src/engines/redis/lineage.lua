-- Adopts the namespace's lineage, or begins a new one where INCRs may have been lost.
-- Run by EVAL on a connection that carries nothing else yet.
--
-- KEYS[1] lineage  [2] token  [3] meta  [4] paused-for  [5] lives-until  [6] absent  [7] clock-ahead
-- ARGV[1] run id and [2] replication id of this process, from INFO
--     [3] the highest counter that the caller saw, [4] the highest mark that a guard has reported
--     [5] where the caller's clock would begin  [6] the year 2025 in ms  [7] tokens a millisecond
--     [8] how far a client may lift the counter above the clock
--     [9] the id of a new lineage  [10] the lineage that the caller knew before, or empty
--     [11] the format in which this server keeps records
--     [12] the configuration epoch in which sentinels chose this process; '' where none did
--     [13] for how long a lease may still live that the caller knows of, ms
--     [14] 'wait' where grants wait for leases that may be lost
--     [15] 'fresh' where an operator vouches that the namespace has never issued a token; 'look' where
--          nothing is to be changed yet
--     [16] the time as the caller knows it, ms; 0 where it does not  [17] by how much it may be wrong
--
-- Post: SAME id                         this is the process that the lineage was written by
--       NEW id counter reason left      the counter is above every token that can have been issued, and
--                                       no lease begins for so long, ms
--       DUE reason                      a new lineage is due; nothing was changed
--       USED id                         an operator vouched for a namespace that is in use; nothing was
--                                       changed
--       STALE epoch | FORMAT found | EXHAUSTED      nothing was changed
local lineage, token, until_ms, ahead =
  unpack(redis.call('MGET', KEYS[1], KEYS[2], KEYS[5], KEYS[7]))
local meta = redis.pcall('HMGET', KEYS[3], 'run_id', 'replication_id', 'format', 'epoch', 'counter')
if meta.err then
  return redis.error_reply('FOREIGN ' .. KEYS[3] .. ' is no hash: no lock server has written it')
elseif meta[1] and meta[3] ~= ARGV[11] then
  return { 'FORMAT', meta[3] or '1' }
end
if ARGV[15] == 'fresh' and (lineage or token or until_ms or meta[1]) then
  -- Of a namespace that was in use leases may be left, whatever else is known of it.
  return { 'USED', lineage or 'missing' }
end
local counter = token and string.match(token, '^%d+$') and tonumber(token)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The time of the records; the caller's, where the clock of this process shows another one.
local expected, at = tonumber(ARGV[16]), now - (tonumber(ahead or '') or 0)
local is_other = expected > 0 and math.abs(at - expected) > tonumber(ARGV[17])
local lives = (tonumber(until_ms or '') or 0) - (is_other and expected or at)
lives = math.max(lives, tonumber(ARGV[13]))
local epoch, known_epoch = tonumber(ARGV[12]), tonumber(meta[4] or '')
local reason
if meta[1] == ARGV[1] and meta[2] == ARGV[2] and epoch and known_epoch and epoch < known_epoch then
  return { 'STALE', meta[4] }
elseif not lineage or not counter then
  reason = meta[1] and 'the lineage or the counter is gone' or 'nothing is stored: new, or emptied'
elseif meta[1] ~= ARGV[1] then
  reason = 'the Redis process changed'
elseif meta[2] ~= ARGV[2] then
  reason = 'the replication history changed'
elseif epoch and known_epoch and epoch > known_epoch then
  -- It lacks what the one in between had.
  reason = 'the sentinels chose another Redis and this one again'
elseif counter < math.max(tonumber(meta[5] or '0'), tonumber(ARGV[3])) then
  reason = 'the counter fell to ' .. token
elseif counter < tonumber(ARGV[4]) then
  reason = 'the counter ' .. token .. ' is below ' .. ARGV[4] .. ', which a guard has seen'
end
if reason and ARGV[15] == 'look' then
  return { 'DUE', reason }
end
-- Who began this lineage may not have known of leases that the caller knows of.
local waits = ARGV[14] == 'wait' and lives > 0
  and (reason or ARGV[10] ~= '' and ARGV[10] ~= lineage)
if reason and ARGV[15] ~= 'fresh' then
  local floor = (now - tonumber(ARGV[6])) * tonumber(ARGV[7]) + tonumber(ARGV[8])
  counter = math.max((counter or 0) + 1, floor, tonumber(ARGV[3]) + 1, tonumber(ARGV[4]),
    tonumber(ARGV[5]))
end
if (counter or 0) >= 999999999999999 then
  return { 'EXHAUSTED' }
end
-- First of all: where this is not written, no lease begins.
if waits and redis.call('PTTL', KEYS[4]) < lives then
  redis.call('SET', KEYS[4], string.format('%.0f', lives), 'PX', string.format('%.0f', lives))
end
local value = string.format('%.0f', counter or 0)
if reason then
  -- The time of the records continues, whatever the clock of this process shows.
  if is_other then
    redis.call('SET', KEYS[7], string.format('%.0f', now - expected))
  end
  redis.call('SET', KEYS[2], value)
  redis.call('SET', KEYS[1], ARGV[9])
  redis.call('HSET', KEYS[3], 'run_id', ARGV[1], 'replication_id', ARGV[2], 'format', ARGV[11],
    'reason', reason)
end
if ARGV[15] ~= 'look' then
  redis.call('HSET', KEYS[3], 'counter', value)
end
if epoch and ARGV[15] ~= 'look' then
  redis.call('HSET', KEYS[3], 'epoch', ARGV[12])
end
if not reason then
  return { 'SAME', lineage }
end
return { 'NEW', ARGV[9], value, reason,
  string.format('%.0f', math.max(redis.call('PTTL', KEYS[4]), 0)) }
