-- A waiter's patience is over: it leaves the queue, unless its grant was quicker.
--
-- ARGV[7] lock  [8] lease
--
-- Post:  GRANTED token remaining owner   it holds the lock after all
--        LOST reason                     it was ended meanwhile
--        HELD ... | FREE                 it is out of the queue
local record = load(ARGV[7], trusted[3])
local lease = ARGV[8]
settle(record)
if record.holder and record.holder.lease == lease then
  confirm(record)
  return reply(granted(record.holder))
end
local reason = ended_reason(record, lease)
if reason then
  return reply({ 'LOST', reason })
end
if waits_here(record, lease) then
  leave(record, lease)
end
return reply(record.holder and held(record) or { 'FREE' })
