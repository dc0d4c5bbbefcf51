-- Accepts a token for a lease, or says why not: after common.lua and lock.lua.
--
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] bucket [7] retention, ms [8] lease
--        [9] token [10] ttl, ms [11] owner [12] metadata [13] attempt
--        [14] tokens of the lease that can never reach a majority, a comma before and after each
--
-- Post:  ENDED reason why            the id has ended; nothing changed
--        HELD lease owner token held_ms expires_in p   another lease is live; nothing changed
--        CONFLICT owner              the id is another owner's; nothing changed
--        ACCEPTED p remaining        the lease is live here with this token, now or since before
--        YOURS token remaining p     the lease is live here with another token
--        LOW p                       the token is not above p; nothing changed
local id, token, ttl = ARGV[8], ARGV[9], tonumber(ARGV[10])
local refusal = refused(id, ARGV[11])
if refusal then
  return refusal
end
local above = tonumber(token) > accepted
local replaces = live and above
  and (live.attempt == ARGV[13] or string.find(ARGV[14], ',' .. live.token .. ',', 1, true))
if live and not (replaces and live.token ~= token) then
  if live.attempt ~= ARGV[13] then
    -- Two attempts know of it from now on, so that neither may take it back or replace it.
    live.attempt = ''
  end
  save()
  if live.token == token then
    return { 'ACCEPTED', accepted, live.expires - now }
  end
  return { 'YOURS', live.token, live.expires - now, accepted }
elseif not above then
  return { 'LOW', accepted }
end
accept(token)
live = {
  id = id, token = token, ttl = ttl, granted = now, expires = now + ttl, renewals = 0,
  renewer = '', order = 0,
  attempt = ARGV[13], owner = ARGV[11], metadata = ARGV[12],
}
save()
return { 'ACCEPTED', accepted, ttl }
