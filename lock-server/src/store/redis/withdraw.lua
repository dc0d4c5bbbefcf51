-- The waiter behind this id is gone: it leaves the queue, or the grant handed to it is taken back.
--
-- ARGV[7] lock  [8] lease
--
-- Post:  ENDED lease token reason   the grant was taken back and handed on
--        FREE                       it is not in this server's queue, and holds nothing; or it holds
--                                   a grant that arrived (it was asked for again, or renewed) or
--                                   that was handed to another server
local record = load(ARGV[7], trusted[3])
local lease = ARGV[8]
settle(record)
local holder = record.holder
if holder and holder.lease == lease then
  if holder.handed ~= ':' .. me then
    return reply({ 'FREE' })
  end
  finish(record, 'released')
  return reply({ 'ENDED', lease, holder.token, 'released' })
end
if waits_here(record, lease) then
  leave(record, lease)
end
return reply({ 'FREE' })
