-- Describes one lock.
--
-- ARGV[7] lock  [8] how many waiters to list
--
-- Post:  FREE | HOLDER lease token ttl held_ms expires_in renewals owner incarnation session
--                 metadata
--        then: now, queue length, ended lines, and three fields a waiter: lease, since, owner
local record = load(ARGV[7], trusted[3])
settle(record)
local answer = { 'FREE', '', '', '', '', '', '', '', '', '', '' }
local holder = record.holder
if holder then
  answer = {
    'HOLDER', holder.lease, holder.token, int(holder.ttl), int(now - holder.granted),
    remaining(holder), int(holder.renewals), holder.owner, holder.incarnation, holder.session,
    holder.metadata,
  }
end
local queue, waiters = prefix .. 'q:' .. record.lock, prefix .. 'w:' .. record.lock
answer[12] = int(now)
answer[13] = int(redis.call('ZCARD', queue))
answer[14] = record.ended
for _, lease in ipairs(redis.call('ZRANGE', queue, 0, tonumber(ARGV[8]) - 1)) do
  local since, owner = string.match(redis.call('HGET', waiters, lease) or '',
    '^[^\t]*\t[^\t]*\t[^\t]*\t([^\t]*)\t([^\t]*)')
  answer[#answer + 1] = lease
  answer[#answer + 1] = since or int(now)
  answer[#answer + 1] = owner or ''
end
return reply(answer)
