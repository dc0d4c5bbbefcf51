-- Replaces what remains of a live lease.
--
-- ARGV[7] lock  [8] lease  [9] ttl, ms, or empty for the lease's own
--
-- Post:  GRANTED token remaining owner   the whole time to live remains
--        LOST reason                     the lease is not live; it was not resurrected
--        SESSION bound id                its time is its session's; it gets none of its own
local record = load(ARGV[7], trusted[3])
settle(record)
local holder = record.holder
if not holder or holder.lease ~= ARGV[8] then
  return reply({ 'LOST', ended_reason(record, ARGV[8]) or (holder and 'superseded' or 'expired') })
end
if holder.session == '' then
  holder.ttl = tonumber(ARGV[9]) or holder.ttl
  holder.expires = now + holder.ttl
elseif ARGV[9] ~= '' then
  return reply({ 'SESSION', 'bound', holder.session })
end
holder.renewals = holder.renewals + 1
holder.claim, holder.handed = nil, false
save(record)
return reply(granted(holder))
