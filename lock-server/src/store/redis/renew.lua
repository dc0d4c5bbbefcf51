-- Replaces what remains of a live lease.
--
-- ARGV[8] lock  [9] lease  [10] ttl, ms, or empty for the lease's own  [11] as ARGV[23] of acquire.lua
--
-- Post:  GRANTED token remaining owner mode   the whole time to live remains
--        UNACKNOWLEDGED token         replicas may lack the grant; nothing changed
--        LOST reason why              the lease is not live; it was not resurrected
--        SESSION bound id             its time is its session's; it gets none of its own
local record = record_of(ARGV[8], trusted[3])
hand_over()
local holder = find(record, ARGV[9])
if not holder then
  return reply(lost(record, ARGV[9]))
end
if is_unacknowledged(holder, ARGV[11]) then
  return reply({ 'UNACKNOWLEDGED', holder.token })
end
if holder.session == '' then
  holder.ttl = tonumber(ARGV[10]) or holder.ttl
  holder.expires = now + holder.ttl
elseif ARGV[10] ~= '' then
  return reply({ 'SESSION', 'bound', holder.session })
end
holder.renewals = holder.renewals + 1
holder.claim, holder.handed = nil, false
put(record, holder)
return reply(granted(record, holder))
