-- Gives a live lease its time again: after common.lua and lock.lua.
--
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] bucket [6] retention, ms [7] lease
--        [8] a new time to live, ms, or 0 for its own
--
-- Post:  RENEWED token owner ttl remaining metadata
--        ENDED reason why            it has ended; nothing changed
--        HELD lease owner token held_ms expires_in p   another lease is live; nothing changed
--        NOTHING p                   it is not known, and nobody holds the lock; nothing changed
local id, ttl = ARGV[7], tonumber(ARGV[8])
if not live or live.id ~= id then
  local reason, why = ended_reason(id)
  if reason then
    return { 'ENDED', reason, why }
  end
  return live and held() or { 'NOTHING', accepted }
end
live.ttl = ttl > 0 and ttl or live.ttl
live.expires, live.renewals, live.attempt = now + live.ttl, live.renewals + 1, ''
save()
return { 'RENEWED', live.token, live.owner, live.ttl, live.ttl, live.metadata }
