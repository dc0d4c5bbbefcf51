-- What the node knows of a lock. Writes nothing.
--
-- Post:  SEEN p now ended-lines, and where a lease is live:
--        lease token owner held_ms expires_in ttl renewals metadata
local function read()
  read_record()
  local answer = { 'SEEN', accepted(), now, ended }
  if live then
    for _, field in ipairs({
      live.id, live.token, live.owner, held_ms(live), live.expires - now, live.ttl, live.renewals,
      live.metadata,
    }) do
      answer[#answer + 1] = field
    end
  end
  return answer
end

