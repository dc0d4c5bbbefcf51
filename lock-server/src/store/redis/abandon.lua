-- A waiter's patience is over: it leaves the queue, unless its grant was quicker.
--
-- ARGV[8] lock  [9] lease  [10...] the other locks of a request for several
--
-- Post:  GRANTED token remaining owner mode | ALL ...   it holds the lock after all
--        LOST reason why                 it was ended meanwhile
--        HELD ... | FREE | PAUSED left   it is out of the queue
--        PART lock ...                   of a request for several, what became of it there
local lease, locks = ARGV[9], { ARGV[8] }
for at = 10, #ARGV do
  locks[#locks + 1] = ARGV[at]
end
local first = record_of(ARGV[8], trusted[3])
hand_over()

local function about(lock, answer)
  return #locks > 1 and { 'PART', lock, unpack(answer) } or answer
end

local grants, live, missing = { 'ALL' }, 0, nil
for _, lock in ipairs(locks) do
  local record = record_of(lock)
  local holder = find(record, lease)
  local reason, why = ended_reason(record, lease)
  if reason then
    return reply(about(lock, { 'LOST', reason, why }))
  end
  missing = missing or (not holder and lock) or nil
  if holder then
    live = live + 1
    confirm(record, holder)
    for _, field in ipairs({ holder.token, remaining(holder), holder.owner, record.mode }) do
      grants[#grants + 1] = field
    end
  end
end
if live == #locks then
  grants[1] = #locks > 1 and 'ALL' or 'GRANTED'
  return reply(grants)
elseif live > 0 then
  return reply(about(missing, { 'LOST', 'superseded', '' }))
end
local waiter = queues().waiter_of(ARGV[8], lease)
local where = waiter and #locks > 1 and queues().waits_for(first, waiter) or ARGV[8]
-- A repeat at another server has moved it there.
if waiter and waiter.server == me then
  queues().leave(waiter)
  hand_over()
end
return reply(about(where, queues().held(record_of(where))))
