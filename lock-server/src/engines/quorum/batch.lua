-- What waits at a lock server for this node, in one call: after common.lua, lock.lua and the operations.
--
-- Each operation is as if it were alone, in this order, all at one moment. One in which a command fails
-- does not touch the others.
--
-- KEYS   meta, and for each operation l:<lock>, or meta where it is about no lock
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] the channel of ends
--        for each operation its word, the bucket, and how long ended ids are remembered, ms; then
--        the arguments of all of them
--
-- Post:  for each operation its reply, which is a refusal of common.lua for all of them alike, or
--        FAILED error                a command failed in it, perhaps after others had written
local operations = {
  vote = vote, topup = topup, renew = renew, finish = finish, read = read, raise = raise, lift = lift,
}
local arguments = { vote = 7, topup = 7, renew = 4, finish = 4, read = 0, raise = 1, lift = 1 }
local count, fields, replies = #KEYS - 1, {}, {}
for at = 1, count do
  fields[at] = 'p' .. ARGV[3 * at + 5]
end
local refusal = admit(unpack(fields))
if refusal then
  for at = 1, count do
    replies[at] = refusal
  end
  return replies
end
floor, covered, p = tonumber(meta[7]), tonumber(meta[8]), {}
for at = 1, count do
  p[ARGV[3 * at + 5]] = tonumber(meta[8 + at] or '0')
end
local from = 3 * count + 7
for at = 1, count do
  key, bucket, retention = KEYS[at + 1], ARGV[3 * at + 5], tonumber(ARGV[3 * at + 6])
  local word = ARGV[3 * at + 4]
  local next = from + arguments[word]
  local done, reply = pcall(operations[word], unpack(ARGV, from, next - 1))
  if not done then
    reply = { 'FAILED', type(reply) == 'table' and reply.err or tostring(reply) }
  end
  replies[at], from = reply, next
end
return replies
