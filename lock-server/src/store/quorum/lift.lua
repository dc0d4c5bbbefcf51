-- Lets every token from now on be above a mark.
--
-- Post:  RAISED floor                the floor of all buckets, at the mark or above
local function lift(mark)
  if tonumber(mark) > floor then
    redis.call('HSET', KEYS[1], 'floor', mark)
    floor = tonumber(mark)
  end
  return { 'RAISED', floor }
end

