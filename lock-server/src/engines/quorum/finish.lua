-- Ends a lease, or takes the votes of one attempt back.
--
-- reason  empty to drop
-- said    what was said about the end; to drop: the attempt
--
-- ARGV[6] is the channel on which "lock TAB lease" is published where the lock became free.
--
-- Post:  ENDEDNOW token owner        it was live; it is not any more, and with a reason is remembered
--        ENDED reason why            it had ended before; nothing changed
--        HELD lease owner token held_ms expires_in p | NOTHING p
--                                    it was not live; with a reason it is remembered as ended
--        KEPT                        to drop: nothing of that attempt is live; nothing changed
local function finish(id, reason, said, lock)
  read_record()
  local mine = live and live.id == id
  if reason == '' and (said == '' or not mine or live.attempt ~= said) then
    return { 'KEPT' }
  elseif mine then
    -- First, because a user without the right to it must be refused before anything is written.
    redis.call('PUBLISH', ARGV[6], lock .. '\t' .. id)
    local answer = { 'ENDEDNOW', live.token, live.owner }
    if reason ~= '' then
      remember(id, live.token, reason, held_ms(live), now, live.owner, said)
    end
    live = nil
    save()
    return answer
  end
  local how, why = ended_reason(id)
  if how then
    return { 'ENDED', how, why }
  end
  remember(id, '', reason, 0, now, '', said)
  save()
  return live and held() or { 'NOTHING', accepted() }
end

