-- What every commit begins with: is this the Redis, and are these the records, that it was decided on?
-- Is it allowed now? Tokens are taken from the counter. plain.lua or commit.lua follows in the same script.
-- No function is created here: Redis would create it anew at every call.
--
-- KEYS[1] lineage  [2] token  [3] paused-for  [4] lives-until  [5] absent, which is never written: a
--         cluster runs no script while its slot moves to another node  [6] clock-ahead
--         [7...] the records, all of them different
-- ARGV[1] the lineage that the caller verified  [2] the highest counter that it saw
--     [3] tokens taken  [4] the counter that they are above, which is higher than this one where
--         another batch of the caller is still on its way
--     [5] for how long a lease of this batch may live, ms; 0 where that is known here
--     [6] the latest time that this Redis can show by the caller's clock, ms since 1970
--     [7] the earliest  [8] '1' where the caller knows of the pause, and takes tokens for no lease
--     [9] and [10...] are described by what follows
--
-- Post: LINEAGE, CLOCK, PAUSED, EXHAUSTED: nothing was changed
--       else `got` has what the keys hold ('?' for what is no record), `counter` is what the tokens
--       follow, and it is `now`
--
-- A record is a string: version (8 bytes), counter before its tokens (15 digits), '1' where it may have
-- items, the value. Its items are a sorted set beside it, `name NUL value`, and expire with it.
local argv, keys, call, sub = ARGV, KEYS, redis.call, string.sub
local got = call('MGET', unpack(keys, 1, math.min(#keys, 4000)))
for from = 4001, #keys, 4000 do
  for i, value in ipairs(call('MGET', unpack(keys, from, math.min(#keys, from + 3999)))) do
    got[from + i - 1] = value
  end
end
if got[1] ~= argv[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is ' .. (got[1] or 'missing'))
end
local counter, tokens = tonumber(got[2] or ''), tonumber(argv[3])
if not counter or not (counter >= tonumber(argv[2])) then
  return redis.error_reply('LINEAGE the counter fell to ' .. (got[2] or 'nothing'))
end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) - (tonumber(got[6] or '') or 0)
-- Under a clock that jumped, leases look as if they were over that are not, or live too long.
if now > tonumber(argv[6]) or now < tonumber(argv[7]) then
  return redis.error_reply('CLOCK the clock of Redis shows what is not possible')
end
-- What no lock server has written is of no version: it refuses its own group.
local missing = {}
for k = 7, #keys do
  if not got[k] then
    missing[#missing + 1] = keys[k]
  elseif #got[k] < 24 then
    got[k] = '?'
  end
end
for from = 1, #missing, 4000 do
  if call('EXISTS', unpack(missing, from, math.min(#missing, from + 3999))) > 0 then
    for k = 7, #keys do
      -- MGET takes a key of another type for missing.
      got[k] = got[k] or call('EXISTS', keys[k]) > 0 and '?'
    end
    break
  end
end
if tokens > 0 then
  if got[3] and argv[10] and argv[8] ~= '1' then
    local left = call('PTTL', keys[3])
    if left > tonumber(got[3]) then
      -- The clock went back.
      left = tonumber(got[3])
      call('PEXPIRE', keys[3], left)
    end
    return redis.error_reply('PAUSED ' .. math.max(left, 1))
  end
  local from = math.max(counter, tonumber(argv[4]))
  if from + tokens > 999999999999999 then
    return redis.error_reply('EXHAUSTED no token is left')
  end
  -- The first write: where Redis refuses to write, nothing was changed.
  local taken = redis.pcall('INCRBY', keys[2], string.format('%.0f', from + tokens - counter))
  if type(taken) == 'table' and taken.err then
    return string.find(taken.err, 'not an integer', 1, true)
      and redis.error_reply('LINEAGE the counter is no number') or taken
  end
  counter = from
end
if argv[5] ~= '0' and now + argv[5] > (tonumber(got[4] or '') or 0) then
  call('SET', keys[4], string.format('%.0f', now + argv[5]), 'PX', argv[5])
end
