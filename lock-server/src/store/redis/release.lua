-- Ends a lease and hands the lock on, or remembers an id that is not live as ended.
--
-- ARGV[7] lock  [8] lease
--
-- Post:  ENDED lease token reason   it was live
--        LOST reason                it was not; it will never be granted from now on
local record = load(ARGV[7], trusted[3])
local lease = ARGV[8]
settle(record)
if record.holder and record.holder.lease == lease then
  local token = record.holder.token
  finish(record, 'released')
  return reply({ 'ENDED', lease, token, 'released' })
end
local reason = ended_reason(record, lease)
if not reason then
  dequeue(record, lease)
  remember(record, lease, '', 'released', 0, '', '')
  save(record)
  reason = record.holder and 'superseded' or 'expired'
end
return reply({ 'LOST', reason })
