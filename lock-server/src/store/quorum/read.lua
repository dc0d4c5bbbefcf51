-- What the node knows of a lock: after common.lua and lock.lua. Writes nothing.
--
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] bucket [7] retention, not used
--
-- Post:  SEEN p now ended-lines, and where a lease is live:
--        lease token owner held_ms expires_in ttl renewals metadata
local answer = { 'SEEN', accepted, now, ended }
if live then
  for _, field in ipairs({
    live.id, live.token, live.owner, held_ms(live), live.expires - now, live.ttl, live.renewals,
    live.metadata,
  }) do
    answer[#answer + 1] = field
  end
end
return answer
