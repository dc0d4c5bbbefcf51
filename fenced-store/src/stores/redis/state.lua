-- Adopts the guard's state in this Redis, or begins one. Run by EVAL before a connection is used.
--
-- KEYS[1]  hash: the state, as in fence.lua
-- KEYS[2]  the lock server's counter, if it is here   KEYS[3]  hash: its record of Redis
-- KEYS[4]  hash: the marks   KEYS[5]  sorted set: their locks
-- ARGV[1]  the id that the caller knew, empty after its start
-- ARGV[2]  the id of a new state   ARGV[3]  the lease of a floor
-- ARGV[4]  treatment of lost marks: "refuse" or "accept"
-- ARGV[5]  the operator's floor, the first token to admit; empty for none
-- ARGV[6]  the run id of this process
--
-- If a state that the caller knew is gone, Redis was emptied: all marks are lost, and so are the
-- registrations of connections that may still act. Changed marks mean the same: their stamp "#" is
-- gone, there are more or fewer of them than locks, or their key is no hash. The new state is
-- "opening" until every connection of the port was ended; only then can a token be admitted.
-- A floor makes lost marks harmless: it is above every token that can have been issued before. So
-- is the lock server's counter, once that server has verified this very process: it lifts a counter
-- that may have lost increments.
--
-- Returns {id, phase, floor}, or {'LOST', highest}: nothing was written, and an operator must set a
-- floor above the highest token that the state knows.
local state = redis.pcall('HMGET', KEYS[1], 'id', 'phase', 'floor', 'process', 'stamped', 'highest')
local is_readable = not state.err
if not is_readable then state = {} end

local function size(command, key)
  local count = redis.pcall(command, key)
  return type(count) == 'number' and count or nil
end

local marks, locks = size('HLEN', KEYS[4]), size('ZCARD', KEYS[5])
local stamp = marks and redis.call('HGET', KEYS[4], '#') or nil
if stamp then marks = marks - 1 end
local is_whole = is_readable and marks ~= nil and marks == locks
if state[1] then
  -- A state of version 0.1 has no stamp yet.
  is_whole = is_whole and (stamp == state[1] or (not state[5] and not stamp))
else
  is_whole = is_whole and not stamp
end

-- Lists exactly the locks of the existing marks.
local function list_locks()
  redis.call('DEL', KEYS[5])
  for _, lock in ipairs(redis.call('HKEYS', KEYS[4])) do
    if lock ~= '#' then redis.call('ZADD', KEYS[5], 0, lock) end
  end
end

if is_whole and state[1] then
  if not state[5] then
    redis.call('HSET', KEYS[4], '#', state[1])
    redis.call('HSET', KEYS[1], 'stamped', '1')
  end
  if ARGV[5] ~= '' and tonumber(ARGV[5]) > tonumber(state[3] or '0') then
    redis.call('HSET', KEYS[1], 'phase', 'opening', 'floor', ARGV[5], 'floor_lease', ARGV[3])
    -- The numbers may agree while a lock without a mark is listed: its operations are refused.
    if tonumber(ARGV[5]) > tonumber(state[6] or '0') then list_locks() end
    return {state[1], 'opening', ARGV[5]}
  end
  if state[2] == 'open' and state[4] ~= ARGV[6] then
    -- Opened by another process. If this one was a master before, it may still have connections
    -- whose registrations were removed meanwhile.
    redis.call('HSET', KEYS[1], 'phase', 'opening')
    return {state[1], 'opening', state[3] or '0'}
  end
  return {state[1], state[2], state[3] or '0'}
end

local known, highest = state[3] or '0', state[6] or '0'
-- A floor that is too low counts for nothing; the counter may do.
local floor = tonumber(ARGV[5] ~= '' and ARGV[5] or '0') > tonumber(highest) and ARGV[5] or ''
if floor == '' then
  local counter = redis.call('GET', KEYS[2])
  if ARGV[4] == 'accept' or (is_whole and ARGV[1] == '') then
    floor, highest = known, '0'
  elseif counter and redis.call('HGET', KEYS[3], 'run_id') == ARGV[6] then
    floor = string.format('%.0f', tonumber(counter) + 1)
  else
    return {'LOST', highest}
  end
end
-- Lost marks were no higher than the highest admitted token.
if tonumber(highest) > 0 and tonumber(floor) <= tonumber(highest) then return {'LOST', highest} end
if tonumber(known) > tonumber(floor) then floor = known end
if not is_readable then redis.call('DEL', KEYS[1]) end
if not marks then redis.call('DEL', KEYS[4]) end
if not locks or marks ~= locks then list_locks() end
redis.call('HSET', KEYS[4], '#', ARGV[2])
redis.call(
  'HSET', KEYS[1], 'id', ARGV[2], 'phase', 'opening', 'floor', floor, 'floor_lease', ARGV[3],
  'highest', state[6] or '0', 'stamped', '1')
return {ARGV[2], 'opening', floor}
