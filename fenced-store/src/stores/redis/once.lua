
-- Operations that their sender named: the first outcome is stored in the same step, and a retry
-- returns it without effect.
-- KEYS[6]  hash: "=name" -> "digest outcome", the last ones of one lock; "#" -> their number so
--          far; "#n" -> the name with number n
-- The last three of ARGV: maximum number of names, the name (empty: none), the hexadecimal digest
-- of the operation's content

local KEPT, NAME, DIGEST = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
-- A lock without named operations for this time, in seconds, drops its names.
local NAMES_EXPIRE = 86400

local function remember(outcome)
  if NAME == '' then return end
  local place = '#' .. (redis.call('HINCRBY', KEYS[6], '#', 1) % tonumber(KEPT))
  local oldest = redis.call('HGET', KEYS[6], place)
  if oldest then redis.call('HDEL', KEYS[6], '=' .. oldest) end
  redis.call('HSET', KEYS[6], place, NAME, '=' .. NAME, DIGEST .. ' ' .. outcome)
  redis.call('EXPIRE', KEYS[6], NAMES_EXPIRE)
end

-- Checks an operation that may be a retry.
-- After: as check() says; unless it refuses, the caller applies the effect and then stores the
-- outcome.
local function check_once(etag)
  local record = NAME ~= '' and redis.call('HGET', KEYS[6], '=' .. NAME)
  if not record then
    local refusal = check(etag)
    if refusal and refusal[1] == 'precondition-failed' then remember('failed ' .. refusal[2]) end
    return refusal
  end
  local digest, first = string.match(record, '^(%x+) (.*)$')
  if not digest then
    return redis.error_reply('FENCE what is kept of operation ' .. NAME .. ' cannot be read')
  end
  local refusal = check(etag)
  local is_same = digest == DIGEST
  if not refusal or refusal[1] == 'precondition-failed' then
    return is_same and {'repeated', first} or {'name-taken'}
  end
  if refusal[1] == 'stale' and is_same then
    return {'stale-repeat', refusal[2], refusal[3], first}
  end
  return refusal
end

