-- Sessions, as far as every script knows them.
--
-- Lua makes a function anew each time that a script passes it. What most calls have no use for is
-- therefore inside functions that make it when it is asked for: this one, and queues().
local made_bonds

local function make_bonds()
  local known, bonds = {}, {}

  local function take_in(id, raw)
    local owner, ttl, created, expires, beats, blocked, ended, metadata, principal =
      string.match(raw or '', '^' .. string.rep('([^\t]*)\t', 7) .. '([^\t]*)\t?(.*)$')
    known[id] = owner and {
      id = id, owner = owner, ttl = tonumber(ttl), created = tonumber(created),
      expires = tonumber(expires), beats = tonumber(beats), blocked = blocked, ended = ended,
      metadata = metadata, principal = principal,
    } or false
    if owner and ended == '' and whole_since > 0 then
      known[id].expires = math.max(known[id].expires, whole_since + known[id].ttl)
    end
  end

  -- Checks that a session which is not stored any more has ended: one that lived is listed at the time
  -- when it must be looked at, one that has ended at 0, until all that was bound to it is cleared away.
  function bonds.has_ended(id)
    local due = redis.call('ZSCORE', prefix .. 'sessions', id)
    if not due or tonumber(due) > now - 60000 then
      redis.call('ZADD', prefix .. 'sessions', 0, id)
      not_as_left('session ' .. id .. ' is gone')
    end
  end

  -- The session with this id, or false. Its `expires` is what its leases live by: no lease has a
  -- moment of its own, so that a heartbeat writes this one record.
  function bonds.session_of(id)
    if known[id] == nil then
      take_in(id, redis.call('MGET', prefix .. 'S:' .. id)[1])
    end
    return known[id]
  end

  function bonds.know(session)
    known[session.id] = session
  end

  -- Why a session does not live, as an answer; nil where it does.
  function bonds.no_session(id, session)
    if not session then
      if redis.call('ZSCORE', prefix .. 'sessions', id) then
        bonds.has_ended(id)
      end
      return { 'SESSION', 'unknown', id }
    elseif session.ended ~= '' then
      return { 'SESSION', 'ended', id, session.ended }
    elseif session.expires <= now then
      return { 'SESSION', 'ended', id, session.blocked ~= '' and 'blocked' or 'expired' }
    end
  end

  -- Reads the sessions of many holders in one call; gives `no_session`.
  function bonds.read(holders)
    local ids, keys = {}, {}
    for _, holder in ipairs(holders) do
      local id = holder.session
      if id ~= '' and known[id] == nil then
        known[id] = false
        ids[#ids + 1], keys[#keys + 1] = id, prefix .. 'S:' .. id
      end
    end
    if #keys > 0 then
      for at, raw in ipairs(redis.call('MGET', unpack(keys))) do
        take_in(ids[at], raw)
      end
    end
    return bonds.no_session
  end

  -- Why a session takes no heartbeat and no lease, as an answer; nil where it does.
  function bonds.not_serving(id, session)
    local refusal = bonds.no_session(id, session)
    if not refusal and session.blocked ~= '' then
      refusal = { 'SESSION', 'blocked', id, session.blocked, int(session.expires - now) }
    end
    return refusal
  end

  -- Why a request in the name of a session is refused that asks for `more` leases; nil where it is
  -- not.
  function bonds.refuses(id, owner, more, most)
    local session = bonds.session_of(id)
    local refusal = bonds.not_serving(id, session)
    if not refusal and session.owner ~= owner then
      refusal = { 'SESSION', 'other-owner', id, session.owner }
    end
    if not refusal and more > 0 and redis.call('SCARD', prefix .. 'b:' .. id) + more > most then
      refusal = { 'SESSION', 'full', id }
    end
    return refusal
  end

  function bonds.bond(session, kind, lock, lease)
    if session ~= '' then
      redis.call('SADD', prefix .. 'b:' .. session, kind .. '\t' .. lock .. '\t' .. lease)
    end
  end

  function bonds.unbond(session, kind, lock, lease)
    if session ~= '' then
      redis.call('SREM', prefix .. 'b:' .. session, kind .. '\t' .. lock .. '\t' .. lease)
    end
  end

  return bonds
end

local function bonds()
  made_bonds = made_bonds or make_bonds()
  return made_bonds
end
