-- What every script of the lock store begins with.
--
-- KEYS[1]  the namespace's lineage id. Every other key is made from the prefix and shares its slot.
-- ARGV[1]  the lineage that the caller has verified
-- ARGV[2]  key prefix, "{fence:<namespace>}:"
-- ARGV[3]  the highest token that the caller has seen
-- ARGV[4]  the caller's server id
-- ARGV[5]  how long ended ids are remembered, ms
-- ARGV[6]  how long another server has to claim a grant for its waiter, ms
--
-- ARGV[7]  the lock, in the scripts that are about one
--
-- Keys:  token      the counter          held       zset lock -> when it must be looked at, ms
--        l:<lock>   the record: a line with the holder, or empty; a line "w" when somebody may wait;
--                   then a line an ended id, newest first
--        q:<lock>   zset lease -> place  w:<lock>   hash lease -> what the waiter asked for
--        seq        the last place given s:<server> there while that server hears its channel
--        S:<id>     a session, live or remembered as ended
--        b:<id>     set of what is bound to it: "h", lock of a lease, and "w", lock, lease of a waiter
--        sessions   zset session id -> when it must be looked at, ms; 0 where it has ended and not all
--                   that was bound to it has been cleared away
--
-- A record is one string, so that the counter, the lineage and the lock are read in one call and
-- the lock is written, with its expiry, in one: every call costs more than what it does.
--
-- A script that refuses has changed nothing. Numbers stay below 10^15, exact in a double.
local prefix, me = ARGV[2], ARGV[4]
local retention, claim_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local MAX_TOKEN = 999999999999999

local trusted = redis.call('MGET', KEYS[1], prefix .. 'token', prefix .. 'l:' .. (ARGV[7] or ''))
if trusted[1] ~= ARGV[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is ' .. (trusted[1] or 'missing'))
end
if not trusted[2] or tonumber(trusted[2]) < tonumber(ARGV[3]) then
  return redis.error_reply('LINEAGE the counter fell to ' .. (trusted[2] or 'nothing'))
end
local counter = tonumber(trusted[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local handed = {}

local sessions = {}

local function int(number)
  return string.format('%.0f', number)
end

-- The reply: the caller's own answer, then every grant that was handed to its waiters.
local function reply(answer)
  return { answer, unpack(handed) }
end

-- The record in `raw`, or an empty one. A holder is `handed`, to the server that it waited at, from
-- the hand-over until somebody shows that the grant arrived; `claim` is until when that must happen,
-- where another server's waiter has it. Only a handed grant may be taken back because its waiter is
-- gone, and only by that server: an older try of the same request may have waited at another.
local function load(lock, raw)
  local record = { lock = lock, ended = '' }
  if not raw then
    return record
  end
  local first, waiting, ended = string.match(raw, '^([^\n]*)\n([^\n]*)\n(.*)$')
  record.waiting, record.ended = waiting == 'w', ended
  if first ~= '' then
    local lease, token, ttl, granted, expires, renewals, claim, owner, incarnation, session, metadata =
      string.match(first, '^' .. string.rep('([^\t]*)\t', 10) .. '(.*)$')
    record.holder = {
      lease = lease, token = token, ttl = tonumber(ttl), granted = tonumber(granted),
      expires = tonumber(expires), renewals = tonumber(renewals),
      claim = tonumber(string.match(claim, '^%d+')), handed = string.match(claim, '^[h%d]+(.*)$'),
      owner = owner, incarnation = incarnation, session = session,
      metadata = metadata,
    }
  end
  return record
end

-- The session with this id, or false. Its `expires` is what its leases live by: no lease has a
-- moment of its own, so that a heartbeat writes this one record.
local function session_of(id)
  if sessions[id] == nil then
    local raw = redis.call('GET', prefix .. 'S:' .. id)
    local owner, ttl, created, expires, beats, blocked, ended, metadata, principal =
      string.match(raw or '', '^' .. string.rep('([^\t]*)\t', 7) .. '([^\t]*)\t?(.*)$')
    sessions[id] = owner and {
      id = id, owner = owner, ttl = tonumber(ttl), created = tonumber(created),
      expires = tonumber(expires), beats = tonumber(beats), blocked = blocked, ended = ended,
      metadata = metadata, principal = principal,
    } or false
  end
  return sessions[id]
end

-- Why a session does not live, as an answer; nil where it does.
local function no_session(id, session)
  if not session then
    return { 'SESSION', 'unknown', id }
  elseif session.ended ~= '' then
    return { 'SESSION', 'ended', id, session.ended }
  elseif session.expires <= now then
    return { 'SESSION', 'ended', id, session.blocked ~= '' and 'blocked' or 'expired' }
  end
end

-- Why a session takes no heartbeat and no lease, as an answer; nil where it does.
local function not_serving(id, session)
  local refusal = no_session(id, session)
  if not refusal and session.blocked ~= '' then
    refusal = { 'SESSION', 'blocked', id, session.blocked, int(session.expires - now) }
  end
  return refusal
end

local function bond(session, member)
  if session ~= '' then
    redis.call('SADD', prefix .. 'b:' .. session, member)
  end
end

local function unbond(session, member)
  if session and session ~= '' then
    redis.call('SREM', prefix .. 'b:' .. session, member)
  end
end

-- Writes the record; an idle one goes away by itself when its ended ids may be forgotten.
local function save(record)
  local holder, key = record.holder, prefix .. 'l:' .. record.lock
  local rest = (record.waiting and '\nw\n' or '\n\n') .. record.ended
  if holder then
    local packed = table.concat({
      holder.lease, holder.token, int(holder.ttl), int(holder.granted), int(holder.expires),
      int(holder.renewals),
      holder.handed and (holder.claim and int(holder.claim) or 'h') .. holder.handed or '',
      holder.owner, holder.incarnation, holder.session, holder.metadata,
    }, '\t')
    if holder.session ~= '' then
      -- It lives as long as its session, whose end clears it away.
      redis.call('SET', key, packed .. rest)
      redis.call('ZADD', prefix .. 'held', int(holder.claim or 9e14), record.lock)
    else
      redis.call('SET', key, packed .. rest, 'PX', int(holder.expires - now + retention + 60000))
      redis.call('ZADD', prefix .. 'held', int(holder.claim or holder.expires), record.lock)
    end
  else
    redis.call('SET', key, rest, 'PX', int(retention))
    redis.call('ZREM', prefix .. 'held', record.lock)
  end
end

local function remaining(holder)
  return int(math.max(holder.expires - now, 0))
end

local function granted(holder)
  return { 'GRANTED', holder.token, remaining(holder), holder.owner }
end

local function held(record)
  local holder = record.holder
  return {
    'HELD', holder.owner, holder.token, int(now - holder.granted), remaining(holder),
    int(redis.call('ZCARD', prefix .. 'q:' .. record.lock)),
  }
end

-- Remembers an ended id; the oldest of more than eight makes room.
local function remember(record, lease, token, reason, held_ms, owner, incarnation)
  local line =
    table.concat({ lease, token, reason, int(held_ms), int(now), owner, incarnation }, '\t')
  local lines, from = line .. '\n' .. record.ended, 1
  for _ = 1, 8 do
    local at = string.find(lines, '\n', from, true)
    if not at then
      record.ended = lines
      return
    end
    from = at + 1
  end
  record.ended = string.sub(lines, 1, from - 1)
end

-- How this id ended, or nil. Lines begin with the id, so an owner's text can never match.
local function ended_reason(record, lease)
  local lines = '\n' .. record.ended
  local _, last = string.find(lines, '\n' .. lease .. '\t', 1, true)
  if not last then
    return nil
  end
  return string.match(lines, '^[^\t]*\t([^\t]*)', last + 1)
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

-- A new holder; one that is bound to a session has that session's time.
local function holder_of(lease, token, ttl, owner, incarnation, session, metadata, lock)
  local holder = {
    lease = lease, token = token, ttl = ttl, granted = now, expires = now + ttl, renewals = 0,
    owner = owner, incarnation = incarnation, session = session, metadata = metadata,
  }
  if session ~= '' then
    local known = session_of(session)
    holder.ttl, holder.expires = known.ttl, known.expires
    bond(session, 'h\t' .. lock)
  end
  return holder
end

-- The record is free: its first waiter that somebody still listens for gets it, in this same step.
-- A waiter of another server must claim its grant, because that server may have died just now.
local function hand_over(record)
  while record.waiting and not record.holder do
    local lease = redis.call('ZPOPMIN', prefix .. 'q:' .. record.lock)[1]
    if not lease then
      record.waiting = false
      return
    end
    local waiters = prefix .. 'w:' .. record.lock
    local raw = redis.call('HGET', waiters, lease)
    redis.call('HDEL', waiters, lease)
    local server, ttl, minimum, since, owner, incarnation, session, metadata =
      string.match(raw or '', '^' .. string.rep('([^\t]*)\t', 7) .. '(.*)$')
    unbond(session, 'w\t' .. record.lock .. '\t' .. lease)
    if server and (session ~= '' and not_serving(session, session_of(session))
      or server ~= me and redis.call('EXISTS', prefix .. 's:' .. server) == 0) then
      -- Its session does not serve, or its server is dead or only stood still: where that hears this
      -- it asks what became of the request, which waits again then.
      redis.call('PUBLISH', prefix .. 'c:' .. server, record.lock .. '\t' .. lease)
    elseif server then
      local token = mint(tonumber(minimum))
      if not token then
        return
      end
      local holder =
        holder_of(lease, token, tonumber(ttl), owner, incarnation, session, metadata, record.lock)
      holder.claim, holder.handed = server ~= me and now + claim_ms or nil, ':' .. server
      record.holder = holder
      if server == me then
        handed[#handed + 1] = { record.lock, lease, token, int(holder.expires - now), owner }
      else
        redis.call('PUBLISH', prefix .. 'c:' .. server, record.lock .. '\t' .. lease)
      end
    end
  end
end

-- Ends the live lease; the record is not saved.
local function close(record, reason)
  local holder = record.holder
  remember(record, holder.lease, holder.token, reason, now - holder.granted, holder.owner,
    holder.incarnation)
  unbond(holder.session, 'h\t' .. record.lock)
  record.holder = nil
end

-- Ends the live lease and hands the lock on.
local function finish(record, reason)
  close(record, reason)
  hand_over(record)
  save(record)
end

-- Brings the record up to date: an expired lease, or a grant that nobody claimed, ends.
local function settle(record)
  local holder = record.holder
  if not holder then
    return
  end
  if holder.session ~= '' then
    local session = session_of(holder.session)
    if no_session(holder.session, session) then
      finish(record, 'session-ended')
      return
    end
    holder.expires = session.expires
  end
  if now >= (holder.claim or holder.expires) then
    finish(record, 'expired')
  end
end

-- The holder has shown itself: the grant has arrived, and a claimed one's time begins now.
local function confirm(record)
  local holder = record.holder
  if holder.handed then
    if holder.claim and holder.session == '' then
      holder.expires = now + holder.ttl
    end
    holder.claim, holder.handed = nil, false
    save(record)
  end
end

-- Whether this id waits, and at this server: a repeat at another server has moved it there.
local function waits_here(record, lease)
  local raw = redis.call('HGET', prefix .. 'w:' .. record.lock, lease)
  return raw and string.match(raw, '^[^\t]*') == me
end

-- Takes an id out of the queue without a word.
local function leave(record, lease)
  local raw = redis.call('HGET', prefix .. 'w:' .. record.lock, lease)
  local session = string.match(raw or '', '^' .. string.rep('[^\t]*\t', 6) .. '([^\t]*)')
  unbond(session, 'w\t' .. record.lock .. '\t' .. lease)
  redis.call('ZREM', prefix .. 'q:' .. record.lock, lease)
  redis.call('HDEL', prefix .. 'w:' .. record.lock, lease)
end

-- Takes an id out of the queue; tells its server, whose waiter will ask what became of it.
local function dequeue(record, lease)
  local waiters = prefix .. 'w:' .. record.lock
  local raw = redis.call('HGET', waiters, lease)
  if raw then
    leave(record, lease)
    redis.call('PUBLISH', prefix .. 'c:' .. string.match(raw, '^[^\t]*'), record.lock .. '\t' .. lease)
  end
end

-- Writes a session. An ended one is remembered for a while, and looked at until nothing is bound to
-- it any more.
local function save_session(session)
  local raw = table.concat({
    session.owner, int(session.ttl), int(session.created), int(session.expires),
    int(session.beats), session.blocked, session.ended, session.metadata, session.principal,
  }, '\t')
  local key, list = prefix .. 'S:' .. session.id, prefix .. 'sessions'
  if session.ended == '' then
    redis.call('SET', key, raw, 'PX', int(session.expires - now + retention + 60000))
    redis.call('ZADD', list, int(session.expires), session.id)
  else
    redis.call('SET', key, raw, 'PX', int(retention))
    redis.call('ZADD', list, 0, session.id)
  end
  sessions[session.id] = session
end

-- Clears away at most so many of what was bound to a session that does not live. Its leases are
-- over already, for everybody who looks; this hands their locks on. Gives what is left.
local function clear_session(id, most)
  for _, member in ipairs(redis.call('SPOP', prefix .. 'b:' .. id, most)) do
    local kind, lock, lease = string.match(member, '^(.)\t([^\t]*)\t?(.*)$')
    local record = load(lock, redis.call('GET', prefix .. 'l:' .. lock))
    if kind == 'w' then
      dequeue(record, lease)
    end
    settle(record)
  end
  local left = redis.call('SCARD', prefix .. 'b:' .. id)
  if left == 0 then
    redis.call('ZREM', prefix .. 'sessions', id)
  end
  return left
end
