-- How a session is written, and what becomes of what was bound to it.

-- An ended one is remembered for a while, and looked at until nothing is bound to it any more.
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
  bonds().know(session)
end

-- Clears away at most so many of what was bound to a session that does not live. Its leases are
-- over already, for everybody who looks; this hands their locks on. Gives what is left.
local function clear_session(id, most)
  for _, member in ipairs(redis.call('SPOP', prefix .. 'b:' .. id, most)) do
    local kind, lock, lease = string.match(member, '^(.)\t([^\t]*)\t(.*)$')
    if kind == 'w' then
      queues().dequeue(lock, lease)
    end
    record_of(lock)
  end
  local left = redis.call('SCARD', prefix .. 'b:' .. id)
  if left == 0 then
    redis.call('ZREM', prefix .. 'sessions', id)
  end
  return left
end
