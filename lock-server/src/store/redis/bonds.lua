-- Sessions, as far as every script knows them.
local sessions = {}

local function session_from(id, raw)
  local owner, ttl, created, expires, beats, blocked, ended, metadata =
    string.match(raw or '', '^' .. string.rep('([^\t]*)\t', 7) .. '(.*)$')
  sessions[id] = owner and {
    id = id, owner = owner, ttl = tonumber(ttl), created = tonumber(created),
    expires = tonumber(expires), beats = tonumber(beats), blocked = blocked, ended = ended,
    metadata = metadata,
  } or false
end

-- The session with this id, or false. Its `expires` is what its leases live by: no lease has a
-- moment of its own, so that a heartbeat writes this one record.
local function session_of(id)
  if sessions[id] == nil then
    session_from(id, redis.call('GET', prefix .. 'S:' .. id))
  end
  return sessions[id]
end

-- Reads the sessions of many holders in one call.
local function know_sessions(holders)
  local ids, keys = {}, {}
  for _, holder in ipairs(holders) do
    local id = holder.session
    if id ~= '' and sessions[id] == nil then
      sessions[id] = false
      ids[#ids + 1], keys[#keys + 1] = id, prefix .. 'S:' .. id
    end
  end
  if #keys > 0 then
    for at, raw in ipairs(redis.call('MGET', unpack(keys))) do
      session_from(ids[at], raw)
    end
  end
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

-- Why a request in the name of a session is refused that asks for `more` leases; nil where it is not.
local function session_refuses(id, owner, more, most)
  if id == '' then
    return nil
  end
  local session = session_of(id)
  local refusal = not_serving(id, session)
  if not refusal and session.owner ~= owner then
    refusal = { 'SESSION', 'other-owner', id, session.owner }
  end
  if not refusal and more > 0 and redis.call('SCARD', prefix .. 'b:' .. id) + more > most then
    refusal = { 'SESSION', 'full', id }
  end
  return refusal
end

local function bond(session, kind, lock, lease)
  if session ~= '' then
    redis.call('SADD', prefix .. 'b:' .. session, kind .. '\t' .. lock .. '\t' .. lease)
  end
end

local function unbond(session, kind, lock, lease)
  if session ~= '' then
    redis.call('SREM', prefix .. 'b:' .. session, kind .. '\t' .. lock .. '\t' .. lease)
  end
end
