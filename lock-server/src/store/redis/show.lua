-- Describes one lock.
--
-- ARGV[8] lock  [9] how many waiters to list  [10] how many leases
--
-- Post:  LOCK kind, live leases, how long the longest closed place stays closed or empty, of the
--        first closed place: owner token held_ms expires_in, or four times empty; now, queue length,
--        ended lines, how many leases follow; then eleven fields a lease: lease token ttl held_ms
--        expires_in renewals owner incarnation session metadata mode; four a waiter: lease since
--        owner mode
local record = record_of(ARGV[8], trusted[3])
hand_over()
local queue = prefix .. 'q:' .. record.lock
local leases, shown, longest = {}, 0, nil
local closed = { '', '', '', '' }
for _, holder in ipairs(all(record)) do
  if holder.closed and not holder.gone then
    closed = longest and closed
      or { holder.owner, holder.token, int(held_ms(holder)), remaining(holder) }
    longest = math.max(longest or 0, holder.expires - now)
  elseif not holder.gone and shown < tonumber(ARGV[10]) then
    shown = shown + 1
    for _, field in ipairs({
      holder.key, holder.token, int(holder.ttl), int(held_ms(holder)), remaining(holder),
      int(holder.renewals), holder.owner, holder.incarnation, holder.session, holder.metadata,
      record.mode,
    }) do
      leases[#leases + 1] = field
    end
  end
end
local answer = {
  'LOCK', record.kind, int(record.count - record.closed), longest and int(longest) or '', closed[1],
  closed[2], closed[3], closed[4], int(now), int(redis.call('ZCARD', queue)), record.ended, int(shown),
}
for _, field in ipairs(leases) do
  answer[#answer + 1] = field
end
for _, lease in ipairs(redis.call('ZRANGE', queue, 0, tonumber(ARGV[9]) - 1)) do
  local waiter = queues().waiter_of(record.lock, lease)
  if waiter then
    for _, field in ipairs({ lease, waiter.since, waiter.owner, waiter.mode }) do
      answer[#answer + 1] = field
    end
  end
end
return reply(answer)
