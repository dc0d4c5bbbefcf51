-- Takes a grant back that too few replicas have. Nobody was told of it, so that its id may be asked for
-- again: it is not remembered as ended.
--
-- ARGV[8] lock  [9] lease  [10...] the other locks of a request for several
--
-- Post:  FREE   nothing of it lives here
--        KEPT   it lives: it was asked for again or renewed, or waited at another server
local lease, locks = ARGV[9], { ARGV[8] }
for at = 10, #ARGV do
  locks[#locks + 1] = ARGV[at]
end
record_of(ARGV[8], trusted[3])
hand_over()
local mine, kept = {}, false
for _, lock in ipairs(locks) do
  local record = record_of(lock)
  local holder = find(record, lease)
  if holder and holder.handed == me then
    mine[#mine + 1] = { record, holder }
  else
    kept = kept or holder
  end
end
for _, one in ipairs(mine) do
  local record, holder = one[1], one[2]
  if kept then
    confirm(record, holder)
  else
    if holder.session ~= '' then
      bonds().unbond(holder.session, 'h', record.lock, lease)
    end
    drop(record, holder)
    touch(record)
  end
end
return reply({ kept and 'KEPT' or 'FREE' })
