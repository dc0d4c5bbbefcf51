-- Ends a lease and hands the lock on, or remembers an id that is not live as ended.
--
-- ARGV[8] lock  [9] lease
--
-- Post:  ENDED lease token reason   it was live
--        LOST reason why            it was not; it will never be granted from now on
local lock, lease = ARGV[8], ARGV[9]
local record = record_of(lock, trusted[3])
hand_over()
local holder = find(record, lease)
if holder then
  close(record, holder, 'released')
  return reply({ 'ENDED', lease, holder.token, 'released' })
end
local answer = lost(record, lease)
if not ended_reason(record, lease) then
  local waiter = record.waiting and queues().dequeue(lock, lease)
  remember(record, lease, '', 'released', 0, waiter and waiter.owner or '', '', '')
end
return reply(answer)
