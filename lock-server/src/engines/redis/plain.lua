-- Commits records that have nothing to do with each other: of each group one lock is read, and at most
-- replaced. So are nearly all batches; the others take commit.lua. head.lua stands before this, and
-- describes the records and KEYS.
--
-- ARGV[9] the time before which nothing is committed
--     [10...] of each record: its version ('' for none), the time from which on it is not committed ('' for
--             never), the new record as a whole ('' to leave it), after how many ms it is forgotten ('' for
--             never)
-- A new record says that its tokens follow the counter of ARGV[4], and that it has no items.
--
-- Post: as commit.lua
-- The counter that the tokens follow, where it is another one than the records say.
local base = tokens > 0 and counter ~= tonumber(argv[4]) and string.format('%015.0f', counter)
local reply, is_early, at = { counter, now }, now < tonumber(argv[9]), 10
for k = 7, #keys do
  local had, before, value, px = got[k], argv[at + 1], argv[at + 2], argv[at + 3]
  local has_items = had and sub(had, 24, 24) == '1'
  if is_early or (had and sub(had, 1, 8) or '') ~= argv[at]
    or before ~= '' and now >= tonumber(before) then
    local items = has_items and redis.pcall('ZRANGE', keys[k] .. '#', 0, -1)
    reply[#reply + 1] = { k - 6, had, items and items.err and '?' or items }
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
