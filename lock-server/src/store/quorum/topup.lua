-- Tells a node of a lease that a majority holds: after common.lua and lock.lua.
--
-- Pre:   a majority confirmed this lease with this token. Never sent before that.
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] bucket [6] retention, ms [7] lease [8] token
--        [9] what remains of it, ms [10] owner [11] metadata [12] its time to live, ms
--        [13] the attempt that it was granted to, empty after a renewal
--
-- Post:  ACCEPTED p remaining        the lease is live here with this token, for at least so long
--        ENDED | HELD | CONFLICT | YOURS    as for a vote; nothing changed
local id, token, ends = ARGV[7], ARGV[8], now + tonumber(ARGV[9])
local refusal = refused(id, ARGV[10])
if refusal then
  return refusal
elseif live and live.token ~= token then
  return { 'YOURS', live.token, live.expires - now, accepted }
end
accept(token)
if live then
  live.ttl, live.expires = tonumber(ARGV[12]), math.max(live.expires, ends)
else
  live = {
    id = id, token = token, ttl = tonumber(ARGV[12]), granted = now, expires = ends, renewals = 0,
    attempt = ARGV[13], owner = ARGV[10], metadata = ARGV[11],
  }
end
save()
return { 'ACCEPTED', accepted, live.expires - now }
