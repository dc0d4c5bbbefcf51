-- The waiter behind this id is gone: it leaves its queues, or the grant handed to it is taken back.
--
-- ARGV[8] lock  [9] lease  [10...] the other locks of a request for several
--
-- Post:  FREE   it waits at this server no more, and holds nothing; or it holds a grant that arrived
--               (it was asked for again, or renewed) or that was handed to another server
local lease, locks = ARGV[9], { ARGV[8] }
for at = 10, #ARGV do
  locks[#locks + 1] = ARGV[at]
end
record_of(ARGV[8], trusted[3])
hand_over()
local unheard, arrived = {}, false
for _, lock in ipairs(locks) do
  local record = record_of(lock)
  local holder = find(record, lease)
  if holder and holder.handed == me then
    unheard[#unheard + 1] = { record, holder }
  end
  arrived = arrived or (holder and not holder.handed)
end
for _, one in ipairs(unheard) do
  -- Whoever has shown one lease of a grant has heard of all.
  if arrived then
    confirm(one[1], one[2])
  else
    close(one[1], one[2], 'released')
  end
end
local waiter = queues().waiter_of(ARGV[8], lease)
if waiter and waiter.server == me then
  queues().leave(waiter)
end
return reply({ 'FREE' })
