-- Ends a lease, or takes the votes of one attempt back: after common.lua and lock.lua.
--
-- KEYS   meta, l:<lock>
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] bucket [7] retention, ms [8] lease
--        [9] the reason, or empty to drop  [10] what was said about it; to drop: the attempt
--        [11] the lock  [12] the channel on which "lock TAB lease" is published where it became free
--
-- Post:  ENDEDNOW token owner        it was live; it is not any more, and with a reason is remembered
--        ENDED reason why            it had ended before; nothing changed
--        HELD lease owner token held_ms expires_in p | NOTHING p
--                                    it was not live; with a reason it is remembered as ended
--        KEPT                        to drop: nothing of that attempt is live; nothing changed
local id, reason, said = ARGV[8], ARGV[9], ARGV[10]
local mine = live and live.id == id
if reason == '' and (said == '' or not mine or live.attempt ~= said) then
  return { 'KEPT' }
elseif mine then
  -- First, because a user without the right to it must be refused before anything is written.
  redis.call('PUBLISH', ARGV[12], ARGV[11] .. '\t' .. id)
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
return live and held() or { 'NOTHING', accepted }
