-- Common beginning of the guard's scripts: the check of a token against its lock's mark. Redis runs
-- a script as one step: no other command runs in between, and its writes are persisted and
-- replicated together.
--
-- KEYS[1]  hash: lock -> "token lease flag", the marks; "#" -> the id of their state
-- KEYS[2]  sorted set of the locks in KEYS[1], to list them and to miss none
-- KEYS[3]  hash: "run id:client id" -> "token lease", the port's connections registered for the lock
-- KEYS[4]  hash: id, phase, process, floor, floor_lease, highest, stamped; the guard's own state in
--          this Redis. With "stamped", the marks have their "#".
-- ARGV[1]  lock   ARGV[2]  token   ARGV[3]  lease        all empty: no fence
-- ARGV[4]  the id of the state that the caller verified
--
-- Flags of a mark: none, no connection is registered; "c", connections with this token are, and
-- none with a lower one; "s", the mark was raised over registered connections that may still act:
-- nothing is admitted until settle.lua has recorded their end.
--
-- Marks, locks and registrations that another program changed (deleted, or of another type) are
-- never taken for "never written": the state is then unverified, and state.lua decides.
--
-- Before: token is 1 to 999999999999999 in decimal without leading zeros (exact in a Lua number).
-- All that can fail is read before the first write; and the first write is the mark, so that a
-- Redis that refuses writes (no memory, no disk, a replica) fails here and not half way.

local function parse(mark)
  return string.match(mark, '^(%d+) (%S+) ?(%a?)$')
end

local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- Returns the connections of this process registered below `token`, and the number of others.
-- Client ids start again in every process, so those of an earlier process are removed: they ended
-- with it.
local function registered_below(token)
  local run, lower, others = run_id(), {}, 0
  local entries = redis.call('HGETALL', KEYS[3])
  for i = 1, #entries, 2 do
    local held = string.match(entries[i + 1], '^%d+')
    if string.match(entries[i], '^%x+') ~= run then
      redis.call('HDEL', KEYS[3], entries[i])
    elseif tonumber(held) < tonumber(token) then
      lower[#lower + 1] = entries[i]
    else
      others = others + 1
    end
  end
  return lower, others
end

-- Returns true if KEYS[3] has registrations, as a flag says that it must.
local function has_registrations()
  local count = redis.pcall('HLEN', KEYS[3])
  return type(count) == 'number' and count > 0
end

-- Returns the mark of a lock, or false; and true if neither it nor other marks were changed.
local function mark_of(lock, id)
  local marks = redis.pcall('HMGET', KEYS[1], '#', lock)
  if marks.err or marks[1] ~= id then return false, false end
  local listed = redis.pcall('ZSCORE', KEYS[2], lock)
  return marks[2], type(listed) ~= 'table' and (listed == false) == (marks[2] == false)
end

local function write_mark(lock, token, lease, flag)
  local text = token .. ' ' .. lease
  if flag ~= '' then text = text .. ' ' .. flag end
  redis.call('HSET', KEYS[1], lock, text)
end

-- Connections may act whose ids are lost: the state is "opening" until every connection of the port
-- was ended. That settles the lock, so its mark loses its flag.
local function lose_registrations(lock, token, lease)
  redis.call('HSET', KEYS[4], 'phase', 'opening')
  redis.call('DEL', KEYS[3])
  write_mark(lock, token, lease, '')
end

-- Compares the token with the mark and raises it. `field`, if given, is the caller's own
-- connection, to be registered.
-- After: nil is returned, the mark is the presented token, and nothing below it can act any more;
-- or {'sealing'}, the mark is the presented token and lower connections have to be ended first; or
-- a refusal, and nothing was written.
local function enter(field)
  local lock, token, lease = ARGV[1], ARGV[2], ARGV[3]
  local state =
    redis.pcall('HMGET', KEYS[4], 'id', 'phase', 'floor', 'floor_lease', 'highest', 'process')
  if state.err or state[1] ~= ARGV[4] or state[2] ~= 'open' then return {'unverified'} end
  -- Opened by another process: this one may have connections without a registration.
  if field and state[6] and state[6] ~= run_id() then return {'unverified'} end
  local mark, is_whole = mark_of(lock, ARGV[4])
  if not is_whole then return {'unverified'} end
  local held, owner, flag
  local raise = true
  if mark then
    held, owner, flag = parse(mark)
    if not held then
      return redis.error_reply('FENCE the mark of lock ' .. lock .. ' cannot be read')
    end
    if tonumber(token) < tonumber(held) then return {'stale', held, owner} end
    if tonumber(token) == tonumber(held) then
      if lease ~= owner then return {'collision', held, owner} end
      raise = false
    end
  end
  if tonumber(token) < tonumber(state[3] or '0') then return {'stale', state[3], state[4]} end
  flag = flag or ''
  local lower, others = {}, 0
  if flag ~= '' and not has_registrations() then
    lose_registrations(lock, held, owner)
    return {'unverified'}
  end
  if flag == 's' or (raise and flag ~= '') then
    lower, others = registered_below(token)
  elseif flag == 'c' then
    others = 1
  end
  local now = (#lower > 0 and 's') or ((others > 0 or field) and 'c') or ''
  if raise or now ~= flag then write_mark(lock, token, lease, now) end
  if not mark then redis.call('ZADD', KEYS[2], 0, lock) end
  if raise and tonumber(token) > tonumber(state[5] or '0') then
    redis.call('HSET', KEYS[4], 'highest', token)
  end
  if field then redis.call('HSET', KEYS[3], field, token .. ' ' .. lease) end
  if #lower > 0 then return {'sealing'} end
  return nil
end
