-- Ends one live lease, or all of them and what keeps the lock closed; hands the lock on.
--
-- ARGV[8] lock  [9] lease, or empty for all  [10] what the holders are told, or empty
--
-- Post:  REVOKED lease token ...   what was live, the oldest first; nothing but a delay where empty
--        LOST reason why           that lease is not live
--        FREE                      nobody held the lock
local record = record_of(ARGV[8], trusted[3])
hand_over()
local answer = { 'REVOKED' }
local function revoke(holder)
  answer[#answer + 1], answer[#answer + 2] = holder.key, holder.token
  close(record, holder, 'revoked', ARGV[10])
end
if ARGV[9] ~= '' then
  local holder = find(record, ARGV[9])
  if not holder then
    return reply(lost(record, ARGV[9]))
  end
  revoke(holder)
  return reply(answer)
end
if record.count == 0 then
  return reply({ 'FREE' })
end
for _, holder in ipairs(all(record)) do
  -- One that was over before this step is in the list still.
  if holder.closed and not holder.gone then
    drop(record, holder)
    touch(record)
  elseif not holder.gone then
    revoke(holder)
  end
end
return reply(answer)
