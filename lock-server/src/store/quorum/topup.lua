-- Tells a node of a lease that a majority holds: after common.lua and lock.lua.
--
-- Pre:   a majority confirmed this lease with this token. Never sent before that.
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] bucket [7] retention, ms [8] lease
--        [9] token [10] what remains of it, ms [11] owner [12] metadata
--        [13] its time to live, ms [14] the attempt that it was granted to, empty after a renewal
--
-- Post:  ACCEPTED p remaining        the lease is live here with this token, for at least so long
--        ENDED | HELD | CONFLICT | YOURS    as for a vote; nothing changed
local id, token, ends = ARGV[8], ARGV[9], now + tonumber(ARGV[10])
local refusal = refused(id, ARGV[11])
if refusal then
  return refusal
elseif live and live.token ~= token then
  return { 'YOURS', live.token, live.expires - now, accepted }
end
accept(token)
if live then
  live.ttl, live.expires = tonumber(ARGV[13]), math.max(live.expires, ends)
else
  live = {
    id = id, token = token, ttl = tonumber(ARGV[13]), granted = now, expires = ends, renewals = 0,
    renewer = '', order = 0,
    attempt = ARGV[14], owner = ARGV[11], metadata = ARGV[12],
  }
end
save()
return { 'ACCEPTED', accepted, live.expires - now }
