-- What every fenced script begins with. Redis runs a script as one step: nobody sees or does
-- anything between its commands, and what it wrote is persisted and replicated together.
--
-- KEYS[1]  hash: lock -> "token lease", the marks
-- KEYS[2]  sorted set of the locks in KEYS[1], for listing them
-- KEYS[3]  hash of one object: etag, type, body (not for a seal)
-- ARGV[1]  lock   ARGV[2]  token   ARGV[3]  lease        all empty: no fence is asked
-- ARGV[4]  condition: none, exists, absent, any-of, none-of
-- ARGV[5]  number of tags in the condition; they follow from ARGV[6] on
--
-- Before: token is 1 to 999999999999999 in decimal without leading zeros (exact in a Lua number).
-- After check(): either nothing was written and a reply that refuses is returned, or the mark is
-- what was presented (when a fence is asked) and nil is returned.
-- Whatever can fail is read before the first write; and the first write is the mark, so that a
-- Redis that takes no writes (no memory, no disk, a replica) fails here and not half way.

local function parse(mark)
  local token, lease = string.match(mark, '^(%d+) (%S+)$')
  return token, lease
end

local function condition_holds(etag)
  local kind, count = ARGV[4], tonumber(ARGV[5])
  if kind == 'exists' then return etag ~= false end
  if kind == 'absent' then return etag == false end
  local listed = false
  for i = 6, 5 + count do
    if etag == ARGV[i] then listed = true end
  end
  if kind == 'any-of' then return listed end
  if kind == 'none-of' then return not listed end
  return true
end

local function check(etag)
  local lock, token, lease = ARGV[1], ARGV[2], ARGV[3]
  if token ~= '' then
    local mark = redis.call('HGET', KEYS[1], lock)
    local raise = true
    if mark then
      local held, owner = parse(mark)
      if not held then
        return redis.error_reply('FENCE the mark of lock ' .. lock .. ' cannot be read')
      end
      if tonumber(token) < tonumber(held) then return {'stale', held, owner} end
      if tonumber(token) == tonumber(held) then
        if lease ~= owner then return {'collision', held, owner} end
        raise = false
      end
    end
    if raise then
      redis.call('HSET', KEYS[1], lock, token .. ' ' .. lease)
      if not mark then redis.call('ZADD', KEYS[2], 0, lock) end
    end
  end
  if not condition_holds(etag) then return {'precondition-failed', etag or ''} end
  return nil
end

