-- Adopts the namespace's lineage, or begins a new one where INCRs may have been lost.
-- Run by EVAL on a connection that carries nothing else yet.
--
-- KEYS[1] lineage  KEYS[2] token  KEYS[3] meta  KEYS[4] never written: see common.lua
-- ARGV[1] run id and ARGV[2] replication id of this process, from INFO
-- ARGV[3] the highest token that the caller has seen  ARGV[4] where the caller's clock would begin
-- ARGV[5] the id of a new lineage  ARGV[6] the year 2025 in ms  ARGV[7] tokens a millisecond
-- ARGV[8] how far a client may lift the counter above the clock
-- ARGV[9] "fresh" where an operator vouches that the namespace has never issued a token; "look"
-- where nothing is to be changed yet
-- ARGV[10] the highest mark that a guard has reported, 0 for none
-- ARGV[11] the format in which this server stores locks  ARGV[12] key prefix
-- ARGV[13] for how long a lease may still live that the caller knows of, ms
-- ARGV[14] "wait" where grants wait for leases that may be lost; "" where they do not
-- ARGV[15] the lineage that the caller knew before, or empty
-- ARGV[16] the format before, which is stored alike by servers that keep no pause
-- ARGV[17] the configuration epoch in which sentinels chose this process; "" where none did
--
-- Post:  SAME id counter           this is the process that the lineage was written by
--        NEW id counter reason left  the counter is above every token that can have been issued, and
--                                  nobody is granted a lock for so long, ms
--        DUE reason                a new lineage is due; nothing was changed, as was asked for
--        STALE epoch               it was used in a later epoch already; nothing was changed
--        EXHAUSTED                 there is no token left above what may have been issued
--        FORMAT found              what is stored was written in another format; nothing was changed
--
-- In the meta hash, `lost` is what a script found missing (see common.lua), and `counter` what the
-- counter was at the last verification. In `held`, the entry '' is always there: an index without it
-- was lost.
local INDEX = 99999999999999
local stored = redis.call('MGET', KEYS[1], KEYS[2])
local lineage, token = stored[1], stored[2]
local meta =
  redis.pcall('HMGET', KEYS[3], 'run_id', 'replication_id', 'format', 'epoch', 'lost', 'counter')
if meta.err then
  return redis.error_reply('WRONGTYPE ' .. KEYS[3] .. ' is no hash: no lock server has written it')
end
if token and not string.match(token, '^%d+$') then
  token = false
end
local counter = tonumber(token or '0')
local held = ARGV[12] .. 'held'

if meta[1] and meta[3] ~= ARGV[11] and meta[3] ~= ARGV[16] then
  return { 'FORMAT', meta[3] or '1' }
end
-- A master that sentinels leave and choose again, before they made it a replica, is the same process
-- with the same history, and lacks what the one in between had.
local epoch, known_epoch = tonumber(ARGV[17]), tonumber(meta[4] or '')
local is_same = meta[1] == ARGV[1] and meta[2] == ARGV[2]
local reason
if is_same and epoch and known_epoch and epoch < known_epoch then
  return { 'STALE', meta[4] }
elseif meta[5] then
  reason = meta[5]
elseif not lineage or not token then
  reason = meta[1] and 'the lineage or the counter is gone' or 'nothing is stored: new, or emptied'
elseif meta[1] ~= ARGV[1] then
  reason = 'the Redis process changed'
elseif meta[2] ~= ARGV[2] then
  reason = 'the replication history changed'
elseif epoch and known_epoch and epoch > known_epoch then
  reason = 'the sentinels chose another Redis and this one again'
elseif meta[3] ~= ARGV[11] then
  -- Servers of that version are told by the new lineage, look again, and find another format.
  reason = 'it was used by a version of lock-server whose grants do not wait'
elseif counter < tonumber(meta[6] or '0') then
  reason = 'the counter fell from ' .. meta[6] .. ' to ' .. token
elseif counter < tonumber(ARGV[3]) then
  reason = 'the counter fell from ' .. ARGV[3] .. ' to ' .. token
elseif counter < tonumber(ARGV[10]) then
  reason = 'the counter ' .. token .. ' is below ' .. ARGV[10] .. ', which a guard has seen'
else
  if ARGV[14] == 'wait' and ARGV[15] ~= '' and ARGV[15] ~= lineage then
    -- Another server began this lineage, and may not have known of leases that this one knows of.
    local now = time_ms()
    local lives = in_use(ARGV[12], now, tonumber(ARGV[13]))
    pause(ARGV[12], now, tonumber(ARGV[13]), lives)
  end
  if ARGV[9] ~= 'look' then
    if epoch and not known_epoch then
      redis.call('HSET', KEYS[3], 'epoch', ARGV[17])
    end
    if not meta[6] then
      -- Written by a version without this entry.
      redis.call('ZADD', held, INDEX, '')
    end
    redis.call('HSET', KEYS[3], 'counter', token)
  end
  return { 'SAME', lineage, token }
end

if ARGV[9] == 'look' then
  return { 'DUE', reason }
end
local fresh = ARGV[9] == 'fresh' and not lineage and not token
if not fresh then
  local floor = (time_ms() - tonumber(ARGV[6])) * tonumber(ARGV[7]) + tonumber(ARGV[8])
  counter = math.max(counter + 1, floor, tonumber(ARGV[4]), tonumber(ARGV[3]) + 1,
    tonumber(ARGV[10]))
end
if counter >= 999999999999999 then
  return { 'EXHAUSTED' }
end
local left = 0
if ARGV[14] == 'wait' then
  local now = time_ms()
  local lives = in_use(ARGV[12], now, tonumber(ARGV[13]))
  left = pause(ARGV[12], now, lives, lives)
end
local value = int(counter)
redis.call('SET', KEYS[2], value)
redis.call('HSET', KEYS[3], 'run_id', ARGV[1], 'replication_id', ARGV[2], 'reason', reason,
  'format', ARGV[11], 'counter', value)
redis.call('HDEL', KEYS[3], 'lost')
if type(redis.pcall('ZADD', held, INDEX, '')) ~= 'number' then
  redis.call('DEL', held)
  redis.call('ZADD', held, INDEX, '')
end
if meta[5] then
  -- What was lost together ends one lineage and not one each: the pause that begins covers all of it.
  local since = int(time_ms() - 60000)
  for list, record in pairs({ held = 'l:', sessions = 'S:' }) do
    local index = ARGV[12] .. list
    local listed = redis.pcall('ZRANGEBYSCORE', index, '(' .. since, '+inf')
    for _, name in ipairs(listed.err and {} or listed) do
      if name ~= '' and not redis.call('MGET', ARGV[12] .. record .. name)[1] then
        -- A session that has ended is listed at 0 until what was bound to it is cleared away.
        redis.call(unpack(list == 'held' and { 'ZREM', index, name } or { 'ZADD', index, 0, name }))
      end
    end
  end
end
if epoch then
  redis.call('HSET', KEYS[3], 'epoch', ARGV[17])
end
redis.call('SET', KEYS[1], ARGV[5])
return { 'NEW', ARGV[5], value, reason, int(left) }
