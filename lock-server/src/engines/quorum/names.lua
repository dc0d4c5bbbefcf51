-- Some of the locks that the node has a record of, held or not: after common.lua. Writes nothing.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] view [4] members [5] node [6] the cursor, 0 at first
--        [7] the pattern of the records' keys [8] how many bytes of a key come before the name
--        [9] about how many keys to look at
--
-- Post:  NAMES cursor name...        cursor 0 at the end; a name may come twice
local refusal = admit()
if refusal then
  return refusal
end
local found = redis.call('SCAN', ARGV[6], 'MATCH', ARGV[7], 'COUNT', ARGV[9])
local answer = { 'NAMES', found[1] }
for _, key in ipairs(found[2]) do
  answer[#answer + 1] = string.sub(key, tonumber(ARGV[8]) + 1)
end
return answer
