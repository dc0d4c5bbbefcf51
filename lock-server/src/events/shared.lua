-- Appends a batch of events to the namespace's stream, as one entry. Its id is the life of the numbering,
-- ms since 1970, and the number of the batch's last event: no number is left out.
--
-- KEYS[1] the stream  [2] the id of its last entry
-- ARGV[1] how many events to keep  [2] the server that appends  [3] the number of its batch
--     [4] how many events  [5] the events: a JSON array
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- MGET takes a key of another type for missing.
local life, number = string.match(redis.call('MGET', KEYS[2])[1] or '', '^(%d+)-(%d+)$')
if not life then
  redis.call('DEL', KEYS[1])
  life, number = string.format('%.0f', now), 0
end
number = number + ARGV[4]
local id = life .. '-' .. string.format('%.0f', number)
redis.call('XADD', KEYS[1], id, 't', string.format('%.0f', now), 'o', ARGV[2], 'b', ARGV[3],
  'n', ARGV[4], 'e', ARGV[5])
redis.call('SET', KEYS[2], id)
if number > tonumber(ARGV[1]) then
  redis.call('XTRIM', KEYS[1], 'MINID', life .. '-' .. string.format('%.0f', number - ARGV[1]))
end
return id
