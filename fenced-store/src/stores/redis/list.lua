-- A page of marks in the order of their locks' names. Writes nothing.
-- KEYS[1], KEYS[2] as in fence.lua.
-- ARGV[1]  first name, with its bracket: "[name" or "(name"
-- ARGV[2]  end of the names, with its bracket, or "+"
-- ARGV[3]  maximum number
-- Returns lock, mark, lock, mark, …
local locks = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
local page = {}
for _, lock in ipairs(locks) do
  page[#page + 1] = lock
  page[#page + 1] = redis.call('HGET', KEYS[1], lock) or ''
end
return page
