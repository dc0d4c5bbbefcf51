-- Takes a ready node into a newer view, and says what it has accepted up to this moment: after
-- view_change.lua.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] the new view [4] its members
--
-- Post:  BUMPED floor wait, and then a bucket and its highest token for each that has one; wait is
--        for how long it still remembers anything, ms. Also where it is in exactly that view already.
--        or a refusal of view_change.lua
local refusal = move({ ready = true })
if refusal then
  return refusal
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all, fields = redis.call('HGETALL', KEYS[1]), {}
local answer = { 'BUMPED', 0, 0 }
for at = 1, #all, 2 do
  fields[all[at]] = all[at + 1]
  local bucket = string.match(all[at], '^p(%d+)$')
  if bucket then
    answer[#answer + 1], answer[#answer + 2] = bucket, all[at + 1]
  end
end
answer[2], answer[3] = fields.floor, math.max(tonumber(fields.covered) - now, 0)
return answer
