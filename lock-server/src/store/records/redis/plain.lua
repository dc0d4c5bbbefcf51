-- Commits records that have nothing to do with each other: of each group one lock is read, and at most
-- replaced. So are nearly all batches; the others take commit.lua, which describes the records.
-- No function is created here: Redis would create it anew at every call.
--
-- KEYS[1...6] as in commit.lua  [7...] the records, all of them different
-- ARGV[1...7] as in commit.lua  [8] '1' where the caller knows of the pause, and takes tokens for no lease
--     [9] the time before which nothing is committed
--     [10...] of each record: its version ('' for none), the time from which on it is not committed ('' for
--             never), the new record as a whole ('' to leave it), after how many ms it is forgotten ('' for
--             never)
-- A new record says that its tokens follow the counter of ARGV[4], and that it has no items.
--
-- Post: as commit.lua
local argv, keys, call, sub = ARGV, KEYS, redis.call, string.sub
local got = call('MGET', unpack(keys))
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
local missing = {}
for k = 7, #keys do
  if not got[k] then
    missing[#missing + 1] = keys[k]
  elseif #got[k] < 24 then
    return redis.error_reply('FOREIGN ' .. keys[k] .. ' is no record')
  end
end
if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
  return redis.error_reply('FOREIGN a key of a record is of another type: one of '
    .. table.concat(missing, ' ', 1, math.min(#missing, 20)))
end
-- The counter that the tokens follow, where it is another one than the records say.
local base = nil
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
  local decided = tonumber(argv[4])
  local from = math.max(counter, decided)
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
  if from ~= decided then
    base = string.format('%015.0f', from)
  end
end
if argv[5] ~= '0' and now + argv[5] > (tonumber(got[4] or '') or 0) then
  call('SET', keys[4], string.format('%.0f', now + argv[5]), 'PX', argv[5])
end
local reply, is_early, at = { counter, now }, now < tonumber(argv[9]), 10
for k = 7, #keys do
  local had, before, value, px = got[k], argv[at + 1], argv[at + 2], argv[at + 3]
  local has_items = had and sub(had, 24, 24) == '1'
  if is_early or (had and sub(had, 1, 8) or '') ~= argv[at]
    or before ~= '' and now >= tonumber(before) then
    reply[#reply + 1] = { k - 6, had, has_items and call('ZRANGE', keys[k] .. '#', 0, -1) }
  elseif value ~= '' then
    if has_items then
      if px ~= '' then
        has_items = call('PEXPIRE', keys[k] .. '#', px)
      else
        call('PERSIST', keys[k] .. '#')
        has_items = call('EXISTS', keys[k] .. '#')
      end
      value = sub(value, 1, 8) .. (base or sub(value, 9, 23)) .. has_items .. sub(value, 25)
    elseif base then
      value = sub(value, 1, 8) .. base .. sub(value, 24)
    end
    if px ~= '' then
      call('SET', keys[k], value, 'PX', px)
    else
      call('SET', keys[k], value)
    end
  end
  at = at + 4
end
return reply
