-- Commits groups of writes, each under the condition that what it was decided on has not changed.
-- head.lua stands before this, and describes the records and KEYS.
--
-- ARGV[9] how many of the records are locks: these come first
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
-- Post: { counter before, now, { group, value, items... } of each group that was refused }; items of another
--       type are '?'
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
        local has_items = got[j] and j <= 6 + argv[9] and sub(got[j], 24, 24) == '1'
        local items = has_items and redis.pcall('ZRANGE', keys[j] .. '#', 0, -1)
        refused[#refused + 1] = got[j]
        refused[#refused + 1] = items and items.err and '?' or items
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
