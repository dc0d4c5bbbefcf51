-- Begins, renews, ends, blocks, shows and clears away a session.
--
-- ARGV[7] session  [8] verb  [9] owner, reason of a block, or how many to clear away
-- ARGV[10] ttl, ms  [11] metadata, a JSON text or empty  [12] most sessions
-- ARGV[13] whose it is by the access file, or empty
--
-- Post:  LIVE id owner ttl expires_in age heartbeats blocked bonds metadata principal lock lease ...
--                             it lives; the leases where it was shown
--        GONE bonds left      it has ended with so many bonds, of which so many are to be cleared away
--        SESSION why id ...   it does not live, or does not allow it; nothing changed
local id, verb = ARGV[7], ARGV[8]
local bonds = prefix .. 'b:' .. id
local session = session_of(id)

local function live()
  return {
    'LIVE', id, session.owner, int(session.ttl), int(session.expires - now),
    int(now - session.created), int(session.beats), session.blocked,
    int(redis.call('SCARD', bonds)), session.metadata, session.principal,
  }
end

if verb == 'create' and not session then
  local due = redis.call('ZSCORE', prefix .. 'sessions', id)
  if due then
    -- It was forgotten before all that was bound to it was cleared away. That must not live again.
    return reply({ 'SESSION', 'ended', id, due == '0' and 'ended' or 'expired' })
  end
  if redis.call('ZCARD', prefix .. 'sessions') >= tonumber(ARGV[12]) then
    return reply({ 'SESSION', 'many', id })
  end
  local ttl = tonumber(ARGV[10])
  session = {
    id = id, owner = ARGV[9], ttl = ttl, created = now, expires = now + ttl, beats = 0,
    blocked = '', ended = '', metadata = ARGV[11], principal = ARGV[13],
  }
  save_session(session)
  return reply(live())
end
if verb == 'clear' then
  local left = 0
  if no_session(id, session) then
    left = clear_session(id, tonumber(ARGV[9]))
  end
  return reply({ 'GONE', '0', int(left) })
end

local refusal = no_session(id, session)
if verb == 'heartbeat' then
  refusal = not_serving(id, session)
end
if refusal then
  return reply(refusal)
end
if verb == 'create' and session.owner ~= ARGV[9] then
  return reply({ 'SESSION', 'other-owner', id, session.owner })
end

if verb == 'heartbeat' then
  session.expires, session.beats = now + session.ttl, session.beats + 1
  save_session(session)
elseif verb == 'end' then
  local count = redis.call('SCARD', bonds)
  session.ended = 'ended'
  save_session(session)
  return reply({ 'GONE', int(count), int(clear_session(id, 256)) })
elseif verb == 'block' and session.blocked == '' then
  session.blocked = ARGV[9]
  save_session(session)
  for _, member in ipairs(redis.call('SMEMBERS', bonds)) do
    local lock, lease = string.match(member, '^w\t([^\t]*)\t(.*)$')
    if lock then
      dequeue({ lock = lock }, lease)
    end
  end
end
local answer = live()
if verb == 'show' then
  local locks = {}
  for _, member in ipairs(redis.call('SMEMBERS', bonds)) do
    locks[#locks + 1] = string.match(member, '^h\t(.*)$')
  end
  table.sort(locks)
  for at = 1, math.min(#locks, 100) do
    local record = load(locks[at], redis.call('GET', prefix .. 'l:' .. locks[at]))
    if record.holder then
      answer[#answer + 1] = locks[at]
      answer[#answer + 1] = record.holder.lease
    end
  end
end
return reply(answer)
