
-- Operations that their sender named: what became of the first is remembered in the step that did
-- it, and a repeat is told so and does nothing.
-- KEYS[6]  hash: "=name" -> "digest outcome", the last ones of one lock; "#" -> how many there ever
--          were; "#n" -> the name that has place n
-- The last three of ARGV: how many names are kept, the name (empty: none), the digest of what the
-- operation asks for, in hexadecimal

local KEPT, NAME, DIGEST = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
-- A lock that nobody names operations of for this long, in seconds, forgets them.
local NAMES_EXPIRE = 86400

local function remember(outcome)
  if NAME == '' then return end
  local place = '#' .. (redis.call('HINCRBY', KEYS[6], '#', 1) % tonumber(KEPT))
  local oldest = redis.call('HGET', KEYS[6], place)
  if oldest then redis.call('HDEL', KEYS[6], '=' .. oldest) end
  redis.call('HSET', KEYS[6], place, NAME, '=' .. NAME, DIGEST .. ' ' .. outcome)
  redis.call('EXPIRE', KEYS[6], NAMES_EXPIRE)
end

-- The check of an operation that may be a repeat.
-- After: as check() says; when it lets pass, the caller does the effect and then remembers it.
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

