-- Uses up a token that no lease gets: after common.lua.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] bucket [7] token
--
-- Post:  RAISED p                    p is that token
--        LOW p                       the token is not above p; nothing changed
if tonumber(ARGV[7]) <= accepted then
  return { 'LOW', accepted }
end
redis.call('HSET', KEYS[1], 'p' .. ARGV[6], ARGV[7])
return { 'RAISED', ARGV[7] }
