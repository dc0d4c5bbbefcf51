-- Commits groups of writes, each under the condition that what it was decided on has not changed.
-- No function is created here: Redis would create it anew at every call.
--
-- KEYS[1] lineage  [2] token  [3] paused-for  [4] lives-until  [5] absent, which is never written: a
--         cluster runs no script while its slot moves to another node  [6] clock-ahead
--         [7...] the records, locks first
-- ARGV[1] the lineage that the caller verified  [2] the highest counter that it saw
--     [3] tokens taken  [4] the counter that they are above, which is higher than this one where
--         another batch of the caller is still on its way
--     [5] for how long a lease of this batch may live, ms; 0 where that is known here
--     [6] the latest time that this Redis can show by the caller's clock, ms since 1970
--     [7] the earliest  [8] how many of the records are locks
--     [9] '1' where the caller knows of the pause, and takes tokens for no lease
--     [10...] operations; `k` is the place of a record in KEYS from 7 on, counted from 1
--
-- Operations that begin a group and refuse it:
--   ? n length not_before before (k version)*n  the records have these versions ('' for none), and the
--                         time is within the bounds; else the next `length` arguments are skipped
--   A k version NEW VALUE px      the same for one record without bounds, and replaces it
-- Operations of a group:
--   P k NEW VALUE px      replaces a record, which is forgotten after px ms ('' for never)
--   D k                   removes it and its items
--   + k name value        adds or replaces an item  - k name     removes one
--   N channel message     notifies a server
--
-- Post: { counter before, now, { group, value, items... } of each group that was refused }
--       LINEAGE, CLOCK, PAUSED, EXHAUSTED, FOREIGN: nothing was changed
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
local missing = {}
for k = 7, #keys do
  if not got[k] then
    missing[#missing + 1] = keys[k]
  elseif #got[k] < 24 then
    return redis.error_reply('FOREIGN ' .. keys[k] .. ' is no record')
  end
end
for from = 1, #missing, 4000 do
  if call('EXISTS', unpack(missing, from, math.min(#missing, from + 3999))) > 0 then
    return redis.error_reply('FOREIGN a key of a record is of another type: one of '
      .. table.concat(missing, ' ', 1, math.min(#missing, 20)))
  end
end
if tokens > 0 then
  if got[3] and argv[10] and argv[9] ~= '1' then
    local left = call('PTTL', keys[3])
    if left > tonumber(got[3]) then
      -- The clock went back.
      left = tonumber(got[3])
      call('PEXPIRE', keys[3], left)
    end
    return redis.error_reply('PAUSED ' .. math.max(left, 1))
  end
  local base = math.max(counter, tonumber(argv[4]))
  if base + tokens > 999999999999999 then
    return redis.error_reply('EXHAUSTED no token is left')
  end
  -- The first write: where Redis refuses to write, nothing was changed.
  local taken = redis.pcall('INCRBY', keys[2], string.format('%.0f', base + tokens - counter))
  if type(taken) == 'table' and taken.err then
    return string.find(taken.err, 'not an integer', 1, true)
      and redis.error_reply('LINEAGE the counter is no number') or taken
  end
  counter = base
end
if argv[5] ~= '0' and now + argv[5] > (tonumber(got[4] or '') or 0) then
  call('SET', keys[4], string.format('%.0f', now + argv[5]), 'PX', argv[5])
end
local base, reply, group = string.format('%015.0f', counter), { counter, now }, 0
local at, stop = 10, #argv
while at <= stop do
  local op, k = argv[at], nil
  if op == 'A' or op == '?' then
    local from, to, length, fits = at + 1, at + 1, 3, true
    if op == '?' then
      from, to, length = at + 5, at + 3 + 2 * argv[at + 1], argv[at + 2]
      fits = now >= tonumber(argv[at + 3]) and now < tonumber(argv[at + 4])
    end
    for i = from, to, 2 do
      local had = got[argv[i] + 6]
      fits = fits and (had and sub(had, 1, 8) or '') == argv[i + 1]
    end
    at, group = to + 2, group + 1
    if not fits then
      local refused = { group }
      for i = from, to, 2 do
        local j = argv[i] + 6
        local has_items = got[j] and j <= 6 + argv[8] and sub(got[j], 24, 24) == '1'
        refused[#refused + 1] = got[j]
        refused[#refused + 1] = has_items and call('ZRANGE', keys[j] .. '#', 0, -1)
      end
      reply[#reply + 1], at = refused, at + length
    elseif op == 'A' then
      k = argv[from] + 6
    end
  elseif op == 'P' then
    at, k = at + 2, argv[at + 1] + 6
  elseif op == '+' then
    local j, name = argv[at + 1] + 6, argv[at + 2]
    local key, had = keys[j], got[j]
    if had and sub(had, 24, 24) == '1' then
      call('ZREMRANGEBYLEX', key .. '#', '[' .. name .. '\0', '(' .. name .. '\1')
      call('ZADD', key .. '#', 0, name .. '\0' .. argv[at + 3])
    elseif had then
      -- What stands there belonged to a record that was deleted by hand.
      call('DEL', key .. '#')
      call('SETRANGE', key, 23, '1')
      got[j] = sub(had, 1, 23) .. '1' .. sub(had, 25)
      call('ZADD', key .. '#', 0, name .. '\0' .. argv[at + 3])
      local left = call('PTTL', key)
      if left >= 0 then
        call('PEXPIRE', key .. '#', math.max(left, 1))
      end
    end
    at = at + 4
  elseif op == '-' then
    local key, name = keys[argv[at + 1] + 6], argv[at + 2]
    call('ZREMRANGEBYLEX', key .. '#', '[' .. name .. '\0', '(' .. name .. '\1')
    at = at + 3
  elseif op == 'D' then
    local j = argv[at + 1] + 6
    call('UNLINK', keys[j], keys[j] .. '#')
    got[j], at = false, at + 2
  elseif op == 'N' then
    call('PUBLISH', argv[at + 1], argv[at + 2])
    at = at + 3
  end
  if k then
    local key, has_items, px = keys[k], 0, argv[at + 2]
    if got[k] and sub(got[k], 24, 24) == '1' then
      if px ~= '' then
        has_items = call('PEXPIRE', key .. '#', px)
      else
        call('PERSIST', key .. '#')
        has_items = call('EXISTS', key .. '#')
      end
    end
    local value = argv[at] .. base .. has_items .. argv[at + 1]
    if px ~= '' then
      call('SET', key, value, 'PX', px)
    else
      call('SET', key, value)
    end
    got[k], at = value, at + 3
  end
end
return reply
