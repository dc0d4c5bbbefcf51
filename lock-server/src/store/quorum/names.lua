-- Some of the locks that the node has a record of, held or not: after common.lua. Writes nothing.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] view [4] members [5] the cursor, 0 at first
--        [6] the pattern of the records' keys [7] how many bytes of a key come before the name
--        [8] about how many keys to look at
--
-- Post:  NAMES cursor name...        cursor 0 at the end; a name may come twice
local found = redis.call('SCAN', ARGV[5], 'MATCH', ARGV[6], 'COUNT', ARGV[8])
local answer = { 'NAMES', found[1] }
for _, key in ipairs(found[2]) do
  answer[#answer + 1] = string.sub(key, tonumber(ARGV[7]) + 1)
end
return answer
