-- A client's command under its fences, as one step of the node that owns the slot.
--
-- KEYS     a mark for each fence, where there is one the set of all marks of the slot, then the
--          command's keys; all in one slot
-- ARGV[1]  the version of RESP whose reply types are wanted, 2 or 3
-- ARGV[2]  how many fences; token and lease of each follow, then the whole command
--
-- Before: tokens are 1 to 999999999999999 in decimal without leading zeros (exact in a Lua number).
-- After: either nothing was written and an error FENCEPOST is returned, or every mark is what was
-- presented, the command was run, and its own reply, or error, is returned.
-- A mark that the set has and that is not there was deleted: it is never taken for "never written".
-- The marks are raised first: a Redis that takes no writes (no memory, no disk, a replica) fails
-- there. What a command does that fails by itself is nothing, and then the marks stay raised, which
-- is harmless: the holder of the token was here before.

local fences = tonumber(ARGV[2])
local marks = KEYS[fences + 1]
local raised = {}

for i = 1, fences do
  local token, lease = ARGV[2 * i + 1], ARGV[2 * i + 2]
  local mark = redis.pcall('GET', KEYS[i])
  local held, owner
  if type(mark) == 'table' then return redis.error_reply('FENCEPOST unreadable ' .. i) end
  if not mark and redis.call('SISMEMBER', marks, KEYS[i]) == 1 then
    return redis.error_reply('FENCEPOST lost ' .. i)
  end
  if mark then
    held, owner = string.match(mark, '^(%d+) (%S+)$')
    if not held then return redis.error_reply('FENCEPOST unreadable ' .. i) end
  end
  if not mark or tonumber(token) > tonumber(held) then
    raised[#raised + 1] = i
  elseif tonumber(token) < tonumber(held) then
    return redis.error_reply('FENCEPOST stale ' .. i .. ' ' .. held .. ' ' .. owner)
  elseif lease ~= owner then
    return redis.error_reply('FENCEPOST collision ' .. i .. ' ' .. held .. ' ' .. owner)
  end
end

for _, i in ipairs(raised) do
  local reply = redis.pcall('SET', KEYS[i], ARGV[2 * i + 1] .. ' ' .. ARGV[2 * i + 2])
  if reply.err then return reply end
  redis.call('SADD', marks, KEYS[i])
end

if ARGV[1] == '3' then redis.setresp(3) end
local first = 2 * fences + 3
local reply = redis.pcall(unpack(ARGV, first))

-- A Lua number is exact up to 2^53; counters are read again as text where they are beyond it.
if type(reply) == 'number' and (reply >= 9007199254740992 or reply <= -9007199254740992) then
  local name = string.lower(ARGV[first])
  if name == 'hincrby' then return redis.call('HGET', ARGV[first + 1], ARGV[first + 2]) end
  if name == 'incr' or name == 'decr' or name == 'incrby' or name == 'decrby' then
    return redis.call('GET', ARGV[first + 1])
  end
end
return reply
