-- Shows the time, takes and gives word of leases and of a pause, and begins or lengthens one.
-- It is no part of the scripts that common.lua begins: the time that those refuse is what it settles.
--
-- KEYS[1]  the namespace's lineage id  KEYS[2]  is never written: see common.lua
-- ARGV[1]  the lineage that the caller has verified  [2] key prefix
-- ARGV[3]  for how long a lease may still live that the caller knows of, ms
-- ARGV[4]  for how long nobody is to be granted a lock from now on, ms; 0 begins no pause
--
-- Post:  time  left of the pause  for how long a lease of any server may still live; ms
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('LINEAGE the lineage of this Redis is another one')
end
local now = time_ms()
local lives = in_use(ARGV[2], now, tonumber(ARGV[3]))
local left = pause(ARGV[2], now, tonumber(ARGV[4]), math.max(lives, tonumber(ARGV[4])))
return { int(now), int(left), int(lives) }
