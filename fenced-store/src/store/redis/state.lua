-- Adopts the guard's state in this Redis, or begins one. Run by EVAL before a connection is used.
--
-- KEYS[1]  hash: the state, as in fence.lua
-- KEYS[2]  the lock server's counter, where it is kept here   KEYS[3]  hash: what it knows of Redis
-- ARGV[1]  the id that the caller knew, empty when it has just started
-- ARGV[2]  the id of a new state   ARGV[3]  the lease of a floor
-- ARGV[4]  what becomes of lost marks: "refuse" or "accept"
-- ARGV[5]  the floor that an operator states: the first token to be admitted; empty for none
-- ARGV[6]  the run id of this process
--
-- A state that the caller knew and that is gone means that Redis was emptied: all marks are lost,
-- and so are the registrations of connections that may still act. The new one is "opening" until
-- somebody has ended every connection of the port; only then can a token be admitted.
-- A floor makes lost marks harmless: it is above every token that can have been issued before. The
-- lock server's counter is, once that server has verified this very process: it lifts the counter
-- where it may have lost something.
--
-- Returns {id, phase, floor} or {'LOST'}: nothing was written, and an operator must state a floor.
local state = redis.call('HMGET', KEYS[1], 'id', 'phase', 'floor', 'process')
if ARGV[5] ~= '' and state[1] then
  if tonumber(ARGV[5]) > tonumber(state[3] or '0') then
    redis.call('HSET', KEYS[1], 'phase', 'opening', 'floor', ARGV[5], 'floor_lease', ARGV[3])
    return {state[1], 'opening', ARGV[5]}
  end
end
if state[1] and state[2] == 'open' and state[4] ~= ARGV[6] then
  -- It was opened by another process. Where this one was a master before, it may still have
  -- connections whose registrations were forgotten meanwhile.
  redis.call('HSET', KEYS[1], 'phase', 'opening')
  return {state[1], 'opening', state[3] or '0'}
end
if state[1] then return {state[1], state[2], state[3] or '0'} end
local floor = ARGV[5]
if floor == '' then
  local counter = redis.call('GET', KEYS[2])
  if ARGV[1] == '' or ARGV[4] == 'accept' then
    floor = '0'
  elseif counter and redis.call('HGET', KEYS[3], 'run_id') == ARGV[6] then
    floor = string.format('%.0f', tonumber(counter) + 1)
  else
    return {'LOST'}
  end
end
redis.call('HSET', KEYS[1], 'id', ARGV[2], 'phase', 'opening', 'floor', floor, 'floor_lease', ARGV[3], 'highest', '0')
return {ARGV[2], 'opening', floor}
