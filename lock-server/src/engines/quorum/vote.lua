-- Accepts a token for a lease, or says why not.
--
-- dead   tokens of the lease that can never reach a majority, a comma before and after each
--
-- Post:  ENDED reason why            the id has ended; nothing changed
--        HELD lease owner token held_ms expires_in p   another lease is live; nothing changed
--        CONFLICT owner              the id is another owner's or principal's; nothing changed
--        ACCEPTED p remaining        the lease is live here with this token, now or since before
--        YOURS token remaining p     the lease is live here with another token
--        LOW p                       the token is not above p; nothing changed
local function vote(id, token, ttl, owner, metadata, attempt, dead)
  read_record()
  local refusal = refused(id, owner, metadata)
  if refusal then
    return refusal
  end
  local above = tonumber(token) > accepted()
  local replaces = live and above
    and (live.attempt == attempt or string.find(dead, ',' .. live.token .. ',', 1, true))
  if live and not (replaces and live.token ~= token) then
    if live.attempt ~= attempt then
      -- Two attempts know of it from now on, so that neither may take it back or replace it.
      live.attempt = ''
    end
    save()
    if live.token == token then
      return { 'ACCEPTED', accepted(), live.expires - now }
    end
    return { 'YOURS', live.token, live.expires - now, accepted() }
  elseif not above then
    return { 'LOW', accepted() }
  end
  accept(token)
  live = {
    id = id, token = token, ttl = ttl, granted = now_text, expires = now + ttl, renewals = '0',
    renewer = '', order = '0', attempt = attempt, owner = owner, metadata = metadata,
  }
  save()
  return { 'ACCEPTED', accepted(), tonumber(ttl) }
end

