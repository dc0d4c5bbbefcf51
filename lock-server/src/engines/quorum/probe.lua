-- Replies with what the node knows of itself. Writes nothing.
--
-- KEYS   meta
--
-- Post:  LOOK now 0                  nothing
--        LOOK now 1 format cluster n view members node state run_id floor ready_at covered
--        and then a bucket and its highest token for each that has one
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
if #all == 0 then
  return { 'PROBE', now, 0 }
end
local fields, buckets = {}, {}
for at = 1, #all, 2 do
  local bucket = string.match(all[at], '^p(%d+)$')
  if bucket then
    buckets[#buckets + 1], buckets[#buckets + 2] = bucket, all[at + 1]
  else
    fields[all[at]] = all[at + 1]
  end
end
local answer = { 'PROBE', now, 1 }
for _, name in ipairs({
  'format', 'cluster', 'n', 'view', 'members', 'node', 'state', 'run_id', 'floor', 'ready_at', 'covered',
}) do
  answer[#answer + 1] = fields[name] or ''
end
for _, field in ipairs(buckets) do
  answer[#answer + 1] = field
end
return answer
