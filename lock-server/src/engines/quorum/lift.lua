-- Lets every token from now on be above a mark.
--
-- Post:  RAISED p                    p, the mark or above, is the highest token of any bucket, and
--                                    the floor of all where that is higher
local function lift(mark)
  if tonumber(mark) > floor then
    redis.call('HSET', KEYS[1], 'floor', mark)
    floor = tonumber(mark)
  end
  local highest = floor
  local all = redis.call('HGETALL', KEYS[1])
  for at = 1, #all, 2 do
    if string.match(all[at], '^p%d+$') then
      highest = math.max(highest, tonumber(all[at + 1]))
    end
  end
  return { 'RAISED', int(highest) }
end

