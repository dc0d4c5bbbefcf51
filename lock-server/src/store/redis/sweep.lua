-- Settles the locks that are due, at most 64 a call, and the sessions, at most 16 with 64 of their
-- leases each.
--
-- Everything that was due is due at another time afterwards, or not listed any more: the sweep would
-- otherwise find the same ones each time, and from 64 of them on no others.
--
-- Post:  NEXT ms   when the next one is due; empty where none is held
for _, lock in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'held', '-inf', int(now), 'LIMIT', 0, 64)) do
  local readable, record = pcall(record_of, lock)
  if not readable and string.find(record.err or '', 'LINEAGE', 1, true) then
    error(record)
  elseif not readable then
    -- Another version's: whoever asks for it is told. It must not keep the others waiting.
    redis.call('ZADD', prefix .. 'held', now + 60000, lock)
  elseif record.count == 0 then
    redis.call('ZREM', prefix .. 'held', lock)
  else
    -- A pause may have made it due, or a holder that has renewed since. hand_over may have it looked at
    -- earlier than its first holder ends.
    record.look_at = FAR
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'sessions', '-inf', int(now), 'LIMIT', 0, 16)) do
  local session = bonds().session_of(id)
  local over = bonds().no_session(id, session)
  if over and session and session.ended == '' then
    session.ended = over[4]
    save_session(session)
  end
  if over then
    clear_session(id, 64)
  elseif session then
    -- It has its whole time again, after a jump of the clock.
    save_session(session)
  end
end
local answers = reply({ 'NEXT', '' })
local due
for _, list in ipairs({ 'held', 'sessions' }) do
  local first = redis.call('ZRANGE', prefix .. list, 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) < FAR then
    due = math.min(due or FAR, tonumber(first))
  end
end
answers[1][2] = due and int(math.max(due - now, 0)) or ''
return answers
