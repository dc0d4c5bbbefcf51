-- What every script of the lock store begins with; bonds.lua, record.lua and queue.lua go on here.
--
-- KEYS[1]  the namespace's lineage id. Every other key is made from the prefix and shares its slot.
-- KEYS[2]  is never written. A cluster does not run a script one of whose keys is missing while the
--          slot is on its way to another node, where a key that is not named could be gone already.
-- ARGV[1]  the lineage that the caller has verified
-- ARGV[2]  key prefix, "{fence:<namespace>}:"
-- ARGV[3]  the highest token that the caller has seen
-- ARGV[4]  the caller's server id
-- ARGV[5]  how long ended ids are remembered, ms
-- ARGV[6]  how long another server has to claim a grant for its waiter, ms
-- ARGV[7]  most shared leases a lock
--
-- ARGV[8]  the lock, in the scripts that are about one
-- ARGV     last, and taken off here: the latest time that Redis can show by the caller's own clock,
--          ms since 1970
--
-- Keys:  token      the counter          held       zset lock -> when it must be looked at, ms
--        l:<lock>   the record, see record.lua
--        q:<lock>   zset lease -> place  w:<lock>   hash lease -> what the waiter asked for
--        seq        the last place given s:<server> there while that server hears its channel
--        S:<id>     a session, live or remembered as ended
--        b:<id>     set of what is bound to it: "h" or "w" for a lease or a waiter, lock, lease
--        sessions   zset session id -> when it must be looked at, ms; 0 where it has ended and not all
--                   that was bound to it has been cleared away
--        pause      until when nobody is granted a lock: see pause.lua
--
-- Redis may lose a key that no script has deleted: an operator, an eviction, another program. So what
-- lives is stored twice, and each script compares: a record has an entry in `held`, a session one in
-- `sessions`, `held` always has the entry '' (see lineage.lua), and no token is above the counter. What
-- is missing, or is of another type, was not "never written": see not_as_left.
--
-- A script that refuses has changed nothing. Numbers stay below 10^15, exact in a double.
local prefix, me = ARGV[2], ARGV[4]
local retention, claim_ms, shared_max = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local MAX_TOKEN = 999999999999999
local latest = tonumber(table.remove(ARGV))

local trusted = redis.call('MGET', KEYS[1], prefix .. 'token', prefix .. 'l:' .. (ARGV[8] or ''),
  prefix .. 'pause')
if trusted[1] ~= ARGV[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is ' .. (trusted[1] or 'missing'))
end
if not trusted[2] or not string.match(trusted[2], '^%d+$')
  or tonumber(trusted[2]) < tonumber(ARGV[3]) then
  return redis.error_reply('LINEAGE the counter fell to ' .. (trusted[2] or 'nothing'))
end
local counter = tonumber(trusted[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function int(number)
  return string.format('%.0f', number)
end

-- Under a clock that jumped, leases look as if they were over that are not.
if now > latest then
  return redis.error_reply('CLOCK the clock of Redis is ' .. int(now - latest)
    .. ' ms ahead of what this server takes for possible')
end

-- Ends the lineage and the script: what is stored is not what scripts have stored. The next one begins
-- as after any loss, so that no lock is granted while its lost holder may still rely on it.
local function not_as_left(what)
  redis.call('HSET', prefix .. 'meta', 'lost', what)
  redis.call('DEL', KEYS[1])
  error(redis.error_reply('LINEAGE ' .. what))
end

-- Until when nobody is granted a lock, and since when what lived then has its whole time.
local paused_until, whole_since = 0, 0
if trusted[4] then
  local till, since = string.match(trusted[4], '^(%d+) (%d+) ')
  paused_until, whole_since = tonumber(till) or 0, tonumber(since) or 0
end
local function is_paused()
  return now < paused_until
end

local function paused_ms()
  return math.max(paused_until - now, 0)
end

-- The next token: above the counter and above the wished minimum.
local function mint(minimum)
  if math.max(counter, minimum) >= MAX_TOKEN then
    return nil
  end
  if minimum > counter then
    redis.call('SET', prefix .. 'token', int(minimum))
  end
  counter = redis.call('INCR', prefix .. 'token')
  return int(counter)
end

-- Whether the counter has a token for each of these requests; where not, for which one first.
local function tokens_last(requests)
  local last = counter
  for at, request in ipairs(requests) do
    last = math.max(last, request.minimum) + 1
    if last > MAX_TOKEN then
      return false, at
    end
  end
  return true
end
