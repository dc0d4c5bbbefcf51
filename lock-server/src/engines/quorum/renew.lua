-- Gives a live lease its time again.
--
-- time_ms  a new time to live, ms, or 0 for its own
-- by       the lock server that asks
-- order    which of its renewals this is: they rise in their order
--
-- Post:  RENEWED token owner ttl remaining metadata
--        ENDED reason why            it has ended; nothing changed
--        HELD lease owner token held_ms expires_in p   another lease is live; nothing changed
--        NOTHING p                   it is not known, and no lease is live; nothing changed
local function renew(id, time_ms, by, order)
  read_record()
  if not live or live.id ~= id then
    local reason, why = ended_reason(id)
    if reason then
      return { 'ENDED', reason, why }
    end
    return live and held() or { 'NOTHING', accepted() }
  end
  -- One that was overtaken on its way by a later one of the same server changes nothing.
  local ttl, at = tonumber(time_ms), tonumber(order)
  if live.renewer ~= by or at >= live.order then
    live.ttl = ttl > 0 and ttl or live.ttl
    live.expires, live.renewals, live.attempt = now + live.ttl, live.renewals + 1, ''
    live.renewer, live.order = by, at
  end
  save()
  return { 'RENEWED', live.token, live.owner, live.ttl, live.expires - now, live.metadata }
end

