-- Begins, renews, ends, blocks, shows and clears away a session.
--
-- ARGV[8] session  [9] verb  [10] owner, reason of a block, or how many to clear away
-- ARGV[11] ttl, ms  [12] metadata, a JSON text or empty  [13] most sessions
-- ARGV[14] whose it is by the access file, or empty
--
-- Post:  LIVE id owner ttl expires_in age heartbeats blocked bonds metadata principal lock lease ...
--                             it lives; the leases where it was shown
--        GONE bonds left      it has ended with so many bonds, of which so many are to be cleared away
--        SESSION why id ...   it does not live, or does not allow it; nothing changed
local id, verb = ARGV[8], ARGV[9]
local members = prefix .. 'b:' .. id
local session = bonds().session_of(id)

local function live()
  return {
    'LIVE', id, session.owner, int(session.ttl), int(session.expires - now),
    int(math.max(now - session.created, 0)), int(session.beats), session.blocked,
    int(redis.call('SCARD', members)), session.metadata, session.principal,
  }
end

if verb == 'create' and not session then
  local due = redis.call('ZSCORE', prefix .. 'sessions', id)
  if due then
    -- It was forgotten before all that was bound to it was cleared away. That must not live again.
    return reply({ 'SESSION', 'ended', id, due == '0' and 'ended' or 'expired' })
  end
  if redis.call('ZCARD', prefix .. 'sessions') >= tonumber(ARGV[13]) then
    return reply({ 'SESSION', 'many', id })
  end
  local ttl = tonumber(ARGV[11])
  session = {
    id = id, owner = ARGV[10], ttl = ttl, created = now, expires = now + ttl, beats = 0,
    blocked = '', ended = '', metadata = ARGV[12], principal = ARGV[14],
  }
  save_session(session)
  return reply(live())
end
if verb == 'clear' then
  local left = 0
  if bonds().no_session(id, session) then
    left = clear_session(id, tonumber(ARGV[10]))
  end
  return reply({ 'GONE', '0', int(left) })
end

local refusal = bonds().no_session(id, session)
if verb == 'heartbeat' then
  refusal = bonds().not_serving(id, session)
end
if refusal then
  return reply(refusal)
end
if verb == 'create' and session.owner ~= ARGV[10] then
  return reply({ 'SESSION', 'other-owner', id, session.owner })
end

if verb == 'heartbeat' then
  session.expires, session.beats = now + session.ttl, session.beats + 1
  save_session(session)
elseif verb == 'end' then
  local count = redis.call('SCARD', members)
  session.ended = 'ended'
  save_session(session)
  return reply({ 'GONE', int(count), int(clear_session(id, 256)) })
elseif verb == 'block' and session.blocked == '' then
  session.blocked = ARGV[10]
  save_session(session)
  for _, member in ipairs(redis.call('SMEMBERS', members)) do
    local lock, lease = string.match(member, '^w\t([^\t]*)\t(.*)$')
    if lock then
      queues().dequeue(lock, lease)
    end
  end
end
local answer = live()
if verb == 'show' then
  local leases = {}
  for _, member in ipairs(redis.call('SMEMBERS', members)) do
    leases[#leases + 1] = string.match(member, '^h\t(.*)$')
  end
  table.sort(leases)
  for at = 1, math.min(#leases, 100) do
    for field in string.gmatch(leases[at], '[^\t]+') do
      answer[#answer + 1] = field
    end
  end
end
return reply(answer)
