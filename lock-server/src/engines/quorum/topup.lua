-- Gives a node a lease that a majority holds.
--
-- Pre:   a majority confirmed this lease with this token. Never sent before that.
--
-- remaining  what remains of it, ms
-- attempt    the one that it was granted to, empty after a renewal
--
-- Post:  ACCEPTED p remaining        the lease is live here with this token, for at least so long
--        ENDED | HELD | CONFLICT | YOURS    as for a vote; nothing changed
local function topup(id, token, remaining, owner, metadata, ttl, attempt)
  read_record()
  local refusal = refused(id, owner, metadata)
  if refusal then
    return refusal
  elseif live and live.token ~= token then
    return { 'YOURS', live.token, live.expires - now, accepted() }
  end
  accept(token)
  local ends = now + tonumber(remaining)
  if live then
    live.ttl, live.expires = ttl, math.max(live.expires, ends)
  else
    live = {
      id = id, token = token, ttl = ttl, granted = now_text, expires = ends, renewals = '0',
      renewer = '', order = '0', attempt = attempt, owner = owner, metadata = metadata,
    }
  end
  save()
  return { 'ACCEPTED', accepted(), live.expires - now }
end

