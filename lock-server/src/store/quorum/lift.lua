-- Lets every token from now on be above a mark: after common.lua.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] no bucket: empty [7] the mark
--
-- Post:  RAISED floor                the floor of all buckets, at the mark or above
if tonumber(ARGV[7]) <= tonumber(meta[6]) then
  return { 'RAISED', meta[6] }
end
redis.call('HSET', KEYS[1], 'floor', ARGV[7])
return { 'RAISED', ARGV[7] }
