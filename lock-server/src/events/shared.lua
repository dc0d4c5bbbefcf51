-- Appends a batch of events to the namespace's stream, as one entry, and returns what stands before it. The
-- id of an entry is the life of the numbering, ms since 1970, and the number of the batch's last event: no
-- number is left out.
--
-- KEYS[1] the stream  [2] the id of its last entry  [3] the lineage of the records
-- ARGV[1] the id of the last entry that the caller has  [2] how many entries it takes at most
--     [3] how many events to keep  [4] the server that appends  [5] the number of its batch
--     [6] how many events; nothing is appended where it is 0  [7] the events: a JSON array
-- Post: { the lineage, the id of the last entry before, the new entry's or '', the entries up to the former }
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- MGET takes a key of another type for missing.
local got = redis.call('MGET', KEYS[2], KEYS[3])
local life, number = string.match(got[1] or '', '^(%d+)-(%d+)$')
local reply = { got[2] or '', (life or 0) .. '-' .. (number or 0), '', {} }
if life and reply[2] ~= ARGV[1] then
  reply[4] = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], reply[2], 'COUNT', ARGV[2])
end
if ARGV[6] == '0' then
  return reply
end
if not life then
  redis.call('DEL', KEYS[1])
  life, number = now, 0
end
number = number + ARGV[6]
local id = life .. '-' .. string.format('%.0f', number)
reply[3] = id
redis.call('XADD', KEYS[1], id, 't', now, 'o', ARGV[4], 'b', ARGV[5], 'n', ARGV[6], 'e', ARGV[7])
redis.call('SET', KEYS[2], id)
if number > tonumber(ARGV[3]) then
  redis.call('XTRIM', KEYS[1], 'MINID', life .. '-' .. string.format('%.0f', number - ARGV[3]))
end
return reply
