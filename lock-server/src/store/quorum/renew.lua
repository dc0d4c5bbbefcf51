-- Gives a live lease its time again: after common.lua and lock.lua.
--
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] bucket [7] retention, ms [8] lease
--        [9] a new time to live, ms, or 0 for its own [10] the lock server that asks
--        [11] which of its renewals this is: they rise in their order
--
-- Post:  RENEWED token owner ttl remaining metadata
--        ENDED reason why            it has ended; nothing changed
--        HELD lease owner token held_ms expires_in p   another lease is live; nothing changed
--        NOTHING p                   it is not known, and nobody holds the lock; nothing changed
local id, ttl = ARGV[8], tonumber(ARGV[9])
if not live or live.id ~= id then
  local reason, why = ended_reason(id)
  if reason then
    return { 'ENDED', reason, why }
  end
  return live and held() or { 'NOTHING', accepted }
end
-- One that was overtaken on its way by a later one of the same server changes nothing.
local by, order = ARGV[10], tonumber(ARGV[11])
if live.renewer ~= by or order >= live.order then
  live.ttl = ttl > 0 and ttl or live.ttl
  live.expires, live.renewals, live.attempt = now + live.ttl, live.renewals + 1, ''
  live.renewer, live.order = by, order
end
save()
return { 'RENEWED', live.token, live.owner, live.ttl, live.expires - now, live.metadata }
